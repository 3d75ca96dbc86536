"""What nodes of GPU pools must show before they serve: checks, limits, and how many of them the models need."""

from collections.abc import Iterator, Sequence

from llmd_pods.acceptance import CheckName, Limits
from llmd_pods.errors import Problem

from llmd_oke import catalogue
from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.benchmarks import acceptance as facts
from llmd_oke.config import StackConfig
from llmd_oke.config.stack import Acceptance
from llmd_oke.planning.plan import Node, Pool, PoolAcceptance

GID_VARIABLE = "UCX_IB_GID_INDEX"
TESTED_GPUS = "amd.com/gpu"
"""The tools are those of ROCm."""

_PATH = "acceptance"


def pool_acceptance(config: StackConfig, pools: Sequence[Pool], nodes: Sequence[Node]) -> tuple[PoolAcceptance, ...]:
    """The acceptance of each pool with GPUs of AMD."""
    settings = config.acceptance or Acceptance()
    created = config.created_cluster is not None and settings.when == "new-nodes"
    return tuple(
        PoolAcceptance(
            pool=pool,
            in_update=created and not pool.autoscaled,
            needed=max(1, sum(node.pool == pool.name and bool(node.servers) for node in nodes)),
            on_failure=settings.on_failure,
            checks=_checks(settings, pool.shape, rdma=config.rdma != "none"),
            limits=_limits(settings, pool.shape, rdma=config.rdma != "none"),
            limit_s=settings.limit_minutes * 60,
        )
        for pool in pools
        if pool.shape.gpu.resource == TESTED_GPUS
    )


def _checks(settings: Acceptance, shape: Shape, *, rdma: bool) -> tuple[CheckName, ...]:
    """Without RDMA there is nothing between nodes to measure, and without a threshold nothing to judge."""
    left_out = (
        set[CheckName]() if rdma and shape.rdma.virtual_functions else {"rdma", "locality", "links", "all-reduce"}
    )
    if _all_reduce(settings, shape) is None:
        left_out.add("all-reduce")
    return tuple(name for name in settings.checks if name not in left_out)


def _all_reduce(settings: Acceptance, shape: Shape) -> float | None:
    figures = facts().shapes.get(shape.name)
    return settings.thresholds.min_all_reduce_gb_per_s or (figures.all_reduce_gb_per_s if figures else None)


def _limits(settings: Acceptance, shape: Shape, *, rdma: bool) -> Limits:
    known, figures = facts(), facts().shapes.get(shape.name)
    all_reduce = _all_reduce(settings, shape) or 0.0
    return Limits(
        gpus=shape.gpus,
        virtual_functions=shape.rdma.virtual_functions if rdma else 0,
        gid_index=int(shape.rdma.environment.get(GID_VARIABLE, "3")),
        mtu_bytes=figures.mtu_bytes if figures else 0,
        link_gb_per_s=settings.thresholds.min_link_gb_per_s or known.least_link_share * line_rate_gb_per_s(shape),
        all_reduce_gb_per_s=all_reduce,
        all_reduce_alone_gb_per_s=(figures.all_reduce_alone_gb_per_s if figures else None) or 0.0,
        least_carried_share=known.least_carried_share,
    )


def line_rate_gb_per_s(shape: Shape) -> float:
    """What one port carries at most (bound), in GB (10^9 bytes) per second."""
    return shape.rdma.port_gbit_per_s / 8


def acceptance_problems(config: StackConfig) -> Iterator[Problem]:
    """Thresholds that no node can reach, or that nothing is held against; checks that a stack can't do."""
    settings = config.acceptance
    if settings is None:
        return
    given = settings.thresholds
    pairs = (
        ("links", "min_link_gb_per_s", "minLinkGbPerS"),
        ("all-reduce", "min_all_reduce_gb_per_s", "minAllReduceGbPerS"),
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


def _beyond_ports(settings: Acceptance, shape: Shape) -> Iterator[Problem]:
    given, line = settings.thresholds, line_rate_gb_per_s(shape)
    ports = shape.rdma.virtual_functions
    link, all_reduce = given.min_link_gb_per_s, given.min_all_reduce_gb_per_s
    if link is not None and link >= line:
        why = f"a port of {shape.name} carries {line:g} GB/s at most ({shape.rdma.port_gbit_per_s:g} Gbit/s)"
        yield Problem(f"{_PATH}.thresholds.minLinkGbPerS", link, f"less than {line:g}", why)
    if all_reduce is not None and all_reduce >= line * ports:
        why = f"the {ports} ports of {shape.name} carry {line * ports:g} GB/s at most"
        yield Problem(f"{_PATH}.thresholds.minAllReduceGbPerS", all_reduce, f"less than {line * ports:g}", why)
