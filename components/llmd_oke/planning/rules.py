"""What a model's config must satisfy on its own. Each rule yields the problems that it finds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llmd_oke import catalogue
from llmd_oke.catalogue.releases import AttentionBackend
from llmd_oke.config import Engine, Model, Role, StackConfig, Topology
from llmd_oke.config.stack import Override
from llmd_oke.config.topology import SHORT_FORMS
from llmd_oke.errors import Problem
from llmd_oke.planning.memory import memory
from llmd_oke.planning.placement import lacks_virtual_functions, virtual_functions
from llmd_oke.planning.plan import AnswerChange, Memory
from llmd_oke.planning.releases import used_release, vllm_facts
from llmd_oke.planning.scaling import scaling_problems


@dataclass(frozen=True)
class Subject:
    """A model of a stack, its path in the stack file, what the catalogue knows of it, and the shape of its nodes."""

    stack: StackConfig
    model: Model
    path: str
    facts: catalogue.Model
    shape: catalogue.Shape

    @property
    def max_model_len(self) -> int:
        """Tokens that one sequence may have; what is asked for above the model's context is a problem of its own."""
        return min(self.model.engine.max_model_len or self.facts.max_model_len, self.facts.max_model_len)

    def size(self, role: Role) -> int:
        """The tensor parallel size of a role."""
        return self.model.topology.servers()[role].tensor_parallel_size

    def memory(self, size: int) -> Memory:
        """The memory of one server of that tensor parallel size."""
        return memory(self.facts, self.shape, size, self.model.engine.gpu_memory_utilization)

    def size_problem(self, role: Role, accepted: str, why: str) -> Problem:
        """A problem with the tensor parallel size of a role, at the place where the stack file has it."""
        if self.model.topology.written is not None:
            why_of_role = f"{role} servers with tp{self.size(role)}: {why}"
            return Problem(f"{self.path}.topology", self.model.topology.written, f"for {role}: {accepted}", why_of_role)
        return Problem(f"{self.path}.topology.{role}.tensorParallelSize", self.size(role), accepted, why)


def topology_problems(subject: Subject) -> Iterator[Problem]:
    """What is wrong with the servers of one model."""
    yield from _roles(subject)
    for role in subject.model.topology.servers():
        parallelism = list(_parallelism(subject, role))
        yield from parallelism or _memory(subject, role)
    yield from _transfer(subject)


def other_problems(subject: Subject) -> Iterator[Problem]:
    """What is wrong with one model beside its servers."""
    yield from _lengths(subject)
    yield from _router(subject)
    yield from _extra_arguments(subject)
    yield from _attention_backend(subject)
    yield from _attention_config(subject)
    yield from _layout(subject)
    yield from _own_variables(subject)
    yield from _secret_variables(subject)
    yield from _quick_reduce(subject)
    yield from scaling_problems(subject.model, subject.path)


_ROLES_TOGETHER: frozenset[Role] = frozenset({"prefill", "decode"})
_ROLE_ALONE: frozenset[Role] = frozenset({"aggregated"})


def _roles(subject: Subject) -> Iterator[Problem]:
    topology = subject.model.topology
    roles = frozenset(topology.servers())
    if roles in (_ROLES_TOGETHER, _ROLE_ALONE):
        return
    why = {
        frozenset({"prefill"}): "prefill servers hand their KV cache to decode servers, and there are none",
        frozenset({"decode"}): "decode servers alone would compute prompts too; that is an aggregated topology",
        frozenset(): "there are no servers",
    }.get(roles, "aggregated servers do not work together with prefill or decode servers")
    yield Problem(f"{subject.path}.topology", str(topology) or None, SHORT_FORMS, why)


def _parallelism(subject: Subject, role: Role) -> Iterator[Problem]:
    size = subject.size(role)
    if size in possible_sizes(subject, role):
        return
    architecture = subject.facts.architecture
    if size > subject.shape.gpus:
        why = f"a node has {subject.shape.gpus} GPUs, and a server can't span nodes"
    elif architecture.attention_heads % size:
        why = f"{architecture.attention_heads} attention heads can't be divided by {size}"
    elif not _heads_allow(subject.facts, size):
        why = (
            f"{architecture.key_value_heads} KV heads can neither be divided by {size} nor copied evenly to {size} GPUs"
        )
    else:
        functions = subject.shape.rdma.virtual_functions
        why = f"a node has {functions} virtual functions, and the server needs one for each of its {size} GPUs"
    yield subject.size_problem(role, _sizes(fitting_sizes(subject, role) or possible_sizes(subject, role)), why)


def possible_sizes(subject: Subject, role: Role) -> list[int]:
    """Tensor parallel sizes that the model's heads and the node's GPUs and virtual functions allow."""
    sizes = [size for size in range(1, subject.shape.gpus + 1) if _heads_allow(subject.facts, size)]
    if lacks_virtual_functions(subject.stack, subject.shape):  # `rdma` is refused for that, once
        return sizes
    most = subject.shape.rdma.virtual_functions
    return [size for size in sizes if virtual_functions(subject.stack, role, size) <= most]


def fitting_sizes(subject: Subject, role: Role) -> list[int]:
    """Those of the possible sizes whose memory holds at least one sequence of full length."""
    return [
        size for size in possible_sizes(subject, role) if subject.memory(size).key_value_tokens >= subject.max_model_len
    ]


def _heads_allow(facts: catalogue.Model, size: int) -> bool:
    key_value_heads = facts.architecture.key_value_heads
    fit = facts.architecture.latent_attention is not None or key_value_heads % size == 0 or size % key_value_heads == 0
    return facts.architecture.attention_heads % size == 0 and fit


def _memory(subject: Subject, role: Role) -> Iterator[Problem]:
    fit = subject.memory(subject.size(role))
    if fit.key_value_tokens >= subject.max_model_len:
        return
    ways = [_sizes(sizes)] if (sizes := fitting_sizes(subject, role)) else []
    workload = subject.model.workload
    if fit.key_value_tokens >= workload.input_tokens + workload.output_tokens:
        ways.append(f"engine.maxModelLen of at most {fit.key_value_tokens}")
    yield subject.size_problem(
        role,
        ", or ".join(ways) or "a smaller model or larger GPUs",
        f"{fit.weights_gib:.0f} GiB of weights and {fit.activation_gib:.0f} GiB of activations leave"
        f" {max(0.0, fit.key_value_gib):.1f} GiB of {fit.gpu_gib:.0f} GiB for the KV cache, room for"
        f" {fit.key_value_tokens} tokens where one sequence may have {subject.max_model_len}",
    )


def _transfer(subject: Subject) -> Iterator[Problem]:
    if not subject.model.topology.disaggregated or subject.facts.architecture.latent_attention is not None:
        return
    prefill, decode = subject.size("prefill"), subject.size("decode")
    if decode < prefill:
        yield subject.size_problem(
            "decode",
            f"at least {prefill}",
            f"NIXL hands KV cache only to servers of at least the tensor parallel size of prefill, {prefill}",
        )
    elif decode > prefill:
        yield from _split(subject, prefill)


def _split(subject: Subject, prefill: int) -> Iterator[Problem]:
    """A KV cache that can't be split by heads gives garbage answers. Of an overriding backend that nobody has looked at
    the user is told, not refused.
    """
    release, facts = used_release(subject.stack), vllm_facts(subject.stack)
    if release is None:
        return
    known = release.vllm.attention_backend
    asked = _asked_backend(subject.model)[1]
    backend = asked or known.kv_connector
    overrides = not asked and subject.stack.override is not None and bool(subject.stack.override.attention_backend)
    untold = overrides and (facts is None or backend not in facts.vllm.attention_backend.named)
    unusable = (*known.refused_with_kv_connector, *_without_sinks(subject, known))
    if untold or backend in (*known.split_by_heads, *unusable):  # those that can't be used are a problem of their own
        return
    others = [name for name in known.split_by_heads if name not in unusable]
    accepted = f"{prefill}, as prefill has, or " + (" or ".join(others) or "another release")
    why = (
        f"KV cache of {backend} can't be split by heads in vLLM of {(facts or release).name}: between servers of"
        " different tensor parallel sizes answers would be garbage"
    )
    if overrides:
        accepted = f"servers of one size, or {' or '.join(others) or 'none, with another release'}"
        yield Problem("override.attentionBackend", backend, accepted, why)
    else:
        yield subject.size_problem("decode", accepted, why)


def _without_sinks(subject: Subject, known: AttentionBackend) -> tuple[str, ...]:
    """Backends that the model can't use."""
    return known.without_sinks if subject.facts.architecture.attention_sinks else ()


def _lengths(subject: Subject) -> Iterator[Problem]:
    asked, context = subject.model.engine.max_model_len, subject.facts.max_model_len
    if asked is not None and asked > context:
        why = f"{subject.facts.name} has a context of {context} tokens"
        yield Problem(f"{subject.path}.engine.maxModelLen", asked, f"at most {context}", why)
    workload = subject.model.workload
    total = workload.input_tokens + workload.output_tokens
    if total > subject.max_model_len:
        yield Problem(
            f"{subject.path}.workload",
            f"{workload.input_tokens} + {workload.output_tokens}",
            f"inputTokens + outputTokens of at most {subject.max_model_len}",
            f"{total} tokens are more than the maximum model length",
        )


def _router(subject: Subject) -> Iterator[Problem]:
    if subject.model.router.mode == "none" and subject.model.topology.disaggregated:
        why = "without an endpoint picker nothing pairs prefill with decode servers"
        yield Problem(f"{subject.path}.router.mode", "none", "standalone", why)


_TRANSFER = "--kv-transfer-config"

_OWN_ARGUMENTS = {
    "--tensor-parallel-size": "topology",
    "-tp": "topology",
    "--pipeline-parallel-size": "topology",
    "-pp": "topology",
    "--data-parallel-size": "topology",
    "-dp": "topology",
    "--max-model-len": "engine.maxModelLen",
    "--max-num-seqs": "engine.maxNumSeqs",
    "--gpu-memory-utilization": "engine.gpuMemoryUtilization",
    "--block-size": "engine.blockSize",
    "--model": "model",
    "--host": "nothing: the kit sets it",
    "--port": "nothing: the kit sets it",
    _TRANSFER: "nothing: the kit sets it",
}
"""vLLM arguments that follow from other keys of the stack file. A connector of aggregated servers is the user's own."""


_KEYLESS = "probes, endpoint picker and benchmarks ask servers without a key, and would get 401"


def _extra_arguments(subject: Subject) -> Iterator[Problem]:
    for i, argument in enumerate(subject.model.engine.extra_args):
        name = argument.split("=", 1)[0].split(".", 1)[0]
        if name.replace("_", "-") == "--api-key":
            yield Problem(f"{subject.path}.engine.extraArgs[{i}]", name, "nothing", _KEYLESS)
        key = _OWN_ARGUMENTS.get(name.replace("_", "-"))
        if key is not None and not (name == _TRANSFER and not subject.model.topology.disaggregated):
            why = f"{name} would contradict what was planned"
            yield Problem(f"{subject.path}.engine.extraArgs[{i}]", argument, key, why)


def has_kv_connector(topology: Topology, engine: Engine) -> bool:
    """Whether a model's servers have a KV connector: the kit's own, or one of the user's."""
    return topology.disaggregated or any(argument.startswith(_TRANSFER) for argument in engine.extra_args)


def _attention_backend(subject: Subject) -> Iterator[Problem]:
    """A backend that vLLM doesn't start with: beside a KV connector, or with what the model needs."""
    release = used_release(subject.stack)
    if release is None:
        return
    known, connected = release.vllm.attention_backend, has_kv_connector(subject.model.topology, subject.model.engine)
    i, asked = _asked_backend(subject.model)
    used = asked or (known.kv_connector if connected else known.default)
    path, value = "override.attentionBackend", used
    if asked:
        path, value = f"{subject.path}.engine.extraArgs[{i}]", subject.model.engine.extra_args[i]
    if connected and asked in known.refused_with_kv_connector:
        why = f"vLLM of {release.name} does not start with {asked} and a KV connector"
        yield Problem(path, value, f"{known.kv_connector}, or none", why)
    elif used in _without_sinks(subject, known):
        why = f"{subject.facts.name} has attention sinks, which {used} lacks in vLLM of {release.name}"
        yield Problem(path, value, "another backend, or none", why)


def _asked_backend(model: Model) -> tuple[int, str]:
    """The attention backend among the user's arguments, and its position; empty if there is none."""
    i, name = model.engine.argument("--attention-backend") or (0, "")
    return i, name.upper()


def _attention_config(subject: Subject) -> Iterator[Problem]:
    """A backend inside `--attention-config`: vLLM ends where `--attention-backend` says one too
    (`create_engine_config`, vllm/engine/arg_utils.py), and every server is given that.
    """
    arguments = subject.model.engine.extra_args
    for i, argument in enumerate(arguments):
        name, mark, value = argument.partition("=")
        flag, _, key = name.replace("_", "-").partition(".")
        if flag not in {"--attention-config", "-ac"}:
            continue
        if key == "backend" or (not key and '"backend"' in (value if mark else "".join(arguments[i + 1 : i + 2]))):
            why = "vLLM does not start with it beside --attention-backend, which the kit gives every server"
            yield Problem(f"{subject.path}.engine.extraArgs[{i}]", argument, "--attention-backend", why)


_LAYOUT = "VLLM_KV_CACHE_LAYOUT"


def _layout(subject: Subject) -> Iterator[Problem]:
    """A layout of the KV cache in which the heads of a token lie side by side (vLLM's NHD)."""
    layout = subject.model.engine.env.get(_LAYOUT, "HND")
    sizes = {servers.tensor_parallel_size for servers in subject.model.topology.servers().values()}
    latent = subject.facts.architecture.latent_attention is not None
    if layout != "HND" and len(sizes) > 1 and not latent:
        why = (
            f"a KV cache in layout {layout} can't be split by heads: between servers of different tensor parallel sizes"
            " requests would fail, or answers be garbage"
        )
        yield Problem(f"{subject.path}.engine.env.{_LAYOUT}", layout, "HND, or nothing", why)


_OWN_VARIABLES = {
    "VLLM_ATTENTION_BACKEND": (
        "override.attentionBackend, or --attention-backend in engine.extraArgs",
        "vLLM goes by --attention-backend, which the kit gives every server, and newer versions by nothing else",
    ),
    "VLLM_API_KEY": ("nothing", _KEYLESS),
}
"""Environment variables that would contradict what the kit gives every server: what is right instead, and why."""


def _own_variables(subject: Subject) -> Iterator[Problem]:
    for name, (accepted, why) in _OWN_VARIABLES.items():
        if name in subject.model.engine.env:
            yield Problem(f"{subject.path}.engine.env.{name}", "given", accepted, why)


_SECRET_VARIABLE = re.compile(r"(TOKEN|PASSWORD|SECRET|CREDENTIALS?|API_KEY|ACCESS_KEY)$")


def _secret_variables(subject: Subject) -> Iterator[Problem]:
    """Values of a stack file are read by all who may read it, the stack's state, or pods. They aren't shown here."""
    for name in subject.model.engine.env:
        if name in _OWN_VARIABLES or not _SECRET_VARIABLE.search(name.upper()):
            continue
        of_hugging_face = name in {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
        accepted = "`pulumi config set --secret llmd-oke:huggingFaceToken`" if of_hugging_face else "no secret"
        why = "a secret would stand in plain text in the stack file, its state and every pod"
        yield Problem(f"{subject.path}.engine.env.{name}", "given", accepted, why)


_QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"


def _quick_reduce(subject: Subject) -> Iterator[Problem]:
    """What changes answers is no environment variable among others."""
    level = subject.model.engine.env.get(_QUICK_REDUCE, "NONE")
    if level != "NONE":
        why = "it changes answers, so that it is told with the stack and evaluated by each update"
        yield Problem(f"{subject.path}.engine.env.{_QUICK_REDUCE}", level, "override.quickReduce", why)


def answer_changes(subject: Subject) -> Iterator[AnswerChange]:
    """What of a stack has a model answer in a way that nobody has evaluated; nothing for what only moves data."""
    base, release = catalogue.release(subject.stack.release), used_release(subject.stack)
    if base is None or release is None:
        return
    yield from _changed_reduction(subject)
    yield from _changed_backend(subject, base.vllm.attention_backend, release.vllm.attention_backend)


def _changed_reduction(subject: Subject) -> Iterator[AnswerChange]:
    """A model's own number format has been evaluated with one release, and its image."""
    if all(servers.tensor_parallel_size == 1 for servers in subject.model.topology.servers().values()):
        return
    override, own = subject.stack.override or Override(), subject.facts.quick_reduce
    if override.quick_reduce is not None:
        if override.quick_reduce != "NONE":
            yield AnswerChange("override.quickReduce", f"{override.quick_reduce} in all-reduce")
    elif own and (own.evaluation.release != subject.stack.release or override.vllm_image):
        evaluated = f"which {subject.facts.name} was evaluated with on {own.evaluation.release} as released only"
        path = "override.vllmImage" if own.evaluation.release == subject.stack.release else "release"
        yield AnswerChange(path, f"{own.quantization} in all-reduce, {evaluated},")


def _changed_backend(subject: Subject, base: AttentionBackend, known: AttentionBackend) -> Iterator[AnswerChange]:
    """Another backend than the release's, or one that is named and whose KV cache can't be split where it has to be."""
    connected = has_kv_connector(subject.model.topology, subject.model.engine)
    i, asked = _asked_backend(subject.model)
    used = asked or (known.kv_connector if connected else known.default)
    named = subject.stack.override is not None and subject.stack.override.attention_backend is not None
    sizes = {servers.tensor_parallel_size for servers in subject.model.topology.servers().values()}
    own = (base.kv_connector,) if connected else (base.default, base.kv_connector)
    if used not in own or (named and len(sizes) > 1 and used not in base.split_by_heads):
        path = "override.attentionBackend" if named else "override.vllmImage"
        yield AnswerChange(f"{subject.path}.engine.extraArgs[{i}]" if asked else path, f"attention backend {used}")


def _sizes(sizes: list[int]) -> str:
    return "one of " + ", ".join(map(str, sizes)) if sizes else "no size"
