"""Rules, alerts and dashboards go by metrics that programs have, and each alert has a page."""

import os
import re
from collections.abc import Iterator

import pytest
from alert_faults import BY_PROMTOOL, REHEARSED
from llmd_oke.catalogue.endpoint_pickers import Metrics, endpoint_picker
from llmd_oke.catalogue.monitoring import programs, rules, watch
from llmd_oke.values import values_folder

PAGES = values_folder().parent / "docs" / "alerts"
NEWEST = endpoint_picker("v0.10.0").metrics
WATCH = watch(NEWEST)
EXPRESSIONS = {
    **{row.record: row.expression for row in WATCH.recordings},
    **{row.alert: row.expression for row in WATCH.alerts},
    **{
        f"{item.name}: {panel.title} {legend}": query
        for item in WATCH.dashboards
        for panel in item.panels
        for legend, query in panel.queries.items()
    },
}
FIGURES = {"llmd_oke:slo_ttft_seconds", "llmd_oke:gpu_usd_per_hour"}
RECORDED = {row.record for row in rules().recordings} | FIGURES
SUFFIXES = ("_bucket", "_sum", "_count")
NAME = re.compile(r"\b[a-z_]+:[a-z0-9_:]+|\b[a-z0-9]+(?:_[a-z0-9]+)+(?=[{\[ )]|$)")
IN_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)|\"[^\"]*\"")
FUNCTIONS = frozenset({"histogram_quantile", "label_replace"})


def metric_names(expression: str) -> Iterator[str]:
    """The metrics that a PromQL expression of the kit goes by; of a histogram its own name."""
    kinds = {name: kind for program in programs().values() for name, kind in program.metrics.items()}
    for name in NAME.findall(IN_LABELS.sub(" ", expression) + " "):
        bare = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        if name not in FUNCTIONS:
            yield bare if kinds.get(bare) == "histogram" else name


def test_prometheus_expressions_use_all_metrics_of_the_catalogue_and_no_unknown_ones() -> None:
    metrics = {metric for program in programs().values() for metric in program.metrics}
    used = {name: set(metric_names(expression)) for name, expression in EXPRESSIONS.items()}
    for name, of_expression in used.items():
        assert of_expression, name
        assert of_expression <= metrics | RECORDED | {NEWEST.decisions, NEWEST.ready_servers}, name
    assert metrics <= set().union(*used.values())


@pytest.mark.parametrize("version", ["v0.7.1", "v0.8.0", "v0.10.0"])
def test_prometheus_rules_and_grafana_panels_use_the_pickers_own_metric_names(version: str) -> None:
    metrics = endpoint_picker(version).metrics
    seen = watch(metrics)
    texts = [row.expression for row in (*seen.recordings, *seen.alerts)]
    texts += [query for board in seen.dashboards for panel in board.panels for query in panel.queries.values()]
    assert not any("<decisions>" in text or "<ready_servers>" in text for text in texts)
    assert sum(metrics.decisions in text for text in texts) == 2
    assert sum(str(metrics.ready_servers) in text for text in texts) == 2
    assert seen.lacking == ()


def test_alerts_and_panels_whose_metrics_a_picker_lacks_are_omitted_and_named() -> None:
    seen = watch(Metrics(decisions="decisions_total", requests="requests_total"))
    assert seen.lacking == ("alert StackNotScraped", 'panel "Servers that the picker picks from"')
    assert "StackNotScraped" not in {row.alert for row in seen.alerts}
    assert len(seen.alerts) == len(WATCH.alerts) - 1
    panels, others = ([panel for board in one.dashboards for panel in board.panels] for one in (seen, WATCH))
    assert len(panels) == len(others) - 1


def test_the_source_of_each_metric_in_the_catalogue_names_a_tag_or_a_version() -> None:
    without = {
        name
        for name, program in programs().items()
        if not re.search(r"/(v\d+\.\d+\.\d+|[0-9a-f]{40})/", program.source)
    }
    assert without == set()


def test_each_alert_has_a_documentation_page_that_names_it_and_says_what_to_do() -> None:
    pages = {row.page for row in rules().alerts}
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == pages
    for row in rules().alerts:
        text = (PAGES / f"{row.page}.md").read_text()
        for part in (f"`{row.alert}`", "## What it means", "## Where to look", "## What to do"):
            assert part in text, row.alert


def test_each_alert_is_tested_in_rehearsal_or_by_promtool() -> None:
    names = [row.alert for row in rules().alerts]
    assert sorted([*REHEARSED, *BY_PROMTOOL]) == sorted(names)


def alert_table() -> Iterator[str]:
    yield "| alert | looks back | must hold | severity | made to fire, and to clear |"
    yield "|---|---|---|---|---|"
    recorded = {row.record: row.expression for row in rules().recordings}
    for row in rules().alerts:
        texts = [row.expression, *(recorded[name] for name in metric_names(row.expression) if name in recorded)]
        windows = sorted({window for text in texts for window in re.findall(r"\[(\w+)\]", text)})
        rehearsed = REHEARSED.get(row.alert)
        how = f"rehearsed: {rehearsed}" if rehearsed else f"promtool alone: {BY_PROMTOOL[row.alert]}"
        yield f"| `{row.alert}` | {', '.join(windows) or '-'} | {row.hold} | {row.severity} | {how} |"


def test_the_table_of_alerts_in_the_docs_equals_what_is_generated_from_rules() -> None:
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    page = PAGES / "README.md"
    head, mark, _ = page.read_text().partition("<!-- table -->\n")
    assert mark
    text = head + mark + "\n" + "".join(f"{line}\n" for line in alert_table())
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        page.write_text(text)
    assert page.read_text() == text


def test_the_alert_on_node_checks_names_each_check_that_nodes_run():
    script = (values_folder() / "cloud-init" / "node-checks.sh.j2").read_text()
    names = re.findall(r"^  check ([a-z-]+) [a-z_]+$", script, re.MULTILINE)
    rules = (values_folder() / "monitoring" / "rules.yaml").read_text()
    asked = re.search(r'oke_npd_check_status_code\{check=~"([^"]+)"\}', rules)
    assert len(names) == 4
    assert [name for name in names if not re.fullmatch(asked[1], name)] == []
