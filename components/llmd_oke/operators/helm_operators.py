"""Components for operators that Helm installs.

They are cert-manager, Node Feature Discovery, AMD's GPU operator, Prometheus' operator, and the controller of
LeaderWorkerSets.
"""

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
"""Timeout in seconds for the deletion of a Helm release: Helm waits until the objects are gone, and charts run clean-up
Jobs before and after.
"""

DEVICE_CONFIG_TIMEOUT = pulumi.CustomTimeouts(create="300s", update="300s", delete="600s")
"""Timeouts of a DeviceConfig, whose deletion waits until the operator has deleted its DaemonSets."""

RULE = "installdefaultNFDRule"
"""Chart value that enables the NodeFeatureRule by which nodes are labelled according to their GPUs' PCI ids."""

KIND = "DeviceConfig"

Toleration = dict[str, str]


class TolerationArgs(TypedDict):
    """A toleration, with the fields of Kubernetes' API."""

    key: str
    """Key of the taint."""
    operator: str
    """Comparison with the taint: `Equal` (key and value) or `Exists` (key only)."""
    value: NotRequired[str | None]
    """Value of the taint, for `Equal`."""
    effect: NotRequired[str | None]
    """Effect of the taint; all effects if left out."""


class CertManagerArgs(TypedDict):
    """Arguments of cert-manager; its version and settings come from the catalogue."""

    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry from which chart and images are pulled; the public registries if left out."""


class NodeFeatureDiscoveryArgs(TypedDict):
    """Arguments of Node Feature Discovery."""

    tolerations: NotRequired[list[TolerationArgs] | None]
    """Tolerations of the worker DaemonSet, for the taints of GPU nodes, in addition to those of the catalogue's chart
    values."""
    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry from which chart and images are pulled; the public registries if left out."""


class AmdGpuOperatorArgs(TypedDict):
    """Arguments of the AMD GPU operator."""

    node_selector: NotRequired[dict[str, str] | None]
    """Labels that select the GPU nodes; `feature.node.kubernetes.io/amd-gpu`, which Node Feature Discovery sets, if
    left out."""
    tolerations: NotRequired[list[TolerationArgs] | None]
    """Tolerations of the operator's DaemonSets, for the taints of GPU nodes."""
    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry from which chart and images are pulled; the public registries if left out."""


class CertManager(pulumi.ComponentResource):
    """cert-manager, a prerequisite of the AMD GPU operator. Deletion keeps its custom resource definitions."""

    namespace: pulumi.Output[str]
    """Namespace of cert-manager, known once its Helm release is ready."""

    def __init__(self, name: str, args: CertManagerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:CertManager", name, inputs(self, args), opts)
        facts = operator("cert-manager").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, []), facts)
        self.register_outputs(outputs(self))


class NodeFeatureDiscovery(pulumi.ComponentResource):
    """Node Feature Discovery, which labels nodes by their hardware. Must not be installed beside OKE's add-on of that
    name.
    """

    namespace: pulumi.Output[str]
    """Namespace of Node Feature Discovery, known once its Helm release is ready."""

    def __init__(self, name: str, args: NodeFeatureDiscoveryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeFeatureDiscovery", name, inputs(self, args), opts)
        facts = operator("node-feature-discovery").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, _manifests(args.get("tolerations"))), facts)
        self.register_outputs(outputs(self))


class AmdGpuOperator(pulumi.ComponentResource):
    """The AMD GPU operator, which provides the resource `amd.com/gpu`, GPU labels of nodes, and GPU metrics.

    Nodes must have the driver, and the label `oci.oraclecloud.com/disable-gpu-device-plugin: "true"`, without which
    OKE's own device plug-in allocates the same GPUs. The custom resource definitions of cert-manager must exist, and
    those of Node Feature Discovery too if `node_selector` is left out or uses a label of Node Feature Discovery.
    """

    namespace: pulumi.Output[str]
    """Namespace of the AMD GPU operator, known once its Helm release is ready."""
    device_config: pulumi.Output[str]
    """Name of the DeviceConfig, known once the DeviceConfig is declared."""

    def __init__(self, name: str, args: AmdGpuOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AmdGpuOperator", name, inputs(self, args), opts)
        selector, mirror = args.get("node_selector"), registry_mirror(args)
        facts = _with_rule(operator("amd-gpu-operator"), selector).taken_from(mirror)
        release = declare_release(self, name, facts, [])
        self.namespace = namespace_of(release, facts)
        manifest = device_config(facts.namespace, selector, _manifests(args.get("tolerations")), mirror)
        # Deleted before the operator, which removes the finalizer.
        child = pulumi.ResourceOptions(parent=self, depends_on=[release], custom_timeouts=DEVICE_CONFIG_TIMEOUT)
        resource = KubernetesObject(f"{name}-device-config", manifest, child)
        self.device_config = when_declared(resource, manifest["metadata"]["name"])
        self.register_outputs(outputs(self))


def _with_rule(facts: Operator, selector: Mapping[str, str] | None) -> Operator:
    """Return the operator with its NodeFeatureRule enabled only if `selector` is None or uses the rule's labels: the
    rule can't be created before Node Feature Discovery's definitions, which OKE's add-on creates after the add-on is
    active.
    """
    labels = operators.device_config().selector.keys()
    needed = selector is None or not labels.isdisjoint(selector)
    return facts.model_copy(update={"values": {**facts.values, RULE: needed}})


def _manifests(tolerations: list[TolerationArgs] | None) -> list[Toleration]:
    """Return the tolerations as manifests have them, without fields that are None."""
    return [{key: str(value) for key, value in row.items() if value is not None} for row in tolerations or ()]


def device_config(
    namespace: Any,
    selector: dict[str, str] | None,
    tolerations: list[Toleration],
    mirror: MirrorRegistry | None = None,
) -> dict[str, Any]:
    """Return the DeviceConfig: device plug-in, node labeller and metrics exporter; no driver, which is part of the
    nodes' image.

    Args:
        namespace: namespace of the operator, which reads DeviceConfigs of no other namespace.
        selector: labels of GPU nodes; the label that Node Feature Discovery sets if left out.
        tolerations: tolerations of the GPU nodes' taints, for all three DaemonSets.
        mirror: private registry from which images are pulled.
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
    """Declare an operator's namespace and, in that namespace, the Helm release; Helm waits until all objects are ready.

    The namespace's Pod Security level is `privileged`, because operators' pods use host paths (devices, /sys, sockets
    of the kubelet).
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
    """Return the namespace of an operator as an output that resolves once Helm has installed the operator."""

    def installed(status: Mapping[str, Any]) -> str:
        return status.get("namespace") or operator.namespace

    return release.status.apply(installed)


def chart_values(operator: Operator, tolerations: list[Toleration]) -> dict[str, Any]:
    """Return the values of an operator's chart, with pinned images and with the given tolerations added."""
    values = with_images(operator.values, operator.images)
    return with_tolerations(values, [operator.tolerations_at] if operator.tolerations_at else [], tolerations)


def with_images(tree: dict[str, Any], images: Iterable[ImagePlace]) -> dict[str, Any]:
    """Return a copy of a chart's values, or of an object, in which each image is set at its path."""
    result = copy.deepcopy(tree)
    for place in images:
        _map_at(result, place.at[:-1])[place.at[-1]] = place.value
    return result


def with_tolerations(
    tree: dict[str, Any], places: list[tuple[str, ...]], tolerations: list[Toleration]
) -> dict[str, Any]:
    """Return a copy of `tree` with tolerations appended to the lists at the paths `places`; missing mappings and lists
    are created.
    """
    result = copy.deepcopy(tree)
    for *path, last in places:
        part = _map_at(result, path)
        part[last] = [*part.get(last, []), *tolerations]
    return result


def _map_at(tree: dict[str, Any], path: Iterable[str]) -> dict[str, Any]:
    """Return the mapping at a path of `tree`; missing mappings are created."""
    for key in path:
        tree = tree.setdefault(key, {})
    return tree


class PrometheusStackArgs(TypedDict):
    """Arguments of Prometheus' chart; its version and settings come from the catalogue."""

    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry from which chart and images are pulled; the public registries if left out."""


class PrometheusStack(pulumi.ComponentResource):
    """Prometheus and Grafana: Prometheus uses the monitors and rules of all namespaces, Grafana the dashboards.

    Must not be installed beside another Prometheus operator that watches the same namespaces: both would overwrite each
    other's objects.
    """

    namespace: pulumi.Output[str]
    """Namespace of Prometheus and Grafana, known once their Helm release is ready."""

    def __init__(self, name: str, args: PrometheusStackArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:PrometheusStack", name, inputs(self, args), opts)
        facts = operator("kube-prometheus-stack").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, []), facts)
        self.register_outputs(outputs(self))


class LeaderWorkerSetControllerArgs(TypedDict):
    """Arguments of the controller of LeaderWorkerSets; its version and settings come from the catalogue."""

    registry_mirror: NotRequired[RegistryMirrorArgs | None]
    """Private registry from which chart and images are pulled; the public registries if left out."""


class LeaderWorkerSetController(pulumi.ComponentResource):
    """Controller of LeaderWorkerSets, which runs servers that span nodes. Its custom resource definitions stay when the
    component is deleted. A cluster must not have another such controller, as both would act on the same objects.
    """

    namespace: pulumi.Output[str]
    """Namespace of the controller, known once its Helm release is ready."""

    def __init__(
        self, name: str, args: LeaderWorkerSetControllerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("llmd-oke:index:LeaderWorkerSetController", name, inputs(self, args), opts)
        facts = operator("leader-worker-set").taken_from(registry_mirror(args))
        self.namespace = namespace_of(declare_release(self, name, facts, []), facts)
        self.register_outputs(outputs(self))
