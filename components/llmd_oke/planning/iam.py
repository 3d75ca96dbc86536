"""What a created cluster's parts must be allowed to do, by the stack's choices."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from llmd_oke.catalogue import iam as facts
from llmd_oke.catalogue.iam import Need, Phase
from llmd_oke.config import CreateCluster, GpuPool, Lustre, StackConfig
from llmd_oke.errors import Problem
from llmd_oke.planning.launches import SELF_MANAGED_LAUNCHES
from llmd_oke.planning.node_scaling import autoscaled_pools


@dataclass(frozen=True)
class IamNeeds:
    """What is needed before the cluster and what before its pools, and the OCIDs that statements are repeated for."""

    cluster: tuple[Need, ...]
    nodes: tuple[Need, ...]
    each: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def iam_needs(config: StackConfig, cluster: CreateCluster) -> IamNeeds:
    """What the choices of a stack need; nothing where an administrator grants it."""
    if not cluster.iam.create:
        return IamNeeds((), ())
    wanted: set[Need] = {*cluster.iam.grants, *(need for need, there in _wanted(config, cluster).items() if there)}
    managed = [pool.boot_volume_kms_key_id for pool in _created(config) if _managed(pool)]
    each = {
        "cluster_key_id": _unique([cluster.kms_key_id]),
        "boot_volume_key_id": _unique(pool.boot_volume_kms_key_id for pool in _created(config)),
        "managed_boot_volume_key_id": _unique(managed),
        "host_group_id": _unique(pool.host_group_id for pool in _created(config)),
    }
    given = {name: ocids for name, ocids in each.items() if ocids}
    return IamNeeds(_of_phase("cluster", wanted), _of_phase("nodes", wanted), given)


def _wanted(config: StackConfig, cluster: CreateCluster) -> dict[Need, bool]:
    pools = _created(config)
    managed = [pool for pool in pools if _managed(pool)]
    cpu_images = [pool.image for pool in (config.system_pool, *config.cpu_pools)]
    elsewhere = cluster.network.compartment_id not in (None, cluster.compartment_id)
    autoscaled = bool(autoscaled_pools(config))
    autoscaler = autoscaled or "cluster-autoscaler" in cluster.iam.grants
    return {
        "cluster-encryption": cluster.kms_key_id is not None,
        "self-managed-nodes": any(not _managed(pool) for pool in pools),
        "managed-compute-cluster": any(pool.launch == "managed-compute-cluster" for pool in managed),
        "host-groups": any(pool.host_group_id for pool in pools),
        "capacity-reservations": any(pool.capacity_reservation_id for pool in managed),
        "custom-images": bool(managed) or any(image is not None for image in cpu_images),
        "boot-volume-encryption": any(pool.boot_volume_kms_key_id for pool in pools),
        "boot-volume-encryption-of-managed-pools": any(pool.boot_volume_kms_key_id for pool in managed),
        "network-elsewhere": elsewhere,
        "cluster-autoscaler": autoscaled,
        "cluster-autoscaler-network-elsewhere": elsewhere and autoscaler,
        "lustre": isinstance(config.storage.model_cache, Lustre),
    }


def _created(config: StackConfig) -> list[GpuPool]:
    return [pool for pool in config.gpu_pools if pool.pool_id is None]


def _managed(pool: GpuPool) -> bool:
    return pool.launch not in SELF_MANAGED_LAUNCHES


def _of_phase(phase: Phase, wanted: set[Need]) -> tuple[Need, ...]:
    return tuple(need for need, entry in facts.policies().needs.items() if entry.phase == phase and need in wanted)


def _unique(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))


def iam_problems(config: StackConfig) -> Iterator[Problem]:
    """What is wrong with groups and policies, where this stack creates the cluster."""
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster) or config.layer == "serving":
        return
    iam = cluster.iam
    if iam.style == "classic":
        for key, value in (("domainUrl", iam.domain_url), ("domain", _if_not(iam.domain, "Default"))):
            if value is not None:
                why = "a classic tenancy has no identity domains"
                yield Problem(f"cluster.iam.{key}", value, "nothing, or style: identity-domain", why)
    if not iam.create:
        given = iam.dynamic_groups.model_dump(by_alias=True, exclude_none=True)
        for key, ocid in given.items():
            why = "nothing is granted to it, because no policies are created"
            yield Problem(f"cluster.iam.dynamicGroups.{key}", ocid, "nothing, or create: true", why)
        if iam.grants:
            why = "no policies are created"
            yield Problem("cluster.iam.grants", ", ".join(iam.grants), "nothing, or create: true", why)


def _if_not(value: str, usual: str) -> str | None:
    return None if value == usual else value
