import pytest
from llmd_bench.deployment import Counter, MetricsEndpoint, Reading, ServerPod, Snapshot, change, stability
from llmd_bench.queries import parse, scrape

PROMPTS = Counter(("vllm:prompt_tokens_total", "vllm:prompt_tokens"))


def endpoint(pod="p-0", role="prefill") -> MetricsEndpoint:
    return MetricsEndpoint(role, pod, f"http://{pod}/metrics")


def reading(text: str, pod="p-0", role="prefill") -> Reading:
    return Reading(endpoint(pod, role), parse(text))


def grown(before: list[Reading], after: list[Reading], counter=PROMPTS):
    return change(Snapshot(tuple(before)), Snapshot(tuple(after)), "prefill", counter)


def test_all_series_of_a_prometheus_counter_with_accepted_labels_are_summed():
    text = '# TYPE d_total counter\nd_total{t="prefill-decode"} 3\nd_total{t="decode-only"} 4\n'
    assert reading(text).total(Counter(("d_total",))) == 7
    assert reading(text).total(Counter(("d_total",), {"t": ("prefill-decode",)})) == 3


def test_of_several_metric_names_the_first_that_is_exposed_is_used():
    assert reading("vllm:prompt_tokens 5\n").total(PROMPTS) == 5
    assert reading("vllm:prompt_tokens_total 2\nvllm:prompt_tokens 5\n").total(PROMPTS) == 2
    assert reading("other 1\n").total(PROMPTS) is None


def test_the_count_and_sum_of_a_histogram_are_read_as_counters():
    text = '# TYPE x histogram\nx_bucket{le="+Inf"} 3\nx_count 3\nx_sum 1.5\n'
    assert (reading(text).total(Counter(("x_count",))), reading(text).total(Counter(("x_sum",)))) == (3, 1.5)


def test_metric_counters_are_summed_over_all_servers_of_a_role_and_no_others():
    before = [reading("vllm:prompt_tokens_total 1\n", pod) for pod in ("a", "b")]
    after = [reading("vllm:prompt_tokens_total 4\n", "a"), reading("vllm:prompt_tokens_total 3\n", "b")]
    result = grown(before, [*after, reading("vllm:prompt_tokens_total 4\n", "c", role="decode")])
    assert (result.value, result.before, result.after, result.read) == (5, 2, 7, 2)
    assert grown([], [reading("vllm:prompt_tokens_total 4\n", role="decode")]).value is None


def test_a_counter_of_a_restarted_server_counts_from_zero_and_its_pod_is_named():
    fell = grown([reading("vllm:prompt_tokens_total 100\n")], [reading("vllm:prompt_tokens_total 30\n")])
    text = "process_start_time_seconds {}\nvllm:prompt_tokens_total {}\n"
    started_later = grown([reading(text.format(10, 5))], [reading(text.format(20, 30))])
    for result in (fell, started_later):
        assert (result.value, result.restarted) == (30, ("p-0",))


def test_the_counter_of_a_role_is_unknown_if_one_servers_metrics_are_unreadable():
    dead = Reading(endpoint("b"), error="HTTP 401")
    alive = reading("vllm:prompt_tokens_total 4\n", "a")
    result = grown([alive, dead], [alive, dead])
    assert (result.value, result.unread) == (None, ("b",))


async def test_a_metrics_scrape_reads_router_prefill_and_decode_endpoints(deployment):
    deployment.counters["prefill_tokens"] = 12
    snapshot = await scrape(deployment.endpoints())
    assert [item.endpoint.role for item in snapshot.readings] == ["router", "prefill", "decode"]
    assert snapshot.readings[1].total(PROMPTS) == 12


@pytest.mark.parametrize(
    ("url", "error"),
    [("{}/metrics/router", "HTTP 401"), ("{}/nothing", "HTTP 404"), ("http://127.0.0.1:1/metrics", "ConnectError")],
)
async def test_a_metrics_scrape_that_fails_is_recorded_with_its_error(deployment, url, error):
    deployment.dead_metrics = {"router"}
    snapshot = await scrape([MetricsEndpoint("router", "epp-0", url.format(deployment.url))])
    assert snapshot.readings[0].error.partition(":")[0] == error


def test_a_bearer_token_for_metrics_is_not_in_the_text_of_its_endpoint():
    secret = MetricsEndpoint("router", "epp-0", "http://x", {"authorization": "Bearer s3cret"})
    assert "s3cret" not in repr(secret)


def test_restarted_and_lost_servers_are_named_but_new_or_autoscaled_ones_are_not():
    stays, scaled = ServerPod("decode", "b"), ServerPod("prefill", "d", scaled=True)
    before = (ServerPod("decode", "a", 1), stays, ServerPod("prefill", "c"), scaled)
    after = (ServerPod("decode", "a", 3), stays, ServerPod("prefill", "new", 5))
    assert stability(before, after).restarted == ("decode a (2 times)", "prefill c is gone")
    assert stability((), None).restarted is None, "the pods can't be listed"


def test_the_kv_cache_usage_of_a_server_is_the_highest_of_its_ranks():
    ranks = reading("".join(f'vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{rank}\n' for rank in range(4)))
    names = ("vllm:kv_cache_usage_perc",)
    assert ranks.total(Counter(names, share=True)) == 0.3
    assert ranks.total(Counter(names)) == pytest.approx(0.6)
