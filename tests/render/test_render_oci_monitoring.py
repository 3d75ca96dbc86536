"""OCI's alarms on a created cluster, whom they tell, and the control plane's log."""

from collections.abc import Callable
from typing import Any

import pytest
from created_cluster import cluster_layer
from llmd_oke.testing import Rendered
from stack_files import COMPARTMENT, created_pool, ocid

ALARM, TOPIC, SUBSCRIPTION = (
    "oci:Monitoring/alarm:Alarm",
    "oci:Ons/notificationTopic:NotificationTopic",
    "oci:Ons/subscription:Subscription",
)
LOG, GROUP = "oci:Logging/log:Log", "oci:Logging/logGroup:LogGroup"
AGENT = "oci:Logging/unifiedAgentConfiguration:UnifiedAgentConfiguration"
CLUSTER = "oci:ContainerEngine/cluster:Cluster"
TO_BOTH: dict[str, Any] = {"alarms": {"recipients": ["ops@example.com", "night@example.com"]}}
NAMES = ("no-node-for-pods", "planned-maintenance", "unhealthy-machine")

Render = Callable[..., Rendered]


def test_each_oci_alarm_watches_the_compartments_metrics_and_notifies_one_topic(rendered: Render):
    made = rendered(cluster_layer(ociMonitoring=TO_BOTH))
    alarms = {alarm.name: alarm.inputs for alarm in made.of_type(ALARM)}
    assert sorted(alarms) == [f"oci-monitoring-{name}" for name in NAMES]
    assert len(made.of_type(TOPIC)) == 1
    assert len({tuple(alarm["destinations"]) for alarm in alarms.values()}) == 1
    for alarm in alarms.values():
        assert (alarm["compartmentId"], alarm["metricCompartmentId"]) == (COMPARTMENT, COMPARTMENT)
        assert alarm["isEnabled"] is True


def test_an_oci_alarm_on_the_cluster_selects_it_by_its_ocid(rendered: Render):
    made = rendered(cluster_layer(ociMonitoring=TO_BOTH))
    (alarm,) = [item.inputs for item in made.of_type(ALARM) if item.name.endswith("no-node-for-pods")]
    assert alarm["namespace"] == "oci_oke"
    assert alarm["query"].startswith('UnschedulablePods[1m]{resourceId = "')
    assert "$" not in alarm["query"]


def test_every_recipient_of_oci_alarms_has_a_subscription(rendered: Render):
    made = rendered(cluster_layer(ociMonitoring=TO_BOTH)).of_type(SUBSCRIPTION)
    assert {item.inputs["endpoint"] for item in made} == set(TO_BOTH["alarms"]["recipients"])
    assert {item.inputs["protocol"] for item in made} == {"EMAIL"}


def test_oci_alarms_notify_an_existing_topic_instead_of_a_created_one(rendered: Render):
    topic = ocid("onstopic")
    made = rendered(cluster_layer(ociMonitoring={"alarms": {"topicId": topic}}))
    assert not [*made.of_type(TOPIC), *made.of_type(SUBSCRIPTION)]
    assert {tuple(alarm.inputs["destinations"]) for alarm in made.of_type(ALARM)} == {(topic,)}


def test_the_control_planes_log_has_the_configured_retention(rendered: Render):
    made = rendered(cluster_layer(ociMonitoring={"logs": {"retentionDays": 60}}))
    (log,) = made.of_type(LOG)
    assert len(made.of_type(GROUP)) == 1
    assert (log.inputs["logType"], log.inputs["retentionDuration"]) == ("SERVICE", 60)
    source = log.inputs["configuration"]["source"]
    assert (source["service"], source["category"]) == ("oke-k8s-cp-prod", "all-service-logs")
    assert not made.of_type(ALARM)


@pytest.mark.parametrize("style", ["classic", "identity-domain"])
def test_pod_logs_are_collected_by_oci_agents_of_the_nodes_dynamic_group(rendered: Render, style: str):
    iam = {"homeRegion": "us-ashburn-1", "style": style}
    logs = {"controlPlane": False, "pods": True}
    made = rendered(cluster_layer(cluster={"iam": iam}, ociMonitoring={"logs": logs}))
    (log,), (agent,) = made.of_type(LOG), made.of_type(AGENT)
    assert log.inputs["logType"] == "CUSTOM"
    assert len(agent.inputs["groupAssociation"]["groupLists"]) == 1
    (source,) = agent.inputs["serviceConfiguration"]["sources"]
    assert (source["sourceType"], source["paths"]) == ("LOG_TAIL", ["/var/log/containers/*.log"])
    statements = [text for policy in made.of_type("oci:Identity/policy:Policy") for text in policy.inputs["statements"]]
    assert [text for text in statements if text.endswith(f"to use log-content in compartment id {COMPARTMENT}")]


@pytest.mark.parametrize(("pods", "state"), [(True, "ENABLED"), (False, "DISABLED")])
def test_self_managed_nodes_enable_ocis_log_agent_if_pod_logs_are_collected(
    rendered: Render, *, pods: bool, state: str
):
    pools = [created_pool(name=launch, launch=launch) for launch in ("cluster-network", "compute-cluster-instances")]
    made = rendered({**cluster_layer(ociMonitoring={"logs": {"pods": pods}}), "gpuPools": pools})
    launched = [instance.inputs for instance in made.of_type("oci:Core/instance:Instance")]
    assert launched
    (configuration,) = made.of_type("oci:Core/instanceConfiguration:InstanceConfiguration")
    launched.append(configuration.inputs["instanceDetails"]["launchDetails"])
    plugins = [plugin for inputs in launched for plugin in inputs["agentConfig"]["pluginsConfigs"]]
    states = [plugin["desiredState"] for plugin in plugins if plugin["name"] == "Custom Logs Monitoring"]
    assert states == [state] * len(launched)


def test_a_stack_without_oci_monitoring_declares_no_alarm_topic_or_log(rendered: Render):
    made = rendered(cluster_layer())
    assert not [item for type_ in (ALARM, TOPIC, SUBSCRIPTION, LOG, GROUP, AGENT) for item in made.of_type(type_)]
