"""The text of the metrics."""

import time

import pytest
from llmd_rehearsal.vllm.clocks import Lag
from llmd_rehearsal.vllm.metrics import ServerMetrics, text_of_ranks
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture(name="metrics")
def metrics_fixture():
    return ServerMetrics("gpt", {"block_size": "16", "num_gpu_blocks": "100"}, connector=True, lag=Lag())


def families(metrics):
    return {family.name: family for family in text_string_to_metric_families(metrics.text())}


def value(metrics, family, sample, **labels):
    samples = (one for one in families(metrics)[family].samples if one.name == sample)
    (value,) = (one.value for one in samples if labels.items() <= one.labels.items())
    return value


def test_the_simulated_vllms_metrics_have_vllms_types_and_labels(metrics):
    metrics.running = 3
    metrics.cache_usage = 0.25
    metrics.finished["length"] = 7
    labels = {"model_name": "gpt", "engine": "0"}
    assert value(metrics, "vllm:num_requests_running", "vllm:num_requests_running", **labels) == 3
    assert value(metrics, "vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc", **labels) == 0.25
    name = "vllm:request_success"
    assert value(metrics, name, f"{name}_total", finished_reason="length", **labels) == 7
    types = {
        "num_requests_running": "gauge",
        "prefix_cache_hits": "counter",
        "e2e_request_latency_seconds": "histogram",
    }
    assert {name: families(metrics)[f"vllm:{name}"].type for name in types} == types


def test_the_endpoint_picker_finds_the_block_size_in_the_metrics(metrics):
    name = "vllm:cache_config_info"
    assert value(metrics, name, name, block_size="16", num_gpu_blocks="100", engine="0") == 1


def test_histograms_in_the_simulated_vllms_metrics_have_cumulative_buckets(metrics):
    """An observation on a bound belongs to that bucket; its text is renewed."""
    metrics.text()
    metrics.between_tokens.observe(0.025, 4)
    metrics.between_tokens.observe(100.0)
    name = "vllm:inter_token_latency_seconds"
    buckets = [value(metrics, name, f"{name}_bucket", le=bound) for bound in ("0.01", "0.025", "80.0", "+Inf")]
    assert buckets == [0, 4, 4, 5]
    assert value(metrics, name, f"{name}_count") == 5
    assert value(metrics, name, f"{name}_sum") == pytest.approx(100.1)


def test_without_a_kv_connector_there_are_no_transfer_metrics():
    plain = ServerMetrics("gpt", {}, connector=False, lag=Lag())
    assert not [name for name in families(plain) if "nixl" in name]
    assert "vllm:external_prefix_cache_hits" in families(plain)


def test_the_simulators_lag_metric_has_the_greatest_lag_of_the_last_seconds(metrics):
    lag = metrics._lag
    lag.record(0.001, 1.0)
    lag.record(0.050, 2.0)
    name = "llmd_oke_simulator_lag_seconds"
    assert value(metrics, name, name) == 0.050
    assert value(metrics, "llmd_oke_simulator_late_steps", "llmd_oke_simulator_late_steps_total") == 1
    lag.record(0.002, 20.0)
    lag.record(0.002, 26.0)
    assert value(metrics, name, name) == 0.002


def test_a_scrape_of_the_simulated_vllms_metrics_takes_less_than_a_millisecond(metrics):
    """240 scrapes a second must leave the process free; the bound is loose for busy machines."""
    start = time.process_time()
    for _ in range(200):
        metrics.between_tokens.observe(0.02, 8)
        metrics.text()
    assert (time.process_time() - start) / 200 < 0.0003 * 3


def test_each_data_parallel_rank_has_its_own_series_in_each_metric():
    ranks = [ServerMetrics("gpt", {"block_size": "16"}, connector=True, lag=Lag(), rank=rank) for rank in range(3)]
    for rank, metrics in enumerate(ranks):
        metrics.running = rank
        metrics.first_token.observe(0.1, rank)
    text = text_of_ranks(ranks)
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    running = [(one.labels["engine"], one.value) for one in found["vllm:num_requests_running"]]
    assert running == [("0", 0.0), ("1", 1.0), ("2", 2.0)]
    counts = [one for one in found["vllm:time_to_first_token_seconds"] if one.name.endswith("_count")]
    assert [one.value for one in counts] == [0.0, 1.0, 2.0]
    assert len(found["llmd_oke_simulator_steps"]) == 1
    assert text.count("# TYPE vllm:num_requests_running ") == 1
