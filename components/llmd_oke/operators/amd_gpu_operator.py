"""The AMD GPU operator and the DeviceConfig that it acts on."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.operators import Operator
from llmd_oke.objects import KubernetesObject, when_declared
from llmd_oke.operators.args import TolerationArgs, plain
from llmd_oke.operators.device_config import device_config
from llmd_oke.operators.releases import declare_release, namespace_of

DEVICE_CONFIG_TIMEOUT = pulumi.CustomTimeouts(create="300s", update="300s", delete="600s")
"""Deleting waits for the operator, which takes its DaemonSets away first."""

RULE = "installdefaultNFDRule"
"""The chart's value for a NodeFeatureRule that labels nodes by their GPUs' PCI ids."""


class AmdGpuOperatorArgs(TypedDict):
    """What the AMD GPU operator is told."""

    node_selector: NotRequired[dict[str, str]]
    """Labels of the GPU nodes; what Node Feature Discovery finds (`feature.node.kubernetes.io/amd-gpu`) if left out."""
    tolerations: NotRequired[list[TolerationArgs]]
    """Tolerations of what runs on GPU nodes; their taints belong here."""


class AmdGpuOperator(pulumi.ComponentResource):
    """The AMD GPU operator, which gives nodes `amd.com/gpu`, their GPUs' labels, and metrics.

    Nodes must have the driver, and the label `oci.oraclecloud.com/disable-gpu-device-plugin: "true"`, without which
    OKE's own plug-in gives out the same GPUs. cert-manager's definitions must be there. Those of Node Feature Discovery
    must be too, unless `node_selector` has only labels that others set.
    """

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""
    device_config: pulumi.Output[str]
    """Name of its DeviceConfig."""

    def __init__(self, name: str, args: AmdGpuOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AmdGpuOperator", name, None, opts)
        selector = args.get("node_selector")
        facts = _with_rule(operators.operator("amd-gpu-operator"), selector)
        release = declare_release(self, name, facts, [])
        self.namespace = namespace_of(release, facts)
        tolerations = plain(args.get("tolerations"))
        manifest = device_config(facts.namespace, selector, tolerations)
        self.device_config = _declared(self, name, manifest, release)
        self.register_outputs({"namespace": self.namespace, "device_config": self.device_config})


def _with_rule(facts: Operator, selector: Mapping[str, str] | None) -> Operator:
    """The operator, with its rule for Node Feature Discovery only where nodes are selected by what the rule finds: the
    rule can't be made before that discovery's definitions, which OKE's add-on makes after it counts as active.
    """
    found = operators.device_config().selector.keys()
    wanted = selector is None or not found.isdisjoint(selector)
    return facts.model_copy(update={"values": {**facts.values, RULE: wanted}})


def _declared(
    parent: pulumi.Resource, name: str, manifest: dict[str, Any], release: pulumi.Resource
) -> pulumi.Output[str]:
    """The DeviceConfig comes after the operator and goes before it, because the operator has to let it go."""
    opts = pulumi.ResourceOptions(parent=parent, depends_on=[release], custom_timeouts=DEVICE_CONFIG_TIMEOUT)
    resource = KubernetesObject(f"{name}-device-config", manifest, opts)
    return when_declared(resource, manifest["metadata"]["name"])
