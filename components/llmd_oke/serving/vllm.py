"""The vLLM container of a model server."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism
from llmd_pods.prewarm import owner, places
from llmd_pods.prewarm.places import ENCODINGS

from llmd_oke.catalogue import CatalogueModel, Release, Shape
from llmd_oke.catalogue.releases import POD_IP, KvEvents
from llmd_oke.catalogue.server_settings import (
    QUICK_REDUCE_VARIABLE,
    SERVER_PORT,
    ServerSettings,
    server_disk_gib,
    server_settings,
)
from llmd_oke.catalogue.serving import handshake, without_rdma
from llmd_oke.catalogue.speculation import ServerDraft
from llmd_oke.config import Role
from llmd_oke.config.engine import (
    ROLES,
    AdapterSlots,
    Engine,
    KvCache,
    RoleEngine,
    SettingValue,
    Speculation,
    engine_settings,
)
from llmd_oke.config.model import HANDING_OVER
from llmd_oke.kubernetes_types import (
    Capabilities,
    Container,
    ContainerPort,
    EnvVar,
    PodSecurityContext,
    Probe,
    ResourceRequirements,
    SecretKeySelector,
    SecurityContext,
    Volume,
    VolumeMount,
)
from llmd_oke.objects import field_value, present
from llmd_oke.planning import placement
from llmd_oke.serving import compiled_code, kv_cache_disk
from llmd_oke.serving.args import EngineArgs, ModelCacheMountArgs, RoleEngineArgs, TracingArgs
from llmd_oke.serving.manifests import from_field, plain_variables, tracing_environment

STARTUP_PERIOD_S = 5
"""Period of the startup probe in seconds. The guides probe every 30 s for an hour; a shorter period with the same total
lets a server serve earlier."""

CACHE_FOLDER = "/model-cache"
"""Mount path of the model cache in every server's pod; the releases set HF_HOME to it."""

HUGGING_FACE_SECRET = "huggingface-token"  # noqa: S105 - the name of a Secret
HUGGING_FACE_SECRET_KEY = "token"  # noqa: S105 - a key's name

_KV_TRANSFER = "--kv-transfer-config"


@dataclass(frozen=True)
class ServerSpec:
    """Specification of a model server without the names of objects: the input of its container and its pod. `rdma`
    tells whether the stack hands KV cache over by RDMA, `kv_events` whether the server publishes KV cache events, and
    `disaggregated_set` whether the controller of DisaggregatedSets makes the server.
    """

    release: Release
    model: CatalogueModel
    shape: Shape
    role: Role
    parallelism: Parallelism
    rdma: bool
    engine: EngineArgs
    cache: ModelCacheMountArgs = field(default_factory=ModelCacheMountArgs)
    tracing: TracingArgs | None = None
    kv_events: bool = False
    disaggregated_set: bool = False

    @cached_property
    def settings(self) -> ServerSettings:
        """Settings that the server is started with, in the same record as in its plan.

        Raises:
            KitError: the table of engine settings lacks a setting or doesn't accept its value, or an argument would
                replace the kit's KV connector on servers that hand KV cache over.
        """
        asked = engine_of(self.engine)
        other = self.release.vllm.kv_connector.given([*self.model.arguments, *asked.extra_args])
        if other and self.role in HANDING_OVER:
            raise KitError(
                f"Servers of role {self.role} have the kit's KV connector, which {other[0]} would replace.",
                "Leave it out, or serve with aggregated servers.",
            )
        return server_settings(self.release, self.model, asked, self.role, self.parallelism, rdma=self.rdma)

    @property
    def reports(self) -> KvEvents | None:
        """Settings by which the server publishes KV cache events; None if it publishes none."""
        return self.release.vllm.kv_events if self.kv_events else None

    @property
    def on_rdma_network(self) -> bool:
        """True if the server has RDMA virtual functions, with the settings and rights that they need."""
        return self.settings.virtual_functions > 0

    @property
    def cpus(self) -> int:
        """CPUs (hardware threads) that each pod of the server requests."""
        return self.shape.server_requests_per_gpu.cpus * self.parallelism.gpus_per_node

    @property
    def prewarmed(self) -> bool:
        """True if the cache contains the weights before vLLM starts; vLLM then downloads nothing."""
        return "prewarm" in self.cache

    @property
    def keeps_compiled_code(self) -> bool:
        """True if code that the server compiles at its start is stored on its node: the stack has a directory for it,
        and the release's vLLM can reuse the code.
        """
        return bool(self.release.vllm.compiled_code and self.cache.get("compiled_path"))

    @property
    def user(self) -> int:
        """User ID of the server's processes; 0 is root, the user of the image."""
        user = self.engine.get("user")
        return user["id"] if user else 0


def container(spec: ServerSpec) -> Container:
    """Return the container `vllm`. The startup probe succeeds once vLLM lists its model. Later probes use `/health`,
    which fails with the engine core, unlike the list of models, a static route that still answers then.
    """
    command = ["vllm", "serve"]
    if spec.keeps_compiled_code:
        command = compiled_code.command(spec.release, spec.settings.vllm_port, spec.model.startup_budget_s, command)
    if spec.settings.disk_gib:
        command = kv_cache_disk.command(command)
    security = security_context(rdma=spec.on_rdma_network)
    if user := spec.engine.get("user"):  # the group owns the cache's files
        security |= {"runAsNonRoot": True, "runAsUser": user["id"], "runAsGroup": owner.GROUP}
    return {
        "name": "vllm",
        "image": spec.release.vllm.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "args": arguments(spec),
        "env": environment(spec),
        "ports": _ports(spec),
        "resources": resources(spec),
        "startupProbe": _probe("/v1/models", STARTUP_PERIOD_S, 5, -(-spec.model.startup_budget_s // STARTUP_PERIOD_S)),
        "livenessProbe": _probe("/health", 10, 5, 3),
        "readinessProbe": _probe("/health", 5, 2, 3),
        "lifecycle": {"preStop": {"sleep": {"seconds": placement.DRAIN_S}}},
        "securityContext": security,
        "volumeMounts": _mounts(spec),
    }


def arguments(spec: ServerSpec) -> list[str]:
    """Return vLLM's arguments: the kit's own, the release's, the model's, then the user's.

    Raises:
        KitError: the table of engine settings lacks a setting or doesn't accept its value.
    """
    settings = spec.settings
    own = [
        spec.model.repository,
        f"--port={settings.vllm_port}",
        *settings.parallelism.arguments,
        *_over_nodes_arguments(spec),
        *settings.table_arguments,
    ]
    if revision := pinned_revision(spec.model, spec.cache):
        own.append(f"--revision={revision}")
    if (room := settings.adapters) is not None:
        own += ["--enable-lora", f"--max-loras={room.slots}", f"--max-lora-rank={room.max_rank}"]
        own += [] if room.host_slots is None else [f"--max-cpu-loras={room.host_slots}"]
    if (draft := settings.draft) is not None:
        own += _draft_arguments(spec, draft)
    if spec.prewarmed:  # offline vLLM takes the model's folder for its name unless it is told one
        own.append(f"--served-model-name={spec.model.repository}")
    transfer = [] if settings.kv_transfer is None else [f"{_KV_TRANSFER}={json.dumps(settings.kv_transfer)}"]
    if settings.hybrid_argument is not None:
        # Layers with sliding-window attention then hand over only the window, and vLLM fails if it can't.
        transfer.append(settings.hybrid_argument)
    release = [f"--attention-backend={settings.attention_backend}", *spec.release.vllm.arguments]
    reported = spec.reports.given(spec.model.repository, SERVER_PORT) if spec.reports else []
    traced = [f"--otlp-traces-endpoint={spec.tracing['endpoint']}"] if spec.tracing else []
    exchange = settings.all2all.arguments if settings.all2all else ()
    given = [*spec.model.arguments, *settings.feature_arguments, *settings.extra_args]
    return [*own, *transfer, *release, *exchange, *reported, *traced, *given]


def _over_nodes_arguments(spec: ServerSpec) -> list[str]:
    """Return the arguments by which the pods of a server that spans nodes find each other.

    Raises:
        KitError: the release has no facts about such servers.
    """
    spread, facts = spec.parallelism, spec.release.vllm.over_nodes
    if spread.nodes == 1:
        return []
    if facts is None:
        raise KitError(f"vLLM of {spec.release.name} isn't known to span nodes.", "Give servers one node each.")
    local = spread.data_parallel_size_local
    return [text.format(nodes=spread.nodes, data_parallel_size_local=local) for text in facts.arguments]


def _ranks_environment(spec: ServerSpec) -> dict[str, str]:
    """Return the variables of a server with several data-parallel ranks, whose API servers wait for all of them as long
    as the start-up budget, and of one that spans nodes.
    """
    facts, spread = spec.release.vllm.over_nodes, spec.parallelism
    if facts is None or spread.data_parallel_size == spread.nodes == 1:
        return {}
    own = facts.environment if spread.nodes > 1 else {}
    return {**own, facts.wait_variable: str(spec.model.startup_budget_s)}


def engine_of(args: EngineArgs) -> Engine:
    """Return the `engine` of a stack file with the same settings as a component's arguments.

    Raises:
        KitError: the table of engine settings lacks a setting or doesn't accept its value.
    """
    roles = {role: RoleEngine.model_construct(None, **_engine_fields(own)) for role in ROLES if (own := args.get(role))}
    room = args.get("adapters")
    drafts = args.get("speculation")
    own = {
        "kv_cache": KvCache.model_construct(None, **present(args.get("kv_cache") or {})),
        "adapters": None if room is None else AdapterSlots.model_construct(None, **present(room)),
        "speculation": None if drafts is None else Speculation.model_construct(None, **present(drafts)),
    }
    return Engine.model_construct(None, **{**_engine_fields(args), **roles, **own})


def _engine_fields(args: EngineArgs | RoleEngineArgs) -> dict[str, Any]:
    """Return a component's arguments as fields of a stack file's settings, converted from text."""
    table = {row.field: row for row in engine_settings().settings}
    further: dict[str, SettingValue] = {}
    for name, text in (args.get("settings") or {}).items():
        if (row := table.get(name)) is None:
            raise KitError(f"vLLM's setting {name!r} is not known.", "Give it among extra_args, as vLLM has it.")
        try:
            further[name] = row.read(text)
        except ValueError as error:
            raise KitError(f"vLLM's setting {name!r} can't be {text!r}.", f"It is of kind {row.kind}.") from error
    return {**{key: value for key, value in present(args).items() if key != "settings"}, **further}


def pinned_revision(model: CatalogueModel, cache: ModelCacheMountArgs) -> str | None:
    """Return the commit of the weights: the cache's own, otherwise the catalogue's, which doesn't apply to a bucket.
    None means the files in the bucket at the time of the download.
    """
    prewarm = cache.get("prewarm")
    if prewarm is None:
        return model.revision
    return prewarm.get("revision") or (model.revision if prewarm["source"] == "hugging-face" else None)


def environment(spec: ServerSpec) -> list[EnvVar]:
    """Return the environment variables of a server's container `vllm`, each name once. Of several sources the last in
    this order counts: release, parallelism, RDMA, model, KV transfer, user.

    RCCL gets network settings if a server has several GPUs, since it is used only between GPUs. MAX_JOBS limits compile
    jobs to the pod's CPUs; PyTorch would start one for each CPU of the node. Only servers that download weights
    themselves get the Hugging Face token.
    """
    backend = spec.settings.all2all
    values = {
        **spec.release.vllm.environment,
        **spec.release.vllm.gpu_environment.get(spec.shape.gpu.architecture, {}),
        **(spec.release.vllm.compiled_code if spec.keeps_compiled_code else {}),
        "PYTORCH_ROCM_ARCH": spec.shape.gpu.architecture,
        "MAX_JOBS": str(spec.cpus),
        **({QUICK_REDUCE_VARIABLE: spec.settings.quick_reduce} if spec.settings.quick_reduce else {}),
        **_hand_over(spec),
        **(spec.shape.rdma.rccl if spec.on_rdma_network and spec.parallelism.gpus > 1 else {}),
        **_ranks_environment(spec),
        **(backend.variables(spec.shape.rdma.rccl, rdma=spec.on_rdma_network) if backend else {}),
        **spec.model.environment,
        **tracing_environment(f"{spec.model.name}-{spec.role}", spec.tracing),
        **(_offline(spec.model) if spec.prewarmed else {}),
        # PyTorch ends without a name for the user, whom the image need not know (vllm issue 44548).
        **({"USER": "llm-d"} if spec.engine.get("user") else {}),
    }
    if spec.settings.adapters:
        # vLLM loads an adapter at the first request for it (vllm/plugins/lora_resolvers/filesystem_resolver.py). Its
        # configuration has the path of the base model's weights with their commit: each commit has its own folder.
        commit = pinned_revision(spec.model, spec.cache) or "main"
        folder = f"{CACHE_FOLDER}/{places.ADAPTERS}/{spec.cache.get('adapters', '')}@{commit}"
        values |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_LORA_RESOLVER_CACHE_DIR": folder}
    token = [] if spec.prewarmed else [hugging_face_token()]
    address = [from_field(POD_IP, "status.podIP")] if spec.reports else []
    side_channel: list[EnvVar] = []
    if (way := spec.settings.hand_over) is not None:
        side_channel += [from_field(name, "status.podIP") for name in way.pod_ip_variables]
        side_channel += plain_variables(way.environment)
    entries = [*plain_variables(values), *token, *side_channel, *address]
    own = plain_variables(spec.settings.env)
    return list({entry.get("name"): entry for entry in [*entries, *own]}.values())


def _hand_over(spec: ServerSpec) -> dict[str, str]:
    """Return the variables with UCX's transports for the hand-over of KV cache, and those that linear attention's
    states need for it; none for servers without hand-over.
    """
    if not spec.settings.hands_over:
        return {}
    transports = spec.shape.rdma.environment if spec.on_rdma_network else without_rdma().environment
    has_states = spec.model.architecture.linear_attention is not None
    return {**transports, **(spec.release.vllm.kv_connector.linear_attention_environment if has_states else {})}


def _offline(model: CatalogueModel) -> dict[str, str]:
    """Return the variables by which a server reads models from the cache only, which pods can't write to."""
    own = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": "/tmp/huggingface-modules"}  # noqa: S108 - in the container
    return own if model.vocabulary is None else {**own, model.vocabulary.variable: f"{CACHE_FOLDER}/{ENCODINGS}"}


def _draft_arguments(spec: ServerSpec, draft: ServerDraft) -> list[str]:
    """Return the arguments of speculative decoding.

    A draft with a repository of its own is read from the directory of its commit in a pre-warmed cache, so that vLLM
    makes no requests. Draft layers in the model's repository are read at the model's commit, which vLLM doesn't apply
    to drafts by itself; offline it uses the model's directory.
    """
    facts, prewarm = draft.draft, spec.cache.get("prewarm")
    if facts.repository is None:
        commit = None if prewarm else pinned_revision(spec.model, spec.cache)
        return [draft.argument(None, commit), *facts.arguments]
    place, commit = facts.repository, draft_revision(draft, prewarm["source"] if prewarm else None)
    if prewarm and commit:
        place, commit = str(places.CacheFolder(Path(CACHE_FOLDER), place, commit).snapshot(commit)), None
    return [draft.argument(place, commit), *facts.arguments]


def draft_revision(draft: ServerDraft, source: str | None) -> str | None:
    """Return the commit of a draft's own repository: the stack file's, otherwise the catalogue's, which doesn't apply
    to a bucket. None means the files in the bucket at the time of the download.

    Args:
        draft: draft of the server.
        source: source of pre-warming; None without pre-warming.
    """
    return draft.revision or (draft.draft.revision if source in {None, "hugging-face"} else None)


def resources(spec: ServerSpec) -> ResourceRequirements:
    """Return limits of GPUs and virtual functions, requests of CPUs and memory in proportion to the GPUs, and a request
    of disk space for the pod's writes.
    """
    gpus = spec.parallelism.gpus_per_node
    devices = {spec.shape.gpu.resource: str(gpus)}
    if spec.on_rdma_network:
        devices[spec.shape.rdma.resource] = str(spec.settings.virtual_functions)
    memory = f"{spec.shape.server_requests_per_gpu.memory_gib * gpus + spec.settings.offload_gib}Gi"
    disk = f"{server_disk_gib(spec.release, spec.model, spec.settings.draft, own_weights=not spec.cache)}Gi"
    return {
        "limits": {**devices, "memory": memory},
        "requests": {**devices, "cpu": str(spec.cpus), "memory": memory, "ephemeral-storage": disk},
    }


def shared_memory_gib(spec: ServerSpec) -> int:
    """Return the size of /dev/shm in GiB: 16 as in the llm-d guides, plus 4 for each further GPU, or at least what the
    all-to-all exchange between experts needs; plus offloaded KV cache if the release keeps it there.
    """
    offloaded = spec.settings.offload_gib if spec.release.vllm.kv_connector.offload_in_shared_memory else 0
    exchange = spec.settings.all2all.shared_memory_gib if spec.settings.all2all else 0
    return max(16 + 4 * (spec.parallelism.gpus_per_node - 1), exchange) + offloaded


def hugging_face_token() -> EnvVar:
    """Return the environment variable with the Hugging Face token for gated models, from a Secret that may
    be missing.
    """
    reference: SecretKeySelector = {"name": HUGGING_FACE_SECRET, "key": HUGGING_FACE_SECRET_KEY, "optional": True}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}


def _ports(spec: ServerSpec) -> list[ContainerPort]:
    numbers = {"vllm": spec.settings.vllm_port}
    if way := spec.settings.hand_over:  # each rank has the port behind that of the one before; names have 15 characters
        ranks = range(1 if way.ranks else spec.parallelism.data_parallel_size)
        numbers |= {f"{name}-{n}" if n else name: port + n for name, port in way.ports.items() for n in ranks}
    if spec.reports:
        numbers["kv-events"] = spec.reports.port
    return [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in numbers.items()]


def _probe(path: str, period_s: int, timeout_s: int, failures: int) -> Probe:
    return {
        "httpGet": {"path": path, "port": "vllm"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def pod_security(spec: ServerSpec) -> PodSecurityContext:
    """Return the security context of the pod: the runtime's seccomp profile, and additional groups of the configured
    user.
    """
    user = spec.engine.get("user")
    groups = user.get("groups") if user else None
    further: PodSecurityContext = {"supplementalGroups": groups} if groups else {}
    return {"seccompProfile": {"type": "RuntimeDefault"}, **further}


def security_context(*, rdma: bool) -> SecurityContext:
    """Return the security context of a container. RDMA locks the memory that it registers, which needs IPC_LOCK. ROCm
    binds host buffers to a NUMA node, which the runtime's seccomp profile allows only with SYS_NICE (moby,
    profiles/seccomp/default.json: mbind, set_mempolicy).
    """
    capabilities: Capabilities = {"drop": ["ALL"]}
    if rdma:
        capabilities["add"] = ["IPC_LOCK", "SYS_NICE"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _mounts(spec: ServerSpec) -> list[VolumeMount]:
    scratch: list[VolumeMount] = [
        {"name": "scratch", "mountPath": path, "subPath": path.strip("/.")}
        for path in spec.release.vllm.scratch_folders
    ]
    cache: VolumeMount = {"name": "model-cache", "mountPath": CACHE_FOLDER}
    if spec.prewarmed:
        cache["readOnly"] = True
    compiled = compiled_code.mounts(compiled_key(spec)) if spec.keeps_compiled_code else []
    files = kv_cache_disk.mounts(spec.model.name, kv_cache_key(spec)) if spec.settings.disk_gib else []
    return [{"name": "shm", "mountPath": "/dev/shm"}, cache, *scratch, *compiled, *files]  # noqa: S108


def pod_volumes(spec: ServerSpec) -> list[Volume]:
    """Return the volumes that the container `vllm` mounts."""
    return [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_memory_gib(spec)}Gi"}},
        cache_volume(spec.cache),
        {"name": "scratch", "emptyDir": {}},
        *(compiled_code.volumes(spec.cache) if spec.keeps_compiled_code else []),
        *(kv_cache_disk.volumes(_kv_cache_path(spec)) if spec.settings.disk_gib else []),
    ]


def compiled_key(spec: ServerSpec) -> str:
    """Return a digest of everything that compiled code depends on: image, GPU, arguments, variables and the user.

    vLLM's own hashes distinguish code within the directory. The digest names a directory that is removed as a whole and
    that only one user may write to; it therefore covers all inputs but those known only to a running pod.
    """
    variables = [entry for entry in environment(spec) if "value" in entry]
    return _short(
        [
            spec.release.vllm.image.pinned,
            spec.shape.gpu.architecture,
            arguments(spec),
            sorted((entry.get("name"), entry.get("value")) for entry in variables),
            spec.user,
        ]
    )


def kv_cache_key(spec: ServerSpec) -> str:
    """Return a digest of everything that the content of KV cache in files depends on, and that vLLM's names of files
    don't tell: what compiled code depends on, and the commits of the weights and of the draft's.

    Raises:
        KitError: the weights have no commit, so that files of other weights could be read.
    """
    prewarm = spec.cache.get("prewarm")
    commit, draft = pinned_revision(spec.model, spec.cache), spec.settings.draft
    if commit is None:
        raise KitError(f"KV cache in files needs a commit of {spec.model.name}'s weights.", "Give a revision.")
    drafted = draft_revision(draft, prewarm["source"] if prewarm else None) if draft else None
    return _short([compiled_key(spec), commit, drafted])


def _kv_cache_path(spec: ServerSpec) -> str:
    if not spec.settings.host_memory_gib:
        raise KitError("Servers with disk_gib need host_memory_gib, through which vLLM writes files.")
    if path := spec.cache.get("kv_cache_path"):
        return path
    raise KitError("Servers with disk_gib need a model cache with kv_cache_path.", "Give it, or leave disk_gib out.")


def cache_volume(cache: ModelCacheMountArgs) -> Volume:
    """Return the volume with the weights: one for all nodes, a directory of the node, or an `emptyDir` of the pod."""
    if "claim" in cache:
        return {"name": "model-cache", "persistentVolumeClaim": {"claimName": field_value(cache["claim"])}}
    if "path" in cache:
        return {"name": "model-cache", "hostPath": {"path": cache["path"], "type": "DirectoryOrCreate"}}
    return {"name": "model-cache", "emptyDir": {}}


def version(spec: ServerSpec) -> str:
    """Return a digest of what servers must have in common to hand KV cache over: image, vLLM arguments and environment.

    Prefill and decode servers of one unit have the same version whatever their sizes, so that a change of one role's
    size doesn't restart the other role. The digest covers neither vLLM's `kv_role` nor offloaded KV cache: servers with
    and without offloading hand KV cache over to each other. `kubectl get pods -L llmd-oke/version` shows it.
    """
    connectors, vllm = spec.release.vllm.kv_connector, spec.release.vllm
    engine = {**spec.engine, "kv_cache": {"connector": engine_of(spec.engine).kv_cache.connector}}
    either_role = connectors.model_copy(update={"roles": dict.fromkeys(connectors.roles, "kv_both")})
    release = spec.release.model_copy(update={"vllm": vllm.model_copy(update={"kv_connector": either_role})})
    role = "prefill" if spec.settings.hands_over else spec.role
    common = replace(spec, release=release, engine=engine, role=role, parallelism=Parallelism(1))
    without = handshake().environment
    variables = [entry for entry in environment(common) if entry.get("name") not in without]
    return _short([common.release.vllm.image.pinned, _arguments(arguments(common)), variables])


def revision(unit: str, release: str, versions: Mapping[str, str], spreads: Mapping[str, Parallelism]) -> str:
    """Return a digest of the properties whose change needs a new unit (a router and its servers) beside the old one.

    Args:
        unit: name of the unit.
        release: name of the llm-d release, which determines endpoint picker and routing sidecar.
        versions: versions of the servers by role.
        spreads: parallelism of each role's servers; expert parallelism may change inside a unit.
    """
    sizes = {
        role: [spread.tensor_parallel_size, spread.data_parallel_size]
        if spread.data_parallel_size > 1
        else spread.tensor_parallel_size
        for role, spread in spreads.items()
    }
    return _short([unit, release, dict(versions), sizes])


def _arguments(words: Iterable[str]) -> dict[str, list[str]]:
    """Return the arguments that vLLM's handshake compares, by name; of repeated ones the last, as in vLLM."""
    by_name: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            by_name[name] = [value] if value else []
        else:
            by_name.setdefault(name, []).append(word)
    return {name: values for name, values in by_name.items() if not handshake().ignores(name)}


def _short(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
