"""The one table of metrics, held against all that reads it."""

from dataclasses import fields

import pytest
from llmd_base.errors import KitError
from llmd_base.metrics import LATENCIES, METRICS, RATES_IN_REPORTS, SHOWN, TOTAL_TOKENS, metric
from llmd_base.row import Row
from llmd_bench.performance import Performance
from llmd_bench.report_format import AggregateLatency, AggregateThroughput
from llmd_bench.reports import LatencyV01, ThroughputV01

PERFORMANCE = {field.name for field in fields(Performance)} | {"total_tokens_per_s"}


@pytest.mark.parametrize("latency", LATENCIES, ids=lambda latency: latency.title)
def test_each_latency_metric_is_a_field_of_result_rows_and_of_both_report_versions(latency):
    assert latency.name in Row.model_fields
    assert latency.key in PERFORMANCE
    assert latency.report in AggregateLatency.model_fields
    assert latency.report in LatencyV01.model_fields


@pytest.mark.parametrize("rate", [*RATES_IN_REPORTS.values(), TOTAL_TOKENS], ids=lambda rate: rate.v02)
def test_each_throughput_metric_is_a_field_of_runs_and_of_both_report_versions(rate):
    assert rate.performance in PERFORMANCE
    assert rate.v01 in ThroughputV01.model_fields
    assert rate.v02 in AggregateThroughput.model_fields


def test_comparison_table_columns_are_known_metrics_and_report_rates_row_fields():
    assert set(SHOWN) <= METRICS.keys()
    assert set(RATES_IN_REPORTS) <= Row.model_fields.keys()


def test_the_error_for_an_unknown_metric_suggests_similar_names():
    with pytest.raises(KitError) as caught:
        metric("ttft_ms.p96")
    assert "ttft_ms.p95" in str(caught.value.remedy)
