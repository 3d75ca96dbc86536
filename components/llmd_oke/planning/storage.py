"""The model cache of a stack: whether all models' weights fit it, and whether the stack can have it."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import cast

from llmd_base.errors import Problem
from llmd_base.records import record

from llmd_oke import catalogue
from llmd_oke.catalogue.models import MODELS
from llmd_oke.catalogue.serving import repositories
from llmd_oke.config import (
    CreateCluster,
    FileStorage,
    GpuPoolConfig,
    Lustre,
    ModelConfig,
    NodeDisk,
    NoModelCache,
    StackConfig,
)
from llmd_oke.config.engine import flag_of
from llmd_oke.planning.cluster_plan import ModelCachePlan, PrewarmPlan, StoragePlan
from llmd_oke.planning.model_plan import PlacedNode
from llmd_oke.planning.placement import unit_names
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.values import VALUES

PATH = "storage.modelCache"

SPARE_SHARE = 0.05
"""What is left free beside the weights: tokenizers, partial downloads, the file system itself; ours."""

POD_SHARE = 0.9
"""The kubelet evicts pods where less than a tenth of its file system is free (`nodefs.available<10%`, its default)."""

GIB_PER_GB = 10**9 / 2**30


def storage_problems(config: StackConfig) -> Iterator[Problem]:
    """Find what is wrong with a stack's storage."""
    cache = config.storage.model_cache
    if isinstance(cache, NodeDisk):
        yield from _node_disk(config, cache)
        if cache.compiled_code and f"{cache.compiled_code}/".startswith(f"{cache.path.rstrip('/')}/"):
            why = "pre-warming gives the folder of weights to the user that downloads them"
            yield Problem(f"{PATH}.compiledCode", cache.compiled_code, "a folder beside that of the weights", why)
    elif isinstance(cache, FileStorage | Lustre):
        yield from _shared_file_system(config, cache)
        if isinstance(cache, Lustre):
            yield from _room(config, f"{PATH}.capacityGb", cache.capacity_gb, cache.capacity_gb * GIB_PER_GB)
    elif "prewarm" in config.storage.model_fields_set:
        yield Problem(
            "storage.prewarm",
            "given",
            "a storage.modelCache, or no prewarm",
            "without a cache there is nothing to fill",
        )
    models = {model.model for model in config.models}
    for name in config.storage.prewarm.revisions:
        if name not in models:
            accepted = "one of " + ", ".join(sorted(models))
            yield Problem(f"storage.prewarm.revisions.{name}", name, accepted, "the stack has no such model")
    yield from _way_of_weights(config)
    if isinstance(cache, NodeDisk | Lustre) and not is_prewarmed(config):
        for i, model in enumerate(config.models):
            if model.engine.user is not None:
                why = "servers download weights into a folder that is root's; pre-warming gives it to a user"
                yield Problem(f"models[{i}].engine.user", model.engine.user.id, "nothing, or storage.prewarm", why)
    if is_prewarmed(config):
        for i, model in enumerate(config.models):
            yield from _other_repositories(model, f"models[{i}].engine")


def _other_repositories(model: ModelConfig, path: str) -> Iterator[Problem]:
    """Repositories beside the model's own, such as those of draft models and adapters: servers that read a pre-warmed
    cache ask nobody (HF_HUB_OFFLINE), and pre-warming fetches the models of the stack.
    """
    facts = catalogue.model(model.model)
    accepted = "nothing, a folder of the image or the cache, or storage.prewarm.source: none"
    why = "servers that read a pre-warmed cache are offline, and it has the repositories of the stack's models alone"
    for list_, arguments in facts.argument_lists.items() if facts else ():
        for i, name in _named_repositories(arguments):
            if not name.startswith(("/", ".")):
                file = f"{VALUES}/{MODELS.folder}/{model.model}.yaml"
                yield Problem(f"{list_}[{i}]", name, accepted, why, file=file)
    for i, name in _named_repositories(model.engine.extra_args):
        if not name.startswith(("/", ".")) and (facts is None or name != facts.repository):
            yield Problem(f"{path}.extraArgs[{i}]", name, accepted, why)
    for variable in repositories().variables:
        if variable in model.engine.env:
            yield Problem(f"{path}.env.{variable}", model.engine.env[variable], accepted, why)


def _named_repositories(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Repositories and folders that arguments name, each with the position of its flag. What is no JSON where vLLM
    wants some is left to vLLM, which ends over it.
    """
    known = repositories().flags
    for i, argument in enumerate(arguments):
        kind = known.get(flag_of(argument))
        if kind is None:
            continue
        flag, mark, value = argument.partition("=")
        following = takewhile(lambda word: not word.startswith("-"), arguments[i + 1 :])
        words = [*([value] if mark else []), *(following if kind == "adapters" or not mark else ())]
        _, _, key = flag.partition(".")
        other = repositories().other_values.get(flag_of(argument), frozenset())
        for word in words if kind == "adapters" else words[:1]:
            yield from ((i, name) for name in _names(kind, key, word) if name not in other)


def _names(kind: str, key: str, word: str) -> Iterator[str]:
    """Return the names in one word of a flag, or in the value of one `key` of its object."""
    if key:
        yield from [word] if kind in {"values", key} else []
    elif kind == "value" or (kind == "adapters" and "=" in word and "," not in word):
        yield word.partition("=")[2] if kind == "adapters" else word
    else:
        with suppress(ValueError):
            given: object = json.loads(word)
            fields = cast("dict[str, object]", given) if isinstance(given, dict) else {}
            wanted = fields if kind == "values" else {"path" if kind == "adapters" else kind}
            yield from (name for field in wanted if isinstance(name := fields.get(field), str))


def weights_gib(config: StackConfig) -> float:
    """Room in GiB that the weights of all models of the catalogue take in a cache, each model once."""
    models = (catalogue.model(name) for name in {model.model for model in config.models})
    return sum(model.weights.files_gib for model in models if model is not None) * (1 + SPARE_SHARE)


def server_disk_gib(release: catalogue.Release, model: catalogue.CatalogueModel, *, own_weights: bool) -> int:
    """Room in GiB that a server may fill on its node's disk: compiled kernels and logs, and weights of its own where
    there is no model cache.
    """
    weights = model.weights.files_gib * (1 + SPARE_SHARE) if own_weights else 0.0
    return release.vllm.scratch_gib + math.ceil(weights)


def node_disk_gib(pool: GpuPoolConfig) -> float | None:
    """Room in GiB on a node's own disks; None where the catalogue doesn't know them."""
    shape = catalogue.shape(pool.shape)
    if shape is None or shape.disks is None:
        return None
    share = {"raid-0": 1.0, "raid-10": 0.5, "none": 0.0}[pool.nvme]
    return shape.disks.count * shape.disks.terabytes * 1000 * GIB_PER_GB * share


def pod_disk_gib(pool: GpuPoolConfig) -> float:
    """Room in GiB that the pods of a node may fill: its own disks where they became one file system, else its boot
    volume, less what the kubelet keeps free.
    """
    return (node_disk_gib(pool) or pool.boot_volume_gib) * POD_SHARE


def pod_disk_problems(config: StackConfig, nodes: Sequence[PlacedNode]) -> Iterator[Problem]:
    """Nodes whose servers may fill more than their disks hold. Disks of nodes that are there already aren't known."""
    release = catalogue.release(config.release)
    if release is None or not isinstance(config.cluster, CreateCluster):
        return
    of_unit = _disk_of_units(config, release)
    cached = weights_gib(config) if isinstance(config.storage.model_cache, NodeDisk) else 0.0
    for i, pool in enumerate(config.gpu_pools):
        of_pool = [node for node in nodes if node.pool == pool.name]
        needed = max((sum(of_unit.get(server.unit, 0) for server in node.servers) for node in of_pool), default=0)
        room = pod_disk_gib(pool) - (cached if pool.nvme != "none" else 0.0)
        if pool.pool_id is None and needed > room:
            key, value = ("bootVolumeGib", pool.boot_volume_gib) if pool.nvme == "none" else ("nvme", pool.nvme)
            why = f"the servers of one node may write {needed} GiB, its disks have {room:.0f} GiB for pods"
            yield Problem(f"gpuPools[{i}].{key}", value, "more room, or a storage.modelCache", why)


def pod_disk_advice(plan: Plan) -> Iterator[Advice]:
    """Advise on what servers ask of the disks of nodes that are there already, by the fullest node of each pool."""
    if plan.layer == "cluster":
        return
    of_unit = _disk_of_units(plan.config, plan.release)
    for i, pool in enumerate(plan.config.gpu_pools):
        if isinstance(plan.cluster, CreateCluster) and pool.pool_id is None:
            continue
        by_node = [[of_unit[server.unit] for server in node.servers] for node in plan.nodes if node.pool == pool.name]
        fullest = max(by_node, key=sum) if by_node else []
        if not fullest:
            continue
        parts = " + ".join(f"{fullest.count(gib)} x {gib} GiB" for gib in sorted(set(fullest), reverse=True))
        cure = "; a storage.modelCache keeps weights out of pods" if _own_weights(plan.config) else ""
        text = (
            f"the servers of one node ask for {sum(fullest)} GiB of its disk ({parts}): pods stay pending where nodes,"
            f" which are there already, have less ephemeral-storage to give{cure}"
        )
        yield Advice(f"gpuPools[{i}]", text)


def vocabulary_advice(plan: Plan) -> Iterator[Advice]:
    """Advise on what each server fetches as it starts, although weights may be near."""
    if is_prewarmed(plan.config) or plan.layer == "cluster":
        return
    for i, model in enumerate(plan.models):
        if (vocabulary := model.model.vocabulary) is not None:
            text = f"each server fetches {vocabulary.url} as it starts; a pre-warm (storage) has it there already"
            yield Advice(f"models[{i}].model", text, "note")


def revision_advice(plan: Plan) -> Iterator[Advice]:
    """Models whose weights are whatever lies at their source when a node downloads them."""
    if plan.layer == "cluster":
        return
    prewarm = plan.config.storage.prewarm
    bucket = is_prewarmed(plan.config) and prewarm.source == "object-storage"
    for i, model in enumerate(plan.models):
        name = model.model.name
        if name in prewarm.revisions or (model.model.revision and not bucket):
            continue
        source = "the bucket's files are" if bucket else f"the revision of {model.model.repository} is"
        cure = "with the commit that pre-warming names as it ends" if bucket else "or the model's `revision` in values"
        text = (
            f"{source} not pinned, so that nodes may serve different weights: storage.prewarm.revisions.{name}, {cure}"
        )
        yield Advice(f"models[{i}].model", text)


def is_prewarmed(config: StackConfig) -> bool:
    """Tell whether weights, and a vocabulary beside them, are there before any server starts."""
    return not _own_weights(config) and config.storage.prewarm.source != "none"


def _own_weights(config: StackConfig) -> bool:
    return isinstance(config.storage.model_cache, NoModelCache)


def _disk_of_units(config: StackConfig, release: catalogue.Release) -> dict[str, int]:
    """Return what a server of each unit may write, in GiB."""
    models = [(model, facts) for model in config.models if (facts := catalogue.model(model.model))]
    return {
        unit: server_disk_gib(release, facts, own_weights=_own_weights(config))
        for model, facts in models
        for unit in unit_names(model)
    }


def download_limit_s(config: StackConfig) -> int:
    """Return how long a server may wait for weights, in seconds, on a node that the cluster autoscaler added after the
    nodes' own disks were filled; 0 where weights are there before any server.
    """
    prewarm = config.storage.prewarm
    later = any(pool.autoscaled for pool in config.gpu_pools)
    filled = isinstance(config.storage.model_cache, NodeDisk) and prewarm.source != "none"
    return prewarm.timeout_s if later and filled else 0


def model_cache(config: StackConfig) -> ModelCachePlan | None:
    """The model cache of a stack; None where every server keeps weights in its own pod."""
    cache, prewarm = config.storage.model_cache, config.storage.prewarm
    if isinstance(cache, NoModelCache):
        return None
    filled = None
    if prewarm.source != "none":
        filled = record(PrewarmPlan, prewarm)
    return record(
        ModelCachePlan,
        cache,
        prewarm,
        path=cache.path if isinstance(cache, NodeDisk) else None,
        capacity_gib=int(cache.capacity_gb * GIB_PER_GB) if isinstance(cache, Lustre) else None,
        volume_handle=_existing_handle(cache),
        prewarm=filled,
        revisions=filled and prewarm.revisions,
        compiled_path=compiled_path(config),
    )


def compiled_path(config: StackConfig) -> str | None:
    """Return the stack's folder on the nodes for code that servers compile as they start; None where there is none.

    What lies there is run by whoever reads it, so that each stack has one of its own, and none is shared by nodes.
    """
    cache, release = config.storage.model_cache, catalogue.release(config.release)
    if not isinstance(cache, NodeDisk) or cache.compiled_code == "none":
        return None
    if release is None or not release.vllm.compiled_code:
        return None
    return f"{cache.compiled_code or f'{cache.path}-compiled'}/{config.namespace}"


def _existing_handle(cache: NodeDisk | FileStorage | Lustre) -> str | None:
    """Return what the storage driver knows an existing file system by; None where there is none."""
    if isinstance(cache, FileStorage) and cache.existing:
        existing = cache.existing
        return f"{existing.file_system_id}:{existing.mount_target_ip}:{existing.export_path}"
    if isinstance(cache, Lustre) and cache.existing:
        return f"{cache.existing.management_ip}@tcp:/{cache.existing.file_system_name}"
    return None


def created_storage(config: StackConfig) -> StoragePlan | None:
    """The file system that is created with the cluster for the model cache; None where there is none."""
    cache = config.storage.model_cache
    if not isinstance(cache, FileStorage | Lustre) or cache.existing is not None:
        return None
    domains = [pool.availability_domain for pool in config.gpu_pools if pool.availability_domain]
    return record(
        StoragePlan,
        cache,
        availability_domain=cache.availability_domain or domains[0],
        anywhere=any(pool.pool_id for pool in config.gpu_pools),
    )


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


def _shared_file_system(config: StackConfig, cache: FileStorage | Lustre) -> Iterator[Problem]:
    """Require that a shared file system is either there, or created by this stack together with a cluster."""
    if cache.existing is not None:
        if cache.availability_domain is not None:
            why = "the file system is there already"
            yield Problem(f"{PATH}.availabilityDomain", cache.availability_domain, "nothing beside existing", why)
        return
    if config.layer == "serving" and config.cluster_stack is not None:
        return
    if config.created_cluster is None:
        why = "a file system can only be created together with the cluster, because it needs a subnet of its network"
        yield Problem(f"{PATH}.existing", None, "the file system that is there", why)
    elif cache.availability_domain is None and not any(pool.availability_domain for pool in config.gpu_pools):
        why = "a file system is created in one availability domain, and no GPU pool says which"
        yield Problem(f"{PATH}.availabilityDomain", None, "the availability domain of the GPU pools", why)


def _way_of_weights(config: StackConfig) -> Iterator[Problem]:
    """Pods without a way to the internet have weights and vocabularies from a bucket in OCI, or not at all."""
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster) or config.layer != "all" or not config.models:
        return
    native = cluster.cni == "vcn-native"
    key, internet = (
        ("podInternet", cluster.network.pod_internet) if native else ("workerInternet", cluster.network.worker_internet)
    )
    if internet or (is_prewarmed(config) and config.storage.prewarm.source == "object-storage"):
        return
    why = f"pods reach no internet (cluster.network.{key}), so that neither weights nor vocabularies come from there"
    if _own_weights(config):
        yield Problem(PATH, "none", "a cache, with storage.prewarm.source object-storage", why)
    else:
        yield Problem("storage.prewarm.source", config.storage.prewarm.source, "object-storage", why)


def _room(config: StackConfig, path: str, value: object, room_gib: float) -> Iterator[Problem]:
    needed = weights_gib(config)
    if needed > room_gib:
        why = f"the weights of all models need {needed:.0f} GiB, the cache has {room_gib:.0f} GiB"
        yield Problem(path, value, f"room for {needed:.0f} GiB, or fewer models", why)
