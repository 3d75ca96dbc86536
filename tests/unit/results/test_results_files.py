import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.errors import KitError
from llmd_base.row import Basis, Origin, Quantiles, Row
from llmd_bench.files import COLUMNS, read_rows, scan_rows, write_rows
from results_rows import row

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")) | st.just(" "), max_size=12)
NUMBERS = st.floats(0, 1e15)
ROWS = st.builds(
    Row,
    subject=st.sampled_from(["end-to-end", "prefill", "decode"]),
    basis=st.sampled_from(Basis),
    model=NAMES,
    gpu=NAMES,
    origin=st.builds(Origin, tool=NAMES, file=st.none() | NAMES, line=st.none() | st.integers(0, 10**6)),
    image=st.none() | NAMES,
    attention_backend=st.none() | NAMES,
    block_size=st.none() | st.integers(1, 256),
    gpus_counted=st.integers(1, 100),
    input_tokens=NUMBERS,
    output_tokens=NUMBERS,
    ttft_ms=st.builds(Quantiles, mean=st.none() | NUMBERS, p50=st.none() | NUMBERS),
    notes=st.lists(TEXTS, max_size=3).map(tuple),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@given(rows=st.lists(ROWS, max_size=3))
def test_written_result_rows_are_read_back_equal(folder, rows):
    for name in ("rows.jsonl", "rows.csv"):
        path = folder / name
        path.unlink(missing_ok=True)
        write_rows(rows, path)
        assert read_rows(path) == rows, name


def test_each_quantile_of_a_result_row_is_a_separate_csv_column():
    assert {"ttft_ms_p50", "e2e_ms_p99p9", "origin_config_hash", "notes"} <= set(COLUMNS)


def test_an_older_result_row_without_server_settings_records_only_its_image(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows([row(image="one")], path)
    assert "block_size" not in path.read_text()
    (result,) = read_rows(path)
    assert {name: value for name, value in result.conditions.items() if value is not None} == {"image": "one"}


def test_invalid_lines_of_a_file_of_result_rows_are_named_and_others_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows([row(), row()], path)
    good = path.read_text().splitlines()
    path.write_text("\n".join([good[0], "{", '{"subject": "end-to-end"}', "", good[1]]))
    result = scan_rows(path)
    assert len(result.rows) == 2
    assert [item.line for item in result.rejected] == [2, 3]
    assert "model: is missing" in result.rejected[1].why


EMPTY = [
    ({"requests": 0}, "no request was sent"),
    ({"duration_s": 0.0}, "it lasted no time"),
    ({"output_tokens_per_s": 0.0, "achieved_requests_per_s": 0.0}, "all its rates are 0"),
]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
@pytest.mark.parametrize(("fields", "why"), EMPTY, ids=["requests", "duration", "rates"])
def test_a_result_row_without_measurements_is_refused_by_file_and_line(tmp_path, name, fields, why):
    path = tmp_path / name
    write_rows([row(), row(**fields)], path)
    result = scan_rows(path)
    assert len(result.rows) == 1
    assert str(result.rejected[0]).startswith(f"{path}:{3 if name.endswith('csv') else 2}: measured nothing: {why}")


def test_a_load_whose_requests_all_failed_is_still_a_measurement(tmp_path):
    path = tmp_path / "rows.jsonl"
    failed = row(output_tokens_per_s=0.0, achieved_requests_per_s=0.0, requests=100, failures=100, duration_s=3.0)
    write_rows([failed], path)
    assert read_rows(path) == [failed]


def test_a_csv_cell_that_is_no_number_is_named_by_its_line(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows([row(), row(input_tokens=123.5)], path)
    path.write_text(path.read_text().replace("123.5", "many"))
    result = scan_rows(path)
    assert len(result.rows) == 1
    assert str(result.rejected[0]).startswith(f"{path}:3: input_tokens")


def test_strict_reading_refuses_files_of_result_rows_that_are_invalid_or_missing(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(KitError, match=r"rows.jsonl:1: is not JSON"):
        read_rows(path)
    with pytest.raises(KitError, match="No such file"):
        read_rows(tmp_path / "none.jsonl")


def test_a_file_that_cannot_be_written_is_an_error_and_no_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KitError, match="can't be made"):
        write_rows([row()], tmp_path / "file" / "rows.jsonl")
    with pytest.raises(KitError, match="can't be written"):
        write_rows([row()], tmp_path)


def test_writing_result_rows_to_a_symbolic_link_keeps_the_link(tmp_path):
    (tmp_path / "rows.jsonl").symlink_to(tmp_path / "real.jsonl")
    write_rows([row()], tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").is_symlink()
    assert read_rows(tmp_path / "real.jsonl") == [row()]
