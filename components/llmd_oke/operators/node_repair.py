"""Component for the repair of single GPU nodes: OKE's node operations, which a label on the node triggers."""

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
    """Name of the pool, the value of its nodes' label `oke.oraclecloud.com/pool.name`."""
    eviction_grace_minutes: int
    """Minutes that OKE drains a node before the operation starts by force, 60 at most; with 0 OKE doesn't drain."""


class NodeRepairArgs(TypedDict):
    """Arguments of the repair of nodes."""

    pools: list[RepairedPoolArgs]
    """Pools whose nodes can be repaired."""
    kubeconfig: NotRequired[pulumi.Input[str] | None]
    """Text of the kubeconfig for the wait for OKE's custom resource definition; the environment's if left out."""


class NodeRepair(pulumi.ComponentResource):
    """NodeOperationRules by which OKE reboots a node, or replaces its boot volume, when the trigger label is set.

    OKE drains the node first, one node of a pool at a time, and removes the label afterwards. Nodes without the label
    aren't touched. The component waits for the custom resource definition, which OKE's enhanced clusters have.
    """

    names: pulumi.Output[list[str]]
    """Names of the NodeOperationRules, known once they are declared."""

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
        """Declare a rule. `maxParallelism` depends on `served`, so that the rule waits for its definition. Selector
        and actions are immutable, so that their change replaces the rule.
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
    """Return the NodeOperationRule for one operation, such as `reboot`, on the nodes of a pool."""
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
