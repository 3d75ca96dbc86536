"""Add-ons of the stack file beside those of the GPU stack: each piece of software has one owner."""

from collections.abc import Iterator

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.operators import AddOn, cluster_autoscaler
from llmd_oke.config import CreateCluster, StackConfig
from llmd_oke.errors import Problem
from llmd_oke.planning.gpu_stack import GpuStackPlan, gpu_stack
from llmd_oke.planning.node_scaling import autoscaled_pools


def add_on_problems(config: StackConfig) -> Iterator[Problem]:
    """Add-ons that are asked for twice, or that would own what something else owns."""
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster) or config.layer == "serving":
        return
    wanted = gpu_stack(config)
    names = [add_on.name for add_on in cluster.add_ons]
    for i, name in enumerate(names):
        path = f"cluster.addOns[{i}].name"
        if (first := names.index(name)) < i:
            yield Problem(path, name, "each add-on once", f"cluster.addOns[{first}] asks for it already")
        elif name not in {add_on.name for add_on in wanted.add_ons}:
            yield from _second_owner(name, wanted, path)


def add_ons(config: StackConfig, cluster: CreateCluster) -> list[AddOn]:
    """The add-ons that the GPU stack needs, then the others of the stack file.

    What the file says of a needed one is added to its settings, so that a pinned version doesn't lose tolerations. An
    autoscaler of the stack's pools comes later, because it must know their OCIDs.
    """
    found = {add_on.name: add_on for add_on in gpu_stack(config).add_ons}
    later = cluster_autoscaler().name if autoscaled_pools(config) else None
    for written in (add_on for add_on in cluster.add_ons if add_on.name != later):
        needed = found.get(written.name, AddOn(name=written.name))
        settings = {**needed.configurations, **written.configurations}
        version = written.version or needed.version
        found[written.name] = AddOn(name=written.name, version=version, configurations=settings)
    return list(found.values())


def _second_owner(name: str, wanted: GpuStackPlan, path: str) -> Iterator[Problem]:
    rows = operators.gpu_stacks()
    component = rows.replaces.get(name)
    if component is not None and component in wanted.components:
        why = f"gpuStack {wanted.kind} installs {component} itself, and two would own the same objects"
        yield Problem(path, name, "nothing, or another gpuStack", why)
    for kind, row in rows.gpu_stacks.items():
        if component is None and name in {add_on.name for add_on in row.add_ons}:
            why = f"gpuStack is {wanted.kind}, which gives nodes their GPUs, and two would take turns"
            yield Problem(path, name, f"nothing, or gpuStack: {kind}", why)
