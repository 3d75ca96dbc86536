"""Catalogue of OCI's alarms and logs (`values/monitoring/oci.yaml`)."""

from functools import cache
from typing import Literal

from llmd_oke.config.oci_monitoring import AlarmName
from llmd_oke.values import Entry, required_entry

AlarmNeed = Literal["front-door", "gpu-metrics"]
"""Condition that a stack must meet for an alarm to be useful: a front door with a load balancer, or nodes that publish
metrics of GPUs and RDMA.
"""


class OciAlarm(Entry):
    """Alarm of OCI Monitoring: `query` in Oracle's query language with `$cluster_id`, on metrics of `namespace`, which
    must hold for the duration `pending` (ISO 8601). `says` is its text.
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
    """Files of a node with the output of its pods, and the agent's parser for their lines."""

    paths: tuple[str, ...]
    parser: str
    source: str


class OciMonitoringFacts(Entry):
    """Content of the file."""

    alarms: tuple[OciAlarm, ...]
    control_plane_log: ControlPlaneLog
    pod_log: PodLog


@cache
def oci_monitoring() -> OciMonitoringFacts:
    """Return the alarms and logs of the catalogue."""
    return required_entry("monitoring", "oci", OciMonitoringFacts)
