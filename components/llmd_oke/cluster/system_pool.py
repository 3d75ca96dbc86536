"""The pool that controllers, routers and monitoring run on."""

import pulumi

from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.cluster.cpu_pool import CpuNodesArgs, node_pool


class SystemPoolArgs(CpuNodesArgs):
    """What the system pool needs."""


class SystemPool(pulumi.ComponentResource):
    """Nodes without GPUs for everything that serves the cluster: GPU nodes are tainted, so that it could run nowhere
    else.
    """

    pool_id: pulumi.Output[str]
    """OCID of the node pool."""
    node_label: pulumi.Output[str]
    """What the nodes are selected by: `oke.oraclecloud.com/pool.name=<name>`."""

    def __init__(self, name: str, args: SystemPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:SystemPool", name, None, opts)
        self.pool_id = node_pool(self, name, args)
        label = f"{POOL_LABEL}={args['pool_name']}"
        self.node_label = self.pool_id.apply(lambda _: label)
        self.register_outputs({"pool_id": self.pool_id, "node_label": self.node_label})
