"""Checks of KV connectors: those that transfer KV cache, and those that keep it in the nodes' memory."""

from collections.abc import Iterator, Mapping

from llmd_base.errors import Problem

from llmd_oke.catalogue.kv_connectors import HandOver, KvConnector, Obstacle
from llmd_oke.catalogue.releases import Release, release, release_names
from llmd_oke.config import NodeDisk
from llmd_oke.config.engine import argument_of, flag_of
from llmd_oke.config.model import KEEPING
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.releases import has_own_sidecar, has_own_vllm, used_override, used_release
from llmd_oke.planning.storage import is_pinned

_HOST_MEMORY = "engine.kvCache.hostMemoryGib"
_DISK = "engine.kvCache.diskGib"
_HASH = "--prefix-caching-hash-algo"

_INSTEAD: Mapping[Obstacle, str] = {
    "released-image": "override.vllmImage with it, or nixl",
    "other-groups": "nixl, or a topology of one prefill and one decode server with as many ranks, and copies",
    "unequal-state-groups": "a topology whose servers have equal tensor parallel sizes",
    "unequal-state-blocks": "a topology whose servers have equal tensor parallel sizes, or --no-enable-prefix-caching",
}
"""Setting to use instead, for errors about models with recurrent state whose prefill and decode servers have unequal
sizes, by the obstacle.
"""

_OWN_IMAGES = "override.vllmImage and override.routingSidecarImage with images of your own, or nixl"

USABLE_MEMORY = 0.95
"""Share of a node's memory that its servers may use: OKE reserves some 50 of 2,048 GiB (OCI documentation, Reserving
Resources for Kubernetes and OS), and daemons use the rest; our assumption.
"""


def kv_cache_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of one model's KV connectors, in `engine.kvCache` and in arguments."""
    release = used_release(context.stack)
    if release is None:
        return
    connectors = release.vllm.kv_connector
    yield from _hand_over(context, connectors)
    yield from _host_memory(context, release)
    yield from _disk(context, release)
    yield from _arguments(context, connectors)


def _hand_over(context: PlannedModel, connectors: KvConnector) -> Iterator[Problem]:
    """Yield a problem for a connector without disaggregated servers, for one that the release lacks, and for one that
    doesn't work with the stack's other settings.
    """
    name, path = context.model.engine.kv_cache.connector, f"{context.path}.engine.kvCache.connector"
    if not context.model.topology.disaggregated:
        if name != "nixl":
            yield Problem(path, name, "nothing", "aggregated servers hand no KV cache over")
        return
    if (way := connectors.hand_over.get(name)) is None:
        known = ((each, release(each)) for each in release_names())
        having = [each for each, other in known if other and name in other.vllm.kv_connector.hand_over]
        accepted = ", ".join([*connectors.hand_over, *([f"or release: {' or '.join(having)}"] if having else [])])
        yield Problem(path, name, accepted, f"the kit knows of no {name} in {context.stack.release}")
        return
    for obstacle, why in way.refused.items():
        if _meets(context, way, obstacle):
            others = [each for each, other in connectors.hand_over.items() if _fits(context, other)]
            instead = {**_INSTEAD, **({"data-parallel": _OWN_IMAGES} if way.ranks else {})}
            yield Problem(path, name, instead.get(obstacle) or " or ".join(others) or "aggregated servers", why)


def _fits(context: PlannedModel, way: HandOver) -> bool:
    """Tell whether a connector works with a stack's settings, with an image that has it."""
    return not any(_meets(context, way, each) for each in way.refused if each != "released-image")


def _meets(context: PlannedModel, way: HandOver, obstacle: Obstacle) -> bool:
    architecture, sizes = context.facts.architecture, [context.size(role) for role in context.model.topology.servers()]
    match obstacle:
        case "sliding-window":
            return architecture.sliding_window is not None
        case "linear-attention":
            return architecture.linear_attention is not None
        case "unequal-sizes":
            whole = architecture.latent_attention is not None or min(sizes) >= architecture.key_value_heads
            return len(set(sizes)) > 1 and not whole
        case "unequal-state-groups":
            linear = architecture.linear_attention
            groups = linear.groups if linear else None
            return groups is not None and len(set(sizes)) > 1 and groups % max(sizes) != 0
        case "unequal-state-blocks":
            copied = len(set(sizes)) > 1 and max(sizes) > architecture.key_value_heads
            return architecture.linear_attention is not None and copied and _caches_prefixes(context)
        case "data-parallel" | "other-groups":
            return _meets_ranks(context, way, obstacle)
        case "released-image":
            return used_override(context.stack).vllm_image is None
        case "no-rdma":
            return context.stack.rdma == "none"


def _meets_ranks(context: PlannedModel, way: HandOver, obstacle: Obstacle) -> bool:
    servers = context.model.topology.servers()
    if obstacle == "data-parallel":
        own_images = has_own_vllm(context.stack) and has_own_sidecar(context.stack)
        return context.model.topology.data_parallel and not (way.ranks is not None and own_images)
    spreads = [context.parallelism(role) for role in servers]
    alike = len({(spread.data_parallel_size, spread.nodes) for spread in spreads}) == 1
    several = any(part.replicas > 1 for part in servers.values())
    return any(spread.nodes > 1 for spread in spreads) and (several or not alike)


def _caches_prefixes(context: PlannedModel) -> bool:
    """Tell whether servers cache prefixes, which is vLLM's default and the same for prefill and decode servers."""
    engine = context.model.engine
    given = [*context.facts.arguments, *context.facts.feature_arguments(engine.features), *engine.extra_args]
    return "--no-enable-prefix-caching" not in map(flag_of, given)


def _host_memory(context: PlannedModel, used: Release) -> Iterator[Problem]:
    """Yield a problem for KV cache in host memory that the release or the model doesn't support, or that exceeds a
    node's memory.
    """
    gib, path = context.model.engine.kv_cache.host_memory_gib, f"{context.path}.{_HOST_MEMORY}"
    if gib is None:
        return
    if used.vllm.kv_connector.offload_connector is None:
        accepted = "nothing, or a newer release"
        yield Problem(path, gib, accepted, f"it isn't known to work with vLLM of {used.name}")
    elif context.facts.architecture.linear_attention is not None:
        why = "nobody has shown it of layers with linear attention, whose blocks vLLM aligns to their states"
        yield Problem(path, gib, "nothing", f"{why} (vllm/distributed/kv_transfer/kv_connector/v1/offloading)")
    else:
        yield from _room(context, used.vllm.kv_connector, gib, path, gib)


def _disk(context: PlannedModel, used: Release) -> Iterator[Problem]:
    """Yield a problem for KV cache in files without host memory before it, that the release doesn't support, without
    the nodes' disks, of weights that may change under it, or of which two models of a name want different amounts.
    """
    kept, path, name = context.model.engine.kv_cache, f"{context.path}.{_DISK}", context.facts.name
    gib, storage = kept.disk_gib, context.stack.storage
    if gib is None:
        return
    if used.vllm.kv_connector.file_tier is None:
        why = f"vLLM of {used.name} isn't known to count a file that is gone as a miss"
        yield Problem(path, gib, "nothing, or a newer release", why)
    if kept.host_memory_gib is None:
        why = "vLLM writes and loads files by way of the node's memory"
        yield Problem(path, gib, f"{_HOST_MEMORY} with it, or nothing", why)
    if not isinstance(storage.model_cache, NodeDisk):
        why = "files are kept beside the weights on the nodes' own disks"
        yield Problem(path, gib, "storage.modelCache of kind node-disk, or nothing", why)
    if not is_pinned(context.stack, context.facts):
        accepted = f"storage.prewarm.revisions.{name} with the commit, or nothing"
        yield Problem(path, gib, accepted, "files outlive servers, and other weights would read them without a word")
    others = {model.engine.kv_cache.disk_gib for model in context.stack.models if model.model == name} - {None}
    if len(others) > 1:
        why = f"servers of {name} share the space on a node"
        yield Problem(path, gib, f"the same of all models with {name}", why)
    image = used_override(context.stack).vllm_image
    if image is not None and "@sha256:" not in image:
        why = "files outlive servers, and another image of the same name would read them without a word"
        yield Problem(path, gib, "override.vllmImage with @sha256: and its digest, or nothing", why)
    yield from _file_names(context, gib, path)


def _file_names(context: PlannedModel, gib: int, path: str) -> Iterator[Problem]:
    """Yield a problem for a hash by which servers name equal files differently, at the argument if the stack file has
    it, else at `path`, which has the files' size.
    """
    engine = context.model.engine
    used = argument_of([*context.facts.arguments, *engine.extra_args], _HASH)
    if not used or not used[1].startswith("xxhash") or "PYTHONHASHSEED" in engine.env:
        return
    value: object = gib
    if own := engine.argument(_HASH):
        path, value = f"{context.path}.engine.extraArgs[{own[0]}]", engine.extra_args[own[0]]
    why = (
        f"with the hash {used[1]}, servers name the same cache file differently and never find each other's"
        " (vLLM 0.30, v1/core/kv_cache_utils.py)"
    )
    accepted = f"sha256; engine.env.PYTHONHASHSEED with one value for all servers; or no {_DISK}"
    yield Problem(path, value, accepted, why)


def _room(
    context: PlannedModel, connectors: KvConnector, gib: float, path: str, value: object, times: int = 1
) -> Iterator[Problem]:
    """Yield a problem about the `value` at `path` if the servers of a full node don't have enough host memory for
    `times` KV caches of `gib` GiB each.
    """
    shape = context.shape
    servers = context.model.topology.servers()
    gpus = max((context.parallelism(role).gpus_per_node for role in servers if role in KEEPING), default=None)
    if gpus is None:  # another problem tells of a topology without such servers
        return
    room_gib = shape.memory_gib * USABLE_MEMORY - shape.gpus * shape.server_requests_per_gpu.memory_gib
    count, each_gib = shape.gpus / gpus, gib * times * connectors.offload_factor
    most = int(room_gib / count / connectors.offload_factor / times)
    if connectors.max_offload_gib is not None and gib > connectors.max_offload_gib:
        why = f"servers with {connectors.max_offload_gib} GiB start, and with twice as many they end (vllm issue 52656)"
        yield Problem(path, value, f"at most {min(most, connectors.max_offload_gib)}", why)
    elif gib > most:
        ranks = f", {gib:g} GiB in each of {times} ranks" if times > 1 else ""
        pinned = (
            f", as vLLM may pin {connectors.offload_factor:g} times the size" if connectors.offload_factor > 1 else ""
        )
        why = (
            f"a node of {shape.memory_gib} GiB has {int(room_gib)} GiB left beside its reserve and what its"
            f" {'server requests' if count == 1 else f'{count:g} servers request'} anyway;"
            f" {count:g} x {each_gib:g} GiB are {count * each_gib:g} GiB{ranks}{pinned}"
        )
        size = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        yield Problem(path, value, f"at most {most} for servers with {size}", why)


def _arguments(context: PlannedModel, connectors: KvConnector) -> Iterator[Problem]:
    """Yield a problem for arguments that configure a KV connector besides the kit's own, for more than one on
    aggregated servers, and for host memory that exceeds a node's.
    """
    arguments, path = context.model.engine.extra_args, f"{context.path}.engine.extraArgs"
    places = {flag: i for i, argument in reversed(list(enumerate(arguments))) if (flag := flag_of(argument))}
    given = connectors.given(arguments)
    if context.model.topology.disaggregated or context.model.engine.kv_cache.host_memory_gib:
        why, accepted = "servers have the kit's KV connector, which vLLM would replace without a word", "nothing"
        if context.model.topology.disaggregated:
            why = f"prefill and decode {why}, so that no KV cache is handed over"
            accepted = "nothing, or aggregated servers"
        for flag in (*given, *(flag for flag in connectors.further_flags if flag in places)):
            of_size = flag == connectors.offload_flag and connectors.offload_connector
            instead = _HOST_MEMORY if of_size else accepted
            yield Problem(f"{path}[{places[flag]}]", arguments[places[flag]], instead, why)
        return
    if context.model.router.mode == "none":
        why = "no router stands before the servers, so that a client could name the server that KV cache is pulled from"
        for flag in connectors.naming_peers(arguments):
            accepted = f"{connectors.offload_flag}, or router.mode: standalone"
            yield Problem(f"{path}[{places[flag]}]", arguments[places[flag]], accepted, why)
    for flag in given[1:]:
        why = f"a server has one KV connector, and {given[0]} brings one: vLLM replaces it without a word"
        yield Problem(f"{path}[{places[flag]}]", arguments[places[flag]], f"one of {' and '.join(given)}", why)
    if (i := connectors.offload_by_object(arguments)) is not None:
        known = _HOST_MEMORY if connectors.offload_connector else f"{connectors.offload_flag}, in GiB"
        why = f"a pod's memory is planned by {known.partition(',')[0]} alone, and a pod that takes more is ended"
        yield Problem(f"{path}[{i}]", arguments[i], known, why)
    if connectors.offload_flag in given:
        path, argument = f"{path}[{places[connectors.offload_flag]}]", arguments[places[connectors.offload_flag]]
        if (size := connectors.offload_gib(arguments)) is None:
            why = f"{connectors.offload_flag} is the host memory of one server's KV cache"
            yield Problem(path, argument, "a size in GiB above 0", why)
        else:
            ranks = max(context.parallelism(role).data_parallel_size_local for role in context.model.topology.servers())
            yield from _room(context, connectors, size, path, argument, ranks)  # each rank takes this size
