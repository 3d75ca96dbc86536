"""Checks and plan of the model cache of a stack, and of the disk space of pods."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import cast

from llmd_base.errors import SET, Problem
from llmd_base.records import record

from llmd_oke import catalogue
from llmd_oke.catalogue.models import MODELS
from llmd_oke.catalogue.server_settings import SPARE_SHARE, server_disk_gib
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

POD_SHARE = 0.9
"""Share of a node's file system that pods may fill: the kubelet evicts pods if less than a tenth is free
(`nodefs.available<10%`, its default).
"""

KV_FILES_SHARE = 0.8
"""Share of a node's disks for weights and KV cache in files: the kubelet needs a tenth free, and another is for images,
logs, compiled code and what servers write before files are deleted; our assumption.
"""

GIB_PER_GB = 10**9 / 2**30


def storage_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of a stack's storage."""
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
            SET,
            "a storage.modelCache, or no prewarm",
            "without a cache there is nothing to fill",
        )
    models = {model.model for model in config.models}
    for name, commit in config.storage.prewarm.revisions.items():
        if name not in models:
            accepted = "one of " + ", ".join(sorted(models))
            yield Problem(f"storage.prewarm.revisions.{name}", commit, accepted, "the stack has no such model")
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
    """Yield a problem for each repository other than the model's own that vLLM would read, such as those of draft
    models and adapters. Servers with a pre-warmed cache are offline (HF_HUB_OFFLINE), and pre-warming fetches only the
    models of the stack.
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
    """Yield the index of the flag and the name for each repository or directory that arguments name. Invalid JSON in
    arguments is left to vLLM, which exits on it.
    """
    known = repositories().flags
    for i, argument in enumerate(arguments):
        kind = known.get(flag_of(argument))
        if kind is None:
            continue
        flag, mark, value = argument.partition("=")
        following = takewhile(lambda word: not word.startswith("-"), arguments[i + 1 :])
        words = [value] if mark else list(following)
        _, _, key = flag.partition(".")
        other = repositories().other_values.get(flag_of(argument), frozenset())
        for word in words if kind == "adapters" else words[:1]:
            yield from ((i, name) for name in _names(kind, key, word) if name not in other)


def _names(kind: str, key: str, word: str) -> Iterator[str]:
    """Yield the names in one value of a flag, or in the value of one `key` of the flag's JSON object."""
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
    """Return the space in GiB that the weights of all models in the catalogue, and of their drafts, take in a cache,
    each model once.
    """
    models = [(facts, model) for model in config.models if (facts := catalogue.model(model.model))]
    sizes = {facts.name: facts.weights.files_gib for facts, _ in models}
    drafts = {
        facts.name: facts.files_gib(draft) - facts.weights.files_gib
        for facts, model in models
        if (draft := facts.server_draft(model.engine.speculation))
    }
    return (sum(sizes.values()) + sum(drafts.values())) * (1 + SPARE_SHARE)


def kv_files_gib(config: StackConfig) -> int:
    """Return the space in GiB that KV cache in files takes on each node, of all models."""
    sizes = {model.model: gib for model in config.models if (gib := model.engine.kv_cache.disk_gib)}
    return sum(sizes.values())


def local_disks_gib(pool: GpuPoolConfig) -> float | None:
    """Return the capacity in GiB of all local disks of a node; None if the catalogue doesn't have the disks."""
    disks = shape.disks if (shape := catalogue.shape(pool.shape)) else None
    return disks and disks.count * disks.terabytes * 1000 * GIB_PER_GB


def node_disk_gib(pool: GpuPoolConfig) -> float | None:
    """Return the capacity in GiB of the file system on a node's local disks; None if the catalogue doesn't have the
    disks.
    """
    disks_gib = local_disks_gib(pool)
    return disks_gib and disks_gib * {"raid-0": 1.0, "raid-10": 0.5, "none": 0.0}[pool.nvme]


def pod_disk_gib(pool: GpuPoolConfig) -> float:
    """Return the space in GiB that the pods of a node may fill: the node's local disks if they are one file system,
    else its boot volume, less the kubelet's reserve.
    """
    return (node_disk_gib(pool) or pool.boot_volume_gib) * POD_SHARE


def pod_disk_problems(config: StackConfig, nodes: Sequence[PlacedNode]) -> Iterator[Problem]:
    """Yield a problem for each created pool whose servers may write more than the disks of a node hold. The disks of
    existing nodes are unknown.
    """
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
            ways = ["a storage.modelCache"] if _own_weights(config) else ["fewer servers on a node"]
            key, value = "nvme", pool.nvme
            if pool.nvme == "none":
                key, value = "bootVolumeGib", pool.boot_volume_gib
                ways.insert(0, f"at least {math.ceil(needed / POD_SHARE)}")
            elif pod_disk_gib(pool.model_copy(update={"nvme": "raid-0"})) - cached >= needed:
                ways.insert(0, "raid-0")
            why = f"the servers of one node may write {needed} GiB, its disks have {room:.0f} GiB for pods"
            yield Problem(f"gpuPools[{i}].{key}", value, ", or ".join(ways), why)


def pod_disk_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on the disk space that servers of existing nodes request, for the fullest node of each pool."""
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
        cure = ". storage.modelCache keeps weights out of pods" if _own_weights(plan.config) else ""
        text = (
            f"servers need {sum(fullest)} GiB of disk on one node ({parts}); if these existing nodes have less free"
            f" ephemeral-storage, pods stay Pending (kubectl describe node shows it){cure}"
        )
        yield Advice(f"gpuPools[{i}]", text)


def vocabulary_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on vocabulary files that each server downloads at startup because the cache isn't pre-warmed."""
    if is_prewarmed(plan.config) or plan.layer == "cluster":
        return
    for i, model in enumerate(plan.models):
        if (vocabulary := model.model.vocabulary) is not None:
            text = f"each server fetches {vocabulary.url} as it starts; a pre-warm (storage) has it there already"
            yield Advice(f"models[{i}].model", text, "note")


def revision_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on models whose weights have no pinned revision, so that nodes may download different ones."""
    if plan.layer == "cluster":
        return
    prewarm = plan.config.storage.prewarm
    bucket = is_prewarmed(plan.config) and prewarm.source == "object-storage"
    for i, model in enumerate(plan.models):
        name = model.model.name
        if is_pinned(plan.config, model.model):
            continue
        source = "the bucket's files are" if bucket else f"the revision of {model.model.repository} is"
        cure = "with the commit that pre-warming names as it ends" if bucket else "or the model's `revision` in values"
        text = (
            f"{source} not pinned, so that nodes may serve different weights: storage.prewarm.revisions.{name}, {cure}"
        )
        yield Advice(f"models[{i}].model", text)


def is_pinned(config: StackConfig, model: catalogue.CatalogueModel) -> bool:
    """Tell whether all nodes serve the same commit of a model's weights."""
    prewarm = config.storage.prewarm
    bucket = is_prewarmed(config) and prewarm.source == "object-storage"
    named = is_prewarmed(config) and model.name in prewarm.revisions
    return named or bool(model.revision and not bucket)


def is_prewarmed(config: StackConfig) -> bool:
    """Tell whether weights, and a vocabulary file, are downloaded before any server starts."""
    return not _own_weights(config) and config.storage.prewarm.source != "none"


def _own_weights(config: StackConfig) -> bool:
    return isinstance(config.storage.model_cache, NoModelCache)


def _disk_of_units(config: StackConfig, release: catalogue.Release) -> dict[str, int]:
    """Return the disk space in GiB that one server of each unit may fill, by name of the unit."""
    models = [(model, facts) for model in config.models if (facts := catalogue.model(model.model))]
    return {
        unit: server_disk_gib(
            release, facts, facts.server_draft(model.engine.speculation), own_weights=_own_weights(config)
        )
        for model, facts in models
        for unit in unit_names(model)
    }


def download_limit_s(config: StackConfig) -> int:
    """Return the time in seconds that a server may wait for weights on a node that the cluster autoscaler added after
    pre-warming; 0 if weights are always downloaded before servers start.
    """
    prewarm = config.storage.prewarm
    later = any(pool.autoscaled for pool in config.gpu_pools)
    filled = isinstance(config.storage.model_cache, NodeDisk) and prewarm.source != "none"
    return prewarm.timeout_s if later and filled else 0


def model_cache(config: StackConfig) -> ModelCachePlan | None:
    """Return the plan of the model cache; None if every server keeps weights in its own pod."""
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
        kv_cache_path=_kv_cache_path(config, cache),
    )


def _kv_cache_path(config: StackConfig, cache: NodeDisk | FileStorage | Lustre) -> str | None:
    """Return the stack's directory on the nodes for KV cache in files; None if no model keeps any. Stacks share none,
    so that none reads what another's prompts left.
    """
    return f"{cache.path}-kv/{config.namespace}" if isinstance(cache, NodeDisk) and kv_files_gib(config) else None


def compiled_path(config: StackConfig) -> str | None:
    """Return the stack's directory on the nodes for code that servers compile at startup; None if it isn't kept.

    Servers execute the code in this directory: each stack has a directory of its own, and nodes share none.
    """
    cache, release = config.storage.model_cache, catalogue.release(config.release)
    if not isinstance(cache, NodeDisk) or cache.compiled_code == "none":
        return None
    if release is None or not release.vllm.compiled_code:
        return None
    return f"{cache.compiled_code or f'{cache.path}-compiled'}/{config.namespace}"


def _existing_handle(cache: NodeDisk | FileStorage | Lustre) -> str | None:
    """Return the volume handle of the CSI driver for an existing file system; None if the cache has none."""
    if isinstance(cache, FileStorage) and cache.existing:
        existing = cache.existing
        return f"{existing.file_system_id}:{existing.mount_target_ip}:{existing.export_path}"
    if isinstance(cache, Lustre) and cache.existing:
        return f"{cache.existing.management_ip}@tcp:/{cache.existing.file_system_name}"
    return None


def created_storage(config: StackConfig) -> StoragePlan | None:
    """Return the plan of the file system that is created with the cluster for the model cache; None if none is
    created.
    """
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
    yield from _room_for_files(config, cache)
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


def _room_for_files(config: StackConfig, cache: NodeDisk) -> Iterator[Problem]:
    """Yield a problem for each model with KV cache in files if those of all models don't fit the disks of a pool beside
    the weights. Where the kit makes no file system, all disks are the bound.
    """
    files, weights = kv_files_gib(config), cache.capacity_gib or weights_gib(config)
    capacities = [node_disk_gib(pool) or local_disks_gib(pool) for pool in config.gpu_pools]
    room = min((int(gib * KV_FILES_SHARE - weights) for gib in capacities if gib), default=files)
    for i, model in enumerate(config.models if files > room else ()):
        if gib := model.engine.kv_cache.disk_gib:
            why = f"the disks of a node have {room} GiB for it beside {weights:.0f} GiB of weights and what pods write"
            if room < 0:
                taken = f"the weights ({weights:.0f} GiB) and what pods write"
                why = f"{taken} fill a node's disks already ({-room} GiB too little)"
            accepted = f"at most {room} for all models together" if room > 0 else "nothing"
            yield Problem(f"models[{i}].engine.kvCache.diskGib", gib, accepted, why)


def _shared_file_system(config: StackConfig, cache: FileStorage | Lustre) -> Iterator[Problem]:
    """Yield a problem unless a shared file system exists already or this stack creates it together with the cluster."""
    if cache.existing is not None:
        if cache.availability_domain is not None:
            why = "the file system is there already"
            yield Problem(f"{PATH}.availabilityDomain", cache.availability_domain, "nothing beside existing", why)
        return
    if config.cluster_stack is not None:
        return
    if config.created_cluster is None:
        why = "a file system can only be created together with the cluster, because it needs a subnet of its network"
        yield Problem(f"{PATH}.existing", None, "the file system that is there", why)
    elif cache.availability_domain is None and not any(pool.availability_domain for pool in config.gpu_pools):
        why = "a file system is created in one availability domain, and no GPU pool says which"
        yield Problem(f"{PATH}.availabilityDomain", None, "the availability domain of the GPU pools", why)


def _way_of_weights(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem if pods have no internet access and their weights don't come from a bucket in OCI."""
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
        least = math.ceil(needed)
        why = f"the weights of all models need {least} GiB, the cache has {math.floor(room_gib)} GiB"
        yield Problem(path, value, f"room for {least} GiB, or fewer models", why)
