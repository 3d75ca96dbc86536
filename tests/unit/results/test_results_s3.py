import sys

import pytest
from http_for_tests import served
from llmd_base.errors import KitError
from llmd_bench import s3
from llmd_bench.history import open_store
from llmd_bench.s3 import s3_store
from s3_service import Bucket, store_in


@pytest.fixture
def service():
    with served(Bucket()) as server:
        yield server


def test_files_written_to_a_bucket_are_listed_over_several_pages_and_read_back(service):
    files = {f"dev/{name}": name.encode() for name in ("a, b.yaml", "c+d", "e~f", "ü", "<x>&")}
    mine = store_in(service.url)
    for name, content in files.items():
        mine.write(name, content)
    assert mine.names("dev") == sorted(files)
    assert {name: mine.read(name) for name in files} == files


def test_other_prefixes_similar_names_and_objects_that_mark_folders_are_not_listed(service):
    store_in(service.url, "other").write("dev/x", b"")
    mine = store_in(service.url)
    mine.write("dev2/x", b"")
    assert mine.names("dev") == []
    mine.write("dev/run/rows.jsonl", b"x")
    service.files |= {"team a/dev/": b"", "team a/dev/run/": b""}
    assert mine.names("dev") == ["dev/run/rows.jsonl"]


def test_a_wrong_access_key_is_refused_with_what_to_check_and_without_showing_it(service):
    mine = store_in(service.url, secret="wJalrXUt")
    with pytest.raises(KitError, match=r"403 Forbidden.*SignatureDoesNotMatch") as caught:
        mine.names("")
    assert "keys, and this machine's clock" in caught.value.remedy
    assert "wJalr" not in f"{mine!r} {vars(mine)} {caught.value!r} {caught.value.__cause__!r}"


def test_a_missing_object_and_a_busy_object_storage_are_errors_with_the_message(service):
    with pytest.raises(KitError, match=r"404 Not Found.*NoSuchKey"):
        store_in(service.url).read("x")
    service.status = 503
    with pytest.raises(KitError, match=r"s3://results/team a/x: .*503 Service Unavailable.*SlowDown"):
        store_in(service.url).read("x")


def test_an_oversized_object_or_a_bucket_with_too_many_files_is_refused(service, monkeypatch):
    mine = store_in(service.url)
    for name in ("x", "y", "z"):
        mine.write(name, bytes(1000))
    assert mine.read("x") == bytes(1000)
    monkeypatch.setattr(s3, "MAX_REQUEST_BYTES", 999)
    with pytest.raises(KitError, match="is larger than"):
        mine.read("x")
    monkeypatch.setattr(s3, "MAX_FILES", 2)
    with pytest.raises(KitError, match="more than 2 files"):
        mine.names("")


def test_an_unreachable_object_storage_is_an_error():
    with served(Bucket()) as closed:
        mine = store_in(closed.url)
    with pytest.raises(KitError, match="error sending request"):
        mine.names("")


def test_missing_settings_of_a_bucket_are_named_and_keys_sent_only_over_tls():
    with pytest.raises(KitError) as caught:
        s3_store("s3://results", {"AWS_REGION": "x"})
    assert caught.value.remedy == "Set AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY."
    environment = dict.fromkeys(("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "x")
    with pytest.raises(KitError, match="no https address"):
        s3_store("s3://results", {**environment, "AWS_ENDPOINT_URL_S3": "http://storage.example"})


def test_without_the_s3_library_the_python_extra_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "llmd_bench.s3")
    with pytest.raises(KitError, match="A history in a bucket needs obstore") as caught:
        open_store("s3://results")
    assert caught.value.remedy == "Install llmd-oke[s3]."
