"""Plan and checks of OCI alarms and logs: which alarms apply to a stack's resources, and stacks that can't
have them.
"""

from collections.abc import Iterator

from llmd_base.errors import SET, Problem

from llmd_oke.catalogue.oci_monitoring import AlarmNeed, oci_monitoring
from llmd_oke.config import StackConfig
from llmd_oke.planning.cluster_plan import OciAlarmsPlan, OciMonitoringPlan
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.planning.pools import SELF_MANAGED_LAUNCHES

_PATH = "ociMonitoring"


def planned_oci_monitoring(config: StackConfig) -> OciMonitoringPlan | None:
    """Return the alarms and logs of the cluster that a stack creates; None if it has none."""
    chosen = config.oci_monitoring
    if chosen is None:
        return None
    alarms = None
    if chosen.alarms is not None:
        met = _met_needs(config)
        rows = tuple(
            alarm
            for alarm in oci_monitoring().alarms
            if alarm.name not in chosen.alarms.left_out and (alarm.needs is None or met[alarm.needs])
        )
        alarms = OciAlarmsPlan(rows, chosen.alarms.recipients, chosen.alarms.topic_id)
    return OciMonitoringPlan(alarms, chosen.logs)


def oci_monitoring_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for alarms and logs in a stack that creates no cluster, for alarms without recipients, and for
    empty sections.
    """
    chosen = config.oci_monitoring
    if chosen is None:
        return
    if config.created_cluster is None:
        why = "only a stack that creates its cluster knows its compartment and its OCID"
        yield Problem(_PATH, SET, "nothing, or a cluster of mode create", why)
    alarms, logs = chosen.alarms, chosen.logs
    if alarms is None and logs is None:
        yield Problem(_PATH, {}, "alarms or logs", "there is nothing in it")
    if logs is not None and not logs.control_plane and not logs.pods:
        yield Problem(f"{_PATH}.logs", None, "controlPlane or pods", "there is nothing in it")
    if logs is not None and logs.pods and config.created_cluster and not config.created_cluster.iam.create:
        why = "the agent's configuration is for the dynamic group of nodes, which the stack doesn't create"
        yield Problem(f"{_PATH}.logs.pods", True, "false, or cluster.iam.create: true", why)
    if alarms is None:
        return
    if bool(alarms.recipients) == (alarms.topic_id is not None):
        why = "alarms tell nobody" if not alarms.recipients else "a topic of yours has its own subscriptions"
        yield Problem(f"{_PATH}.alarms", None, "either recipients or topicId", why)
    for key, values in {"recipients": alarms.recipients, "leftOut": alarms.left_out}.items():
        for index, value in enumerate(values):
            if value in values[:index]:
                yield Problem(f"{_PATH}.alarms.{key}[{index}]", value, "each once", "it is there already")


def oci_monitoring_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on alarms that need a setting which the stack lacks, and on alarms that also cover resources of
    other stacks.
    """
    chosen = plan.created.oci_monitoring if plan.created else None
    if chosen is None:
        return
    if chosen.logs is not None and chosen.logs.pods:
        text = "prompts and answers are in it where servers log requests; OCI bills what is stored beyond a free part"
        yield Advice(f"{_PATH}.logs.pods", text, kind="note")
        if any(pool.launch not in SELF_MANAGED_LAUNCHES for pool in plan.config.gpu_pools):
            text = (
                "node pools of OKE can't turn the agent's plug-in Custom Logs Monitoring on; whether images have it on"
                " is not published"
            )
            yield Advice(f"{_PATH}.logs.pods", text)
    alarms = chosen.alarms
    if alarms is None:
        return
    if any("$cluster_id" not in alarm.query for alarm in alarms.rows):
        text = "alarms of instances and load balancers count all of the compartment, also those of other stacks"
        yield Advice(f"{_PATH}.alarms", text, kind="note")
    if not _met_needs(plan.config)["gpu-metrics"]:
        text = (
            "alarms of GPUs and RDMA need cluster.iam.grants: [oci-metrics], and nodes whose agent the kit configures"
            f" (launch: {' or '.join(SELF_MANAGED_LAUNCHES)})"
        )
        yield Advice(f"{_PATH}.alarms", text, kind="note")


def _met_needs(config: StackConfig) -> dict[AlarmNeed, bool]:
    cluster = config.created_cluster
    own = [pool for pool in config.gpu_pools if pool.pool_id is None]
    return {
        "front-door": config.front_door is not None and config.front_door.exposure != "cluster",
        "gpu-metrics": cluster is not None
        and "oci-metrics" in cluster.iam.grants
        and any(pool.launch in SELF_MANAGED_LAUNCHES for pool in own),
    }
