"""Repair of single GPU nodes on request: OKE's own operations, which a label of the node asks for."""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.operators import NodeOperations
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest, inputs
from llmd_oke.operators.crds import when_established

TIMEOUT = pulumi.CustomTimeouts(create="120s", update="120s", delete="600s")

_REMEDY = "OKE makes it in enhanced clusters. Without it: cluster.nodeRepair: none."


class RepairedPoolArgs(TypedDict):
    """A pool whose nodes can be repaired."""

    pool_name: str
    """Name of the pool, by which its nodes are labelled."""
    eviction_grace_minutes: int
    """How long OKE drains a node before it acts on it by force, in minutes, 60 at most; with 0 it doesn't drain."""


class NodeRepairArgs(TypedDict):
    """Nodes that can be repaired."""

    pools: list[RepairedPoolArgs]
    """The pools."""
    kubeconfig: NotRequired[pulumi.Input[str] | None]
    """Text of the kubeconfig that OKE's definition is looked for with; the environment's if left out."""


class NodeRepair(pulumi.ComponentResource):
    """Rules by which OKE reboots a node, or gives it a new boot volume, as soon as somebody labels it so.

    The node is drained first, one node of a pool at a time; OKE takes the label away when it is done. Nothing acts
    without the label. OKE's enhanced clusters have the definition; this waits for it.
    """

    names: pulumi.Output[list[str]]
    """Names of the rules; known once they are declared."""

    def __init__(self, name: str, args: NodeRepairArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeRepair", name, inputs(self, args, "kubeconfig"), opts)
        facts = operators.node_operations()
        served = when_established(
            [facts.definition], facts.definition_timeout_s, args.get("kubeconfig"), after=self, remedy=_REMEDY
        )
        manifests = [rule(facts, pool, operation) for pool in args["pools"] for operation in facts.actions]
        objects = [self._declare(name, manifest, served) for manifest in manifests]
        declared = pulumi.Output.all(*(resource.urn for resource in objects))
        self.names = declared.apply(lambda _: [manifest["metadata"]["name"] for manifest in manifests])
        self.register_outputs({"names": self.names})

    def _declare(self, name: str, manifest: Manifest, served: pulumi.Output[bool]) -> pulumi.Resource:
        """A rule, which waits for its definition by way of its parallelism. Whom it selects and what it does can't be
        changed, so that another rule takes its place.
        """
        spec = manifest["spec"]
        opts = pulumi.ResourceOptions(
            parent=self,
            custom_timeouts=TIMEOUT,
            replace_on_changes=["spec.nodeSelector", "spec.actions"],
            delete_before_replace=True,
        )
        parallelism = served.apply(lambda _: int(spec["maxParallelism"]))
        waiting = {**manifest, "spec": {**spec, "maxParallelism": parallelism}}
        return KubernetesObject(f"{name}-{manifest['metadata']['name']}", waiting, opts)


def rule(facts: NodeOperations, pool: RepairedPoolArgs, operation: str) -> Manifest:
    """The rule of one operation (`reboot`) on nodes of a pool."""
    settings = {"evictionGracePeriod": pool["eviction_grace_minutes"], "isForceActionAfterGraceDuration": True}
    return {
        "apiVersion": facts.api_version,
        "kind": facts.kind,
        "metadata": {"name": f"llmd-oke-{pool['pool_name']}-{operation}", "labels": PART_OF},
        "spec": {
            "actions": [facts.actions[operation]],
            "maxParallelism": facts.max_parallelism,
            "nodeEvictionSettings": settings,
            "nodeSelector": {
                "matchTriggerLabel": {facts.trigger_label: operation},
                "matchCustomLabels": {POOL_LABEL: pool["pool_name"]},
            },
        },
    }
