import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack, KitError
from llmd_base.row import Basis
from llmd_bench.deployment import Parallelism
from llmd_tuner.simulation.deployment import (
    ClosedLoopArrivals,
    ConstantArrivals,
    PoissonArrivals,
    RecordedTimes,
    RequestClass,
)
from llmd_tuner.simulation.engine import DecodeRun
from llmd_tuner.simulation.result import estimate
from llmd_tuner.simulation.simulation import simulate
from tuning_for_tests import LATENCY, deploy, unloaded_prefill_s

GUIDE = [RequestClass(4096, 256)]
MIXED = [RequestClass(8000, 100, weight=1), RequestClass(1000, 400, weight=3)]


@pytest.mark.parametrize("policy", ["random", "queue", "active"])
@pytest.mark.parametrize("arrivals", [ClosedLoopArrivals(24), ConstantArrivals(12), PoissonArrivals(12)])
def test_equal_seeds_give_equal_simulation_runs(policy, arrivals):
    made = deploy("2p-tp1-2d-tp2", copies=2, policy=policy)
    first, again = (simulate(made, MIXED, arrivals, LATENCY, duration_s=20) for _ in range(2))
    assert first.rows == again.rows


def test_one_seed_gives_simulations_of_every_deployment_the_same_requests():
    """Differences between deployments are then not those of chance."""
    rows = [
        simulate(deploy(topology), MIXED, PoissonArrivals(10), LATENCY, seeds=[7], duration_s=60, window="whole").row
        for topology in ("4p-tp1-2d-tp2", "agg-tp1-8r")
    ]
    assert rows[0].requests == rows[1].requests
    assert rows[0].input_tokens == rows[1].input_tokens


def test_the_result_row_of_a_simulation_is_the_mean_of_runs_that_differ_by_seed():
    result = simulate(deploy("4p-tp1-2d-tp2", copies=2), GUIDE, PoissonArrivals(20), LATENCY, duration_s=30)
    assert len({row.ttft_ms.mean for row in result.rows}) == 3
    row = result.row
    assert (row.basis, row.subject, row.topology, row.copies) == (Basis.CALIBRATED, "end-to-end", "4p-tp1-2d-tp2", 2)
    assert (row.gpus_counted, row.arrival, row.offered_requests_per_s) == (16, "poisson", 20)
    assert row.price_usd_per_hour == pytest.approx(96)
    assert "mean of 3 runs" in row.notes
    assert row.seed is None


def test_latency_quantiles_of_a_simulated_row_ascend():
    row = simulate(deploy("agg-tp2-4r"), MIXED, PoissonArrivals(10), LATENCY, duration_s=60).row
    for part in (row.ttft_ms, row.tpot_ms, row.itl_ms, row.e2e_ms):
        values = [part.min, part.p25, part.p50, part.p75, part.p90, part.p95, part.p99, part.p99p9, part.max]
        assert values == sorted(values)


def test_goodput_is_the_share_of_requests_that_meet_both_targets():
    """All where promises are loose, none where one can't be kept, and the median's half in between."""
    result = simulate(deploy("4p-tp1-2d-tp2"), GUIDE, PoissonArrivals(18), LATENCY, seeds=[0], duration_s=60)
    assert result.goodput_share(60_000, 1000).mean == 1
    assert result.goodput_share(60_000, 1).mean == 0
    assert result.goodput_share(1, 1000).mean == 0
    assert result.goodput_share(result.row.ttft_ms.p50, 1000).mean == pytest.approx(0.5, abs=0.01)


def test_more_simulation_runs_narrow_the_confidence_interval():
    made = deploy("4p-tp1-2d-tp2")
    few, many = (
        simulate(made, GUIDE, PoissonArrivals(18), LATENCY, seeds=range(count), duration_s=40).estimate("ttft_ms.p99")
        for count in (3, 12)
    )
    assert many.half_width < few.half_width
    assert abs(many.mean - few.mean) < few.half_width


def test_three_runs_have_students_t_interval_and_one_run_has_none():
    """4.303 x s / sqrt(3)."""
    result = estimate([1.0, 2.0, 3.0])
    assert (result.mean, result.runs) == (2.0, 3)
    assert result.half_width == pytest.approx(4.303 / 3**0.5)
    assert estimate([1.0]).half_width is None


def test_a_simulated_closed_loop_keeps_its_concurrency():
    row = simulate(deploy("4p-tp1-2d-tp2"), GUIDE, ClosedLoopArrivals(48), LATENCY, duration_s=60).row
    seen = row.achieved_requests_per_s * row.e2e_ms.mean / 1000
    assert row.concurrency == 48
    assert seen == pytest.approx(48, rel=0.03)


def test_a_simulation_run_ends_after_the_given_number_of_requests():
    rows = simulate(deploy("agg-tp2-1r"), GUIDE, ClosedLoopArrivals(8), LATENCY, requests=50, window="whole").rows
    assert [row.requests for row in rows] == [50, 50, 50]


def test_recorded_requests_keep_their_own_prompt_lengths_in_a_simulation():
    """TTFT of prompts that meet an idle server is theirs alone."""
    recorded = RecordedTimes([0.0, 5.0, 10.0])
    sizes = [RequestClass(tokens, 8) for tokens in (1000, 2000, 4000)]
    row = simulate(deploy("agg-tp1-1r"), sizes, recorded, LATENCY, seeds=[0], window="whole").row
    assert row.ttft_ms.max == pytest.approx(1000 * unloaded_prefill_s(LATENCY, 4000))
    assert row.ttft_ms.p50 == pytest.approx(1000 * unloaded_prefill_s(LATENCY, 2000))
    assert row.arrival == "trace"


def test_each_data_parallel_rank_of_a_simulated_server_has_its_own_requests():
    """Two prompts that come together each meet an idle rank."""
    together, made = RecordedTimes([0.0, 0.0]), deploy("agg-tp1dp2-1r", policy="active")
    row = simulate(made, [RequestClass(4000, 8)] * 2, together, LATENCY, seeds=[0], window="whole").row
    alone_s = LATENCY.factors.prefill_overhead_s + LATENCY.prefill_s(4000, 0, Parallelism(1, 2))
    assert row.ttft_ms.max == pytest.approx(1000 * alone_s)


@pytest.mark.parametrize(("block_size", "result"), [(16, 2992), (128, 2944)])
def test_prefill_skips_cached_tokens_in_whole_blocks_only(block_size, result):
    cached = [RequestClass(4000, 8, cached_tokens=3000)]
    made = deploy("agg-tp1-1r", block_size=block_size)
    row = simulate(made, cached, ConstantArrivals(1), LATENCY, seeds=[0], duration_s=10).row
    computing_s = LATENCY.prefill_s(4000 - result, result)
    assert row.ttft_ms.mean == pytest.approx(1000 * (LATENCY.factors.prefill_overhead_s + computing_s))


@pytest.mark.parametrize(("block_size", "together"), [(16, 4), (128, 3)])
def test_a_partly_filled_kv_block_is_not_shared_with_other_requests(block_size, together):
    """Four sequences of 520 tokens are 33 blocks of 16 each, or five of 128."""
    limits = {"block_size": block_size, "key_value_tokens": 4 * 33 * 16}, {"max_num_seqs": together}
    sizes, users = [RequestClass(500, 20)], ClosedLoopArrivals(4)
    by_memory, by_limit = (
        simulate(deploy("agg-tp1-1r", **held), sizes, users, LATENCY, requests=40, seeds=[0], window="whole").row
        for held in limits
    )
    assert by_memory.e2e_ms == by_limit.e2e_ms


def test_larger_kv_blocks_make_simulated_transfers_faster():
    """Prompts come one by one, and hand over sooner by the descriptors that larger blocks save."""
    pairs = [deploy("1p-tp1-1d-tp2", block_size=size) for size in (16, 128)]
    ttft_ms = [simulate(pair, GUIDE, ConstantArrivals(0.5), LATENCY, requests=5).row.ttft_ms.mean for pair in pairs]
    saved_s = LATENCY.key_value_transfer_s(4096, 1, 16) - LATENCY.key_value_transfer_s(4096, 1, 128)
    assert ttft_ms[0] - ttft_ms[1] == pytest.approx(1000 * saved_s)


def test_chunked_prefill_gives_aggregated_servers_longer_itl_tails_than_decode():
    """ITL's p99 has a prompt's whole computation in it."""
    aggregated = simulate(deploy("agg-tp1-8r"), GUIDE, PoissonArrivals(15), LATENCY, duration_s=60).row
    disaggregated = simulate(deploy("4p-tp1-2d-tp2"), GUIDE, PoissonArrivals(15), LATENCY, duration_s=60).row
    assert aggregated.itl_ms.p99 > 150
    assert disaggregated.itl_ms.p99 < 20


def test_requests_beyond_a_simulated_servers_max_num_seqs_or_kv_cache_wait():
    """`max_num_seqs` and KV blocks both hold the batch down, and what waits shows in TTFT."""
    free = simulate(deploy("agg-tp1-1r"), GUIDE, ClosedLoopArrivals(32), LATENCY, duration_s=120).row
    for limits in ({"max_num_seqs": 8}, {"key_value_tokens": 8 * 4352 + 16}):
        held = simulate(deploy("agg-tp1-1r", **limits), GUIDE, ClosedLoopArrivals(32), LATENCY, duration_s=120)
        assert held.use["aggregated"].batch <= 8
        assert held.row.ttft_ms.mean > 3 * free.ttft_ms.mean


def test_transfers_wait_for_the_network_port_of_a_prefill_server():
    """A hundred times slower port than any other part: it sets the rate."""
    slow = replace(LATENCY, hardware=replace(LATENCY.hardware, port_bytes_per_s=1e9))
    row = simulate(deploy("1p-tp1-4d-tp2"), GUIDE, ClosedLoopArrivals(64), slow, duration_s=300).row
    assert row.achieved_requests_per_s == pytest.approx(1 / slow.key_value_transfer_s(4096, 1, 16), rel=0.03)


def test_all_invalid_inputs_of_a_simulation_are_reported_at_once():
    with pytest.raises(InvalidStack) as refused:
        simulate(deploy("agg-tp1-1r"), [RequestClass(0, 5)], PoissonArrivals(0), LATENCY, seeds=[])
    paths = {problem.path for problem in refused.value.problems}
    assert paths == {"workload[0]", "arrivals", "duration_s", "seeds"}
    assert refused.value.verdict == "the load can't be simulated"


def test_simulations_that_no_request_could_end_in_are_refused():
    made = deploy("2p-tp1-1d-tp2")
    alone = replace(made, limits={"prefill": made.limits["prefill"]})
    with pytest.raises(InvalidStack, match="topology"):
        simulate(alone, GUIDE, PoissonArrivals(1), LATENCY, duration_s=10)
    with pytest.raises(InvalidStack, match="doesn't fit its KV cache"):
        simulate(deploy("agg-tp1-1r", key_value_tokens=4000), GUIDE, PoissonArrivals(1), LATENCY, duration_s=1)
    with pytest.raises(KitError, match="longer"):
        simulate(deploy("agg-tp1-1r"), GUIDE, PoissonArrivals(0.001), LATENCY, duration_s=0.001)


@pytest.mark.parametrize("times_s", [[0.0], [2.0, 1.0], [-1.0, 0.0]])
def test_recorded_times_that_do_not_ascend_or_match_the_requests_are_refused(times_s):
    with pytest.raises(InvalidStack, match="times_s"):
        simulate(deploy("agg-tp1-1r"), GUIDE * 2, RecordedTimes(times_s), LATENCY)


SERVER = LATENCY.server(2)
batches = st.integers(1, 256)
contexts = st.integers(200, 20_000)


def ends_s(batch, context, steps):
    """The end of each step, where contexts grow by a token at each."""
    return list(itertools.accumulate(SERVER.decode_step_s(batch, context + step) for step in range(steps)))


@given(batches, contexts, st.integers(1, 200))
@settings(max_examples=50)
def test_a_series_of_decode_steps_ends_after_the_sum_of_their_durations(batch, context, steps):
    run = DecodeRun(SERVER, 0.0, batch, batch * context, steps)
    assert run.end_s == pytest.approx(ends_s(batch, context, steps)[-1])


@given(batches, contexts, st.floats(0, 0.999))
@settings(max_examples=50)
def test_a_simulated_decode_run_tells_which_step_runs_at_a_given_time(batch, context, part):
    run = DecodeRun(SERVER, 0.0, batch, batch * context, 100)
    moment_s = part * run.end_s
    ends = ends_s(batch, context, 100)
    expected = next(step for step, end_s in enumerate(ends, 1) if end_s >= moment_s - 1e-12)
    assert run.steps_until(moment_s) in {expected, expected + 1}  # a moment on an edge may round either way
    assert run.boundary_s(moment_s) >= moment_s


def test_decode_time_is_within_one_percent_when_contexts_outgrow_a_sliding_window():
    """The model bends there; a run takes the straight line between its ends."""
    run = DecodeRun(SERVER, 0.0, 64, 64 * 2, 256)
    assert run.end_s == pytest.approx(ends_s(64, 2, 256)[-1], rel=0.01)
