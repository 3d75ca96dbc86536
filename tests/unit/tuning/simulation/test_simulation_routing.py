"""The simulated router scores as llm-d's endpoint picker does, and its profiles do what is published of them."""

from random import Random
from types import SimpleNamespace

import pytest
from llmd_base.errors import KitError
from llmd_tuner.simulation.deployment import ConstantArrivals, PoissonArrivals, RequestClass, filters, scorers
from llmd_tuner.simulation.simulation import simulate
from llmd_tuner.simulation.system import picker
from llmd_tuner.waits import LOOSENESS
from tuning_for_tests import ALIKE

PROMPT = RequestClass(4000, 8, prefix_tokens=2400, prefixes=1)


def server(waiting=0, running=0, assigned=0, tokens=0, cache_use=0.0, prefixes=()):
    return SimpleNamespace(
        waiting=waiting,
        running=running,
        assigned=assigned,
        assigned_tokens=tokens,
        cache_use=cache_use,
        sent_prefixes=set(prefixes),
    )


def picked(weights, servers, prefix=None):
    """Return which servers get requests, of many."""
    pick = picker(weights, Random(0))  # noqa: S311 - load, not secrets
    return {servers.index(pick(servers, PROMPT, prefix)) for _ in range(50)}


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
        server(waiting=0, running=9, assigned=9, tokens=100, cache_use=0.9),
        server(waiting=0, running=1, assigned=5, tokens=9000, cache_use=0.5),
        server(waiting=3, running=4, assigned=4, tokens=8000, cache_use=0.1),
    ]
    assert picked(weights, servers) == best


@pytest.mark.parametrize(("shared", "best"), [(2400, 0), (1600, 1)])
def test_under_the_prefix_profile_half_a_cached_prompt_outweighs_any_queue(shared, best):
    """Weights of `prefix`: 2 for the share of the prompt that is cached, 1 for the shortest queue."""
    prompt = RequestClass(4000, 8, prefix_tokens=shared, prefixes=1)
    servers = [server(waiting=100, prefixes=[0]), server()]
    pick = picker(scorers("prefix", "prefill"), Random(0))  # noqa: S311 - load, not secrets
    assert pick(servers, prompt, 0) is servers[best]


def test_the_token_load_scorer_counts_tokens_that_a_server_would_compute():
    servers = [server(tokens=2000, prefixes=[0]), server(tokens=0)]
    assert picked(scorers("token-load", "prefill"), servers, prefix=0) == {0}
    assert picked(scorers("token-load", "prefill"), servers) == {1}


def affine(servers, prefix, shared=3600):
    """Return which servers get requests of the guide's profile for a prompt with this much of a shared prefix."""
    pick = picker(scorers("prefix-affinity", "prefill"), Random(0), filters("prefix-affinity", "prefill"))  # noqa: S311
    prompt = RequestClass(4000, 8, prefix_tokens=shared, prefixes=1)
    return {servers.index(pick(servers, prompt, prefix)) for _ in range(50)}


def test_prefix_affinity_keeps_the_server_with_the_prefix_unless_18_s_busier():
    """33,821 tokens a second: 600,000 tokens are 17.7 s, 620,000 are 18.3 s."""
    assert affine([server(tokens=600_000, prefixes=[0]), server()], prefix=0) == {0}
    assert affine([server(tokens=620_000, prefixes=[0]), server()], prefix=0) == {1}


def test_prefix_affinity_applies_from_four_fifths_of_a_prompt_cached_on():
    servers = [server(tokens=9000, prefixes=[0]), server()]
    assert (affine(servers, 0, shared=3200), affine(servers, 0, shared=3199)) == ({0}, {1})


@pytest.mark.parametrize("topology", ["4p-tp1-2d-tp1", "agg-tp1-4r"])
@pytest.mark.parametrize("profiles", ALIKE.items(), ids="=".join)
def test_without_prefixes_sessions_and_adapters_profiles_choose_alike(deploy, latency, profiles, topology):
    """The search forecasts equal waits for these profiles."""
    rows = [
        simulate(
            deploy(topology, policy=policy, block_size=128),
            [RequestClass(4096, 16)],
            PoissonArrivals(10),
            latency,
            seeds=[0],
            duration_s=20,
        ).row
        for policy in profiles
    ]
    assert (rows[0].ttft_ms, rows[0].itl_ms) == (rows[1].ttft_ms, rows[1].itl_ms)
    assert LOOSENESS[profiles[0]] == LOOSENESS[profiles[1]]


def test_the_error_for_a_profile_that_a_picker_lacks_lists_the_pickers_profiles():
    with pytest.raises(KitError, match=r"v0\.7\.1 has no profile token-load") as refused:
        scorers("token-load", "decode", "v0.7.1")
    assert "prefix" in (refused.value.remedy or "")


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_the_token_load_profile_shortens_ttft_by_over_15_percent(deploy, latency, share):
    rate = share * 8 / latency.prefill_s(4096)
    ttft_ms = [
        simulate(
            deploy("8p-tp1-4d-tp2", policy=policy, block_size=128),
            [RequestClass(4096, 64)],
            PoissonArrivals(rate),
            latency,
            seeds=[0],
            duration_s=60,
        ).row.ttft_ms
        for policy in ("prefix", "token-load")
    ]
    assert ttft_ms[1].mean < 0.85 * ttft_ms[0].mean
    assert ttft_ms[1].p90 < 0.85 * ttft_ms[0].p90


def test_the_prefix_profile_overloads_one_server_and_token_load_does_not(deploy, latency):
    """One server of four is asked for more than it can compute even with the prefix cached, although all four could."""
    shared = [RequestClass(4096, 16, prefix_tokens=2560, prefixes=1)]
    rate = 0.8 * 4 / latency.prefill_s(4096)
    results = {
        policy: simulate(
            deploy("4p-tp1-1d-tp2", policy=policy, block_size=128),
            shared,
            ConstantArrivals(rate),
            latency,
            seeds=[0],
            duration_s=60,
        )
        for policy in ("prefix", "token-load")
    }
    means = {policy: result.row.ttft_ms.mean for policy, result in results.items()}
    assert means["token-load"] < 0.2 * means["prefix"]


def test_a_simulated_server_prefills_a_shared_prefix_only_once(deploy, latency):
    shared = [RequestClass(4096, 2, prefix_tokens=2048, prefixes=1)]
    row = simulate(
        deploy("agg-tp1-1r"), shared, ConstantArrivals(1), latency, seeds=[0], duration_s=10, window="whole"
    ).row
    alone_ms = 1000 * (latency.factors.prefill_overhead_s + latency.prefill_s(2048, 2048))
    assert row.ttft_ms.p50 == pytest.approx(alone_ms)
    first_ms = 1000 * (latency.factors.prefill_overhead_s + latency.prefill_s(4096))
    assert row.ttft_ms.max == pytest.approx(first_ms)
