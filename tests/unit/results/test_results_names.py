"""Names that others chose: a bucket's writer, a pod, a listing. None of them leaves its folder."""

import gzip
import zlib

import pytest
from http_for_tests import served
from llmd_base import config_maps
from llmd_base.errors import KitError
from llmd_bench.files import Hints, row_json
from llmd_bench.history import FolderStore, copy_runs, runs
from llmd_bench.jobs import smoke as smoke_job
from llmd_bench.load import pod_load
from llmd_oke.operations.load import LoadFolder, LoadMeasurement, store_load
from llmd_pods.prewarm.places import UnsafeNameError, inside
from results_rows import row
from s3_service import Bucket, store_in

TIME = "20260301T120000Z"
ROWS = f"dev/{TIME}/rows.jsonl"


LEADING_OUT = (
    f"dev/{TIME}/../../../outside",
    f"dev/{TIME}//outside",
    f"dev/{TIME}/./outside",
    f"dev/{TIME}/a\\..\\outside",
    f"dev/{TIME}/a\x00b",
    f"dev/{TIME}/a\x1b[2Jb",
    f"dev/{TIME}/a\u202eb",
    f"dev/{TIME}/" + "x" * 256,
)


@pytest.mark.parametrize("name", LEADING_OUT)
def test_a_run_with_a_name_that_leaves_its_folder_is_not_copied_at_all(tmp_path, name):
    class Listed(FolderStore):
        """A store whose listing has one more name, as a bucket's may."""

        def names(self, below):
            return [ROWS, name]

        def read(self, name):
            return row_json(row()).encode()

    target = tmp_path / "history"
    with pytest.raises(KitError, match="the name "):
        copy_runs(Listed(tmp_path), FolderStore(target), "dev", lambda _: None)
    assert not target.exists()
    assert not [path for path in tmp_path.rglob("*") if "outside" in path.name]


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "..", ".", "", "a/../../x", "a\\b", "a\nb", "a/"])
def test_folders_and_buckets_of_results_refuse_file_names_that_leave_them(tmp_path, name):
    for store in (FolderStore(tmp_path / "history"), store_in("https://objects.test")):
        with pytest.raises(KitError, match="the name "):
            store.write(name, b"x")
        with pytest.raises(KitError, match="the name "):
            store.read(name)


@pytest.mark.parametrize("stack", ["..", ".", "a\\b", "a\x00b"])
def test_a_stack_name_that_leaves_its_folder_is_refused(tmp_path, stack):
    (tmp_path / "history").mkdir()
    with pytest.raises(KitError, match="the name "):
        runs(FolderStore(tmp_path / "history"), stack)


def test_results_are_not_written_through_a_symbolic_link(tmp_path):
    outside, target = tmp_path / "outside", tmp_path / "history"
    outside.mkdir()
    target.mkdir()
    (target / "dev").symlink_to(outside)
    with pytest.raises(KitError, match="by a link"):
        FolderStore(target).write(ROWS, b"x")
    assert not list(outside.iterdir())


def test_a_symbolic_link_in_a_history_does_not_expose_files_outside_of_it(tmp_path):
    secret, source = tmp_path / "secret", tmp_path / "source"
    secret.write_text("key")
    FolderStore(source).write(ROWS, row_json(row()).encode())
    (source / f"dev/{TIME}/notes.txt").symlink_to(secret)
    copy_runs(FolderStore(source), FolderStore(tmp_path / "copy"), "dev", lambda _: None)
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_file() and path.read_bytes() == b"key"]
    with pytest.raises(KitError, match="by a link"):
        FolderStore(source).read(f"dev/{TIME}/notes.txt")


def test_circular_symbolic_links_in_a_results_folder_are_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UnsafeNameError, match="by a link"):
        inside(tmp_path, "a/c")


def test_a_bucket_with_an_unsafe_name_is_refused_with_the_name(tmp_path):
    with served(Bucket()) as service:
        service.files[f"kit/{ROWS}"] = row_json(row()).encode()
        service.files[f"kit/dev/{TIME}/../../../evil"] = b"x"
        with pytest.raises(KitError, match=r"invalid path: .*\.\./\.\./\.\./evil"):
            copy_runs(store_in(service.url, "kit"), FolderStore(tmp_path / "history"), "dev", lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../x.json", "/x.json", "a/../../x.json", "a\\x.json", "x\x00.json"])
def test_a_load_pods_result_file_with_a_path_out_of_the_loads_folder_is_refused(tmp_path, name):
    with pytest.raises(KitError, match="The pod's result: the name"):
        store_load(LoadMeasurement((row(),), files={name: "{}"}), LoadFolder(tmp_path / "load", Hints()))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_result_that_decompresses_beyond_a_limit_is_refused(monkeypatch):
    monkeypatch.setattr(config_maps, "MAX_BYTES", 1000)
    with pytest.raises(KitError, match="broken, or larger"):
        config_maps.join_pieces(config_maps.pieces(bytes(1001)))
    assert config_maps.join_pieces(config_maps.pieces(bytes(1000))) == bytes(1000)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", gzip.compress(b"x", mtime=0)[:-1], gzip.compress(b"x", mtime=0) + b"y", zlib.compress(b"x")],
)
def test_a_truncated_compressed_benchmark_result_is_refused(content):
    with pytest.raises(KitError, match="broken, or larger"):
        config_maps.join_pieces([content])
    with pytest.raises(KitError, match="can't be read"):
        smoke_job.unpack(content)


@pytest.mark.parametrize("count", ["1000000000", "33", "0", "-1", "x", "²", ""])
def test_a_load_result_in_an_impossible_number_of_configmaps_is_refused(count):
    with pytest.raises(KitError, match="1 to 32 are possible"):
        config_maps.count_of({config_maps.COUNT_ANNOTATION: count})


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"[" * 100_000, b'{"circumstances": 1, "stages": [{}]}', b'{"stages": 3}']
)
def test_an_invalid_load_result_is_refused_with_an_explanation(content):
    with pytest.raises(KitError, match="can't be read"):
        pod_load.unpack(content)
