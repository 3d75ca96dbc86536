"""Alarms and logs of OCI: where they have a meaning, which alarms a stack has, and what is refused."""

from typing import Any, get_args

import pytest
from llmd_oke.catalogue.oci_monitoring import oci_monitoring
from llmd_oke.config import validate
from llmd_oke.config.oci_monitoring import AlarmName
from llmd_oke.planning import Plan, plan
from stack_files import cluster_layer, created_pool, created_stack, ocid, problems

TO_OPS: dict[str, Any] = {"recipients": ["ops@example.com"]}
ALWAYS = ["no-node-for-pods", "unhealthy-machine", "planned-maintenance"]
OF_GPUS = ["gpu-fault", "gpu-memory-errors", "rdma-link-speed", "rdma-cable"]


def planned(*, launch: str = "managed-compute-cluster", iam: dict[str, Any] | None = None, **alarms: Any) -> Plan:
    cluster: dict[str, Any] = {"cluster": {"iam": iam}} if iam else {}
    made = cluster_layer(created_pool(launch=launch), ociMonitoring={"alarms": {**TO_OPS, **alarms}}, **cluster)
    return plan(validate(made))


def names(made: Plan) -> list[str]:
    return [alarm.name for alarm in made.created.oci_monitoring.alarms.rows]


def test_a_stack_file_may_name_exactly_the_oci_alarms_of_the_catalogue():
    assert [alarm.name for alarm in oci_monitoring().alarms] == list(get_args(AlarmName))


def test_a_stack_has_gpu_alarms_only_if_its_nodes_publish_gpu_metrics():
    """OCI's agent may be off on managed nodes."""
    assert names(planned()) == names(planned(iam={"grants": ["oci-metrics"]})) == ALWAYS
    assert names(planned(launch="cluster-network", iam={"grants": ["oci-metrics"]})) == [*ALWAYS, *OF_GPUS]


def test_a_front_door_with_a_load_balancer_has_an_oci_alarm():
    made = created_stack(frontDoor={"exposure": "internal"}, ociMonitoring={"alarms": TO_OPS})
    assert names(plan(validate(made))) == [*ALWAYS, "no-healthy-front-door"]


def test_an_oci_alarm_can_be_left_out_by_name():
    assert names(planned(leftOut=["planned-maintenance"])) == ALWAYS[:2]


def test_oci_alarms_are_refused_for_a_cluster_that_the_stack_does_not_create():
    assert [problem.path for problem in problems(ociMonitoring={"alarms": TO_OPS})] == ["ociMonitoring"]


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({}, "ociMonitoring"),
        ({"alarms": {}}, "ociMonitoring.alarms"),
        ({"alarms": {**TO_OPS, "topicId": ocid("onstopic")}}, "ociMonitoring.alarms"),
        ({"alarms": {"recipients": ["a@b.c", "a@b.c"]}}, "ociMonitoring.alarms.recipients[1]"),
        ({"alarms": {**TO_OPS, "leftOut": ["gpu-fault", "gpu-fault"]}}, "ociMonitoring.alarms.leftOut[1]"),
        ({"alarms": {"recipients": ["nobody"]}}, "ociMonitoring.alarms.recipients[0]"),
        ({"alarms": {**TO_OPS, "leftOut": ["gpu-on-fire"]}}, "ociMonitoring.alarms.leftOut[0]"),
        ({"logs": {"retentionDays": 45}}, "ociMonitoring.logs.retentionDays"),
        ({"logs": {"controlPlane": False}}, "ociMonitoring.logs"),
    ],
)
def test_oci_monitoring_without_a_recipient_or_with_invalid_settings_is_refused(section: dict[str, Any], path: str):
    found = problems(**{key: value for key, value in created_stack(ociMonitoring=section).items() if key != "models"})
    assert path in [problem.path for problem in found]


def test_collecting_pod_logs_requires_the_dynamic_group_of_nodes():
    found = problems(**created_stack(cluster={"iam": {"create": False}}, ociMonitoring={"logs": {"pods": True}}))
    assert "ociMonitoring.logs.pods" in [problem.path for problem in found]


def test_check_advises_that_ocis_log_agent_may_be_off_on_managed_nodes():
    made = plan(validate(cluster_layer(ociMonitoring={"logs": {"pods": True}})))
    texts = [advice.text for advice in made.advice if advice.path == "ociMonitoring.logs.pods"]
    assert any("Custom Logs Monitoring" in text for text in texts)
    assert any("prompts and answers" in text for text in texts)


@pytest.mark.parametrize(("left_out", "whole"), [([], True), (ALWAYS[1:], False)])
def test_check_tells_if_oci_alarms_watch_the_whole_compartment(left_out: list[str], whole: bool):
    texts = [advice.text for advice in planned(leftOut=left_out).advice if advice.path == "ociMonitoring.alarms"]
    assert any("all of the compartment" in text for text in texts) is whole
    assert any("oci-metrics" in text for text in texts)
