"""Monitoring of a stack's models by the Prometheus operator and Grafana: monitors, recording rules, alerts, dashboards.

A test compares the routers' monitors with those of the upstream chart of the release. The chart's monitors authenticate
with a token; the kit's endpoint pickers serve metrics without one, to all pods that the network policies admit
(values/router/deviations.yaml).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import pulumi
from llmd_base.records import document

from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.catalogue.monitoring import Dashboard, MonitoringRules, Need, Panel, monitoring, watch
from llmd_oke.catalogue.releases import default_release
from llmd_oke.kubernetes_types import LabelSelector, LabelSelectorRequirement, ObjectMeta
from llmd_oke.objects import PART_OF, Manifest, inputs, register_outputs, when_declared
from llmd_oke.serving import envoy, labels
from llmd_oke.serving.manifests import NAMESPACE_S, declare, object_metadata, timeouts
from llmd_oke.serving.router import service_name

API = "monitoring.coreos.com/v1"

NAME = "llmd-oke"
"""Prefix of the names of all monitoring objects of a stack."""

_POD_LABELS = [labels.MODEL, labels.UNIT, labels.ROLE]
_GRID = 24
_PANEL_WIDTH, _PANEL_HEIGHT = 12, 8


class ModelMonitoringArgs(TypedDict):
    """Arguments of the monitoring of a stack's models."""

    namespace: pulumi.Input[str]
    """Namespace of the models."""
    routers: NotRequired[list[str] | None]
    """Names of the units that have a router; a unit is the servers of one topology."""
    disaggregated: NotRequired[bool | None]
    """Whether the stack has prefill and decode servers."""
    rdma: NotRequired[bool | None]
    """Whether prefill servers hand KV cache over by RDMA."""
    canaries: NotRequired[bool | None]
    """Whether the models have canaries."""
    leader: NotRequired[bool | None]
    """Whether routers have several endpoint pickers, one of which is the leader."""
    slo_ttft_s: NotRequired[dict[str, float] | None]
    """Targets for the time to first token in seconds, by the models' names."""
    usd_per_gpu_hour: NotRequired[float | None]
    """List price of a GPU in US dollars per hour; no rules about costs if left out."""
    endpoint_picker: NotRequired[str | None]
    """Version of the endpoint picker (v0.10.0), which determines the names of its metrics; that of the newest release
    if left out."""
    labels: NotRequired[dict[str, str] | None]
    """Labels of monitors and rules, for a Prometheus that selects by labels."""


class ModelMonitoring(pulumi.ComponentResource):
    """Monitors, rules and dashboards of all models of a namespace. The CustomResourceDefinitions of the Prometheus
    operator must be installed.
    """

    rule: pulumi.Output[str]
    """Name of the PrometheusRule with the stack's recording rules and alerts."""

    def __init__(self, name: str, args: ModelMonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelMonitoring", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(NAMESPACE_S))
        declared = [
            declare(f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}", manifest, child)
            for manifest in monitoring_manifests(args)
        ]
        self.rule = when_declared(declared[-1], NAME)
        register_outputs(self)


def monitoring_manifests(args: ModelMonitoringArgs) -> list[Manifest]:
    """Return all monitoring objects of a stack's models; the PrometheusRule is the last of them."""
    return [
        _model_servers(args),
        *(_router(unit, args) for unit in args.get("routers") or ()),
        *_envoys(args),
        *([_canaries(args)] if args.get("canaries") else []),
        _gpu_exporters(args),
        *(_dashboard(dashboard, args) for dashboard in _watch(args).dashboards),
        _rules(args),
    ]


def _metadata(name: str, args: ModelMonitoringArgs, more: Mapping[str, str] | None = None) -> ObjectMeta:
    return object_metadata(name, args["namespace"], {**(args.get("labels") or {}), **(more or {})})


def _model_servers(args: ModelMonitoringArgs) -> Manifest:
    """Return the PodMonitor of vLLM, on its own port also behind the routing sidecar. For P/D the sidecar has no
    metrics of its own (llm-d-router v0.10.0: only Go's and those of MoRI-IO, on a port that is off by default).
    """
    endpoint = {"port": "vllm", "path": "/metrics", "interval": monitoring().model_servers_interval}
    return _pod_monitor(f"{NAME}-model-servers", args, {"matchLabels": {labels.SERVING: "true", **_PART}}, endpoint)


def _router(unit: str, args: ModelMonitoringArgs) -> Manifest:
    """Return the ServiceMonitor of an endpoint picker. The selector of the upstream chart's monitor also contains the
    release's version, which an update changes on the Service.
    """
    name = service_name(unit)
    endpoint = {"port": "http-metrics", "path": "/metrics", "interval": monitoring().routers_interval}
    return {
        "apiVersion": API,
        "kind": "ServiceMonitor",
        "metadata": _metadata(f"{name}-monitor", args, {"app.kubernetes.io/name": name}),
        "spec": {
            "endpoints": [endpoint],
            "jobLabel": "app.kubernetes.io/name",
            "namespaceSelector": {"matchNames": [args["namespace"]]},
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
        },
    }


def _envoys(args: ModelMonitoringArgs) -> list[Manifest]:
    """Return the PodMonitors of the routers' Envoys and of the front doors' Envoys."""
    doors: LabelSelectorRequirement = {
        "key": "app.kubernetes.io/component",
        "operator": "In",
        "values": ["front-door", "stack-front-door"],
    }
    selectors: dict[str, tuple[str, LabelSelector]] = {
        "router-envoys": (f"metrics-{envoy.METRICS_PORT}", {"matchLabels": {labels.ROUTED: "true", **_PART}}),
        "front-doors": ("metrics", {"matchLabels": _PART, "matchExpressions": [doors]}),
    }
    interval = monitoring().envoys_interval
    return [
        _pod_monitor(
            f"{NAME}-{name}", args, selector, {"port": port, "path": "/stats/prometheus", "interval": interval}
        )
        for name, (port, selector) in selectors.items()
    ]


def _canaries(args: ModelMonitoringArgs) -> Manifest:
    """Return the PodMonitor of the canaries."""
    selector = {"matchLabels": {"app.kubernetes.io/component": "canary", **_PART}}
    endpoint = {"port": "metrics", "path": "/metrics", "interval": monitoring().routers_interval}
    return _pod_monitor(f"{NAME}-canaries", args, selector, endpoint)


def _gpu_exporters(args: ModelMonitoringArgs) -> Manifest:
    """Return the PodMonitor of the GPU metrics exporters, which run in another namespace."""
    facts = monitoring()
    endpoint = {"port": facts.gpu_exporter_port, "path": "/metrics", "interval": facts.gpu_exporter_interval}
    monitor = _pod_monitor(f"{NAME}-gpus", args, {"matchLabels": dict(facts.gpu_exporter_labels)}, endpoint)
    return {**monitor, "spec": {**monitor["spec"], "namespaceSelector": {"any": True}, "podTargetLabels": []}}


_PART = {"app.kubernetes.io/part-of": PART_OF["app.kubernetes.io/part-of"]}


def _pod_monitor(
    name: str, args: ModelMonitoringArgs, selector: Mapping[str, Any], endpoint: Mapping[str, str]
) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "PodMonitor",
        "metadata": _metadata(name, args),
        "spec": {
            "namespaceSelector": {"matchNames": [args["namespace"]]},
            "selector": selector,
            "podTargetLabels": _POD_LABELS,
            "podMetricsEndpoints": [endpoint],
        },
    }


def _rules(args: ModelMonitoringArgs) -> Manifest:
    def spec(namespace: str) -> dict[str, Any]:
        units, targets = args.get("routers") or (), args.get("slo_ttft_s") or {}
        price, needs = args.get("usd_per_gpu_hour"), _needs_met(args)
        return {"groups": rule_groups(_watch(args), namespace, needs, units, targets, price)}

    namespace = args["namespace"]
    value = spec(namespace) if isinstance(namespace, str) else pulumi.Output.from_input(namespace).apply(spec)
    return {"apiVersion": API, "kind": "PrometheusRule", "metadata": _metadata(NAME, args), "spec": value}


def _needs_met(args: ModelMonitoringArgs) -> frozenset[Need]:
    disaggregated = args.get("disaggregated") or False
    needs: dict[Need, bool] = {
        "disaggregated": disaggregated,
        "rdma": disaggregated and (args.get("rdma") or False),
        "slo": bool(args.get("slo_ttft_s")),
        "leader": args.get("leader") or False,
        "canaries": args.get("canaries") or False,
        "price": args.get("usd_per_gpu_hour") is not None,
    }
    return frozenset(need for need, met in needs.items() if met)


def _watch(args: ModelMonitoringArgs) -> MonitoringRules:
    version = args.get("endpoint_picker")
    picker = endpoint_picker(version) if version else default_release().endpoint_picker.dialect
    return watch(picker.metrics)


def rule_groups(
    facts: MonitoringRules,
    namespace: str,
    needs: frozenset[Need],
    units: Sequence[str],
    slo_ttft_s: Mapping[str, float],
    usd_per_gpu_hour: float | None = None,
) -> list[dict[str, Any]]:
    """Return the groups of rules of a stack, in the format of Prometheus' rule files.

    Args:
        facts: rules for the stack's release.
        namespace: namespace of the models.
        needs: features of the stack; rules that need other features are left out.
        units: units that have a router; a rule about units is repeated for each.
        slo_ttft_s: targets for the time to first token in seconds, by the models' names.
        usd_per_gpu_hour: list price of a GPU in US dollars per hour; no rule about the price if None.
    """
    figures = [
        _figure("llmd_oke:slo_ttft_seconds", target_s, {"namespace": namespace, "llmd_oke_model": model})
        for model, target_s in slo_ttft_s.items()
    ]
    if usd_per_gpu_hour is not None:
        figures.append(_figure("llmd_oke:gpu_usd_per_hour", usd_per_gpu_hour, {"namespace": namespace}))
    recordings = [
        document("record", row, expr=in_namespace(row.expression, namespace))
        for row in facts.recordings
        if row.needs is None or row.needs in needs
    ]
    alerts = [
        {
            "alert": row.alert,
            "expr": expression,
            "for": row.hold,
            "labels": document("severity", row),
            "annotations": document("summary", row, runbook_url=f"docs/alerts/{row.page}.md"),
        }
        for row in facts.alerts
        if row.needs is None or row.needs in needs
        for expression in _of_units(in_namespace(row.expression, namespace), units)
    ]
    return [
        {"name": f"{NAME}-{namespace}-recordings", "interval": "30s", "rules": [*figures, *recordings]},
        {"name": f"{NAME}-{namespace}-alerts", "interval": "30s", "rules": alerts},
    ]


def _figure(record: str, value: float, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"record": record, "expr": f"vector({value:g})", "labels": dict(labels)}


def _of_units(expression: str, units: Sequence[str]) -> list[str]:
    """Return an expression with the placeholder `<unit>` once for each unit, any other expression unchanged."""
    return [expression.replace("<unit>", unit) for unit in units] if "<unit>" in expression else [expression]


def in_namespace(expression: str, namespace: str) -> str:
    """Return an expression of the catalogue with its placeholder `<namespace>` replaced."""
    return expression.replace("<namespace>", namespace)


def _dashboard(dashboard: Dashboard, args: ModelMonitoringArgs) -> Manifest:
    needs = _needs_met(args)

    def data(namespace: str) -> dict[str, str]:
        return {f"{dashboard.name}.json": json.dumps(grafana_dashboard(dashboard, namespace, needs), sort_keys=True)}

    namespace = args["namespace"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(f"{NAME}-dashboard-{dashboard.name}", args, monitoring().dashboard_labels),
        "data": data(namespace) if isinstance(namespace, str) else pulumi.Output.from_input(namespace).apply(data),
    }


def grafana_dashboard(dashboard: Dashboard, namespace: str, needs: frozenset[Need]) -> dict[str, Any]:
    """Return a dashboard as Grafana's JSON model (schema version 39)."""
    shown = [panel for panel in dashboard.panels if panel.needs is None or panel.needs in needs]
    uid = hashlib.sha256(f"{namespace}/{dashboard.name}".encode()).hexdigest()[:16]
    return {
        "uid": uid,
        "title": f"{dashboard.title} ({namespace})",
        "tags": [NAME],
        "timezone": "utc",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [_panel(index, panel, namespace) for index, panel in enumerate(shown)],
    }


def _panel(index: int, panel: Panel, namespace: str) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    per_row = _GRID // _PANEL_WIDTH
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {
            "h": _PANEL_HEIGHT,
            "w": _PANEL_WIDTH,
            "x": index % per_row * _PANEL_WIDTH,
            "y": index // per_row * _PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": _targets(panel.queries, namespace, source),
    }


def _targets(queries: Mapping[str, str], namespace: str, source: Mapping[str, str]) -> Sequence[dict[str, Any]]:
    return [
        {
            "refId": chr(ord("A") + index),
            "legendFormat": legend,
            "expr": in_namespace(query, namespace),
            "datasource": source,
        }
        for index, (legend, query) in enumerate(queries.items())
    ]
