"""What nodes register with: the labels and taints of the stack file beside those that the kit relies on."""

from collections.abc import Iterator, Mapping, Sequence

from llmd_oke import catalogue
from llmd_oke.catalogue.shapes import POOL_LABEL, Taint
from llmd_oke.config import CpuPool, CreateCluster, GpuPool, StackConfig
from llmd_oke.config.node_pools import Taint as WrittenTaint
from llmd_oke.errors import Problem
from llmd_oke.planning.gpu_stack import gpu_stack


def registration_problems(config: StackConfig) -> Iterator[Problem]:
    """Labels that would take the place of the kit's own, and taints that keep kubelets from starting."""
    if not isinstance(config.cluster, CreateCluster) or config.layer == "serving":
        return
    for i, pool in enumerate(config.gpu_pools):
        yield from _gpu_pool(config, pool, f"gpuPools[{i}]")
    yield from _labels(config.system_pool.labels, {POOL_LABEL: "system"}, "systemPool")
    for i, pool in enumerate(config.cpu_pools):
        yield from _cpu_pool(pool, f"cpuPools[{i}]")


def _gpu_pool(config: StackConfig, pool: GpuPool, path: str) -> Iterator[Problem]:
    shape = catalogue.shape(pool.shape)
    of_shape = shape.node if shape else None
    own = {**dict(gpu_stack(config).node_labels), **(of_shape.labels if of_shape else {}), POOL_LABEL: pool.name}
    yield from _labels(pool.labels, own, path)
    yield from _taints(pool.taints, of_shape.taints if of_shape else (), path)


def _cpu_pool(pool: CpuPool, path: str) -> Iterator[Problem]:
    yield from _labels(pool.labels, {POOL_LABEL: pool.name}, path)
    yield from _taints(pool.taints, (), path)


def _labels(written: Mapping[str, str], own: Mapping[str, str], path: str) -> Iterator[Problem]:
    for key, value in written.items():
        if own.get(key, value) != value:
            why = "the kit sets this label and finds the nodes by it"
            yield Problem(f"{path}.labels.{key}", value, f"nothing: it is {own[key]!r}", why)


def _taints(written: Sequence[WrittenTaint], own: Sequence[Taint], path: str) -> Iterator[Problem]:
    taken = {(taint.key, taint.effect): "the shape" for taint in own}
    for i, taint in enumerate(written):
        where = f"{path}.taints[{i}]"
        if (taint.key, taint.effect) in taken:
            why = f"{taken[taint.key, taint.effect]} has this key with this effect already; no kubelet starts with two"
            yield Problem(where, f"{taint.key}:{taint.effect}", "a key and effect of its own", why)
        taken.setdefault((taint.key, taint.effect), where)
