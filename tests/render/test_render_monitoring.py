"""Monitors, rules and dashboards of a watched stack, and Prometheus where the stack installs it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from created_cluster import created
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.serving.monitoring import ModelMonitoringArgs, monitoring_manifests
from llmd_oke.testing import Rendered
from llmd_oke.values import read_yaml_documents
from render_support import SHARED_DATA, selects, validate_by_definition

UPSTREAM = SHARED_DATA / "router-chart-0.10.0" / "standalone-monitoring.yaml"
KINDS = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}

Vary = Callable[..., Rendered]


@pytest.fixture
def watched(varied: Vary) -> Rendered:
    """The rehearsal's stack with a Prometheus that is there already."""
    return varied(stack={"monitoring": "existing"}, slo={"ttftMs": 2000, "itlMs": 25})


def of_kind(rendered: Rendered, kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in rendered.manifests() if manifest["kind"] == kind]


def test_a_stack_without_monitoring_declares_no_monitoring_resource(rehearsal: Rendered) -> None:
    assert {manifest["kind"] for manifest in rehearsal.manifests()}.isdisjoint(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_pod_monitors_and_rules_are_valid_by_their_crds(watched: Rendered, kind: str) -> None:
    assert of_kind(watched, kind)
    for manifest in of_kind(watched, kind):
        validate_by_definition(manifest, SHARED_DATA / "crds" / f"monitoring.coreos.com_{KINDS[kind]}.yaml")


def test_each_router_has_the_upstream_charts_monitor_except_for_token_and_version(watched: Rendered) -> None:
    """The picker gives metrics without a token; the Service's version changes with updates."""
    if not UPSTREAM.is_file():
        pytest.skip(f"{UPSTREAM} is absent")
    (theirs,) = [item for item in read_yaml_documents(UPSTREAM) if item["kind"] == "ServiceMonitor"]
    (ours,) = of_kind(watched, "ServiceMonitor")
    (endpoint,) = theirs["spec"]["endpoints"]
    del endpoint["authorization"]
    assert ours["spec"]["endpoints"] == [endpoint]
    assert ours["spec"]["namespaceSelector"] == theirs["spec"]["namespaceSelector"]
    assert selects(
        ours["spec"]["selector"]["matchLabels"], watched.kubernetes("Service", _router(ours))["metadata"]["labels"]
    )
    assert {*theirs["spec"]["selector"]["matchLabels"]} == {
        *ours["spec"]["selector"]["matchLabels"],
        "app.kubernetes.io/version",
    }


def _router(monitor: Mapping[str, Any]) -> str:
    return monitor["metadata"]["name"].removesuffix("-monitor")


def test_pod_monitors_select_exactly_the_pods_that_have_their_port(watched: Rendered) -> None:
    """The front doors' and the routers' Envoys, and model servers of both roles; those of GPUs are others' pods."""
    templates = [manifest["spec"]["template"] for manifest in of_kind(watched, "Deployment")]
    matched: dict[str, int] = {}
    for monitor in of_kind(watched, "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        selector = monitor["spec"]["selector"]
        pods = [pod for pod in templates if _selected(selector, pod["metadata"]["labels"])]
        ports = [{port["name"] for item in pod["spec"]["containers"] for port in item.get("ports", [])} for pod in pods]
        assert all(endpoint["port"] in names for names in ports), monitor["metadata"]["name"]
        matched[monitor["metadata"]["name"]] = len(pods)
    assert matched == {
        "llmd-oke-model-servers": 2,
        "llmd-oke-router-envoys": 1,
        "llmd-oke-front-doors": 1,
        "llmd-oke-gpus": 0,
    }


def _selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    rows = selector.get("matchExpressions", [])
    return selects(selector["matchLabels"], labels) and all(labels.get(row["key"]) in row["values"] for row in rows)


def test_prometheus_rules_contain_the_latency_targets_of_the_models(watched: Rendered) -> None:
    recordings, _ = watched.kubernetes("PrometheusRule", "llmd-oke")["spec"]["groups"]
    (target,) = [rule for rule in recordings["rules"] if rule["record"] == "llmd_oke:slo_ttft_seconds"]
    assert (target["expr"], target["labels"]["llmd_oke_model"]) == ("vector(2)", "gpt-oss-120b")


def test_prometheus_rules_record_the_price_of_a_gpu_as_a_series(watched: Rendered) -> None:
    recordings, _ = watched.kubernetes("PrometheusRule", "llmd-oke")["spec"]["groups"]
    (price,) = [rule for rule in recordings["rules"] if rule["record"] == "llmd_oke:gpu_usd_per_hour"]
    assert (price["expr"], price["labels"]) == ("vector(6)", {"namespace": "llm-d"})


@pytest.mark.parametrize("version", ["v0.7.1", "v0.10.0"])
def test_prometheus_rules_use_the_metric_names_of_the_releases_endpoint_picker(version: str) -> None:
    args: ModelMonitoringArgs = {"namespace": "llm-d", "disaggregated": True, "endpoint_picker": version}
    recordings, _ = monitoring_manifests(args)[-1]["spec"]["groups"]
    (share,) = [rule for rule in recordings["rules"] if rule["record"] == "llmd_oke:decode_only:share5m"]
    assert share["expr"].count(endpoint_picker(version).metrics.decisions) == 2


def test_without_a_known_gpu_price_no_cost_series_is_recorded() -> None:
    manifests = monitoring_manifests({"namespace": "llm-d"})
    assert "usd" not in json.dumps(manifests).lower()


def test_a_stack_without_prefill_servers_has_no_prometheus_rules_about_them(varied: Vary) -> None:
    rendered = varied(topology="agg-tp1-16r", stack={"monitoring": "existing"}, slo=None)
    groups = rendered.kubernetes("PrometheusRule", "llmd-oke")["spec"]["groups"]
    names = {rule.get("alert") for group in groups for rule in group["rules"]}
    assert "Preemptions" in names
    assert names.isdisjoint({"PrefillFallbackToDecodeOnly", "KvTransferNotOverRdma", "QueueAgainstSlo"})


@pytest.mark.parametrize(("router", "alert"), [({}, True), ({"replicas": 1}, False), ({"mode": "none"}, False)])
def test_an_alert_of_a_missing_leader_is_declared_only_for_routers_with_two_pickers(
    varied: Vary, router: dict[str, object], alert: bool
) -> None:
    rendered = varied(topology="agg-tp1-16r", router=router, stack={"monitoring": "existing"})
    groups = rendered.kubernetes("PrometheusRule", "llmd-oke")["spec"]["groups"]
    assert ("PickerWithoutLeader" in {rule.get("alert") for group in groups for rule in group["rules"]}) is alert


def test_labels_in_the_stack_file_are_added_to_pod_monitors_and_prometheus_rules(varied: Vary) -> None:
    prometheus = {
        "url": "http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090",
        "labels": {"release": "kube-prometheus-stack"},
    }
    rendered = varied(stack={"monitoring": "existing", "prometheus": prometheus})
    for kind in KINDS:
        assert all(m["metadata"]["labels"]["release"] == "kube-prometheus-stack" for m in of_kind(rendered, kind))


def test_dashboards_are_small_and_have_the_label_that_grafana_selects(watched: Rendered) -> None:
    boards = [m for m in of_kind(watched, "ConfigMap") if m["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert len(boards) == 5
    for manifest in boards:
        (text,) = manifest["data"].values()
        assert len(text) < 100_000
        assert "<namespace>" not in text
        assert all(panel["targets"] for panel in json.loads(text)["panels"])


def test_a_prometheus_of_the_stack_has_a_pinned_chart_and_no_grafana_password(rendered: Vary) -> None:
    installed = rendered(created(monitoring="install"))
    (release,) = [r for r in installed.of_type("kubernetes:helm.sh/v3:Release") if r.name == "prometheus-release"]
    assert (release.inputs["chart"], release.inputs["version"]) == ("kube-prometheus-stack", "87.2.1")
    assert release.inputs["values"]["grafana"]["adminPassword"] == ""
