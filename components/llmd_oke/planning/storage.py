"""Whether the weights of all models fit the model cache, and whether a stack can have such a cache."""

from collections.abc import Iterator

from llmd_oke import catalogue
from llmd_oke.config import CreateCluster, FileStorage, GpuPool, Lustre, NodeDisk, StackConfig
from llmd_oke.errors import Problem

PATH = "storage.modelCache"

SPARE_SHARE = 0.05
"""What is left free beside the weights: tokenizers, partial downloads, the file system itself; ours."""

GIB_PER_GB = 10**9 / 2**30


def storage_problems(config: StackConfig) -> Iterator[Problem]:
    """What is wrong with a stack's storage."""
    cache = config.storage.model_cache
    if isinstance(cache, NodeDisk):
        yield from _node_disk(config, cache)
    elif isinstance(cache, FileStorage | Lustre):
        yield from _created(config, cache)
        if isinstance(cache, Lustre):
            yield from _room(config, f"{PATH}.capacityGb", cache.capacity_gb, cache.capacity_gb * GIB_PER_GB)
    else:
        yield from _prewarm_without_cache(config)
    yield from _revisions(config)


def weights_gib(config: StackConfig) -> float:
    """Room in GiB that the weights of all models of the catalogue take in a cache, each model once."""
    known = (catalogue.model(name) for name in {model.model for model in config.models})
    return sum(model.weights.gib for model in known if model is not None) * (1 + SPARE_SHARE)


def node_disk_gib(pool: GpuPool) -> float | None:
    """Room in GiB on a node's own disks; None where the catalogue doesn't know them."""
    shape = catalogue.shape(pool.shape)
    if shape is None or shape.disks is None:
        return None
    share = {"raid-0": 1.0, "raid-10": 0.5, "none": 0.0}[pool.nvme]
    return shape.disks.count * shape.disks.terabytes * 1000 * GIB_PER_GB * share


def download_limit_s(config: StackConfig) -> int:
    """How long a server may wait for weights in seconds, on a node that the cluster autoscaler added after the nodes'
    own disks were filled; 0 where weights are there before any server.
    """
    prewarm = config.storage.prewarm
    later = any(pool.autoscaled for pool in config.gpu_pools)
    filled = isinstance(config.storage.model_cache, NodeDisk) and prewarm.source != "none"
    return prewarm.timeout_s if later and filled else 0


def _node_disk(config: StackConfig, cache: NodeDisk) -> Iterator[Problem]:
    if cache.capacity_gib is not None:
        yield from _room(config, f"{PATH}.capacityGib", cache.capacity_gib, cache.capacity_gib)
        return
    for i, pool in enumerate(config.gpu_pools):
        room = node_disk_gib(pool)
        if room is None:
            continue
        if pool.nvme == "none" and isinstance(config.cluster, CreateCluster):
            why = "the model cache is on the nodes' own disks, which this pool leaves as they are"
            yield Problem(f"gpuPools[{i}].nvme", pool.nvme, "raid-0 or raid-10, or storage of another kind", why)
        elif pool.nvme != "none":
            yield from _room(config, f"gpuPools[{i}].nvme", pool.nvme, room)


def _created(config: StackConfig, cache: FileStorage | Lustre) -> Iterator[Problem]:
    """A file system is either there, or this stack creates it together with a cluster."""
    if cache.existing is not None:
        if cache.availability_domain is not None:
            why = "the file system is there already"
            yield Problem(f"{PATH}.availabilityDomain", cache.availability_domain, "nothing beside existing", why)
        return
    if config.layer == "serving" and config.cluster_stack is not None:
        return
    if not isinstance(config.cluster, CreateCluster) or config.layer == "serving":
        why = "a file system can only be created together with the cluster, because it needs a subnet of its network"
        yield Problem(f"{PATH}.existing", None, "the file system that is there", why)
    elif cache.availability_domain is None and not _domains(config):
        why = "a file system is created in one availability domain, and no GPU pool says which"
        yield Problem(f"{PATH}.availabilityDomain", None, "the availability domain of the GPU pools", why)


def _domains(config: StackConfig) -> set[str]:
    return {pool.availability_domain for pool in config.gpu_pools if pool.availability_domain}


def _room(config: StackConfig, path: str, value: object, room_gib: float) -> Iterator[Problem]:
    needed = weights_gib(config)
    if needed > room_gib:
        why = f"the weights of all models need {needed:.0f} GiB, the cache has {room_gib:.0f} GiB"
        yield Problem(path, value, f"room for {needed:.0f} GiB, or fewer models", why)


def _prewarm_without_cache(config: StackConfig) -> Iterator[Problem]:
    if "prewarm" in config.storage.model_fields_set:
        why = "without a cache there is nothing to fill"
        yield Problem("storage.prewarm", "given", "a storage.modelCache, or no prewarm", why)


def _revisions(config: StackConfig) -> Iterator[Problem]:
    models = {model.model for model in config.models}
    for name in config.storage.prewarm.revisions:
        if name not in models:
            why = "the stack has no such model"
            yield Problem(f"storage.prewarm.revisions.{name}", name, "one of " + ", ".join(sorted(models)), why)
