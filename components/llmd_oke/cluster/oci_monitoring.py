"""Component for OCI's alarms on a cluster and its compartment, their notifications, and logs of the cluster."""

from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci
from llmd_base.records import document

from llmd_oke.catalogue.oci_monitoring import oci_monitoring
from llmd_oke.cluster.provider import TagArgs, foreign_tags, tag_args
from llmd_oke.objects import inputs, outputs


class OciAlarmArgs(TypedDict):
    """Alarm of OCI Monitoring."""

    name: str
    """Name of the alarm, unique in the component."""
    namespace: str
    """Namespace of the metric."""
    query: str
    """Condition in Oracle's query language (MQL). `$cluster_id` stands for the cluster's OCID."""
    pending: str
    """Duration for which the condition must hold before the alarm fires, in ISO 8601 (`PT5M`)."""
    severity: str
    """`CRITICAL`, `ERROR`, `WARNING` or `INFO`."""
    says: str
    """Text of the alarm's notifications."""


class OciMonitoringArgs(TagArgs):
    """Arguments of OCI's alarms and logs for a cluster."""

    compartment_id: pulumi.Input[str]
    """Compartment of the alarms and the log group, and of the metrics."""
    cluster_id: pulumi.Input[str]
    """OCID of the cluster."""
    display_name: NotRequired[str | None]
    """Prefix of the names of topic, alarms and log group, unique in the tenancy; the component's name if left out."""
    alarms: NotRequired[list[OciAlarmArgs] | None]
    """Alarms of OCI Monitoring to create; none if left out."""
    recipients: NotRequired[list[str] | None]
    """E-mail addresses that a new topic sends notifications to. With alarms, either `recipients` or `topic_id`."""
    topic_id: NotRequired[pulumi.Input[str] | None]
    """OCID of an existing topic of OCI Notifications that alarms are sent to."""
    retention_days: NotRequired[int | None]
    """Number of days for which OCI keeps logs, a multiple of 30; no logs if left out."""
    control_plane: NotRequired[bool | None]
    """Whether OKE logs the cluster's control plane; false if left out."""
    nodes_group_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the dynamic group of nodes whose agent sends the output of pods; no log of pods if left out. The group
    needs the right to `use log-content`."""


class OciMonitoring(pulumi.ComponentResource):
    """Alarms on metrics that OCI publishes without an agent of the kit, a topic that sends them by mail, and logs of
    OKE's control plane and of pods. Mail subscriptions are pending until their addresses have confirmed them.
    """

    topic_id: pulumi.Output[str] | None
    """OCID of the topic that alarms are sent to; None without alarms."""
    log_group_id: pulumi.Output[str] | None
    """OCID of the log group of the cluster's logs; None without logs."""

    def __init__(self, name: str, args: OciMonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:OciMonitoring", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, ignore_changes=foreign_tags(args))
        label, days = args.get("display_name") or name, args.get("retention_days")
        self.topic_id = _alarms(name, label, args, child) if args.get("alarms") else None
        self.log_group_id = None if days is None else _logs(name, label, args, days, child)
        self.register_outputs(outputs(self))


def _alarms(name: str, label: str, args: OciMonitoringArgs, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """Declare the alarms and, unless there is one, their topic with its subscriptions; return the topic's OCID."""
    own, tags, given = args["compartment_id"], tag_args(args), args.get("topic_id")
    topic_id = None if given is None else pulumi.Output.from_input(given)
    if topic_id is None:
        topic_id = oci.ons.NotificationTopic(
            f"{name}-topic",
            compartment_id=own,
            name=f"{label}-alarms",
            description=f"Alarms of {label}",
            **tags,
            opts=opts,
        ).topic_id
        for recipient in args.get("recipients") or ():
            oci.ons.Subscription(
                f"{name}-{recipient}",
                compartment_id=own,
                topic_id=topic_id,
                protocol="EMAIL",
                endpoint=recipient,
                **tags,
                opts=opts,
            )
    cluster_id = pulumi.Output.from_input(args["cluster_id"])
    for alarm in args.get("alarms") or ():
        oci.monitoring.Alarm(
            f"{name}-{alarm['name']}",
            compartment_id=own,
            metric_compartment_id=own,
            display_name=f"{label}-{alarm['name']}",
            namespace=alarm["namespace"],
            query=cluster_id.apply(lambda ocid, query=alarm["query"]: query.replace("$cluster_id", ocid)),
            pending_duration=alarm["pending"],
            severity=alarm["severity"],
            body=f"{label}: {alarm['says']}",
            message_format="ONS_OPTIMIZED",
            destinations=[topic_id],
            is_enabled=True,
            **tags,
            opts=opts,
        )
    return topic_id


def _logs(
    name: str, label: str, args: OciMonitoringArgs, days: int, opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    """Declare a log group with the logs of control plane and pods; return the group's OCID."""
    tags, facts, own = tag_args(args), oci_monitoring(), args["compartment_id"]
    group = oci.logging.LogGroup(
        f"{name}-logs",
        compartment_id=own,
        display_name=f"{label}-logs",
        description=f"Logs of {label}",
        **tags,
        opts=opts,
    )
    kept: Any = {"log_group_id": group.id, "is_enabled": True, "retention_duration": days, **tags, "opts": opts}
    if args.get("control_plane"):
        source: Any = document(
            "source_type service category resource",
            facts.control_plane_log,
            source_type="OCISERVICE",
            resource=args["cluster_id"],
        )
        oci.logging.Log(
            f"{name}-control-plane",
            display_name=f"{label}-control-plane",
            log_type="SERVICE",
            configuration={"compartment_id": own, "source": source},
            **kept,
        )
    nodes = args.get("nodes_group_id")
    if nodes is not None:
        log = oci.logging.Log(f"{name}-pods", display_name=f"{label}-pods", log_type="CUSTOM", **kept)
        tail: Any = {
            "source_type": "LOG_TAIL",
            "name": "pods",
            "paths": list(facts.pod_log.paths),
            "parser": {"parser_type": facts.pod_log.parser},
        }
        oci.logging.UnifiedAgentConfiguration(
            f"{name}-agent",
            compartment_id=own,
            display_name=f"{label}-pods",
            description=f"Output of the pods of {label}",
            is_enabled=True,
            group_association={"group_lists": [nodes]},
            service_configuration={
                "configuration_type": "LOGGING",
                "destination": {"log_object_id": log.id},
                "sources": [tail],
            },
            **tags,
            opts=opts,
        )
    return group.id
