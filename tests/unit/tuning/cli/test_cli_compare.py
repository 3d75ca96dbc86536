import json

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Basis, Origin, Quantiles
from llmd_bench.files import write_rows
from llmd_oke.cli.main import app
from llmd_oke.cli.results import parse_hints
from tuning_for_tests import row
from typer.testing import CliRunner


@pytest.fixture
def reports(tmp_path):
    told = {"basis": Basis.CALIBRATED, "origin": Origin(tool="test", config_hash="abcd1234")}
    for day, ttft_ms in enumerate((500.0, 575.0), 1):
        measured = row("end-to-end", **told, topology="2p-tp1-1d-tp2", ttft_ms=Quantiles(p95=ttft_ms))
        write_rows([measured], tmp_path / f"reports/dev/2026030{day}T120000Z/rows.jsonl")
    return tmp_path


def run(reports, *arguments):
    return CliRunner().invoke(app, [*arguments, "--project", str(reports)], env={"COLUMNS": "100"})


def test_compare_reads_the_runs_named_previous_and_latest(reports):
    ended = run(reports, "compare", "dev@previous", "dev@latest", "--json")
    assert ended.exit_code == 0
    (load,) = json.loads(ended.stdout)["loads"]
    assert load["metrics"]["ttft_ms.p95"]["change"] == pytest.approx(0.15)


def test_comparison_tables_state_the_basis_of_figures(reports):
    ended = run(reports, "compare", "dev@previous", "dev@latest")
    assert "A  dev@previous (calibrated)" in ended.output
    assert "TTFT p95 (ms)" in ended.output
    assert "none: one run" in ended.output


def test_compare_exits_with_1_if_a_gate_fails_and_with_0_if_every_gate_holds(reports):
    ended = run(reports, "compare", "dev@previous", "dev@latest", "--fail-on", "ttft_ms.p95>+10%")
    assert ended.exit_code == 1
    assert run(reports, "compare", "dev@previous", "dev@latest", "--fail-on", "ttft_ms.p95>+20%").exit_code == 0


def test_compare_refuses_an_invalid_gate_before_it_reads_any_file(reports):
    ended = run(reports, "compare", "none", "none", "--fail-on", "ttft>+10%")
    assert isinstance(ended.exception, KitError)
    assert "no gate" in ended.exception.message


def test_compare_writes_html_and_markdown_pages(reports):
    files = ["--html", str(reports / "out/c.html"), "--markdown", str(reports / "out/c.md")]
    assert run(reports, "compare", "dev@previous", "dev@latest", *files).exit_code == 0
    assert (reports / "out/c.html").read_text().startswith("<!doctype html>")
    assert (reports / "out/c.md").read_text().startswith("# dev@previous against dev@latest")


def test_compare_refuses_a_reference_to_a_run_that_does_not_exist(reports):
    assert "no result" in run(reports, "compare", "dev@abcf", "dev@latest").exception.message


def test_history_list_prints_benchmark_runs_of_a_stack_newest_first(reports):
    output = run(reports, "history", "list", "--stack", "dev").output
    assert output.index("20260302T120000Z") < output.index("20260301T120000Z")
    assert "abcd1234" in output
    assert "calibrated" in output


def test_history_show_prints_figures_and_basis_of_a_run(reports):
    output = run(reports, "history", "show", "previous", "--stack", "dev").output
    assert "500.0" in output
    assert "calibrated" in output


def test_history_push_copies_a_stacks_runs_to_another_folder(reports):
    ended = run(reports, "history", "push", str(reports / "other"), "--stack", "dev")
    assert "2 runs copied" in ended.output
    assert (reports / "other/dev/20260301T120000Z/rows.jsonl").is_file()


@pytest.mark.parametrize("text", ["gpu", "size=3", "gpus=many", "names=x"])
def test_values_of_the_hint_option_are_parsed_and_unknown_or_invalid_ones_refused(text):
    with pytest.raises(KitError, match="hint"):
        parse_hints([text])
    hints = parse_hints(["gpus=16", "basis=calibrated", "input_tokens=4096"])
    assert (hints.gpus, hints.basis, hints.input_tokens) == (16, Basis.CALIBRATED, 4096)


def test_a_hugging_face_repository_in_results_is_mapped_to_the_catalogues_model():
    assert parse_hints([]).names.models["openai/gpt-oss-120b"] == "gpt-oss-120b"
