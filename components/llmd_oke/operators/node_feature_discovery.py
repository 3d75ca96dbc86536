"""Node Feature Discovery."""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue.operators import operator
from llmd_oke.operators.args import TolerationArgs, plain
from llmd_oke.operators.releases import declare_release, namespace_of


class NodeFeatureDiscoveryArgs(TypedDict):
    """What Node Feature Discovery is told."""

    tolerations: NotRequired[list[TolerationArgs]]
    """Tolerations of the workers beside those of the AMD GPU operator's chart; GPU nodes' taints belong here."""


class NodeFeatureDiscovery(pulumi.ComponentResource):
    """Node Feature Discovery, which labels nodes by what it finds in them. Not beside OKE's add-on of that name."""

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""

    def __init__(self, name: str, args: NodeFeatureDiscoveryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeFeatureDiscovery", name, None, opts)
        facts = operator("node-feature-discovery")
        release = declare_release(self, name, facts, plain(args.get("tolerations")))
        self.namespace = namespace_of(release, facts)
        self.register_outputs({"namespace": self.namespace})
