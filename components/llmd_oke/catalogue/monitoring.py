"""Catalogue of monitoring: metrics with their sources, recording rules, alerts, dashboards and the settings of
Prometheus.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from llmd_oke.catalogue.endpoint_pickers import Metrics
from llmd_oke.catalogue.releases import AwaitedDefinitions, CrdFiles
from llmd_oke.values import Entry, follows_project, required_entry

MetricKind = Literal["counter", "gauge", "histogram"]

Need = Literal["disaggregated", "rdma", "slo", "leader", "price", "canaries"]
"""Condition that a stack must meet for a rule to be useful: prefill servers, RDMA, a target for the time to first
token, routers with several endpoint pickers of which one leads, a price of its GPUs, or canaries.
"""

_Rule = TypeVar("_Rule", "Recording", "Alert")


class MonitoringFacts(AwaitedDefinitions):
    """Settings of the objects for a Prometheus Operator (`values/monitoring/prometheus.yaml`). `url` is the address of
    Prometheus if the stack file has none.
    """

    definitions: CrdFiles
    url: str
    model_servers_interval: str
    routers_interval: str
    envoys_interval: str
    gpu_exporter_labels: dict[str, str]
    gpu_exporter_port: str
    gpu_exporter_interval: str
    dashboard_labels: dict[str, str]


class MetricsProgram(Entry):
    """Metrics of one program by name, with the URL of the source code or documentation that defines them."""

    source: str = Field(pattern=r"^https://")
    metrics: dict[str, MetricKind]


class _Programs(Entry):
    programs: dict[str, MetricsProgram]


class Recording(Entry):
    """Recording rule: Prometheus stores the result of `expression` as the series `record`."""

    record: str
    expression: str
    needs: Need | None = None


class Alert(Entry):
    """Alert: fires after `expression` has held for the duration `hold`; `page` is the page of docs/alerts with
    instructions.
    """

    alert: str
    expression: str
    hold: str = Field(alias="for")
    severity: Literal["critical", "warning"]
    summary: str
    page: str
    needs: Need | None = None


class Rules(Entry):
    """Recording rules and alerts for Prometheus (`values/monitoring/rules.yaml`)."""

    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]


class Panel(Entry):
    """Panel of a dashboard: PromQL `queries` by legend, in Grafana's `unit`."""

    title: str
    unit: str
    queries: dict[str, str]
    needs: Need | None = None


class Dashboard(Entry):
    """Dashboard of Grafana."""

    name: str
    title: str
    panels: tuple[Panel, ...]


class Dashboards(Entry):
    """Dashboards for Grafana (`values/monitoring/dashboards.yaml`)."""

    dashboards: tuple[Dashboard, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({item.name for item in self.dashboards}) < len(self.dashboards):
            raise ValueError("two dashboards have one name")
        return self


@follows_project
def monitoring() -> MonitoringFacts:
    """Return the settings of Prometheus and the definitions of its operator."""
    return required_entry("monitoring", "prometheus", MonitoringFacts)


@follows_project
def programs() -> dict[str, MetricsProgram]:
    """Return the metrics that rules and dashboards may use, by program."""
    return required_entry("monitoring", "metrics", _Programs).programs


@follows_project
def rules() -> Rules:
    """Return all recording rules and alerts of the catalogue."""
    return required_entry("monitoring", "rules", Rules)


@follows_project
def dashboards() -> tuple[Dashboard, ...]:
    """Return all Grafana dashboards of the catalogue."""
    return required_entry("monitoring", "dashboards", Dashboards).dashboards


@dataclass(frozen=True)
class MonitoringRules:
    """Monitoring rules and dashboards with the metric names of one endpoint picker's version. `lacking` has the names
    of rules and panels that are left out because this version lacks their metrics.
    """

    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]
    dashboards: tuple[Dashboard, ...]
    lacking: tuple[str, ...]


def watch(picker: Metrics) -> MonitoringRules:
    """Return the monitoring rules and dashboards for an endpoint picker with these metric names."""
    names = {"<decisions>": picker.decisions, "<ready_servers>": picker.ready_servers}
    unknown = [placeholder for placeholder, name in names.items() if name is None]

    def lacks(expressions: Iterable[str]) -> bool:
        return any(placeholder in expression for expression in expressions for placeholder in unknown)

    def named(expression: str) -> str:
        for placeholder, name in names.items():
            expression = expression.replace(placeholder, name or placeholder)
        return expression

    def shown(panel: Panel) -> Panel:
        return panel.model_copy(update={"queries": {legend: named(text) for legend, text in panel.queries.items()}})

    def available(candidates: Iterable[_Rule]) -> tuple[_Rule, ...]:
        return tuple(
            rule.model_copy(update={"expression": named(rule.expression)})
            for rule in candidates
            if not lacks([rule.expression])
        )

    rows, boards = rules(), dashboards()
    return MonitoringRules(
        available(rows.recordings),
        available(rows.alerts),
        tuple(
            board.model_copy(
                update={"panels": tuple(shown(panel) for panel in board.panels if not lacks(panel.queries.values()))}
            )
            for board in boards
        ),
        (
            *(f"recording {row.record}" for row in rows.recordings if lacks([row.expression])),
            *(f"alert {row.alert}" for row in rows.alerts if lacks([row.expression])),
            *(f'panel "{p.title}"' for board in boards for p in board.panels if lacks(p.queries.values())),
        ),
    )
