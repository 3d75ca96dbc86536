"""Operators that Helm installs: cert-manager, Node Feature Discovery, AMD's GPU operator, and that of Prometheus."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.operators import ImagePlace, Operator, operator
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.objects import (
    PART_OF,
    HelmRelease,
    KubernetesObject,
    RegistryMirrorArgs,
    inputs,
    outputs,
    registry_mirror,
    when_declared,
)

DELETE_S = 900
"""Helm waits for what it deletes, and charts run clean-up Jobs before and after."""

DEVICE_CONFIG_TIMEOUT = pulumi.CustomTimeouts(create="300s", update="300s", delete="600s")
"""Deleting waits for the operator, which takes its DaemonSets away first."""

RULE = "installdefaultNFDRule"
"""The chart's value for a NodeFeatureRule that labels nodes by their GPUs' PCI ids."""

KIND = "DeviceConfig"

Toleration = dict[str, str]


class TolerationArgs(TypedDict):
    """A toleration in Kubernetes' own words."""

    key: str
    """Key of the taint."""
    operator: str
    """`Equal` or `Exists`."""
    value: NotRequired[str | None]
    """Value of the taint, for `Equal`."""
    effect: NotRequired[str | None]
    """Effect of the taint; all effects if left out."""


class CertManagerArgs(TypedDict):
    """Arguments of cert-manager; its version and settings come from the catalogue."""

    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry that chart and images are taken from; those that publish them if left out."""


class NodeFeatureDiscoveryArgs(TypedDict):
    """Arguments of Node Feature Discovery."""

    tolerations: NotRequired[list[TolerationArgs] | None]
    """Tolerations of the workers beside those of the AMD GPU operator's chart; GPU nodes' taints belong here."""
    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry that chart and images are taken from; those that publish them if left out."""


class AmdGpuOperatorArgs(TypedDict):
    """Arguments of the AMD GPU operator."""

    node_selector: NotRequired[dict[str, str] | None]
    """Labels of the GPU nodes; what Node Feature Discovery finds (`feature.node.kubernetes.io/amd-gpu`) if left out."""
    tolerations: NotRequired[list[TolerationArgs] | None]
    """Tolerations of what runs on GPU nodes; their taints belong here."""
    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry that chart and images are taken from; those that publish them if left out."""


class CertManager(pulumi.ComponentResource):
    """cert-manager, a prerequisite of the AMD GPU operator. Its definitions stay when it goes."""

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""

    def __init__(self, name: str, args: CertManagerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:CertManager", name, inputs(self, args), opts)
        facts = operator("cert-manager").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, []), facts)
        self.register_outputs(outputs(self))


class NodeFeatureDiscovery(pulumi.ComponentResource):
    """Node Feature Discovery, which labels nodes by what it finds in them. Not beside OKE's add-on of that name."""

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""

    def __init__(self, name: str, args: NodeFeatureDiscoveryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeFeatureDiscovery", name, inputs(self, args), opts)
        facts = operator("node-feature-discovery").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, _manifests(args.get("tolerations"))), facts)
        self.register_outputs(outputs(self))


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
        super().__init__("llmd-oke:index:AmdGpuOperator", name, inputs(self, args), opts)
        selector, mirror = args.get("node_selector"), registry_mirror(args)
        facts = _with_rule(operator("amd-gpu-operator"), selector).taken_from(mirror)
        release = declare_release(self, name, facts, [])
        self.namespace = namespace_of(release, facts)
        manifest = device_config(facts.namespace, selector, _manifests(args.get("tolerations")), mirror)
        # It comes after the operator and goes before it, because the operator has to let it go.
        child = pulumi.ResourceOptions(parent=self, depends_on=[release], custom_timeouts=DEVICE_CONFIG_TIMEOUT)
        resource = KubernetesObject(f"{name}-device-config", manifest, child)
        self.device_config = when_declared(resource, manifest["metadata"]["name"])
        self.register_outputs(outputs(self))


def _with_rule(facts: Operator, selector: Mapping[str, str] | None) -> Operator:
    """The operator, with its rule for Node Feature Discovery only where nodes are selected by what the rule finds: the
    rule can't be made before that discovery's definitions, which OKE's add-on makes after it counts as active.
    """
    labels = operators.device_config().selector.keys()
    needed = selector is None or not labels.isdisjoint(selector)
    return facts.model_copy(update={"values": {**facts.values, RULE: needed}})


def _manifests(tolerations: list[TolerationArgs] | None) -> list[Toleration]:
    """The tolerations as they go into manifests."""
    return [{key: str(value) for key, value in row.items() if value is not None} for row in tolerations or ()]


def device_config(
    namespace: Any,
    selector: dict[str, str] | None,
    tolerations: list[Toleration],
    mirror: MirrorRegistry | None = None,
) -> dict[str, Any]:
    """The custom resource: device plug-in, node labeller and metrics exporter; no driver, which the node's image has.

    Args:
        namespace: the operator's; it looks nowhere else.
        selector: labels of GPU nodes; what Node Feature Discovery finds if left out.
        tolerations: of the GPU nodes' taints, for each of the three.
        mirror: the private registry that images are taken from.
    """
    facts = operators.device_config().taken_from(mirror)
    spec = with_tolerations(with_images(facts.spec, facts.images), list(facts.tolerations_at), tolerations)
    return {
        "apiVersion": facts.api_version,
        "kind": KIND,
        "metadata": {"name": facts.name, "namespace": namespace, "labels": PART_OF},
        "spec": {**spec, "selector": selector or facts.selector},
    }


def declare_release(
    parent: pulumi.Resource, name: str, operator: Operator, tolerations: list[Toleration]
) -> HelmRelease:
    """Declare the namespace and, in it, the release; Helm waits until all of it is ready.

    The namespace is privileged: operators' pods reach into the node (devices, /sys, kubelet's sockets).
    """
    child = pulumi.ResourceOptions(parent=parent)
    metadata = {
        "name": operator.namespace,
        "labels": {**PART_OF, "pod-security.kubernetes.io/enforce": "privileged"},
    }
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    namespace = KubernetesObject(f"{name}-namespace", manifest, child)
    limits = pulumi.CustomTimeouts(
        create=f"{operator.timeout_s}s", update=f"{operator.timeout_s}s", delete=f"{DELETE_S}s"
    )
    chart: dict[str, Any] = {"chart": operator.chart.pinned, "version": operator.chart.version}
    if operator.chart.repository is not None:
        chart["repositoryOpts"] = {"repo": operator.chart.repository}
    release = {
        "name": operator.release,
        "namespace": when_declared(namespace, operator.namespace),
        "timeout": operator.timeout_s,
        "values": chart_values(operator, tolerations),
        **chart,
    }
    opts = pulumi.ResourceOptions(parent=parent, custom_timeouts=limits, depends_on=[namespace])
    return HelmRelease(f"{name}-release", release, opts)


def namespace_of(release: HelmRelease, operator: Operator) -> pulumi.Output[str]:
    """The namespace of an operator, known once Helm has installed it."""

    def installed(status: Mapping[str, Any]) -> str:
        return status.get("namespace") or operator.namespace

    return release.status.apply(installed)


def chart_values(operator: Operator, tolerations: list[Toleration]) -> dict[str, Any]:
    """Return the values of an operator's chart, with pinned images and with tolerations beside those in its list."""
    values = with_images(operator.values, operator.images)
    return with_tolerations(values, [operator.tolerations_at] if operator.tolerations_at else [], tolerations)


def with_images(tree: dict[str, Any], images: Iterable[ImagePlace]) -> dict[str, Any]:
    """Return a copy of a chart's values, or of an object, with each image at its path in it."""
    result = copy.deepcopy(tree)
    for place in images:
        _map_at(result, place.at[:-1])[place.at[-1]] = place.value
    return result


def with_tolerations(
    tree: dict[str, Any], places: list[tuple[str, ...]], tolerations: list[Toleration]
) -> dict[str, Any]:
    """A copy of a tree with tolerations added to the lists at these places; maps on the way are made where missing."""
    result = copy.deepcopy(tree)
    for *path, last in places:
        part = _map_at(result, path)
        part[last] = [*part.get(last, []), *tolerations]
    return result


def _map_at(tree: dict[str, Any], path: Iterable[str]) -> dict[str, Any]:
    """The map at a place; it is made where it is missing."""
    for key in path:
        tree = tree.setdefault(key, {})
    return tree


class PrometheusStackArgs(TypedDict):
    """Arguments of Prometheus' chart; its version and settings come from the catalogue."""

    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry that chart and images are taken from; those that publish them if left out."""


class PrometheusStack(pulumi.ComponentResource):
    """Prometheus takes the monitors and rules of all namespaces, Grafana their dashboards. Not beside another
    Prometheus operator that watches the same namespaces: two would take turns.
    """

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""

    def __init__(self, name: str, args: PrometheusStackArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:PrometheusStack", name, inputs(self, args), opts)
        facts = operator("kube-prometheus-stack").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, []), facts)
        self.register_outputs(outputs(self))
