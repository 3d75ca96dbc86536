import pytest
from llmd_oke.catalogue.operators import operator
from llmd_oke.planning import plan_object
from llmd_oke.planning.monitoring import NODE_CHECKS, OPERATOR
from llmd_oke.planning.plan import MonitoringPlan
from llmd_oke.values import values_folder
from stack_files import model, paths, stack

OTHER = {"url": "http://prometheus.other.svc.cluster.local:9090"}
POD_ADDRESSES = {"cluster": {"mode": "existing", "identifier": "here", "controlPlaneCidrs": ["10.0.0.0/28"]}}


def watched(*models: dict[str, object], monitoring: str = "existing", **changes: object) -> MonitoringPlan:
    result = plan_object(stack(*models, monitoring=monitoring, **changes)).monitoring
    assert result is not None
    return result


def test_an_existing_prometheus_has_the_address_of_llm_ds_guide_by_default() -> None:
    planned = watched()
    assert (planned.install, planned.url.split("/")[2]) == (
        False,
        "prometheus-operated.llm-d-monitoring.svc.cluster.local:9090",
    )
    url = "https://prometheus.example.com/x"
    assert watched(prometheus={"url": url}).url == url


@pytest.mark.parametrize(("mode", "told"), [("existing", True), ("install", False), ("none", False)])
def test_check_advises_that_an_existing_prometheus_must_be_set_up_for_node_checks(mode: str, told: bool) -> None:
    texts = [item.text for item in plan_object(stack(monitoring=mode)).advice if item.path == "monitoring"]
    assert any(NODE_CHECKS in text for text in texts) is told


def test_nodes_write_check_results_into_the_folder_that_node_exporter_reads() -> None:
    arguments = operator(OPERATOR).values["prometheus-node-exporter"]["extraArgs"]
    assert f"--collector.textfile.directory=/host/root{NODE_CHECKS}" in arguments
    assert f"folder={NODE_CHECKS}\n" in (values_folder() / "cloud-init" / "node-checks.sh.j2").read_text()


def test_ttft_targets_in_rules_are_those_of_the_models_in_seconds() -> None:
    planned = watched(model(slo={"ttftMs": 1500, "itlMs": 25}), monitoring="install")
    assert (dict(planned.slo_ttft_s), planned.disaggregated) == ({"gpt-oss-120b": 1.5}, True)


def test_a_gpus_price_in_rules_is_the_shapes_list_price() -> None:
    assert watched().usd_per_gpu_hour == 6.0


def test_check_reports_rules_and_panels_for_metrics_that_the_picker_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_object(stack(monitoring="install"))
    assert not any(item.path == "monitoring" for item in plan.advice)
    picker = plan.release.endpoint_picker.dialect
    other = picker.model_copy(update={"metrics": picker.metrics.model_copy(update={"ready_servers": None})})
    monkeypatch.setattr("llmd_oke.catalogue.releases.endpoint_picker", lambda version: other)
    (text,) = [item.text for item in plan_object(stack(monitoring="install")).advice if item.path == "monitoring"]
    assert text.startswith("left out: alert StackNotScraped, panel")
    assert "v0.10.0 has no metric" in text


def test_a_prometheus_that_the_stack_could_not_install_or_watch_with_is_refused() -> None:
    assert paths(layer="serving", monitoring="install") == ["monitoring"]
    assert paths(prometheus=OTHER) == ["prometheus"]
    assert paths(prometheus=OTHER, monitoring="install") == ["prometheus"]


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://user:password@prometheus:9090", ""])
def test_an_invalid_address_of_a_prometheus_is_refused(url: str) -> None:
    assert paths(monitoring="existing", prometheus={"url": url}) == ["prometheus.url"]


ENFORCED = {"networkPolicies": {"engine": "existing"}}


@pytest.mark.parametrize("changes", [POD_ADDRESSES, ENFORCED])
def test_a_prometheus_in_a_namespace_that_network_policies_block_is_refused(changes: dict[str, object]) -> None:
    assert paths(monitoring="existing", prometheus=OTHER, **changes) == ["prometheus.url"]
    assert watched(prometheus=OTHER)


@pytest.mark.parametrize("changes", [POD_ADDRESSES, ENFORCED])
@pytest.mark.parametrize("url", ["http://prometheus.llm-d-monitoring.svc:9090", "https://prometheus.example.com/x"])
def test_network_policies_permit_an_outside_prometheus_and_the_admitted_namespace(
    url: str, changes: dict[str, object]
) -> None:
    assert watched(prometheus={"url": url}, **changes)
