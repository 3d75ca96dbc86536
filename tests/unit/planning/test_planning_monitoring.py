import pytest
from llmd_base.errors import InvalidStack
from llmd_oke.catalogue.operators import operator
from llmd_oke.planning import plan_object
from llmd_oke.planning.monitoring import NODE_CHECKS, OPERATOR
from llmd_oke.values import values_folder
from stack_files import model, stack

OTHER = {"url": "http://prometheus.other.svc.cluster.local:9090"}
POD_ADDRESSES = {"cluster": {"mode": "existing", "identifier": "here", "controlPlaneCidrs": ["10.0.0.0/28"]}}


def paths(**changes: object) -> list[str]:
    """Return where the problems of a stack are."""
    with pytest.raises(InvalidStack) as refused:
        plan_object(stack(**changes))
    return [problem.path for problem in refused.value.problems]


def test_a_stack_that_says_nothing_of_it_is_not_watched() -> None:
    assert plan_object(stack()).monitoring is None


def test_no_monitoring_leaves_no_trace_in_the_hash_of_what_is_deployed() -> None:
    assert plan_object(stack(monitoring="none")).config_hash == plan_object(stack()).config_hash


def test_an_existing_prometheus_is_that_of_the_guides_unless_its_address_is_given() -> None:
    watched = plan_object(stack(monitoring="existing")).monitoring
    assert watched is not None
    assert (watched.install, watched.url.split("/")[2]) == (
        False,
        "prometheus-operated.llm-d-monitoring.svc.cluster.local:9090",
    )
    own = plan_object(stack(monitoring="existing", prometheus={"url": "https://prometheus.example.com/x"})).monitoring
    assert own is not None
    assert own.url == "https://prometheus.example.com/x"


@pytest.mark.parametrize(("mode", "told"), [("existing", True), ("install", False), ("none", False)])
def test_a_prometheus_of_others_is_told_what_nodes_find_of_themselves(mode: str, told: bool) -> None:
    texts = [item.text for item in plan_object(stack(monitoring=mode)).advice if item.path == "monitoring"]
    assert any(NODE_CHECKS in text for text in texts) is told


def test_nodes_write_where_node_exporter_reads() -> None:
    arguments = operator(OPERATOR).values["prometheus-node-exporter"]["extraArgs"]
    assert f"--collector.textfile.directory=/host/root{NODE_CHECKS}" in arguments
    assert f"folder={NODE_CHECKS}\n" in (values_folder() / "cloud-init" / "node-checks.sh.j2").read_text()


def test_targets_for_the_first_token_are_those_of_the_models_in_seconds() -> None:
    watched = plan_object(stack(model(slo={"ttftMs": 1500, "itlMs": 25}), monitoring="install")).monitoring
    assert watched is not None
    assert (dict(watched.slo_ttft_s), watched.disaggregated) == ({"gpt-oss-120b": 1.5}, True)


def test_the_price_of_a_gpu_is_the_list_price_of_its_shape() -> None:
    watched = plan_object(stack(monitoring="existing")).monitoring
    assert watched is not None
    assert watched.usd_per_gpu_hour == 6.0


def test_rules_and_panels_that_a_release_has_no_metric_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_object(stack(monitoring="install"))
    assert not any(item.path == "monitoring" for item in plan.advice)
    picker = plan.release.endpoint_picker.dialect
    other = picker.model_copy(update={"metrics": picker.metrics.model_copy(update={"ready_servers": None})})
    monkeypatch.setattr("llmd_oke.catalogue.releases.endpoint_picker", lambda version: other)
    (text,) = [item.text for item in plan_object(stack(monitoring="install")).advice if item.path == "monitoring"]
    assert text.startswith("left out: alert StackNotScraped, panel")
    assert "v0.10.0 has no metric" in text


def test_the_serving_layer_installs_nothing_for_the_cluster() -> None:
    assert paths(layer="serving", monitoring="install") == ["monitoring"]


def test_the_address_of_a_prometheus_needs_monitoring_of_an_existing_one() -> None:
    assert paths(prometheus=OTHER) == ["prometheus"]
    assert paths(prometheus=OTHER, monitoring="install") == ["prometheus"]


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://user:password@prometheus:9090", ""])
def test_what_is_no_address_of_a_prometheus_is_refused(url: str) -> None:
    assert paths(monitoring="existing", prometheus={"url": url}) == ["prometheus.url"]
