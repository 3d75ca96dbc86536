from datetime import UTC, datetime

import pytest
from llmd_base.errors import KitError
from llmd_bench.s3 import Keys, s3_store
from s3_service import SECRET, bucket

EXAMPLE = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1")
WHEN = datetime(2013, 5, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_the_published_examples(query, signature):
    """AWS, Signature Calculations for the Authorization Header: examples of GET Bucket Lifecycle and List Objects."""
    headers = EXAMPLE.headers("GET", f"https://examplebucket.s3.amazonaws.com/?{query}", b"", WHEN)
    assert headers["authorization"].endswith(f"Signature={signature}")


@pytest.fixture
def service():
    with bucket() as server:
        yield server


def store(service, prefix="team a", secret=SECRET):
    environment = {
        "AWS_ENDPOINT_URL_S3": service.url,
        "AWS_REGION": "us-ashburn-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": secret,
    }
    return s3_store(f"s3://results/{prefix}", environment)


def test_what_is_written_is_listed_and_read_back_over_several_pages(service):
    files = {f"dev/{name}": name.encode() for name in ("a, b.yaml", "c+d", "e~f", "ü", "<x>&")}
    mine = store(service)
    for name, content in files.items():
        mine.write(name, content)
    assert mine.names("dev") == sorted(files)
    assert {name: mine.read(name) for name in files} == files


def test_other_folders_and_prefixes_are_not_listed(service):
    store(service, "other").write("dev/x", b"")
    mine = store(service)
    mine.write("dev2/x", b"")
    assert mine.names("dev") == []


def test_a_wrong_key_is_refused_with_what_to_check(service):
    with pytest.raises(KitError, match="403 SignatureDoesNotMatch") as caught:
        store(service, secret="other").names("")
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.remedy


def test_a_busy_service_is_an_error_with_its_own_word(service):
    service.status = 503
    with pytest.raises(KitError, match="503 SlowDown"):
        store(service).read("x")


def test_a_service_that_is_not_there_is_an_error(service):
    mine = store(service)
    service.server_close()
    with pytest.raises(KitError, match="does not answer"):
        mine.names("")


def test_what_is_missing_is_named():
    with pytest.raises(KitError) as caught:
        s3_store("s3://results", {"AWS_REGION": "x"})
    assert caught.value.remedy == "Set AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY."


def test_keys_go_over_tls_alone():
    environment = dict.fromkeys(("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "x")
    with pytest.raises(KitError, match="no https address"):
        s3_store("s3://results", {**environment, "AWS_ENDPOINT_URL_S3": "http://storage.example"})


def test_no_secret_is_shown():
    assert "wJalr" not in repr(EXAMPLE)
