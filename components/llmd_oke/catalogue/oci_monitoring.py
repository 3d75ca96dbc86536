"""Catalogue of OCI's alarms and logs (`values/monitoring/oci.yaml`)."""

from typing import Literal

from llmd_oke.config.oci_monitoring import AlarmName
from llmd_oke.values import Entry, entry_reader

AlarmNeed = Literal["front-door", "gpu-metrics"]
"""Condition that a stack must meet for an alarm to be useful: a front door with a load balancer, or nodes that publish
metrics of GPUs and RDMA.
"""


class OciAlarm(Entry):
    """Alarm of OCI Monitoring: `query` in Oracle's query language with the placeholder `$cluster_id`, on metrics of
    `namespace`, which must hold for the duration `pending` (ISO 8601) until the alarm fires. `says` is the text of its
    notifications.
    """

    name: AlarmName
    namespace: str
    query: str
    pending: str
    severity: Literal["CRITICAL", "WARNING"]
    says: str
    source: str
    needs: AlarmNeed | None = None


class ControlPlaneLog(Entry):
    """Service and category of OCI Logging by which OKE logs a cluster's control plane."""

    service: str
    category: str
    source: str


class PodLog(Entry):
    """Paths on nodes of the files with the output of pods, and the parser that Oracle's agent uses for their lines."""

    paths: tuple[str, ...]
    parser: str
    source: str


class OciMonitoringFacts(Entry):
    """Alarms and logs that the kit can create in OCI (`values/monitoring/oci.yaml`)."""

    alarms: tuple[OciAlarm, ...]
    control_plane_log: ControlPlaneLog
    pod_log: PodLog


oci_monitoring = entry_reader("monitoring", "oci", OciMonitoringFacts)
"""Return the alarms and logs that the kit can create in OCI."""
