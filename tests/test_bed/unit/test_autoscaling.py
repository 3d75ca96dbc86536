from typing import Any, cast

import pulumi
import pytest
from llmd_oke.planning import Plan
from llmd_rehearsal.autoscaling import ScalingTime, preinstalled_scaling, prometheus_address, rehearsed_spec
from llmd_rehearsal.cluster_plan import further_programs, preinstalled_definitions, simulated
from llmd_rehearsal.inventory import FOLLOWING, WATCHING
from llmd_rehearsal.plugins import KubernetesPlugin
from stack_files import model, plan

DECODE = {"minReplicas": 2, "maxReplicas": 6, "requests": 40}
USUAL = ScalingTime(15)


def scaled(monitoring: str = "none", **scaling: Any) -> Plan:
    return plan(model(scaling={"decode": DECODE, **scaling}), monitoring=monitoring)


def objects(planned: Plan) -> dict[tuple[str, str], dict[str, Any]]:
    return {(item["kind"], item["metadata"]["name"]): item for item in preinstalled_scaling(planned)}


def test_only_a_rehearsal_of_an_autoscaled_stack_has_keda_and_a_prometheus() -> None:
    assert preinstalled_scaling(plan()) == []
    assert not {*FOLLOWING, *WATCHING} & {*further_programs(plan())}
    made = objects(scaled())
    assert {*FOLLOWING, *WATCHING} <= {*further_programs(scaled())}
    assert ("APIService", "v1beta1.external.metrics.k8s.io") in made
    assert ("PodMonitor", "llmd-oke-model-servers") in made
    assert any(name.endswith("-epp-monitor") for kind, name in made if kind == "ServiceMonitor")
    assert "PodMonitor" not in {kind for kind, _ in objects(scaled("existing"))}


def test_kedas_crds_that_stacks_declare_and_its_further_ones_are_loaded_separately() -> None:
    first, second, _ = preinstalled_definitions(scaled())
    assert list(first.files) == ["keda.sh_scaledobjects.yaml"]
    assert "keda.sh_scaledjobs.yaml" in second.files
    assert "keda.sh_scaledobjects.yaml" not in second.files


def test_keda_is_real_in_rehearsals_but_the_prometheus_operator_is_simulated() -> None:
    told = " ".join(simulated(scaled(), KubernetesPlugin("4.30.0")))
    assert "Prometheus operator" in told
    assert "scaling" not in told


async def known(value: Any) -> Any:
    """The value, with outputs that are known."""
    if isinstance(value, pulumi.Output):
        return await cast("Any", value).future()
    if isinstance(value, dict):
        return {key: await known(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [await known(item) for item in cast("list[Any]", value)]
    return value


def spec(query: str = "q", server: str = prometheus_address()) -> dict[str, Any]:
    policies = [{"type": "Pods", "value": 1, "periodSeconds": 180}]
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies}}
    return {
        "minReplicaCount": 2,
        "pollingInterval": 15,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [{"type": "prometheus", "metadata": {"query": query, "serverAddress": server, "threshold": "40"}}],
    }


async def rehearsed(time: ScalingTime = USUAL, **parts: str) -> dict[str, Any]:
    return await known(rehearsed_spec(spec(**parts), time))


async def test_a_scaling_speed_divides_only_the_durations_of_a_scaledobject() -> None:
    done = await rehearsed()
    assert (done["pollingInterval"], done["minReplicaCount"]) == (1, 2)
    up = done["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
    assert up == {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 12}]}
    assert done["triggers"][0]["metadata"] == spec()["triggers"][0]["metadata"]


async def test_a_scaling_speed_of_one_leaves_a_scaledobject_unchanged() -> None:
    assert await rehearsed(ScalingTime(1), query="sum(rate(x[2m]))") == spec("sum(rate(x[2m]))")


@pytest.mark.parametrize(
    ("time", "query", "expected"),
    [
        (USUAL, 'rate(x{pod=~"a-[a-z0-9]+"}[2m])', 'rate(x{pod=~"a-[a-z0-9]+"}[8s])'),
        (USUAL, "max_over_time(x[10s])", "max_over_time(x[1s])"),
        (ScalingTime(15, 4), "a + sum(rate(x[2m])) / 2", "a + sum((4 * rate(x[8s]))) / 2"),
        (ScalingTime(15, 4), "sum(running)", "sum(running)"),
    ],
)
def test_rehearsed_queries_have_shorter_windows_and_scaled_rates(time: ScalingTime, query: str, expected: str) -> None:
    assert time.query(query) == expected


async def test_every_prometheus_address_in_scaledobjects_becomes_that_of_the_rehearsal() -> None:
    done = await rehearsed(server="https://prometheus.example.com")
    assert done["triggers"][0]["metadata"]["serverAddress"] == prometheus_address()


def test_the_rehearsal_reports_its_scaling_speed_and_the_resulting_durations() -> None:
    assert "15 s becomes 1 s" in str(USUAL)
    assert str(ScalingTime(1)) == "times of scaling pass as set"
