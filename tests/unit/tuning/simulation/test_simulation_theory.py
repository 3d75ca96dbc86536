"""The event simulation against what queueing theory says exactly, and against the latency model's own curves."""

import pytest
from llmd_tuner.simulation import system
from llmd_tuner.simulation.deployment import ClosedLoopArrivals, ConstantArrivals, PoissonArrivals, RequestClass
from llmd_tuner.simulation.simulation import simulate
from llmd_tuner.waits import mdc_wait_s
from tuning_for_tests import LATENCY, deploy, unloaded_prefill_s

PROMPT = 4096
PROMPTS_ONLY = [RequestClass(PROMPT, 1)]
GUIDE = [RequestClass(4096, 256)]
SERVICE_S = LATENCY.prefill_s(PROMPT)


def wait_s(result):
    """The mean wait of prompts that are computed one by one: what TTFT has beside overhead and service."""
    return result.row.ttft_ms.mean / 1000 - unloaded_prefill_s(LATENCY, PROMPT)


@pytest.mark.parametrize(
    ("servers", "utilization", "requests"), [(1, 0.4, 20_000), (1, 0.75, 20_000), (4, 0.6, 30_000)]
)
def test_prompts_at_servers_picked_at_random_wait_as_in_separate_m_d_1_queues(servers, utilization, requests):
    """Within 2 %: a step has room for one prompt, so that service is constant."""
    rate = utilization / SERVICE_S
    made = deploy(f"agg-tp1-{servers}r", policy="random", max_num_batched_tokens=PROMPT)
    result = simulate(made, PROMPTS_ONLY, PoissonArrivals(servers * rate), LATENCY, requests=requests)
    assert wait_s(result) == pytest.approx(mdc_wait_s(rate, SERVICE_S, 1), rel=0.02)


def test_prompts_at_servers_picked_by_least_work_wait_as_in_an_m_d_c_queue(monkeypatch):
    """Within 2 %: sending each prompt to the server that is free first is one common queue."""
    free_s = {}

    def least_work(engines, _size, _prefix):
        """Prompts come in the order in which they are sent here, all after the same delay."""
        engine = min(engines, key=lambda item: free_s.get(item, 0.0))
        now_s = engine._calendar.now_s
        free_s[engine] = max(now_s, free_s.get(engine, 0.0)) + SERVICE_S
        return engine

    monkeypatch.setattr(system, "picker", lambda weights, random, filters: least_work)
    four = deploy("agg-tp1-4r", max_num_batched_tokens=PROMPT)
    rate = 0.75 * 4 / SERVICE_S
    result = simulate(four, PROMPTS_ONLY, PoissonArrivals(rate), LATENCY, requests=25_000)
    assert wait_s(result) == pytest.approx(mdc_wait_s(rate, SERVICE_S, 4), rel=0.02)


def test_prompts_at_servers_picked_by_fewest_requests_wait_between_m_d_c_and_m_d_1():
    rate = 0.75 * 4 / SERVICE_S
    four = deploy("agg-tp1-4r", policy="active", max_num_batched_tokens=PROMPT)
    wait = wait_s(simulate(four, PROMPTS_ONLY, PoissonArrivals(rate), LATENCY, seeds=[0], requests=10_000))
    assert mdc_wait_s(rate, SERVICE_S, 4) < wait < mdc_wait_s(rate / 4, SERVICE_S, 1)


def test_prompts_that_arrive_evenly_below_capacity_never_wait():
    """A server that is free when the next prompt comes."""
    one = deploy("agg-tp1-1r", max_num_batched_tokens=PROMPT)
    result = simulate(one, PROMPTS_ONLY, ConstantArrivals(0.99 / SERVICE_S), LATENCY, requests=500)
    assert result.row.ttft_ms.max == pytest.approx(1000 * unloaded_prefill_s(LATENCY, PROMPT))


@pytest.mark.parametrize("topology", ["8p-tp1-4d-tp2", "agg-tp2-8r"])
def test_littles_law_holds_in_the_steady_part_of_a_run(topology):
    """Requests in flight, their rate and their time in the system are counted apart from each other; and the batch that
    decode servers kept over the run, from their rate and the decode time of a request. Operations Research 9, 1961.
    """
    result = simulate(deploy(topology), GUIDE, PoissonArrivals(30), LATENCY, seeds=[0], duration_s=250)
    row = result.row
    assert row.concurrency == pytest.approx(row.achieved_requests_per_s * row.e2e_ms.mean / 1000, rel=0.02)
    if "decode" in result.use:
        batch = row.achieved_requests_per_s * row.tpot_ms.mean / 1000 * 256 / 4
        assert result.use["decode"].batch == pytest.approx(batch, rel=0.03)


@pytest.mark.parametrize("concurrency", [8, 32])
def test_with_ample_prefill_servers_tpot_follows_the_decode_latency_model(concurrency):
    """x to infinity: TPOT is the model's step at the batch and context that the one decode server had, within 1 %."""
    made = deploy("64p-tp1-1d-tp2", block_size=128)
    result = simulate(made, GUIDE, ClosedLoopArrivals(concurrency), LATENCY, seeds=[0], duration_s=200)
    batch = result.use["decode"].batch
    low, high = (LATENCY.decode_step_s(item, 4096 + 128, 2) for item in (int(batch), int(batch) + 1))
    expected_s = low + (high - low) * (batch - int(batch))
    assert result.row.tpot_ms.mean / 1000 == pytest.approx(expected_s, rel=0.01)


def test_mean_latencies_of_a_simulated_deployment_grow_with_the_load():
    rows = [
        simulate(deploy("8p-tp1-4d-tp2"), GUIDE, PoissonArrivals(rate), LATENCY, seeds=[0], duration_s=60).row
        for rate in (5, 15, 25, 35, 45)
    ]
    for figure in ("ttft_ms", "tpot_ms", "e2e_ms"):
        means = [getattr(row, figure).mean for row in rows]
        assert means == sorted(means)


def test_below_capacity_the_served_request_rate_equals_the_offered_rate():
    row = simulate(deploy("8p-tp1-4d-tp2"), GUIDE, ConstantArrivals(30), LATENCY, seeds=[0], duration_s=100).row
    assert row.achieved_requests_per_s == pytest.approx(30, rel=0.01)
    assert row.output_tokens_per_s == pytest.approx(30 * 256, rel=0.01)
    assert row.input_tokens_per_s == pytest.approx(30 * 4096, rel=0.01)


def test_two_copies_of_a_deployment_under_twice_the_load_are_as_fast_as_one():
    deployments = [deploy("4p-tp1-2d-tp2", copies=copies) for copies in (1, 2)]
    one, two = (
        simulate(made, GUIDE, PoissonArrivals(15 * made.copies), LATENCY, seeds=[0], duration_s=150).row
        for made in deployments
    )
    assert two.tpsg == pytest.approx(one.tpsg, rel=0.03)
    assert two.tpot_ms.mean == pytest.approx(one.tpot_ms.mean, rel=0.03)
