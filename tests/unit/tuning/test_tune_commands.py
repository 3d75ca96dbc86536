"""The commands of `llmd-oke tune`, from options to what a person or a script sees."""

import re
import subprocess
import sys

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_bench.deployment import Parallelism
from llmd_bench.files import read_rows, write_rows
from llmd_oke import planning
from tuning_for_tests import LATENCY, answer_of, published, row, run, server_row, tpot

GPT = ["--model", "gpt-oss-120b", "--allow-extrapolation"]
STACK = """\
config:
  llmd-oke:stack:
    cluster: {mode: existing, identifier: here}
    gpuPools:
      - {name: mi300x, shape: BM.GPU.MI300X.8, size: 1}
    release: llm-d-0.9.0
    models:
      - model: gpt-oss-120b
        topology: 4p-tp1-2d-tp2   # by hand
        workload: {inputTokens: 4096, outputTokens: 256}
        slo: {ttftMs: 2000, itlMs: 25}
"""


@pytest.fixture(name="project")
def project_fixture(tmp_path):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.small.yaml").write_text(STACK)
    return tmp_path


def test_tune_rank_json_has_the_best_deployment_basis_sensitivity_and_losers():
    result = answer_of("rank", *GPT, "--slo", "ttft=2000,itl=25,qps=20", "--gpus", "8")
    assert result["best"]["meets_targets"]
    assert result["confidence"]["basis"] == "calibrated"
    assert result["confidence"]["decode_error"] == pytest.approx(0.119)
    assert result["confidence"]["beyond"] == ["decode: contexts of 4,224 tokens, measured up to 130"]
    assert {swing["input"] for swing in result["sensitivity"]} >= {"qps", "ISL"}
    assert result["lost"][0]["why"]


def test_tune_rank_forecasts_more_capacity_with_prefix_cache_hits():
    asked = ["rank", *GPT, "--slo", "itl=25,qps=20", "--gpus", "8"]
    none, half = (answer_of(*asked, "--prefix-hits", share) for share in ("0", "0.5"))
    assert "50% of prompt tokens cached" in half["workload"]
    assert half["best"]["capacity_per_s"] > none["best"]["capacity_per_s"]


def test_tune_rank_exits_with_1_if_nothing_meets_the_targets():
    result = run("rank", *GPT, "--slo", "itl=1,qps=45", "--gpus", "8")
    assert result.exit_code == 1
    assert "nothing meets the targets" in result.stdout
    assert "what would have to change" in result.stdout


def test_tune_rank_of_a_stack_uses_its_workload_targets_and_gpus(project):
    result = answer_of("rank", "--stack", "small", "--project", str(project), "--allow-extrapolation")
    assert (result["workload"], result["gpus"]) == ("4096/256", 8)
    assert result["targets"] == {"ttft_s": 2.0, "itl_s": 0.025, "e2e_s": None, "requests_per_s": None}


def test_tune_rank_refuses_unmeasured_contexts_and_names_the_longest_measured_one():
    result = run("rank", "--model", "gpt-oss-120b")
    assert isinstance(result.exception, KitError)
    assert "contexts of 4,224 tokens, measured up to 130" in result.exception.message


@pytest.mark.parametrize("arguments", [(), ("--stack", "s", "--model", "m"), ("--model", "no-such-model")])
def test_tune_rank_without_exactly_one_known_model_or_stack_is_refused(arguments):
    assert isinstance(run("rank", *arguments).exception, KitError)


def test_tune_apply_writes_the_best_topology_and_keeps_comments(project):
    result = run("apply", "--stack", "small", "--project", str(project), "--slo", "qps=15", "--allow-extrapolation")
    assert result.exit_code == 0, result.exception
    text = (project / "stacks" / "Pulumi.small.yaml").read_text()
    assert "# by hand" in text
    assert "topology: 4p-tp1-2d-tp2" not in text
    assert "maxNumSeqs" in text
    assert "+        topology: " in result.stdout


def test_a_dry_run_of_tune_apply_does_not_write_the_stack_file(project):
    arguments = ("--stack", "small", "--project", str(project), "--allow-extrapolation", "--dry-run")
    assert "+        topology: " in run("apply", *arguments).stdout
    assert (project / "stacks" / "Pulumi.small.yaml").read_text() == STACK


def test_tune_apply_refuses_a_topology_that_the_stack_file_cannot_deploy(project):
    path = project / "stacks" / "Pulumi.small.yaml"
    two_nodes = STACK.replace("size: 1}", "size: 2}").replace("4p-tp1-2d-tp2", "agg-tp1-16r")
    path.write_text(two_nodes.replace("release:", "rdma: none\n    release:"))
    before = path.read_text()
    arguments = ("--stack", "small", "--project", str(project), "--allow-extrapolation")
    result = run("apply", *arguments)
    assert isinstance(result.exception, InvalidStack)
    assert path.read_text() == before


def test_tune_import_checks_rows_and_lists_what_it_cannot_read(tmp_path):
    source, target = tmp_path / "runs.jsonl", tmp_path / "rows.jsonl"
    write_rows([row(output_tokens_per_s=2000), row(output_tokens_per_s=2000, max_num_seqs=32)], source)
    source.write_text(source.read_text() + '{"subject": "decode"}\n')
    result = run("import", str(source), "-o", str(target))
    assert result.exit_code == 1
    assert len(read_rows(target)) == 1
    assert f"not read {source}:3: " in result.stderr
    assert "concurrency above max_num_seqs" in result.stderr


def test_tune_import_without_any_row_leaves_its_output_unchanged(tmp_path):
    empty, target = tmp_path / "empty.jsonl", tmp_path / "rows.jsonl"
    empty.write_text("")
    write_rows([row()], target)
    assert isinstance(run("import", str(empty), "-o", str(target)).exception, KitError)
    assert len(read_rows(target)) == 1


def test_tune_fit_names_the_file_that_has_no_rows(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    result = run("fit", str(tmp_path / "empty.jsonl"), "--model", "gpt-oss-120b").exception
    assert "no rows in" in str(result)


def test_a_forecast_that_cannot_be_stored_leaves_the_stack_file_unchanged(project):
    (project / "reports").write_text("")
    result = run("apply", "--stack", "small", "--project", str(project), "--slo", "qps=15", "--allow-extrapolation")
    assert isinstance(result.exception, KitError)
    assert (project / "stacks" / "Pulumi.small.yaml").read_text() == STACK


def test_tune_fit_writes_figures_that_tune_rank_accepts(tmp_path):
    figures = tmp_path / "fit.yaml"
    assert run("fit", "--model", "gpt-oss-120b", "--published", "-o", str(figures)).exit_code == 0
    result = answer_of("rank", *GPT, "--figures", str(figures), "--slo", "itl=25,qps=20", "--gpus", "8")
    assert result["best"] is not None


def test_tune_fit_uses_rows_of_one_chosen_server_setting(tmp_path):
    told = [row(concurrency=4 * n, tpot_ms=tpot(4.0 + n), image="one", block_size=16) for n in (1, 2, 3)]
    others = [item.model_copy(update={"block_size": 128}) for item in told]
    write_rows([*told, *others], tmp_path / "rows.jsonl")
    words = ("fit", str(tmp_path / "rows.jsonl"))
    assert "block size 128 (3 rows), 16 (3 rows)" in str(run(*words).exception)
    chosen = run(*words, "--only", "block_size=16")
    assert chosen.exit_code == 0
    assert "decode of  image one, block size 16" in chosen.output
    assert "is no condition of a row" in str(run(*words, "--only", "color=red").exception)


def test_tune_match_reads_published_measurements_or_those_of_a_file_of_rows(tmp_path):
    result = answer_of("match", "--model", "gpt-oss-120b", "--published")
    assert (result[1]["topology"], round(result[1]["tpsg"])) == ("1p-tp1-1d-tp1", 544)
    write_rows(published().rows(), tmp_path / "rows.jsonl")
    assert len(answer_of("match", str(tmp_path / "rows.jsonl"))) == 24


def test_tune_plot_writes_one_self_contained_file(tmp_path):
    page = tmp_path / "plot.html"
    assert run("plot", *GPT, "--slo", "itl=25,qps=20", "--gpus", "8", "--html", str(page)).exit_code == 0
    text = page.read_text()
    assert "<svg" in text
    assert "calibrated, extrapolated" in text
    assert not re.search(r"""(src|href)=["']http|url\(http|@import""", text)


def test_tune_plot_draws_in_the_terminal_by_default():
    result = run("plot", *GPT, "--slo", "itl=25,qps=20", "--gpus", "8")
    assert "(calibrated)" in result.stdout


def test_forecasts_are_written_as_rows_with_assumed_hits_and_drawn_beside_others(tmp_path):
    rows, svg = tmp_path / "forecast.jsonl", tmp_path / "plot.svg"
    asked = (*GPT, "--slo", "itl=25,qps=20", "--gpus", "8", "--rows", str(rows))
    assert run("rank", *asked, "--prefix-hits", "0.5").exit_code == 0
    first, *others = read_rows(rows)
    assert {told.prefix_cache_hit_share for told in (first, *others)} == {0.5}
    assert first.basis.value == "calibrated"
    assert first.tpsg == pytest.approx(20 * 256 / first.gpus_counted)
    assert run("plot", *asked, "--svg", str(svg)).exit_code == 0
    assert str(first.topology) in svg.read_text()


def test_the_command_line_starts_without_importing_numpy():
    program = "import llmd_oke.cli.main, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.usefixtures("_without_sensitivity")
def test_tune_rank_accepts_a_share_of_prompts_cached_in_host_memory():
    words = ["rank", *GPT, "--slo", "ttft=2000,itl=25,qps=10", "--gpus", "8"]
    assert "the node's memory" not in run(*words).output
    kept = run(*words, "--host-hits", "0.5")
    assert "50% from the nodes' memory" in kept.output
    assert "of prompt tokens from there it pays: without it the best is" in kept.output
    told = answer_of(*words, "--host-hits", "0.5")
    assert told["prompt_ms"]["from_host_memory"] < told["prompt_ms"]["computed"]
    assert told["prompt_ms"]["from_host_memory"] < told["prompt_ms"]["from_disks"]
    assert told["best"]["capacity_per_s"] > answer_of(*words)["best"]["capacity_per_s"]


@pytest.mark.usefixtures("_without_sensitivity")
def test_tune_rank_counts_loading_time_of_a_stacks_kv_cache_in_host_memory(project):
    with_memory = STACK.replace("release: llm-d-0.9.0", "release: llm-d-0.10.0")
    with_memory += "        engine: {kvCache: {hostMemoryGib: 64}}\n"
    (project / "stacks" / "Pulumi.kept.yaml").write_text(with_memory)
    words = ["rank", "--project", str(project), "--allow-extrapolation"]
    kept = run(*words, "--stack", "kept").output
    assert "--host-hits ranks with a share of prompts from there" in kept
    assert "the node's memory" not in run(*words, "--stack", "small").output
    assert "node's disks" not in kept


def test_tune_rank_tells_how_long_a_prompt_takes_from_a_nodes_disks(project):
    on_disks = STACK.replace("release: llm-d-0.9.0", "release: llm-d-0.10.0")
    on_disks += "        engine: {kvCache: {hostMemoryGib: 64, diskGib: 500}}\n"
    on_disks += "    storage: {modelCache: {kind: node-disk}}\n"
    (project / "stacks" / "Pulumi.kept.yaml").write_text(on_disks)
    kept = run("rank", "--project", str(project), "--allow-extrapolation", "--stack", "kept").output
    assert re.search(
        r"read from the node's disks in \d+ ms, (sooner|later) than it is computed, if they read 2 GB/s", kept
    )
    assert re.search(r"writes \d+\.\d GB/s to them", kept)


def test_tune_rank_marks_unmeasured_parallelism_and_tune_apply_refuses_it(project):
    words = ["--project", str(project), "--stack", "small", "--allow-extrapolation"]
    shown = run("rank", *words, "--slo", "qps=20").output
    assert "nothing is measured of" in shown
    assert re.search(r"bound: [\d.]+ requests/s at most; `llmd-oke tune run\s+--size", shown)
    result = answer_of("rank", *words, "--slo", "qps=20")
    assert not result["best"]["bound"]
    assert any(item["deployment"]["bound"] for item in result["lost"])
    only_bounds = run("rank", *words, "--slo", "ttft=2000,itl=10,qps=19").output
    assert "best as far as bounds tell" in only_bounds
    error = run("apply", *words, "--slo", "ttft=2000,itl=10,qps=19").exception
    assert isinstance(error, KitError)
    assert "No servers that were measured meet the targets" in str(error)


def measured(spread, slower=1.0):
    """Return rows of a single server that prefills and decodes as the kit's figures have it, or slower."""
    server, ranks = LATENCY.server(spread), spread.data_parallel_size
    for tokens in (1024, 2048, 4096):
        rate = ranks / (slower * server.prefill_s(tokens))
        lengths = {"input_tokens": tokens, "output_tokens": 1}
        yield server_row(spread, "prefill", **lengths, concurrency=8 * ranks, achieved_requests_per_s=rate)
    for batch in (4, 32, 256):
        lengths = {"input_tokens": 4096, "output_tokens": 256}
        sequences, step_s = batch * ranks, slower * server.decode_step_s(batch, 4224)
        yield server_row(spread, **lengths, concurrency=sequences, output_tokens_per_s=sequences / step_s)


def test_measured_servers_with_data_parallel_ranks_are_ranked_and_applied(project, tmp_path):
    rows = tmp_path / "rows.jsonl"
    whole = Parallelism(1, 8, expert_parallel=True)
    write_rows([*measured(Parallelism(1), slower=4.0), *measured(whole)], rows)
    words = ["--project", str(project), "--stack", "small", "--slo", "itl=30,ttft=3000", "--measurements", str(rows)]
    best = answer_of("rank", *words)["best"]
    assert not best["bound"]
    assert "tp1dp8ep" in best["topology"]
    assert run("apply", *words).exit_code == 0
    (planned,) = planning.plan_stack_file(project, "small").models
    assert str(planned.topology) == best["topology"]
    assert {role.parallelism for role in planned.units[0].roles} <= {whole, Parallelism(1)}


def test_shares_of_prompts_cached_on_gpu_and_host_above_one_together_are_refused():
    refused = run("rank", *GPT, "--prefix-hits", "0.6", "--host-hits", "0.5")
    assert isinstance(refused.exception, KitError)
