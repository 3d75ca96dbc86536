import json

import pytest
from llmd_base.row import Basis, Origin, Quantiles, Row
from llmd_bench.comparison import Side, compare, summarize
from llmd_bench.files import Latencies
from llmd_bench.history import SideResults
from llmd_bench.plots.results import comparison_page
from llmd_bench.texts import lines, markdown, number

AGG, DISAGG = "agg-tp1-4r", "2p-tp1-1d-tp2"


def loaded(name, topology, ttfts, **changes):
    rows = [
        Row(
            subject="end-to-end",
            model="gpt-oss-120b",
            gpu="MI300X",
            origin=Origin(tool="test"),
            topology=topology,
            gpus_counted=4,
            input_tokens=4096,
            output_tokens=256,
            concurrency=users,
            achieved_requests_per_s=users / 2,
            output_tokens_per_s=100.0 * users,
            ttft_ms=Quantiles(mean=ttft / 2, p95=ttft),
            **{"basis": Basis.MEASURED, **changes},
        )
        for users in (4, 8)
        for ttft in ttfts
    ]
    return SideResults(Side(name, tuple(rows)), latencies=lambda: Latencies([*ttfts], [10.0, 12.0]))


@pytest.fixture
def both():
    return loaded("before", AGG, (500.0, 510.0, 490.0)), loaded("after|x", DISAGG, (400.0, 404.0, 396.0))


def test_a_comparison_page_has_tables_and_all_charts(both):
    text = comparison_page(compare(both[0].side, both[1].side), *both)
    for part in ("Throughput per GPU", "TTFT p95 against load", "Time between tokens", "A: agg-tp1-4r (measured)"):
        assert part in text
    assert "4 users; 3 runs of A, 3 runs of B" in text
    assert text.count("<svg") == text.count("</svg>") > 3


def test_a_comparison_page_of_a_single_load_has_its_table_before_the_charts(both):
    a, b = (SideResults(Side(item.side.name, item.side.rows[:3]), latencies=item.latencies) for item in both)
    text = comparison_page(compare(a.side, b.side), a, b)
    assert text.index("3 runs of A") < text.index("Throughput per GPU")
    assert "against load" not in text


def test_a_comparison_in_markdown_or_json_has_the_changes_of_each_load(both):
    compared = compare(both[0].side, both[1].side)
    text = markdown(compared)
    assert all(part in text for part in ("after\\|x", "measured"))
    assert text.count("| TTFT p95 (ms) | 500.0 | 400.0 | -20.0% |") == 2
    summary = json.loads(json.dumps(summarize(compared)))
    assert summary["loads"][0]["metrics"]["ttft_ms.p95"]["change"] == pytest.approx(-0.2)


def test_a_compared_line_has_a_verdict_and_an_interval_unless_of_a_single_run(both):
    (line,) = [line for line in lines(compare(both[0].side, both[1].side).loads[0]) if line.metric == "TTFT p95 (ms)"]
    assert (line.verdict, line.interval[:2]) == ("better", "-2")
    a, b = loaded("a", AGG, (500.0,)), loaded("b", AGG, (400.0,))
    assert {line.interval for line in lines(compare(a.side, b.side).loads[0])} == {"none: one run"}


def test_the_comparison_page_names_the_basis_of_each_side():
    a, b = loaded("a", AGG, (500.0,)), loaded("b", AGG, (400.0,), basis=Basis.CALIBRATED)
    text = comparison_page(compare(a.side, b.side), a, b)
    assert all(part in text for part in ("A: a (measured)", "B: b (calibrated)", "not of the same kind"))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (123.45, "123.5"), (12345.6, "12,346")]
)
def test_numbers_in_tables_have_about_four_digits(value, text):
    assert number(value) == text
