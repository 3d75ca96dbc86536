"""Checks of a model's config: servers, memory, arguments and variables."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from llmd_base.errors import SET, Problem
from llmd_bench.deployment import SHORT_FORMS, Parallelism

from llmd_oke import catalogue
from llmd_oke.catalogue.adapters import slots_gib
from llmd_oke.catalogue.models import (
    BYTES_PER_GIB,
    MODELS,
    blocks_allow,
    heads_allow,
    key_value_copies,
    shared_size,
)
from llmd_oke.catalogue.releases import AttentionBackend, KvCacheSettings
from llmd_oke.catalogue.server_settings import QUICK_REDUCE_VARIABLE
from llmd_oke.catalogue.serving import handshake
from llmd_oke.config import ModelConfig, Role
from llmd_oke.config.deprecated_keys import deprecated_keys
from llmd_oke.config.engine import DEFAULT_ENGINE, engine_settings, flag_of, flags_by_word, full_names
from llmd_oke.config.model import HANDING_OVER
from llmd_oke.planning.adapters import adapter_problems
from llmd_oke.planning.expert_parallel import all2all_problems, balancing_problems
from llmd_oke.planning.known_faults import met_faults
from llmd_oke.planning.kv_connectors import kv_cache_problems
from llmd_oke.planning.model_plan import AnswerChange
from llmd_oke.planning.model_scaling import scaling_problems
from llmd_oke.planning.over_nodes import (
    disaggregated_set_problems,
    over_nodes_problem,
    over_nodes_problems,
    spread_over_nodes,
)
from llmd_oke.planning.placement import lacks_virtual_functions, virtual_functions
from llmd_oke.planning.planned_model import PlannedModel, kv_cache_settings, memory
from llmd_oke.planning.rdma_adapters import rdma_adapter_problems
from llmd_oke.planning.releases import used_override, used_release, vllm_facts
from llmd_oke.planning.speculation import speculation_problems
from llmd_oke.values import VALUES

_KEYLESS = "probes, endpoint picker and benchmarks ask servers without a key, and would get 401"
_SET_BY_PULUMI = "`pulumi config set --secret llmd-oke:huggingFaceToken`"
_LAYOUT = "VLLM_KV_CACHE_LAYOUT"

_OWN_VARIABLES = {
    "VLLM_ATTENTION_BACKEND": (
        "override.attentionBackend, or --attention-backend in engine.extraArgs",
        "vLLM goes by --attention-backend, which the kit gives every server, and newer versions by nothing else",
    ),
    "VLLM_API_KEY": ("nothing", _KEYLESS),
}
"""Environment variables that contradict the kit's own settings, with the accepted alternative and the reason."""

_SECRET_VARIABLE = re.compile(r"(TOKEN|PASSWORD|SECRET|CREDENTIALS?|API_KEY|ACCESS_KEY)$")
_MAX_NAMES = 4
"""Maximum number of full flag names that an error about a shortened flag lists."""

_ROLE_ALONE: frozenset[Role] = frozenset({"aggregated"})


def topology_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of the roles and sizes of one model's servers, and of the KV cache transfer between them."""
    yield from _roles(context)
    for role in context.model.topology.servers():
        spread = [*_without_experts(context, role)] or [*_parallelism(context, role)]
        yield from spread or _memory(context, role)
    yield from over_nodes_problems(context)
    yield from disaggregated_set_problems(context)
    yield from _transfer(context)


def other_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of one model that `topology_problems` doesn't: of its router, vLLM settings, arguments,
    adapters and scaling.
    """
    yield from _lengths(context)
    yield from _later_settings(context)
    yield from _features(context)
    if context.model.router.mode == "none" and context.model.topology.disaggregated:
        why = "without an endpoint picker nothing pairs prefill with decode servers"
        yield Problem(f"{context.path}.router.mode", "none", "standalone", why)
    yield from _extra_arguments(context)
    yield from _settings_of_roles(context)
    yield from _catalogue_arguments(context)
    yield from kv_cache_problems(context)
    yield from all2all_problems(context)
    yield from balancing_problems(context)
    yield from rdma_adapter_problems(context)
    yield from adapter_problems(context)
    yield from speculation_problems(context)
    yield from _attention_backend(context)
    yield from _attention_config(context)
    yield from _variables(context)
    yield from _known_faults(context)
    yield from scaling_problems(context.model, context.path)


def answer_changes(context: PlannedModel) -> Iterator[AnswerChange]:
    """Yield the settings that change a model's answers and that nobody has evaluated; settings that only change how
    data moves are left out.
    """
    base, release = catalogue.release(context.stack.release), used_release(context.stack)
    if base is None or release is None:
        return
    yield from _changed_reduction(context)
    yield from _changed_backend(context, base.vllm.attention_backend, kv_cache_settings(release, context))


def possible_sizes(context: PlannedModel, role: Role) -> list[int]:
    """Return the tensor parallel sizes that the model's heads and blocks, and the node's GPUs and virtual functions,
    permit with the server's number of ranks.
    """
    return [size for size in range(1, context.shape.gpus + 1) if _is_possible(context, role, size)]


def _is_possible(context: PlannedModel, role: Role, size: int) -> bool:
    if size > context.shape.gpus or not heads_allow(context.facts, size) or not _blocks_allow(context, role, size):
        return False
    spread = spread_over_nodes(context, role, size)
    if spread is None:
        return False
    if lacks_virtual_functions(context.stack, context.shape):  # a problem of `rdma` or of the cluster
        return True
    return virtual_functions(context.stack, role, spread) <= context.shape.rdma.virtual_functions


def fitting_sizes(context: PlannedModel, role: Role) -> list[int]:
    """Return the possible sizes whose memory holds at least one sequence of maximum length."""
    spreads = {
        size: replace(context.parallelism(role), tensor_parallel_size=size, nodes=1)
        for size in possible_sizes(context, role)
    }
    return [size for size, spread in spreads.items() if context.memory(role, spread).sequences(context.max_model_len)]


def _roles(context: PlannedModel) -> Iterator[Problem]:
    topology = context.model.topology
    roles = frozenset(topology.servers())
    if roles in (HANDING_OVER, _ROLE_ALONE):
        return
    why = {
        frozenset({"prefill"}): "prefill servers hand their KV cache to decode servers, and there are none",
        frozenset({"decode"}): "decode servers alone would compute prompts too; that is an aggregated topology",
        frozenset(): "there are no servers",
    }.get(roles, "aggregated servers do not work together with prefill or decode servers")
    given = topology.model_dump(by_alias=True, exclude_unset=True)
    yield Problem(f"{context.path}.topology", given, SHORT_FORMS, why)


def _without_experts(context: PlannedModel, role: Role) -> Iterator[Problem]:
    """Yield a problem for data or expert parallelism of a model without experts."""
    if context.facts.architecture.experts is not None:
        return
    servers, name = context.model.topology.servers()[role], context.facts.name
    if (ranks := servers.data_parallel_size) > 1:
        why = f"{name} has no experts that ranks could share, and a router tells servers apart that are separate"
        accepted = f"1, with {servers.replicas * ranks} replicas"
        yield context.servers_problem(role, "dataParallelSize", ranks, accepted, why)
    if servers.expert_parallel:
        why = f"{name} has no experts"
        yield context.servers_problem(role, "expertParallel", value=True, accepted="nothing", why=why)


def _parallelism(context: PlannedModel, role: Role) -> Iterator[Problem]:
    size, ranks = context.size(role), context.parallelism(role).data_parallel_size
    if _is_possible(context, role, size):
        return
    architecture = context.facts.architecture
    if (problem := over_nodes_problem(context, role)) is not None:
        yield problem
        return
    if size > context.shape.gpus:
        why = f"a node has {context.shape.gpus} GPUs, and a rank can't span nodes"
    elif architecture.attention_heads % size:
        why = f"{architecture.attention_heads} attention heads can't be divided by {size}"
    elif not heads_allow(context.facts, size):
        why = (
            f"{architecture.key_value_heads} KV heads can neither be divided by {size} nor copied evenly to {size} GPUs"
        )
    elif not _blocks_allow(context, role, size):
        why = _split_blocks(context, size * ranks)
    else:
        functions, gpus = context.shape.rdma.virtual_functions, context.parallelism(role).gpus_per_node
        why = f"a node has {functions} virtual functions, and the server needs one for each of its {gpus} GPUs there"
    yield context.size_problem(role, _sizes(fitting_sizes(context, role) or possible_sizes(context, role)), why)


def _blocks_allow(context: PlannedModel, role: Role, size: int) -> bool:
    return blocks_allow(context.facts, replace(context.parallelism(role), tensor_parallel_size=size))


def _split_blocks(context: PlannedModel, size: int) -> str:
    """Explain why a size is refused that would split blocks of scaled weights (vllm issue 17569)."""
    experts = context.facts.architecture.experts is not None
    what, way = ("an expert", "; expertParallel keeps experts whole") if experts else ("a layer", "")
    inner = shared_size(context.facts, Parallelism(size))
    return (
        f"the inner size of {what}, {inner}, can't be shared by {size} GPUs in whole blocks of"
        f" {context.facts.weights.block_size} weights, which have a scale each{way}"
    )


def _memory(context: PlannedModel, role: Role) -> Iterator[Problem]:
    fit = context.memory(role, context.parallelism(role))
    if fit.sequences(context.max_model_len):
        return
    share = context.model.engine.of_role(role).gpu_memory_utilization
    key = context.model.engine.key_of("gpu_memory_utilization", role)
    larger, sizes, workload = _sufficient_share(context, role), fitting_sizes(context, role), context.model.workload
    ways = [f"{key} of at least {larger:g}"] if larger else []
    if sizes:
        ways.append(f"tensor parallel size {' or '.join(map(str, sizes))}")
    elif larger and (narrower := _narrower(context.facts)):
        ways.append(f"narrower weights{narrower}")
    if fit.longest_sequence >= workload.input_tokens + workload.output_tokens:
        ways.append(f"engine.maxModelLen of at most {fit.longest_sequence}")
    beside = f", {fit.adapters_gib:.1f} GiB of room for adapters" if fit.adapters_gib else ""
    beside += f", {fit.draft_gib:.1f} GiB of a draft" if fit.draft_gib else ""
    left = "nothing for the KV cache"
    if fit.key_value_tokens:
        room = f"{fit.longest_sequence} tokens where one sequence may have {context.max_model_len}"
        left = f"{fit.key_value_gib:.1f} GiB for the KV cache, room for {room}"
    yield context.size_problem(
        role,
        ", or ".join(ways) or _room_needed(context, role),
        f"vLLM may use {share * fit.gpu_gib:.0f} GiB of {fit.gpu_gib:.0f} GiB ({key} {share:g});"
        f" {fit.weights_gib:.0f} GiB of weights{beside} and {fit.activation_gib:.0f} GiB of activations leave {left}",
    )


def _sufficient_share(context: PlannedModel, role: Role) -> float | None:
    """Return the smallest share of GPU memory, in hundredths up to the kit's default, with which a role's servers hold
    one sequence of maximum length; None if none does.
    """
    engine, spread = context.model.engine.of_role(role), context.parallelism(role)
    draft = context.facts.server_draft(engine.speculation)
    shares = (hundredths / 100 for hundredths in range(1, round(DEFAULT_ENGINE.gpu_memory_utilization * 100) + 1))
    fits = ((share, memory(context.facts, context.shape, spread, share, engine.adapters, draft)) for share in shares)
    return next((share for share, fit in fits if fit.sequences(context.max_model_len)), None)


def _room_needed(context: PlannedModel, role: Role) -> str:
    """Describe the hardware or weights that would hold the model and one sequence of maximum length, if no server on
    one node does.
    """
    facts, shape = context.facts, context.shape
    share = context.model.engine.of_role(role).gpu_memory_utilization
    sequence_gib = context.max_model_len * facts.kv_cache.bytes_per_token / BYTES_PER_GIB
    taken_gib = sequence_gib * key_value_copies(facts, shape.gpus) / shape.gpus + facts.activation_gib_per_gpu
    taken_gib += slots_gib(facts, context.model.engine.adapters, Parallelism(shape.gpus)) / shape.gpus
    if draft := facts.server_draft(context.model.engine.speculation):
        taken_gib += draft.gib(Parallelism(shape.gpus)) / shape.gpus
    each_gib = (facts.weights.gib / shape.gpus + taken_gib) / share
    usable_gib = share * shape.gpu.memory_gib - taken_gib
    narrower = f"narrower weights{_narrower(facts)}"
    larger = f"{narrower}, or a node with {shape.gpus} GPUs of at least {each_gib:.0f} GiB"
    if usable_gib <= 0:
        return larger
    gpus = math.ceil(facts.weights.gib / usable_gib)
    if gpus <= shape.gpus:
        return f"{larger}, or a shorter engine.maxModelLen"
    nodes = math.ceil(gpus / shape.gpus)
    return f"{larger}; of {shape.gpu.product} it takes {gpus} GPUs on {nodes} nodes, and a rank can't span nodes"


def _narrower(model: catalogue.CatalogueModel) -> str:
    """Return the names of models whose weights were quantized from this one's, as text for an error; empty if there are
    none.
    """
    known = (catalogue.model(name) for name in catalogue.model_names())
    names = [each.name for each in known if each and each.quantized_from == model.name]
    return f" (model: {' or '.join(names)})" if names else ""


def _transfer(context: PlannedModel) -> Iterator[Problem]:
    if not context.model.topology.disaggregated or context.facts.architecture.latent_attention is not None:
        return
    prefill, decode = context.size("prefill"), context.size("decode")
    if decode < prefill:
        yield context.size_problem(
            "decode",
            f"at least {prefill}",
            f"NIXL hands KV cache only to servers of at least the tensor parallel size of prefill, {prefill}",
        )
    elif decode > prefill:
        yield from _split(context, prefill)


def _split(context: PlannedModel, prefill: int) -> Iterator[Problem]:
    """Yield a problem if the KV cache can't be split by heads between unequal servers, which gives garbage answers. For
    an overriding backend about which nothing is known, advice is given instead.
    """
    release, facts = used_release(context.stack), vllm_facts(context.stack)
    if release is None:
        return
    backends = release.vllm.attention_backend
    argument = _backend_argument(context.model)[1]
    backend = argument or backends.kv_connector
    overrides = not argument and context.stack.override is not None and bool(context.stack.override.attention_backend)
    unknown = overrides and (facts is None or backend not in facts.vllm.attention_backend.named)
    unusable = (*backends.refused_with_kv_connector, *_without_sinks(context, backends))
    if unknown or backend in (
        *backends.split_by_heads,
        *unusable,
    ):  # other checks report unusable backends
        return
    others = [name for name in backends.split_by_heads if name not in unusable]
    accepted = f"{prefill}, as prefill has, or " + (" or ".join(others) or "another release")
    why = (
        f"KV cache of {backend} can't be split by heads in vLLM of {(facts or release).name}: between servers of"
        " different tensor parallel sizes answers would be garbage"
    )
    if overrides:
        accepted = f"servers of one size, or {' or '.join(others) or 'none, with another release'}"
        yield Problem("override.attentionBackend", backend, accepted, why)
    else:
        yield context.size_problem("decode", accepted, why)


def _without_sinks(context: PlannedModel, backends: AttentionBackend) -> tuple[str, ...]:
    """Return the attention backends that the model can't use because it has attention sinks."""
    return backends.without_sinks if context.facts.architecture.attention_sinks else ()


def _lengths(context: PlannedModel) -> Iterator[Problem]:
    length, most = context.model.engine.max_model_len, context.facts.max_model_len
    if length is not None and length > most:
        why = f"{context.facts.name} has a context of {most} tokens"
        yield Problem(f"{context.path}.engine.maxModelLen", length, f"at most {most}", why)
    workload = context.model.workload
    total = workload.input_tokens + workload.output_tokens
    if total > context.max_model_len:
        yield Problem(
            f"{context.path}.workload",
            workload.model_dump(by_alias=True, exclude_unset=True),
            f"inputTokens + outputTokens of at most {context.max_model_len}",
            f"inputTokens {workload.input_tokens} and outputTokens {workload.output_tokens} are {total} tokens, above"
            f" {'engine.maxModelLen' if length and length <= most else 'the context of the model'}"
            f" ({context.max_model_len})",
        )


def _later_settings(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for settings that the release's vLLM doesn't have yet. An image of no known release may
    have any.
    """
    facts = vllm_facts(context.stack)
    for setting in engine_settings().settings if facts else ():
        since = catalogue.release(setting.since) if setting.since else None
        value = context.model.engine.settings().get(setting.field)
        if facts and since and facts.order < since.order and value not in (None, setting.default):
            why = f"vLLM of {facts.name} has no --{setting.flag}"
            yield Problem(f"{context.path}.{setting.path}", value, f"nothing, or {since.name} or later", why)


def _features(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for features without arguments in the model's catalogue entry."""
    known = context.facts.features
    for i, name in enumerate(context.model.engine.features or ()):
        if name not in known:
            accepted = " or ".join(known) or "nothing"
            why = f"{VALUES}/{MODELS.folder}/{context.facts.name}.yaml has no such feature of {context.facts.name}"
            yield Problem(f"{context.path}.engine.features[{i}]", name, accepted, why)


def _known_faults(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for settings with which the release's vLLM is known to exit or to answer wrongly."""
    release, facts = used_release(context.stack), vllm_facts(context.stack)
    if release is not None and facts is not None:
        connected = kv_cache_settings(release, context).kv_connector
        spreads = [context.parallelism(role) for role in context.model.topology.servers()]
        gpu, engine = context.shape.gpu, context.model.engine
        for met in met_faults(facts, context.facts, gpu, engine, spreads, kv_connector=connected):
            if accepted := met.fault.accepted:
                yield Problem(f"{context.path}.{met.key}", met.value or context.facts.name, accepted, str(met))


def _extra_arguments(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for arguments that other keys of the stack file replace, for those that the release's vLLM
    doesn't have, and for shortened ones, which checks can't recognize.
    """
    facts = vllm_facts(context.stack)
    for argument, path in (
        (argument, f"{context.path}.{key}.extraArgs[{i}]")
        for key, part in context.model.engine.parts().items()
        for i, argument in enumerate(part.extra_args)
    ):
        flag = flag_of(argument)
        if names := full_names(flag):
            few = len(names) <= _MAX_NAMES
            why = f"vLLM would read this as short for {' or '.join(names) if few else 'another argument'}"
            accepted = _in_place_of(names) if few else "the full name of one of vLLM's arguments"
            yield Problem(path, flag, accepted, f"{why}; the kit only understands full names")
        known = flags_by_word().get(flag)
        if facts and known and not facts.has_flag(known):
            accepted = f"nothing, or {known.since} or later" if known.since else f"nothing, or at most {known.until}"
            why = f"vLLM of {facts.name} has no {flag}, and ends where it is given"
            yield Problem(path, argument, accepted, why)
        if flag == "--api-key":
            yield Problem(path, flag, "nothing", _KEYLESS)
        key = engine_settings().taken().get(flag)
        if key is not None:
            moved = any(entry.argument == flag and entry.replacement for entry in deprecated_keys())
            remedy = "; `llmd-oke migrate --write` puts it there" if moved else ""
            yield Problem(path, argument, key, f"{flag} would contradict what was planned{remedy}")


def _in_place_of(flags: Sequence[str]) -> str:
    """Return what is accepted in place of a shortened name of one of these flags: the flags that users may give, and
    what the refusals of the others accept, which may be nothing.
    """
    refused = {"--api-key": "nothing", **engine_settings().taken()}
    ways = list(dict.fromkeys(refused.get(flag, flag) for flag in flags))
    return ", or ".join([way for way in ways if not way.startswith("nothing")] or ways)


def _settings_of_roles(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for settings of roles that the topology lacks, and for settings that must be equal on all servers
    for the transfer of KV cache.
    """
    engine, roles, alike = context.model.engine, context.model.topology.servers(), handshake()
    why = "servers that hand KV cache over must have it alike (values/vllm/handshake.yaml)"
    for role, own in engine.roles().items():
        path = f"{context.path}.engine.{role}"
        if role not in roles:
            yield Problem(path, SET, " or ".join(roles), f"{context.model.topology} has no {role} servers")
        for i, argument in enumerate(own.extra_args):
            flag = flag_of(argument)
            if flag.startswith("-") and not alike.ignores(flag) and flag not in engine_settings().taken():
                yield Problem(f"{path}.extraArgs[{i}]", argument, "engine.extraArgs, for all servers", why)
        for name in own.env:
            if name not in alike.environment:
                yield Problem(f"{path}.env.{name}", SET, "engine.env, for all servers", why)


def _catalogue_arguments(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for arguments and variables in the model's catalogue entry that planning reads from the stack
    file only.
    """
    release, facts = used_release(context.stack), context.facts
    flags = {*engine_settings().taken(), "--attention-backend", "--attention-config", "-ac", "--api-key"}
    if release is not None:
        flags |= {*release.vllm.kv_connector.flags, *release.vllm.kv_connector.further_flags}
    file = f"{VALUES}/{MODELS.folder}/{facts.name}.yaml"
    why = "servers are planned by the stack file, where it is checked with the rest"
    for path, arguments in facts.argument_lists.items():
        for i, argument in enumerate(arguments):
            if (flag := flag_of(argument)) in flags or full_names(flag):
                accepted = f"nothing here, {engine_settings().taken().get(flag, 'models[].engine.extraArgs')} there"
                yield Problem(f"{path}[{i}]", argument, accepted, why, file=file)
    for name in facts.environment:
        if name in {*_OWN_VARIABLES, _LAYOUT, QUICK_REDUCE_VARIABLE} or _SECRET_VARIABLE.search(name.upper()):
            accepted = "nothing here, models[].engine.env there"
            yield Problem(f"environment.{name}", SET, accepted, why, file=file)


def _attention_backend(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for an attention backend with which vLLM doesn't start: one that is incompatible with a KV
    connector or with the model.
    """
    release = used_release(context.stack)
    if release is None:
        return
    backends, started = release.vllm.attention_backend, kv_cache_settings(release, context)
    connected, used = started.kv_connector, started.attention_backend
    i, argument = _backend_argument(context.model)
    path, value = "override.attentionBackend", used
    if argument:
        path, value = f"{context.path}.engine.extraArgs[{i}]", context.model.engine.extra_args[i]
    if connected and argument in backends.refused_with_kv_connector:
        why = f"vLLM of {release.name} does not start with {argument} and a KV connector"
        yield Problem(path, value, f"{backends.kv_connector}, or none", why)
    elif used in _without_sinks(context, backends):
        why = f"{context.facts.name} has attention sinks, which {used} lacks in vLLM of {release.name}"
        yield Problem(path, value, "another backend, or none", why)
    elif used in backends.heads_by_sixteen:
        yield from _head_counts(context, used)


def _head_counts(context: PlannedModel, backend: str) -> Iterator[Problem]:
    """Yield a problem for servers whose number of attention heads per GPU the backend has no kernel for."""
    for part in context.model.topology.servers().values():
        heads = context.facts.architecture.attention_heads / part.tensor_parallel_size
        if heads % 16 and 16 % heads:
            why = f"{backend} runs with a multiple or a divisor of 16 attention heads for each GPU, here are {heads:g}"
            yield Problem("override.attentionBackend", backend, "TRITON_MLA", why)
            return


def _backend_argument(model: ModelConfig) -> tuple[int, str]:
    """Return the index and the attention backend among the user's arguments; 0 and an empty text if there is none."""
    i, name = model.engine.argument("--attention-backend") or (0, "")
    return i, name.upper()


def _attention_config(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for a backend inside `--attention-config`: vLLM exits if `--attention-backend`, which every
    server has, is given too (`create_engine_config`, vllm/engine/arg_utils.py).
    """
    arguments = context.model.engine.extra_args
    for i, argument in enumerate(arguments):
        name, mark, value = argument.partition("=")
        flag, _, key = name.replace("_", "-").partition(".")
        if flag not in {"--attention-config", "-ac"}:
            continue
        if key == "backend" or (not key and '"backend"' in (value if mark else "".join(arguments[i + 1 : i + 2]))):
            why = "vLLM does not start with it beside --attention-backend, which the kit gives every server"
            yield Problem(f"{context.path}.engine.extraArgs[{i}]", argument, "--attention-backend", why)


def _variables(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem for environment variables that contradict planned settings, change answers, or contain secrets.
    Their values are not shown: everybody who can read the stack file, the stack's state, or pods can read them.
    """
    variables, path = context.model.engine.env, f"{context.path}.engine.env"
    layout = variables.get(_LAYOUT, "HND")  # in vLLM's NHD layout a token's heads are adjacent
    sizes = {servers.tensor_parallel_size for servers in context.model.topology.servers().values()}
    latent = context.facts.architecture.latent_attention is not None
    if layout != "HND" and len(sizes) > 1 and not latent:
        why = (
            f"a KV cache in layout {layout} can't be split by heads: between servers of different tensor parallel sizes"
            " requests would fail, or answers be garbage"
        )
        yield Problem(f"{path}.{_LAYOUT}", layout, "HND, or nothing", why)
    for key, part in context.model.engine.parts().items():
        yield from _refused_variables(part.env, f"{context.path}.{key}.env")


def _refused_variables(variables: Mapping[str, str], path: str) -> Iterator[Problem]:
    """Yield a problem for environment variables that a stack file may not set, for all roles or for one."""
    for name, (accepted, why) in _OWN_VARIABLES.items():
        if name in variables:
            yield Problem(f"{path}.{name}", SET, accepted, why)
    for name in variables:
        if name not in _OWN_VARIABLES and _SECRET_VARIABLE.search(name.upper()):
            of_hugging_face = name in {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
            others = f"nothing: the only secret that servers get is Hugging Face's token, by {_SET_BY_PULUMI}"
            accepted = _SET_BY_PULUMI if of_hugging_face else others
            why = "a secret would stand in plain text in the stack file, its state and every pod"
            yield Problem(f"{path}.{name}", SET, accepted, why)
    level = variables.get(QUICK_REDUCE_VARIABLE, "NONE")
    if level != "NONE":
        why = "it changes answers, so that it is told with the stack and evaluated by each update"
        yield Problem(f"{path}.{QUICK_REDUCE_VARIABLE}", level, "override.quickReduce", why)


def _changed_reduction(context: PlannedModel) -> Iterator[AnswerChange]:
    """Yield a change of answers by quantized all-reduce: by the user's override, or by the model's own number format
    with a release or image other than the evaluated one.
    """
    if all(servers.tensor_parallel_size == 1 for servers in context.model.topology.servers().values()):
        return
    override, own = used_override(context.stack), context.facts.quick_reduce
    if override.quick_reduce is not None:
        if override.quick_reduce != "NONE":
            yield AnswerChange("override.quickReduce", f"{override.quick_reduce} in all-reduce")
    elif own and (own.evaluation.release != context.stack.release or override.vllm_image):
        evaluated = f"which {context.facts.name} was evaluated with on {own.evaluation.release} as released only"
        path = "override.vllmImage" if own.evaluation.release == context.stack.release else "release"
        yield AnswerChange(path, f"{own.quantization} in all-reduce, {evaluated},")


def _changed_backend(context: PlannedModel, base: AttentionBackend, started: KvCacheSettings) -> Iterator[AnswerChange]:
    """Yield a change of answers by the attention backend: one other than the release's, an overriding one whose KV
    cache can't be split although it must be, or one without a known evaluation.
    """
    i, argument = _backend_argument(context.model)
    connected, used = started.kv_connector, started.attention_backend
    named = context.stack.override is not None and context.stack.override.attention_backend is not None
    sizes = {servers.tensor_parallel_size for servers in context.model.topology.servers().values()}
    latent = context.facts.architecture.latent_attention is not None
    own = {base.chosen(context.facts, kv_connector=True)}
    own |= set() if connected else {base.chosen(context.facts, kv_connector=False)}
    if used not in own or (named and not latent and len(sizes) > 1 and used not in base.split_by_heads):
        path = "override.attentionBackend" if named else "override.vllmImage"
        yield AnswerChange(f"{context.path}.engine.extraArgs[{i}]" if argument else path, f"attention backend {used}")
    elif used in base.evaluated_by_updates:
        unknown = f"for which no published evaluation of {context.facts.name} is known"
        yield AnswerChange("release", f"attention backend {used}, {unknown},")


def _sizes(sizes: list[int]) -> str:
    return "one of " + ", ".join(map(str, sizes)) if sizes else "no size"
