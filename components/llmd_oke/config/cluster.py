"""Which cluster a stack deploys to."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmd_oke.config.base import Items, Part
from llmd_oke.config.create_cluster import CreateCluster
from llmd_oke.config.oci_names import Cidr


class ExistingCluster(Part):
    """A cluster that is there already and that the environment's kubeconfig reaches."""

    mode: Literal["existing"]
    """`existing`: nothing of the cluster itself is created or changed."""

    identifier: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    """What identifies the cluster, preferably its OCID. It must stay the same when the kubeconfig changes (a tunnel,
    CI): a changed identifier replaces every object in the cluster.
    """

    kubeconfig_context: str | None = None
    """Context of the kubeconfig; its current context if left out."""

    virtual_functions: Literal["oci-hpc-oke"] | None = None
    """Whose names the cluster's virtual functions have, with `rdma: sriov-vf`: `oci-hpc-oke`, the resource
    `nvidia.com/rdma-vf` and the network `default/rdma-vf`. If left out, the names of this kit and of the llm-d guides.
    """

    control_plane_cidrs: Annotated[Items[Cidr], Field(max_length=20)] = ()
    """Addresses that the API server speaks to pods from, such as the subnet of its endpoint. NetworkPolicies let them
    in beside the kit's own pods; without them every pod may reach the servers.
    """


Cluster = Annotated[ExistingCluster | CreateCluster, Field(discriminator="mode")]
"""One of the two, by `mode`."""
