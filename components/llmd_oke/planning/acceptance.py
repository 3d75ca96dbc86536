"""Plan and checks of the acceptance test of GPU nodes: checks, thresholds, and the number of nodes that the models
need.
"""

from collections.abc import Iterator, Sequence

from llmd_base.errors import Problem
from llmd_base.records import record
from llmd_pods.acceptance import CheckName, NodeRequirements

from llmd_oke import catalogue
from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.benchmarks import acceptance as facts
from llmd_oke.catalogue.cluster import cloud_init
from llmd_oke.config import StackConfig
from llmd_oke.config.stack import AcceptanceConfig
from llmd_oke.planning.model_plan import PlacedNode, PlannedPool
from llmd_oke.planning.plan import PoolAcceptance

TESTED_GPUS = "amd.com/gpu"
"""Resource name of the GPUs that the acceptance test supports: it uses ROCm's tools."""

_PATH = "acceptance"


def pool_acceptance(
    config: StackConfig, pools: Sequence[PlannedPool], nodes: Sequence[PlacedNode]
) -> tuple[PoolAcceptance, ...]:
    """Return the acceptance test of each pool with AMD GPUs."""
    settings = config.acceptance or AcceptanceConfig()
    created = config.created_cluster is not None and settings.when == "new-nodes"
    return tuple(
        record(
            PoolAcceptance,
            settings,
            pool=pool,
            in_update=created and not pool.autoscaled,
            needed=max(1, sum(node.pool == pool.name and bool(node.servers) for node in nodes)),
            checks=_checks(settings, pool.shape, rdma=config.rdma != "none"),
            limits=_limits(settings, pool.shape, rdma=config.rdma != "none"),
            limit_s=settings.limit_minutes * 60,
            disk_folder=_disk_folder(config, pool),
        )
        for pool in pools
        if pool.shape.gpu.resource == TESTED_GPUS
    )


def _checks(settings: AcceptanceConfig, shape: Shape, *, rdma: bool) -> tuple[CheckName, ...]:
    """Return the checks to run, without checks between nodes if there is no RDMA, and without checks that have no
    threshold.
    """
    left_out = (
        set[CheckName]() if rdma and shape.rdma.virtual_functions else {"rdma", "locality", "links", "all-reduce"}
    )
    if _all_reduce(settings, shape) is None:
        left_out.add("all-reduce")
    if shape.disks is None:
        left_out.add("disks")
    return tuple(name for name in settings.checks if name not in left_out)


def _all_reduce(settings: AcceptanceConfig, shape: Shape) -> float | None:
    figures = facts().shapes.get(shape.name)
    return settings.thresholds.min_all_reduce_gb_per_s or (figures.all_reduce_gb_per_s if figures else None)


def _limits(settings: AcceptanceConfig, shape: Shape, *, rdma: bool) -> NodeRequirements:
    known, figures, given = facts(), facts().shapes.get(shape.name), settings.thresholds
    all_reduce = _all_reduce(settings, shape) or 0.0
    return record(
        NodeRequirements,
        known,
        shape,
        virtual_functions=shape.rdma.virtual_functions if rdma else 0,
        gid_index=shape.rdma.gid_index,
        mtu_bytes=figures.mtu_bytes if figures else 0,
        link_gb_per_s=given.min_link_gb_per_s or known.least_link_share * line_rate_gb_per_s(shape),
        all_reduce_gb_per_s=all_reduce,
        all_reduce_alone_gb_per_s=(figures.all_reduce_alone_gb_per_s if figures else None) or 0.0,
        memory_gb_per_s=given.min_memory_gb_per_s or known.least_memory_share * shape.gpu.memory_bandwidth_gb_per_s,
        matrix_tflops=given.min_matrix_tflops or known.least_matrix_share * shape.gpu.dense_tflops.bf16,
        disks=shape.disks.count if shape.disks else 0,
        disk_bytes=int(known.least_disk_share * shape.disks.terabytes * 1e12) if shape.disks else 0,
        disk_gb_per_s=given.min_disk_gb_per_s or known.least_disk_gb_per_s,
    )


def _disk_folder(config: StackConfig, pool: PlannedPool) -> str | None:
    """Return the mount point of the local disks' file system, if the kit creates it; None otherwise."""
    made = config.created_cluster is not None and not pool.exists
    kept = any(item.name == pool.name and item.nvme != "none" for item in config.gpu_pools)
    return cloud_init().raid.mount if made and kept and pool.shape.disks else None


def line_rate_gb_per_s(shape: Shape) -> float:
    """Return the maximum rate of one RDMA port of a shape in GB (10^9 bytes) per second; an upper bound for measured
    rates.
    """
    return shape.rdma.port_gbit_per_s / 8


def acceptance_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for thresholds that no node can reach or that no check uses, and for repeated checks."""
    settings = config.acceptance
    if settings is None:
        return
    given = settings.thresholds
    pairs = (
        ("links", "min_link_gb_per_s", "minLinkGbPerS"),
        ("all-reduce", "min_all_reduce_gb_per_s", "minAllReduceGbPerS"),
        ("memory", "min_memory_gb_per_s", "minMemoryGbPerS"),
        ("matrix-products", "min_matrix_tflops", "minMatrixTflops"),
        ("disks", "min_disk_gb_per_s", "minDiskGbPerS"),
    )
    for check, field, key in pairs:
        value = getattr(given, field)
        if value is not None and check not in settings.checks:
            why = f"acceptance.checks leaves {check} out, so that nothing is held against it"
            yield Problem(f"{_PATH}.thresholds.{key}", value, f"nothing, or {check} among the checks", why)
    if len(set(settings.checks)) < len(settings.checks):
        yield Problem(f"{_PATH}.checks", settings.checks, "each check once", "a check is there twice")
    for shape in filter(None, (catalogue.shape(name) for name in sorted({pool.shape for pool in config.gpu_pools}))):
        yield from _beyond_ports(settings, shape)
        yield from _beyond_gpus(settings, shape)


def _beyond_ports(settings: AcceptanceConfig, shape: Shape) -> Iterator[Problem]:
    given, line = settings.thresholds, line_rate_gb_per_s(shape)
    ports = len(shape.rdma.adapters) or shape.rdma.virtual_functions
    link, all_reduce = given.min_link_gb_per_s, given.min_all_reduce_gb_per_s
    if link is not None and link >= line:
        why = f"a port of {shape.name} carries {line:g} GB/s at most ({shape.rdma.port_gbit_per_s:g} Gbit/s)"
        yield Problem(f"{_PATH}.thresholds.minLinkGbPerS", link, f"less than {line:g}", why)
    if ports and all_reduce is not None and all_reduce >= line * ports:
        why = f"the {ports} ports of {shape.name} carry {line * ports:g} GB/s at most"
        yield Problem(f"{_PATH}.thresholds.minAllReduceGbPerS", all_reduce, f"less than {line * ports:g}", why)


def _beyond_gpus(settings: AcceptanceConfig, shape: Shape) -> Iterator[Problem]:
    given, gpu = settings.thresholds, shape.gpu
    peaks = (
        ("minMemoryGbPerS", given.min_memory_gb_per_s, gpu.memory_bandwidth_gb_per_s, "GB/s"),
        ("minMatrixTflops", given.min_matrix_tflops, gpu.dense_tflops.bf16, "TFLOPS of BF16"),
    )
    for key, value, peak, unit in peaks:
        if value is not None and value >= peak:
            why = f"a GPU of {shape.name} has {peak:g} {unit} at most"
            yield Problem(f"{_PATH}.thresholds.{key}", value, f"less than {peak:g}", why)
