"""Servers with ranks, whole experts and several nodes: their latency, their search, and what is measured of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from llmd_base.row import Row
from llmd_bench.deployment import Parallelism, parse_server_kind
from llmd_bench.files import read_rows, write_rows
from llmd_bench.loads import deployment as deployment_of
from llmd_bench.readers.llm_d_report import topology_of
from llmd_oke import catalogue, config, planning
from llmd_oke.catalogue.latency_figures import figures_text, read_figures
from llmd_oke.config import yaml_files
from llmd_oke.planning.server_choices import accepted_servers
from llmd_tuner import search_inputs
from llmd_tuner.calibration import calibrate
from llmd_tuner.confidence import confine
from llmd_tuner.families import fleet_of_counts
from llmd_tuner.measurements import decode_points, parallelism_of, prefill_points
from llmd_tuner.ranking import rank, simulate_finalists, unmeasured_kinds
from llmd_tuner.row_filters import Rule, inspect_by_model
from llmd_tuner.search import at_loads, kind_named, search
from llmd_tuner.search_inputs import parse_targets
from llmd_tuner.simulation.deployment import PoissonArrivals, RequestClass, deployment
from llmd_tuner.simulation.simulation import simulate
from llmd_tuner.stack_file_edit import StackFileChange, apply_change
from llmd_tuner.workload import parse
from stack_files import model, stack
from tuning_for_tests import (
    FIGURES,
    LATENCY,
    MODEL,
    SHAPE,
    bounds_of,
    question,
    row,
    server_row,
    tuning_values,
    unit_of,
)

TOLERANCES = tuning_values("tolerances")
WHOLE = Parallelism(1, 8, expert_parallel=True)
STACK = stack(model("1p-tp8-1d-tp8", model="deepseek-v3"), nodes=4)


def balanced(latency):
    return replace(latency, factors=replace(latency.factors, expert_imbalance=1.0))


def test_with_expert_parallelism_all_gpus_wait_for_the_busiest_one():
    parts, even = LATENCY.server(Parallelism(1, 8)), balanced(LATENCY).server(WHOLE)
    assert even.prefill_s(4096) == pytest.approx(parts.prefill_s(4096))
    busy, sizes = LATENCY.server(WHOLE), LATENCY.sizes
    longer_s = 4096 * 2 * 0.069 * sizes.expert_parameters / LATENCY.hardware.flops
    longer_s /= LATENCY.factors.prefill_compute_efficiency
    assert busy.prefill_s(4096) - even.prefill_s(4096) == pytest.approx(longer_s)
    assert busy.decode_step_s(64, 4096) > even.decode_step_s(64, 4096)


def test_expert_imbalance_in_a_large_decode_step_adds_compute_but_no_memory_reads():
    even, uneven = balanced(LATENCY).server(WHOLE), LATENCY.server(WHOLE)
    many = 100_000
    compute = LATENCY.factors.decode_flops_factor * 2 * 0.069 * LATENCY.sizes.expert_parameters / LATENCY.hardware.flops
    more_s = uneven.decode_step_s(many, 0) - even.decode_step_s(many, 0)
    assert more_s == pytest.approx(many * compute)


def test_expert_parallelism_on_a_single_gpu_has_no_imbalance():
    assert LATENCY.server(Parallelism(1, expert_parallel=True)).prefill_s(100) == LATENCY.server(1).prefill_s(100)


def test_expert_parameters_of_a_step_exclude_shared_experts():
    known = search_inputs.known_model("deepseek-v3")
    routed = 58 * 256 * 3 * 7168 * 2048  # config.json: layers, experts and matrices of each
    assert bounds_of(known).sizes.expert_parameters == pytest.approx(routed * 8 / 256, rel=0.01)


@pytest.mark.parametrize("name", ["agg-tp1dp8ep", "agg-tp2dp4", "p-tp1-d-tp1dp4ep", "p-tp2dp2ep-d-tp2dp4"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_latency_formulas_for_data_parallel_ranks_agree_with_the_event_simulation(name, share):
    asked = question("", gpus=16)
    result = unit_of(asked, name)
    (at,) = at_loads(asked, result, [result.capacity_per_s * share])
    look = next(simulate_finalists(asked, MODEL, SHAPE, [at], seeds=(1,), duration_s=40))
    assert look.ttft_ratio == pytest.approx(1, abs=TOLERANCES["closed_form_ttft"])
    tolerance = "closed_form_itl_aggregated" if name.startswith("agg") else "closed_form_itl_token_load"
    assert look.itl_ratio == pytest.approx(1, abs=TOLERANCES[tolerance])


def test_eight_data_parallel_ranks_serve_eight_times_the_rate_of_one_rank():
    asked = question("")
    family, kind = kind_named(asked, "agg-tp1dp8ep")
    ranks = family.generating(kind)
    (carried,) = family.most_requests_per_s(fleet_of_counts([(0, 1, 1)], kind))
    assert carried == pytest.approx(ranks.most_requests_per_s * 8)


def of_deepseek(gpus=32, targets="itl=50,ttft=2000"):
    known = search_inputs.known_model("deepseek-v3")
    figures = FIGURES.model_copy(update={"model": "deepseek-v3"})
    load = parse("4096/256")
    choices = accepted_servers(planning.plan_object(STACK), 0, gpus)
    return search_inputs.question_of(known, SHAPE, figures, load, parse_targets(targets), gpus, choices=choices)


def test_a_ranked_deployment_written_to_a_stack_file_is_planned_unchanged():
    text = yaml_files.dump(yaml_files.load(json.dumps({"config": {"llmd-oke:stack": STACK}})), "")
    for found in [*search(of_deepseek()).best_of_families()][::5]:
        after = apply_change(text, 0, StackFileChange(found.topology, found.copies, found.max_num_seqs))
        (planned,) = planning.plan(config.parse(yaml_files.plain(after))).models
        assert (str(planned.topology), len(planned.units)) == (found.topology, found.copies)
        assert planned.gpus == found.gpus


def test_every_searched_deployment_is_planned_with_its_stated_gpus():
    result = search(of_deepseek(targets="qps=1"))
    assert result.size > 500
    for found in list(result.deployments())[::97]:
        document = {**STACK, "models": [model(found.topology, model="deepseek-v3", copies=found.copies)]}
        assert planning.plan_object(document).used_gpus == found.gpus


MEASURED = frozenset(Parallelism(size) for size in (1, 2, 4, 8))


def test_servers_of_unmeasured_parallelism_are_ranked_behind_measured_ones():
    asked, trust = confine(question(), FIGURES, allow_extrapolation=True)
    assert asked.measured == MEASURED
    result = rank(asked, sensitivity=False)
    assert result.best is not None
    assert not result.best.bound
    bound = next(loser for loser in result.losers if loser.deployment.bound and loser.deployment.feasible)
    (kind, *_) = unmeasured_kinds(bound.deployment, asked)
    assert f"tune run --size {kind}" in bound.why
    assert not any("dp" in text for text in trust.beyond)


def test_without_extrapolation_only_servers_of_measured_parallelism_are_searched():
    confined, _ = confine(question(workload="100/50"), FIGURES, allow_extrapolation=False)
    assert set(confined.choices.spreads) == MEASURED


def test_published_sizes_of_deepseek_count_as_measured_with_expert_parallelism():
    asked, _ = confine(of_deepseek(), FIGURES, allow_extrapolation=True)
    assert asked.measured == {Parallelism(size, expert_parallel=True) for size in (4, 8)}


def ranks_row(subject="decode", **changes: object) -> Row:
    return server_row(WHOLE, subject, **{"nodes": None, **changes})


def test_latency_points_of_a_data_parallel_server_are_those_of_one_rank():
    (point,) = decode_points([ranks_row(concurrency=512, output_tokens_per_s=8 * 64 / 0.02)])
    assert (point.parallelism, point.sequences, point.seconds) == (WHOLE, 64, pytest.approx(0.02))
    (prompt,) = prefill_points([ranks_row("prefill", concurrency=8, achieved_requests_per_s=40)])
    assert (prompt.parallelism, prompt.sequences, prompt.seconds) == (WHOLE, 1, pytest.approx(0.2))


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_of_data_parallel_servers_and_older_rows_are_read_back_equal(tmp_path: Path, suffix: str):
    rows = [ranks_row(nodes=1), row()]
    file = tmp_path / f"rows.{suffix}"
    write_rows(rows, file)
    assert read_rows(file) == rows
    if suffix == "jsonl":
        file.write_text(row().model_dump_json(exclude={"data_parallel_size", "expert_parallel", "nodes"}) + "\n")
        assert read_rows(file) == [row()]


def test_row_checks_multiply_the_limits_of_one_server_by_its_data_parallel_ranks():
    prefill = ranks_row("prefill", input_tokens=4096, output_tokens=1, concurrency=8, achieved_requests_per_s=100)
    decode = ranks_row(concurrency=512, output_tokens_per_s=20_000, max_num_seqs=64)
    assert inspect_by_model([prefill, decode]).findings == ()
    beyond = decode.model_copy(update={"max_num_seqs": 32})
    assert [item.rule for item in inspect_by_model([beyond]).findings] == [Rule.MAX_NUM_SEQS]


def rows_of(spread: Parallelism, fixed_s: float):
    factors = replace(LATENCY.factors, decode_fixed_s=((spread, fixed_s),))
    server = replace(LATENCY, factors=factors).server(spread)
    for batch in (4, 32, 256):
        step_s = server.decode_step_s(batch, 130)
        sequences = batch * spread.data_parallel_size
        yield server_row(spread, concurrency=sequences, output_tokens_per_s=sequences / step_s)


def test_fitted_latency_figures_are_stored_by_the_parallelism_of_the_server(tmp_path: Path):
    over = Parallelism(1, 16, True, 2)
    rows = [*rows_of(Parallelism(1), 0.004), *rows_of(WHOLE, 0.006), *rows_of(over, 0.009)]
    figures = calibrate(rows, MODEL, SHAPE, FIGURES).figures
    assert figures.decode.fit is not None
    assert figures.decode.fit.servers == ("tp1", "tp1dp8ep", "tp1dp16ep-2n")
    assert figures.decode.fixed_s == {
        1: pytest.approx(0.004, rel=0.05),
        "tp1dp8ep": pytest.approx(0.006, rel=0.05),
        "tp1dp16ep-2n": pytest.approx(0.009, rel=0.05),
    }
    file = tmp_path / "figures.yaml"
    file.write_text(figures_text(figures))
    read = read_figures(file)
    assert read.decode.fit is not None
    assert read.decode.fit.parallelisms == (Parallelism(1), WHOLE, over)
    fit = read.prefill.fit.model_copy(update={"servers": read.decode.fit.servers})
    alike = read.model_copy(update={"prefill": read.prefill.model_copy(update={"fit": fit})})
    asked, _ = confine(question(), alike, allow_extrapolation=True)
    assert asked.measured is not None
    assert {WHOLE, over} < asked.measured


def test_latency_figures_without_data_parallelism_keep_their_older_file_format():
    rows = [*rows_of(Parallelism(1), 0.004), *rows_of(Parallelism(2), 0.003)]
    figures = calibrate(rows, MODEL, SHAPE, FIGURES).figures
    assert figures.decode.fit is not None
    assert figures.decode.fit.servers == ()
    assert set(figures.decode.fixed_s) == {1, 2}


@pytest.mark.parametrize("text", ["tp8", "tp1dp8", "tp2ep", "tp1dp16ep-2n"])
def test_the_short_name_of_a_servers_parallelism_is_parsed_back(text: str):
    assert parse_server_kind(text).kind == text


@pytest.mark.parametrize("text", ["8", "dp8", "tp0", "tp1dp8ep-0n", "tp1-r"])
def test_an_invalid_short_name_of_a_servers_parallelism_is_reported(text: str):
    with pytest.raises(ValueError, match="no kind of server"):
        parse_server_kind(text)


def loaded(host_tokens: int, rate: float, host_bytes_per_s: float):
    latency = replace(LATENCY, hardware=replace(LATENCY.hardware, host_bytes_per_s=host_bytes_per_s))
    servers = deployment(MODEL, SHAPE, "agg-tp1-1r")
    size = RequestClass(4096, 8, cached_tokens=2048, host_tokens=host_tokens)
    return simulate(servers, [size], PoissonArrivals(rate), latency, duration_s=60).row.ttft_ms.mean


def test_simulated_prompts_are_loaded_from_host_memory_one_after_another():
    slow = LATENCY.sizes.key_value_bytes_per_token * 2048 / 0.1  # a prompt's part takes 100 ms
    at_once, later = loaded(0, 0.5, slow), loaded(2048, 0.5, slow)
    assert later - at_once == pytest.approx(100, rel=0.1)
    assert loaded(2048, 8, slow) - loaded(0, 8, slow) > 120  # its link is busy 80 % of the time


def test_latency_formulas_for_host_memory_agree_with_the_event_simulation():
    asked = question("", gpus=8)
    asked = replace(asked, workload=replace(asked.workload, host_hit_share=0.5))
    result = unit_of(asked, "3p-tp1-1d-tp2")
    (at,) = at_loads(asked, result, [result.capacity_per_s * 0.5])
    look = next(simulate_finalists(asked, MODEL, SHAPE, [at], seeds=(1,), duration_s=60))
    assert look.ttft_ratio == pytest.approx(1, abs=TOLERANCES["closed_form_ttft"])


def test_parallelism_of_rows_without_rank_fields_is_read_from_their_topology():
    told = ranks_row(tensor_parallel_size=None, data_parallel_size=None, expert_parallel=None)
    assert parallelism_of(told.model_copy(update={"topology": "agg-tp1dp8ep-1r"})) == WHOLE
    assert parallelism_of(told) is None
    old = row(tensor_parallel_size=1, topology="agg-tp1dp16ep-1r", gpus_counted=16)
    assert parallelism_of(old) == Parallelism(1, 16, True, 2)
    assert parallelism_of(row()) == Parallelism(2)


def test_the_topology_read_from_a_report_includes_data_and_expert_parallelism():
    spreads = (Parallelism(1, 8, True), Parallelism(2, 4))
    told = zip(("prefill", "decode"), (2, 1), spreads, strict=True)
    assert topology_of(told) == "2p-tp1dp8ep-1d-tp2dp4"


def test_results_of_a_single_server_are_labelled_by_its_parallelism():
    assert deployment_of(ranks_row()) == "tp1dp8ep"
    assert deployment_of(row()) == "tp2"


MIXTURES = [name for name in catalogue.model_names() if search_inputs.known_model(name).architecture.experts]


@pytest.mark.parametrize("name", MIXTURES)
def test_expert_weights_in_memory_equal_their_parameters_times_bytes_of_the_format(name: str):
    known = search_inputs.known_model(name)
    experts, sizes = known.architecture.experts, bounds_of(known).sizes
    assert experts is not None
    assert 0 < sizes.expert_parameters < sizes.prefill_parameters
    bytes_each = sizes.expert_bytes / (sizes.expert_parameters * experts.count / experts.active)
    assert bytes_each == pytest.approx({"bf16": 2.0, "fp8": 1.0}.get(known.weights.format, 0.55), rel=0.07)
