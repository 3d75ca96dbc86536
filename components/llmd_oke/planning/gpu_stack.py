"""Plan and checks of the GPU stack: operators and add-ons for GPUs and the RDMA network, with the labels and taints of
nodes.

Each piece of software has one owner: OKE, this kit, or the maker of an existing cluster.
"""

from collections.abc import Iterator, Mapping, Sequence

from llmd_base.errors import Problem
from llmd_base.records import document

from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.catalogue.operators import cluster_autoscaler
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL, POOL_LABEL, Shape
from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.config.cluster import AddOn
from llmd_oke.config.pools import Taint
from llmd_oke.config.stack import GpuStack
from llmd_oke.planning.cluster_plan import GpuStackPlan
from llmd_oke.planning.pools import SYSTEM_POOL, autoscaled_pools

PRESENT: GpuStack = "present"
FOR_CREATED_CLUSTERS: GpuStack = "helm-operator"


def gpu_stack(config: StackConfig) -> GpuStackPlan:
    """Return the GPU stack (operators, add-ons, labels and taints) for a stack's choices of `gpuStack` and `rdma`; an
    empty one for an existing cluster.
    """
    kind = gpu_stack_kind(config)
    if kind == PRESENT:
        return GpuStackPlan(kind)
    shapes = [shape for pool in config.gpu_pools if (shape := catalogue.shape(pool.shape)) is not None]
    of_shapes = [taint for shape in shapes for taint in shape.node.taints]
    taints = tuple(dict.fromkeys([*of_shapes, *(taint for pool in config.gpu_pools for taint in pool.taints)]))
    stacks = operators.gpu_stacks()
    rows = (stacks.gpu_stacks[kind], stacks.rdma[config.rdma])
    add_ons = {add_on.name: add_on.tolerating(tolerations(taints)) for row in rows for add_on in row.add_ons}
    replaced = {component for name, component in stacks.replaces.items() if name in add_ons}
    components = tuple(name for row in rows for name in row.components if name not in replaced)
    return GpuStackPlan(
        kind=kind,
        add_ons=tuple(add_ons.values()),
        components=components,
        node_labels=tuple((key, value) for row in rows for key, value in row.node_labels.items()),
        gpu_selector=tuple(_gpu_selector(components, shapes).items()),
        tolerations=taints,
    )


def gpu_stack_kind(config: StackConfig) -> GpuStack:
    """Return the stack file's `gpuStack`, or the default for the cluster."""
    if config.gpu_stack is not None:
        return config.gpu_stack
    return FOR_CREATED_CLUSTERS if _is_created(config) else PRESENT


def virtual_functions_owner(config: StackConfig) -> str | None:
    """Return the stack file's naming scheme of virtual functions (`cluster.virtualFunctions`); None for the kit's own
    names.
    """
    return config.cluster.virtual_functions if isinstance(config.cluster, ExistingCluster) else None


def tolerations(taints: tuple[Taint, ...]) -> list[dict[str, str]]:
    """Return a toleration for each taint, as in a pod's spec."""
    return [document("key operator value effect", taint, operator="Equal") for taint in taints]


def add_ons(config: StackConfig, cluster: CreateCluster) -> list[AddOn]:
    """Return the add-ons that the GPU stack needs, followed by the other add-ons in the stack file. The stack file's
    settings of a needed add-on are merged into the kit's, so that pinning a version doesn't remove tolerations. The
    cluster autoscaler isn't included: it is added after the pools, because it needs their OCIDs.
    """
    add_ons = {add_on.name: add_on for add_on in gpu_stack(config).add_ons}
    later = cluster_autoscaler().name if autoscaled_pools(config) else None
    for own in (add_on for add_on in cluster.add_ons if add_on.name != later):
        needed = add_ons.get(own.name, AddOn(name=own.name))
        settings = {**needed.configurations, **own.configurations}
        add_ons[own.name] = AddOn(name=own.name, version=own.version or needed.version, configurations=settings)
    return list(add_ons.values())


def gpu_stack_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of GPU stack settings that contradict the cluster or the shapes."""
    kind, created = gpu_stack_kind(config), _is_created(config)
    if created and kind == PRESENT:
        accepted = [name for name in operators.gpu_stacks().gpu_stacks if name != PRESENT]
        yield Problem(
            "gpuStack", kind, "one of " + ", ".join(accepted), "nothing gives a new cluster's nodes their GPUs"
        )
    if not created and kind != PRESENT:
        why = "add-ons and node labels of an existing cluster are not changed"
        yield Problem("gpuStack", kind, f"{PRESENT}, or leave it out", why)
    yield from _chart_versions(config)
    if config.rdma == "sriov-vf":
        yield from _virtual_functions(config, created=created)
    if (owner := virtual_functions_owner(config)) is not None and config.rdma != "sriov-vf":
        why = f"rdma is {config.rdma}, so that pods ask for no virtual functions"
        yield Problem("cluster.virtualFunctions", owner, "nothing, or rdma: sriov-vf", why)


def add_on_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for add-ons that are listed twice, and for add-ons whose objects the kit or another operator
    manages.
    """
    cluster = config.created_cluster
    if cluster is None:
        return
    stack = gpu_stack(config)
    names = [add_on.name for add_on in cluster.add_ons]
    for i, name in enumerate(names):
        path = f"cluster.addOns[{i}].name"
        if (first := names.index(name)) < i:
            yield Problem(path, name, "each add-on once", f"cluster.addOns[{first}] asks for it already")
        elif name not in {add_on.name for add_on in stack.add_ons}:
            yield from _second_owner(name, stack, path)


def registration_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for node labels that override the kit's own, and for taints that keep kubelets from starting."""
    if config.created_cluster is None:
        return
    stack_labels = dict(gpu_stack(config).node_labels)
    for i, pool in enumerate(config.gpu_pools):
        shape, path = catalogue.shape(pool.shape), f"gpuPools[{i}]"
        own = {**stack_labels, **(shape.node.labels if shape else {}), POOL_LABEL: pool.name}
        yield from _labels(pool.labels, own, path)
        yield from _taints(pool.taints, shape.node.taints if shape else (), path)
    yield from _labels(config.system_pool.labels, {POOL_LABEL: SYSTEM_POOL}, "systemPool")
    for i, pool in enumerate(config.cpu_pools):
        yield from _labels(pool.labels, {POOL_LABEL: pool.name}, f"cpuPools[{i}]")
        yield from _taints(pool.taints, (), f"cpuPools[{i}]")


def _is_created(config: StackConfig) -> bool:
    """Tell whether this stack's cluster is one that it creates. A stack without `cluster` (layer `serving`) uses
    another stack's.
    """
    return config.cluster is not None and config.cluster.mode == "create"


def _chart_versions(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for charts that would refuse the cluster's Kubernetes version, which otherwise fails an hour
    after the cluster's creation.
    """
    if (cluster := config.created_cluster) is None:
        return
    version = cluster.kubernetes_version
    for name in gpu_stack(config).components:
        if name == "rdma-network":  # has no chart: it creates custom resources of an add-on
            continue
        oldest = operators.operator(name).oldest_minor
        if int(version.split(".")[1]) < oldest:
            why = f"gpuStack {gpu_stack_kind(config)} installs {name}, whose chart refuses older ones"
            yield Problem("cluster.kubernetesVersion", version, f"v1.{oldest} or newer", why)


def _virtual_functions(config: StackConfig, *, created: bool) -> Iterator[Problem]:
    """Yield a problem for shapes whose pods can't get virtual functions, and for those whose ports the kit can't split
    into them.
    """
    owner = virtual_functions_owner(config)
    for i, pool in enumerate(config.gpu_pools):
        known, accepted = catalogue.shape(pool.shape), f"none, or another shape in gpuPools[{i}]"
        if known is None:
            continue
        shape, driver = operators.with_function_names(known, owner), operators.driver_of(known)
        makers = operators.virtual_function_makers(known)
        if not shape.rdma.virtual_functions and owner is not None:
            own = ["nothing"] if known.rdma.virtual_functions else []
            why = f"these functions are of other adapters than {shape.name}'s ({driver})"
            ways = [*own, *makers] or [f"another shape in gpuPools[{i}]"]
            if pool.shape not in {earlier.shape for earlier in config.gpu_pools[:i]}:
                yield Problem("cluster.virtualFunctions", owner, " or ".join(ways), why)
        elif not shape.rdma.virtual_functions:
            why = f"the kit makes no virtual functions of {shape.name}'s adapters ({driver})"
            if makers and not created:
                accepted = f"cluster.virtualFunctions: {' or '.join(makers)} where the cluster has them, {accepted}"
            elif makers:
                why = f"{why}, nor installs what gives pods their ports; `mode: existing` takes a cluster that has it"
            yield Problem("rdma", "sriov-vf", accepted, why)
        elif created and shape.rdma.sriov is None:
            why = f"the catalogue has no ports of {shape.name} that virtual functions could be made of"
            yield Problem("rdma", "sriov-vf", accepted, why)


def _gpu_selector(components: tuple[str, ...], shapes: list[Shape]) -> dict[str, str]:
    """Return the labels that select GPU nodes: those from node feature discovery if the kit installs it, otherwise the
    shape's name, which is always set.

    Nodes of several shapes are selected by the labels that all these shapes have.
    """
    if "node-feature-discovery" in components or not shapes:
        return operators.device_config().selector
    if len({shape.name for shape in shapes}) == 1:
        return {INSTANCE_TYPE_LABEL: shapes[0].name}
    first, *others = (shape.node.labels for shape in shapes)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _labels(labels: Mapping[str, str], own: Mapping[str, str], path: str) -> Iterator[Problem]:
    for key, value in labels.items():
        if own.get(key, value) != value:
            why = "the kit sets this label and finds the nodes by it"
            yield Problem(f"{path}.labels.{key}", value, f"nothing: it is {own[key]!r}", why)


def _taints(taints: Sequence[Taint], own: Sequence[Taint], path: str) -> Iterator[Problem]:
    taken = {(taint.key, taint.effect): "the shape" for taint in own}
    for i, taint in enumerate(taints):
        where = f"{path}.taints[{i}]"
        if (taint.key, taint.effect) in taken:
            why = f"{taken[taint.key, taint.effect]} has this key with this effect already; no kubelet starts with two"
            yield Problem(where, f"{taint.key}:{taint.effect}", "a key and effect of its own", why)
        taken.setdefault((taint.key, taint.effect), where)


def _second_owner(name: str, stack: GpuStackPlan, path: str) -> Iterator[Problem]:
    rows = operators.gpu_stacks()
    component = rows.replaces.get(name)
    if component is not None and component in stack.components:
        why = f"gpuStack {stack.kind} installs {component} itself, and two would own the same objects"
        yield Problem(path, name, "nothing, or another gpuStack", why)
    for kind, row in rows.gpu_stacks.items():
        if component is None and name in {add_on.name for add_on in row.add_ons}:
            why = f"gpuStack is {stack.kind}, which gives nodes their GPUs, and two would take turns"
            yield Problem(path, name, f"nothing, or gpuStack: {kind}", why)
