"""Which options each way to launch GPU nodes can carry. What OCI would silently drop is refused here."""

from collections.abc import Iterator
from dataclasses import dataclass

from llmd_oke.config import GpuPool, Launch
from llmd_oke.errors import Problem

RDMA_LAUNCHES: tuple[Launch, ...] = ("managed-compute-cluster", "cluster-network", "compute-cluster-instances")
"""Those whose nodes are in the RDMA network."""

SELF_MANAGED_LAUNCHES: tuple[Launch, ...] = ("cluster-network", "compute-cluster-instances")
"""Those whose nodes join the cluster by themselves, not as a node pool of OKE."""

MANAGED_LAUNCHES: tuple[Launch, ...] = ("managed-compute-cluster", "plain")
"""Those whose nodes are a node pool of OKE."""


@dataclass(frozen=True)
class _Option:
    """A key of a pool, the launch modes that carry it, and why the others don't."""

    field: str
    key: str
    launches: tuple[Launch, ...]
    why: str


_OPTIONS = (
    _Option(
        "compute_cluster_id",
        "computeClusterId",
        ("managed-compute-cluster", "compute-cluster-instances"),
        "its nodes are in no compute cluster",
    ),
    _Option(
        "fault_domains",
        "faultDomains",
        ("managed-compute-cluster", "compute-cluster-instances", "plain"),
        "OCI itself spreads the nodes of a cluster network",
    ),
    _Option("host_group_id", "hostGroupId", MANAGED_LAUNCHES, "only node pools of OKE can be placed on a host group"),
    _Option(
        "boot_volume_vpus_per_gb",
        "bootVolumeVpusPerGb",
        SELF_MANAGED_LAUNCHES,
        "node pools of OKE don't say how fast boot volumes are",
    ),
    _Option("cycling", "cycling", MANAGED_LAUNCHES, "OKE doesn't replace self-managed nodes"),
)


def launch_problems(pool: GpuPool, path: str) -> Iterator[Problem]:
    """The options that the pool's launch mode can't carry, and options that contradict each other."""
    for option in _OPTIONS:
        value = getattr(pool, option.field)
        if value in (None, ()) or pool.launch in option.launches:
            continue
        accepted = "nothing, or launch: " + " or ".join(option.launches)
        shown = "an object" if option.field == "cycling" else value
        yield Problem(f"{path}.{option.key}", shown, accepted, f"launch is {pool.launch}: {option.why}")
    yield from _eviction(pool, path)
    yield from _existing(pool, path)
    yield from _cycling(pool, path)


def _eviction(pool: GpuPool, path: str) -> Iterator[Problem]:
    if pool.eviction_grace_minutes is not None and pool.launch not in MANAGED_LAUNCHES:
        why = f"launch is {pool.launch}: OKE doesn't drain self-managed nodes"
        yield Problem(f"{path}.evictionGraceMinutes", pool.eviction_grace_minutes, "nothing", why)


def _existing(pool: GpuPool, path: str) -> Iterator[Problem]:
    if pool.pool_id is None:
        return
    if pool.launch == "compute-cluster-instances":
        yield Problem(f"{path}.poolId", pool.pool_id, "nothing", f"launch is {pool.launch}: instances make no pool")
    if pool.compute_cluster_id is not None:
        why = "the pool is there already, and a pool never changes its compute cluster"
        yield Problem(f"{path}.computeClusterId", pool.compute_cluster_id, "nothing beside poolId", why)


def _cycling(pool: GpuPool, path: str) -> Iterator[Problem]:
    cycling = pool.cycling
    if cycling is None:
        return
    surge, unavailable = cycling.max_surge in {"0", "0%"}, cycling.max_unavailable in {"0", "0%"}
    if surge and unavailable:
        why = "a pool that may neither grow nor shrink can replace no node"
        yield Problem(f"{path}.cycling", "0 and 0", "maxSurge or maxUnavailable above 0", why)
    if cycling.mode == "replace-boot-volume" and not surge:
        why = "a node whose boot volume is replaced stays the same node, so that none is added"
        yield Problem(f"{path}.cycling.maxSurge", cycling.max_surge, "0", why)
