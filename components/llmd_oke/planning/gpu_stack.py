"""Who gives a stack's nodes their GPUs and its pods their RDMA network, and what that takes."""

from collections.abc import Iterator
from dataclasses import dataclass

from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.catalogue.operators import AddOn
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL, Shape, Taint
from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.config.gpu_stack import GpuStack
from llmd_oke.errors import Problem

PRESENT: GpuStack = "present"
FOR_CREATED_CLUSTERS: GpuStack = "helm-operator"


@dataclass(frozen=True)
class GpuStackPlan:
    """What a cluster needs so that pods get GPUs and RDMA.

    Attributes:
        kind: the choice in the stack file, or the default for the cluster.
        add_ons: OKE cluster add-ons, in the order in which they are to be made.
        components: the kit's own, in that order: `cert-manager`, `node-feature-discovery`, `amd-gpu-operator`,
            `rdma-network`.
        node_labels: labels that GPU nodes need from their start.
        gpu_selector: labels by which the AMD GPU operator finds its nodes.
        tolerations: of the GPU nodes' taints, those of the shapes and those of the pools.
    """

    kind: GpuStack
    add_ons: tuple[AddOn, ...] = ()
    components: tuple[str, ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()
    gpu_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Taint, ...] = ()


def gpu_stack(config: StackConfig) -> GpuStackPlan:
    """What a stack's choices of `gpuStack` and `rdma` need; nothing where the cluster is there already."""
    kind = chosen(config)
    if kind == PRESENT:
        return GpuStackPlan(kind)
    shapes = [shape for pool in config.gpu_pools if (shape := catalogue.shape(pool.shape)) is not None]
    written = [taint.model_dump() for pool in config.gpu_pools for taint in pool.taints]
    of_shapes = [taint for shape in shapes for taint in shape.node.taints]
    taints = tuple(dict.fromkeys([*of_shapes, *(Taint(**taint) for taint in written)]))
    rows, wanted = operators.gpu_stacks(), tolerations(taints)
    asked = (rows.gpu_stacks[kind], rows.rdma[config.rdma])
    add_ons = {add_on.name: add_on.tolerating(wanted) for row in asked for add_on in row.add_ons}
    replaced = {component for name, component in rows.replaces.items() if name in add_ons}
    components = tuple(name for row in asked for name in row.components if name not in replaced)
    return GpuStackPlan(
        kind=kind,
        add_ons=tuple(add_ons.values()),
        components=components,
        node_labels=tuple((key, value) for row in asked for key, value in row.node_labels.items()),
        gpu_selector=tuple(_gpu_selector(components, shapes).items()),
        tolerations=taints,
    )


def chosen(config: StackConfig) -> GpuStack:
    """The stack file's `gpuStack`; if left out, what suits the cluster."""
    if config.gpu_stack is not None:
        return config.gpu_stack
    return FOR_CREATED_CLUSTERS if _is_created(config) else PRESENT


def _is_created(config: StackConfig) -> bool:
    """A stack without a cluster of its own (layer `serving`) has one that another stack made."""
    return config.cluster is not None and config.cluster.mode == "create"


def functions_made_by(config: StackConfig) -> str | None:
    """Whose names virtual functions have, where not the kit's own."""
    return config.cluster.virtual_functions if isinstance(config.cluster, ExistingCluster) else None


def tolerations(taints: tuple[Taint, ...]) -> list[dict[str, str]]:
    """The tolerations of taints, one by one."""
    return [{"key": t.key, "operator": "Equal", "value": t.value, "effect": t.effect} for t in taints]


def gpu_stack_problems(config: StackConfig) -> Iterator[Problem]:
    """Choices that contradict the cluster or the shapes."""
    kind, created = chosen(config), _is_created(config)
    if created and kind == PRESENT:
        accepted = [name for name in operators.gpu_stacks().gpu_stacks if name != PRESENT]
        yield Problem(
            "gpuStack", kind, "one of " + ", ".join(accepted), "nothing gives a new cluster's nodes their GPUs"
        )
    if not created and kind != PRESENT:
        why = "add-ons and node labels of an existing cluster are not changed"
        yield Problem("gpuStack", kind, f"{PRESENT}, or leave it out", why)
    yield from _too_old(config)
    if config.rdma == "sriov-vf":
        yield from _unsplit(config, created=created)
    if (maker := functions_made_by(config)) is not None and config.rdma != "sriov-vf":
        why = f"rdma is {config.rdma}, so that pods ask for no virtual functions"
        yield Problem("cluster.virtualFunctions", maker, "nothing, or rdma: sriov-vf", why)


def _too_old(config: StackConfig) -> Iterator[Problem]:
    """A chart that would refuse the cluster's version, an hour after the cluster was asked for."""
    if not isinstance(config.cluster, CreateCluster) or config.layer == "serving":
        return
    version = config.cluster.kubernetes_version
    for name in gpu_stack(config).components:
        if name == "rdma-network":  # custom resources of an add-on, no chart
            continue
        oldest = operators.operator(name).oldest_minor
        if int(version.split(".")[1]) < oldest:
            why = f"gpuStack {chosen(config)} installs {name}, whose chart refuses older ones"
            yield Problem("cluster.kubernetesVersion", version, f"v1.{oldest} or newer", why)


def _unsplit(config: StackConfig, *, created: bool) -> Iterator[Problem]:
    """Shapes whose pods get no virtual functions, and those whose ports this stack would not know how to split."""
    for i, pool in enumerate(config.gpu_pools):
        shape, accepted = catalogue.shape(pool.shape), f"none, or another shape in gpuPools[{i}]"
        if shape is None:
            continue
        if not shape.rdma.virtual_functions:
            why = f"pods can't get virtual functions of {shape.name}'s adapters"
            yield Problem("rdma", "sriov-vf", accepted, why)
        elif created and shape.rdma.sriov is None:
            why = f"the catalogue has no ports of {shape.name} that virtual functions could be made of"
            yield Problem("rdma", "sriov-vf", accepted, why)


def _gpu_selector(components: tuple[str, ...], shapes: list[Shape]) -> dict[str, str]:
    """By what was found in the node where the kit's own discovery looks; otherwise by the shape, which is certain.

    Nodes of several shapes are found by the labels that all of them have.
    """
    if "node-feature-discovery" in components or not shapes:
        return operators.device_config().selector
    if len({shape.name for shape in shapes}) == 1:
        return {INSTANCE_TYPE_LABEL: shapes[0].name}
    first, *others = (shape.node.labels for shape in shapes)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
