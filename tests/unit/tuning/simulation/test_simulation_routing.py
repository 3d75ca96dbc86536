"""The simulated router scores as llm-d's endpoint picker does, and its profiles do what is published of them."""

from random import Random
from types import SimpleNamespace

import pytest
from llmd_base.errors import KitError
from llmd_tuner.simulation.deployment import ConstantArrivals, PoissonArrivals, RequestClass, filters, scorers
from llmd_tuner.simulation.simulation import simulate
from llmd_tuner.simulation.system import picker
from llmd_tuner.waits import LOOSENESS
from tuning_for_tests import ALIKE, LATENCY, deploy


def server(prefixes=(), **load):
    idle = {"waiting": 0, "running": 0, "assigned": 0, "assigned_tokens": 0, "cache_use": 0.0}
    return SimpleNamespace(**{**idle, **load}, sent_prefixes=set(prefixes))


def picked(weights, servers, prefix=None, shared=2400, filters=None):
    """Return which servers get requests, of many, for a prompt with this much of a shared prefix."""
    pick = picker(weights, Random(0), filters)  # noqa: S311 - load, not secrets
    prompt = RequestClass(4000, 8, prefix_tokens=shared, prefixes=1)
    return {servers.index(pick(servers, prompt, prefix)) for _ in range(50)}


@pytest.mark.parametrize(
    ("weights", "best"),
    [
        ({"queue-scorer": 1}, {0, 1}),
        ({"running-requests-size-scorer": 1}, {1}),
        ({"active-request-scorer": 1}, {2}),
        ({"token-load-scorer": 1}, {0}),
        ({"kv-cache-utilization-scorer": 1}, {2}),
        ({}, {0, 1, 2}),
    ],
)
def test_each_simulated_picker_scorer_prefers_the_server_with_the_least_load(weights, best):
    """Servers with nothing waiting are equal to the queue-scorer, however busy they are."""
    servers = [
        server(waiting=0, running=9, assigned=9, assigned_tokens=100, cache_use=0.9),
        server(waiting=0, running=1, assigned=5, assigned_tokens=9000, cache_use=0.5),
        server(waiting=3, running=4, assigned=4, assigned_tokens=8000, cache_use=0.1),
    ]
    assert picked(weights, servers) == best


@pytest.mark.parametrize(("shared", "best"), [(2400, 0), (1600, 1)])
def test_under_the_prefix_profile_half_a_cached_prompt_outweighs_any_queue(shared, best):
    """Weights of `prefix`: 2 for the share of the prompt that is cached, 1 for the shortest queue."""
    servers = [server(waiting=100, prefixes=[0]), server()]
    assert picked(scorers("prefix", "prefill"), servers, 0, shared) == {best}


def test_the_token_load_scorer_counts_tokens_that_a_server_would_compute():
    servers = [server(assigned_tokens=2000, prefixes=[0]), server(assigned_tokens=0)]
    assert picked(scorers("token-load", "prefill"), servers, prefix=0) == {0}
    assert picked(scorers("token-load", "prefill"), servers) == {1}


@pytest.mark.parametrize(
    ("tokens", "shared", "best"),
    [(600_000, 3600, 0), (620_000, 3600, 1), (9000, 3200, 0), (9000, 3199, 1)],
    ids=["17.7 s busier", "18.3 s busier", "four fifths cached", "less cached"],
)
def test_prefix_affinity_keeps_a_server_with_80_percent_cached_unless_18_s_busier(tokens, shared, best):
    """33,821 tokens a second."""
    profile = "prefix-affinity", "prefill"
    servers = [server(assigned_tokens=tokens, prefixes=[0]), server()]
    assert picked(scorers(*profile), servers, 0, shared, filters(*profile)) == {best}


def simulated(topology, policy, size, arrivals, duration_s=60):
    made = deploy(topology, policy=policy, block_size=128)
    return simulate(made, [size], arrivals, LATENCY, seeds=[0], duration_s=duration_s).row


@pytest.mark.parametrize("topology", ["4p-tp1-2d-tp1", "agg-tp1-4r"])
@pytest.mark.parametrize("profiles", ALIKE.items(), ids="=".join)
def test_without_prefixes_sessions_and_adapters_profiles_choose_alike(profiles, topology):
    """The search forecasts equal waits for these profiles."""
    size = RequestClass(4096, 16)
    rows = [simulated(topology, policy, size, PoissonArrivals(10), duration_s=20) for policy in profiles]
    assert (rows[0].ttft_ms, rows[0].itl_ms) == (rows[1].ttft_ms, rows[1].itl_ms)
    assert LOOSENESS[profiles[0]] == LOOSENESS[profiles[1]]


def test_the_error_for_a_profile_that_a_picker_lacks_lists_the_pickers_profiles():
    with pytest.raises(KitError, match=r"v0\.7\.1 has no profile token-load") as refused:
        scorers("token-load", "decode", "v0.7.1")
    assert "prefix" in (refused.value.remedy or "")


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_the_token_load_profile_shortens_ttft_by_over_15_percent(share):
    rate = share * 8 / LATENCY.prefill_s(4096)
    ttft_ms = [
        simulated("8p-tp1-4d-tp2", policy, RequestClass(4096, 64), PoissonArrivals(rate)).ttft_ms
        for policy in ("prefix", "token-load")
    ]
    assert ttft_ms[1].mean < 0.85 * ttft_ms[0].mean
    assert ttft_ms[1].p90 < 0.85 * ttft_ms[0].p90


def test_the_prefix_profile_overloads_one_server_and_token_load_does_not():
    """One server of four is asked for more than it can compute even with the prefix cached, although all four could."""
    shared = RequestClass(4096, 16, prefix_tokens=2560, prefixes=1)
    arrivals = ConstantArrivals(0.8 * 4 / LATENCY.prefill_s(4096))
    means = {
        policy: simulated("4p-tp1-1d-tp2", policy, shared, arrivals).ttft_ms.mean for policy in ("prefix", "token-load")
    }
    assert means["token-load"] < 0.2 * means["prefix"]


def test_a_simulated_server_prefills_a_shared_prefix_only_once():
    shared = [RequestClass(4096, 2, prefix_tokens=2048, prefixes=1)]
    row = simulate(
        deploy("agg-tp1-1r"), shared, ConstantArrivals(1), LATENCY, seeds=[0], duration_s=10, window="whole"
    ).row
    alone_ms = 1000 * (LATENCY.factors.prefill_overhead_s + LATENCY.prefill_s(2048, 2048))
    assert row.ttft_ms.p50 == pytest.approx(alone_ms)
    first_ms = 1000 * (LATENCY.factors.prefill_overhead_s + LATENCY.prefill_s(4096))
    assert row.ttft_ms.max == pytest.approx(first_ms)
