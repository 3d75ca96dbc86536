"""OCI alarms and logs of a created cluster: which alarms there are and who gets them, which logs are kept and
how long.
"""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import ConfigPart, Items, Ocid, is_absent
from llmd_oke.config.budget import EmailAddress

AlarmName = Literal[
    "no-node-for-pods",
    "unhealthy-machine",
    "planned-maintenance",
    "no-healthy-front-door",
    "gpu-fault",
    "gpu-memory-errors",
    "rdma-link-speed",
    "rdma-cable",
]


class OciAlarms(ConfigPart):
    """Alarms of OCI Monitoring on metrics that OCI has by itself: of the cluster, of the compartment's instances and
    network load balancers, and, with `cluster.iam.grants: [oci-metrics]`, of GPUs and RDMA adapters.
    """

    recipients: Items[EmailAddress] = ()
    """Mail addresses to which the stack's own topic of OCI Notifications sends alarms; each must confirm by a link in
    its first mail.
    """

    topic_id: Annotated[Ocid | None, Field(exclude_if=is_absent)] = None
    """Existing topic of OCI Notifications, in place of `recipients`."""

    left_out: Items[AlarmName] = ()
    """Names of alarms that the stack doesn't create."""


class OciLogs(ConfigPart):
    """Logs in a log group of OCI Logging."""

    control_plane: bool = True
    """Log of the cluster's control plane: API server, scheduler and controllers."""

    pods: bool = False
    """Output of all pods, which Oracle's agent on nodes reads and sends; needs `cluster.iam.create`."""

    retention_days: Literal[30, 60, 90, 120, 150, 180] = 30
    """Number of days for which OCI keeps the logs."""


class OciMonitoringConfig(ConfigPart):
    """Alarms and logs of OCI's own services. OCI bills logs and notifications beyond a free part."""

    alarms: Annotated[OciAlarms | None, Field(exclude_if=is_absent)] = None
    """Alarms and the recipients of their mail; none if left out."""

    logs: Annotated[OciLogs | None, Field(exclude_if=is_absent)] = None
    """Logs of the control plane and of pods; none if left out; with `{}`, only that of the control plane."""
