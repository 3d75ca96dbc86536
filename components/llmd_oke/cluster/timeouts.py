"""Limits of waits for OCI: those of Oracle's own modules where a source is named. The plug-in's are shorter."""

import pulumi

CLUSTER = pulumi.CustomTimeouts(create="60m", update="120m", delete="60m")
"""terraform-oci-oke, modules/cluster: updates of up to 120 minutes."""

ADD_ON = pulumi.CustomTimeouts(create="30m", update="30m", delete="30m")
"""terraform-oci-oke, modules/cluster-addons."""

IMAGE = pulumi.CustomTimeouts(create="120m", update="20m", delete="20m")
"""An image of tens of GB is copied from Object Storage."""

COMPUTE_CLUSTER = pulumi.CustomTimeouts(create="20m", update="20m", delete="20m")

CPU_POOL = pulumi.CustomTimeouts(create="60m", update="120m", delete="60m")

GPU_POOL = pulumi.CustomTimeouts(create="120m", update="240m", delete="120m")
"""terraform-oci-oke, modules/workers: creation of a cluster network within two hours. Cycling replaces node by node."""

GPU_INSTANCE = pulumi.CustomTimeouts(create="120m", update="60m", delete="60m")
