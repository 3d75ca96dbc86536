import pytest
from llmd_base.errors import KitError
from llmd_bench.files import Hints, write_rows
from llmd_bench.readers import read, read_all
from llmd_bench.readers.source import gpu_product
from results_rows import NAMES, row


def test_rows_in_the_kits_format_are_read_unchanged_from_one_or_several_files(tmp_path):
    files = [tmp_path / name for name in ("rows.jsonl", "rows.csv")]
    for file in files:
        write_rows([row()], file)
        assert read(file).rows == (row(),)
    assert read_all(files).rows == (row(), row())


def test_results_in_subfolders_are_read_once_even_if_a_link_leads_to_them(tmp_path):
    for name in ("one", "two"):
        write_rows([row()], tmp_path / name / "rows.jsonl")
    (tmp_path / "latest").symlink_to("two")
    (tmp_path / "summary.json").write_text("{}")
    assert len(read(tmp_path).rows) == 2


def test_a_run_stored_as_rows_and_as_a_report_is_read_once(tmp_path):
    write_rows([row()], tmp_path / "rows.jsonl")
    (tmp_path / "benchmark_report,_x.yaml").write_text("{version: '0.1', metrics: {}, scenario: {}}")
    assert read(tmp_path).rows == (row(),)


@pytest.mark.parametrize(
    ("name", "text", "why", "line"),
    [
        ("a.txt", "hello", "is in no known format", None),
        ("a.json", '{\n"a": }', "is not JSON", 2),
        ("a.yaml", "a: b\n  c: [", "is not YAML", 2),
        ("a.yaml", "{version: '0.1', metrics: {latency: 3}, scenario: {}}", "metrics.latency is no mapping", None),
        ("a.yaml", "{version: '0.2', results: {}, run: {time: {duration: soon}}}", "not like PT12.5S", None),
    ],
)
def test_an_unreadable_result_is_reported_with_reason_and_file(tmp_path, name, text, why, line):
    path = tmp_path / name
    path.write_text(text)
    (rejected,) = read(path).rejected
    assert why in rejected.why
    assert (rejected.file, rejected.line) == (str(path), line)


def test_a_missing_result_file_is_an_error_and_a_folder_without_results_rejected(tmp_path):
    with pytest.raises(KitError, match="No such file"):
        read(tmp_path / "none.json")
    assert read(tmp_path).rejected[0].why == "holds no results"


def test_a_result_is_rejected_if_the_topology_given_as_a_hint_is_invalid(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("{version: '0.1', metrics: {requests: {total: 1}}, scenario: {}}")
    assert "is no topology" in read(path, Hints(topology="many")).rejected[0].why


def test_unreadable_result_files_in_a_folder_are_named(tmp_path):
    write_rows([row()], tmp_path / "rows.jsonl")
    for name, text in (("a.yaml", "a: [\n"), ("b.json", '{"x":'), ("c.jsonl", ""), ("requests.jsonl", "")):
        (tmp_path / name).write_text(text)
    result = read(tmp_path)
    assert len(result.rows) == 1
    assert [item.file.rsplit("/", 1)[1] for item in result.rejected] == ["a.yaml", "b.json", "c.jsonl"]


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("AMD-Instinct-MI300X", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA-B200", "B200"),
    ],
)
def test_gpus_are_named_by_product_without_the_vendor(name, product):
    """Boards of a product with other limits keep their names."""
    assert gpu_product(name, NAMES.gpus) == product
