"""Settings of a simulated server from its container's command and environment, and vLLM's errors for invalid ones."""

import argparse
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.releases import Release
from llmd_oke.catalogue.server_settings import QUANTIZATIONS, QUICK_REDUCE_VARIABLE, exchanges, quantization
from llmd_oke.config.engine import AdapterSlots, flag_of
from llmd_oke.config.stack import QuickReduceFormat

from llmd_rehearsal.vllm.flags import StartRefusal, human_readable_int, parsed

NIXL_CONNECTORS = ("NixlConnector", "NixlPullConnector")
DECODE_BENCH_CONNECTOR = "DecodeBenchConnector"
OFFLOADING_CONNECTOR = "OffloadingConnector"
_HOST_SPEC, _TIERING_SPEC = "CPUOffloadingSpec", "TieringOffloadingSpec"
MULTI_CONNECTOR = "MultiConnector"
CORRUPTED_PERCENT = "LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT"
IGNORED_ADAPTERS = "LLMD_OKE_REHEARSED_IGNORED_ADAPTERS"
ACCEPTED_PERCENT = "LLMD_OKE_REHEARSED_ACCEPTED_PERCENT"
FAILED_PREFILL_PERCENT = "LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT"
CRASH_AFTER_PREFILL_RESTART = "LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART"
_LEASE_S = 30
_ACCEPTED_PERCENT = 60
"""Of drafted tokens; ours, between those of the drafts that public sources measured."""

_MTP = re.compile(r"(.+_)?mtp")
"""Names of vLLM for multi-token prediction; those of single architectures are older ones."""

_DRAFTING = ("mtp", "eagle3", "eagle", "draft_model")
"""Methods of drafts that are simulated: by layers or a model of their own."""

_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_KNOWN_CONNECTORS = {
    *(*NIXL_CONNECTORS, DECODE_BENCH_CONNECTOR, "NixlPushConnector", "MultiConnector", "MoRIIOConnector"),
    *("MooncakeConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "OffloadingConnector", "P2pNcclConnector"),
    *("SharedStorageConnector", "ExampleConnector"),
}
"""Names of the connectors that vLLM's KVConnectorFactory registers."""
_OUTER_RANKS = ("data_parallel_rank", "data_parallel_start_rank", "data_parallel_external_lb")
_RPC_PORT = 29550
"""vLLM's default of `--data-parallel-rpc-port` (vllm/config/parallel.py)."""


@dataclass(frozen=True)
class KeyValueTransfer:
    """`--kv-transfer-config` and the environment of the NIXL side channel.

    `lease_s` is the time, in seconds on real hardware, for which the KV cache of a finished prefill is kept before a
    decode server renews the lease (`kv_connector_extra_config.kv_lease_duration`).

    `layout` of the KV cache is HND, which NIXL requires, or the environment's value.

    The other fields are simulated faults, which vLLM doesn't have: `corrupted_percent` of the transfers arrive
    corrupted; `failed_prefill_percent` of the prompts whose KV cache would be handed over are answered with status 500;
    with `crashes_after_prefill_restart`, a decode server crashes at its first transfer from a new prefill server after
    another prefill server has ended. vLLM may crash so (vllm issue 49238), but doesn't always; no release has this by
    default.
    """

    connector: str
    engine_id: str
    recompute_on_failure: bool
    side_channel_host: str
    side_channel_port: int
    lease_s: float
    corrupted_percent: int = 0
    failed_prefill_percent: int = 0
    crashes_after_prefill_restart: bool = False
    layout: str = "HND"

    @property
    def nixl(self) -> bool:
        """Tell whether KV caches are pulled from other servers by NIXL."""
        return self.connector in NIXL_CONNECTORS

    @property
    def decode_bench(self) -> bool:
        """Tell whether prompts are filled with dummy KV caches, for decode-only benchmarks."""
        return self.connector == DECODE_BENCH_CONNECTOR


@dataclass(frozen=True)
class ServerNode:
    """Position of a container in a server that spans nodes: the container's number, and address and port of the first
    container.
    """

    node_rank: int
    address: str
    rpc_port: int
    wait_s: float


@dataclass(frozen=True)
class AdapterSettings:
    """Limits on LoRA adapters (`room`), the folder in which adapters are searched (None without one), and whether
    requests may load and unload adapters (`updates`). `ignored` is a simulated fault: adapters are loaded but not
    applied.
    """

    room: AdapterSlots
    folder: str | None
    updates: bool
    ignored: bool


@dataclass(frozen=True)
class DraftSettings:
    """Speculative decoding: vLLM's method, the repository or folder of the draft model (None for the model's own files)
    with its revision, the number of tokens drafted in a step, and how many of 100 drafted tokens the simulated model
    accepts.
    """

    method: str
    model: str | None
    revision: str | None
    tokens: int
    accepted_percent: int

    def accepted(self, drafts: int) -> int:
        """Return the number of accepted tokens in a sequence's next draft, after as many earlier drafts as `drafts`;
        over many drafts, `accepted_percent` of all drafted tokens are accepted.
        """
        drafted = self.tokens * self.accepted_percent
        return drafted * (drafts + 1) // 100 - drafted * drafts // 100


@dataclass(frozen=True)
class KvEventSettings:
    """`--kv-events-config`: the port of the first data parallel rank, and the topic of all messages."""

    port: int
    topic: str


@dataclass(frozen=True)
class CommandSettings:
    """Settings in a container's command and environment. `max_model_len` is None for the model's own length.

    `group` is the container's position in a server that spans nodes; None for a server in a single container.
    `host_bytes` is the size in bytes of the KV cache in the node's memory (`cpu_bytes_to_use` of the
    OffloadingConnector), 0 for none, and `files` the directory with KV cache in files (`root_dir` of its tier `fs`),
    None for none. `exchange_bytes` is memory in bytes of each GPU, outside vLLM's share, for tokens
    that experts of other ranks get by MoRI, 0 with other backends. `calls_tools` tells whether the model may decide by
    itself to call a request's tools. `keep_alive_s` is the wall time in seconds after which an idle connection is
    closed; its clients are real programs.
    """

    model: str
    revision: str | None
    served_model_names: tuple[str, ...]
    host: str
    port: int
    parallelism: Parallelism
    max_model_len: int | None
    allow_long_max_model_len: bool
    block_size: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    kv_cache_dtype: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    prompt_tokens_details: bool
    calls_tools: bool
    shutdown_timeout_s: float
    quick_reduce: QuickReduceFormat
    attention_backend: str | None
    keep_alive_s: float
    transfer: KeyValueTransfer | None
    host_bytes: int
    files: str | None
    exchange_bytes: int
    group: ServerNode | None
    hybrid: bool | None
    """State of vLLM's hybrid KV cache manager: on, off, or None where vLLM decides."""
    adapters: AdapterSettings | None = None
    draft: DraftSettings | None = None
    kv_events: KvEventSettings | None = None
    scale_out: bool = False
    """Whether the command has `--enable-scale-out`, which vLLM 0.30 needs to serve `/render`; 0.26 always serves it."""

    @property
    def ranks(self) -> range:
        """Data parallel ranks of the container."""
        count = self.parallelism.data_parallel_size_local
        first = self.group.node_rank * count if self.group else 0
        return range(first, first + count)

    def of_rank(self, rank: int) -> "CommandSettings":
        """Return the settings of one data parallel rank: those of the server, but with an engine id and a side channel
        port of the rank's own for the KV connector.
        """
        if self.transfer is None or self.parallelism.data_parallel_size == 1:
            return self
        transfer = self.transfer
        engine_id, port = f"{transfer.engine_id}_dp{rank}", transfer.side_channel_port + rank
        return replace(self, transfer=replace(transfer, engine_id=engine_id, side_channel_port=port))

    @property
    def kv_connector(self) -> bool:
        """Tell whether vLLM has a KV connector: a transfer's, or the one that keeps KV cache in host memory."""
        return self.transfer is not None or self.host_bytes > 0


def settings(argv: Sequence[str], environment: Mapping[str, str], release: Release | None = None) -> CommandSettings:
    """Return the settings in a container's command; `release` is the release of the container's vLLM, which may lack
    flags of other releases.

    Raises:
        StartRefusal: vLLM wouldn't start with this command, or the command can't be simulated.
    """
    namespace = parsed(argv, release)
    transfer, host_bytes, files = _connectors(namespace, environment)
    _refuse(namespace)
    spread, group = _parallelism(namespace, environment)
    model = namespace.model_tag or namespace.model
    max_model_len = _max_model_len(namespace.max_model_len)
    batched = _batched_tokens(namespace, argv, max_model_len)
    if batched < namespace.max_num_seqs:
        raise StartRefusal(
            1,
            f"ValueError: max_num_batched_tokens ({batched}) must be greater than or equal to "
            f"max_num_seqs ({namespace.max_num_seqs}).",
        )
    separate = namespace.disable_hybrid_kv_cache_manager
    by_mori = str(namespace.all2all_backend).startswith("mori_") and exchanges(spread)
    return CommandSettings(
        model=str(model),
        revision=namespace.revision,
        served_model_names=tuple(namespace.served_model_name or (model,)),
        host=namespace.host or "0.0.0.0",  # noqa: S104 - vLLM's own default, inside the pod's network namespace
        port=namespace.port,
        parallelism=spread,
        group=group,
        max_model_len=max_model_len,
        allow_long_max_model_len=environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") == "1",
        block_size=namespace.block_size,
        gpu_memory_utilization=namespace.gpu_memory_utilization,
        kv_cache_memory_bytes=namespace.kv_cache_memory_bytes,
        num_gpu_blocks_override=namespace.num_gpu_blocks_override,
        kv_cache_dtype=namespace.kv_cache_dtype,
        enable_prefix_caching=namespace.enable_prefix_caching,
        enable_chunked_prefill=namespace.enable_chunked_prefill,
        max_num_batched_tokens=batched,
        max_num_seqs=namespace.max_num_seqs,
        prompt_tokens_details=bool(namespace.enable_prompt_tokens_details),
        calls_tools=bool(namespace.enable_auto_tool_choice),
        shutdown_timeout_s=namespace.shutdown_timeout,
        quick_reduce=_quick_reduce(environment),
        attention_backend=_attention_backend(namespace),
        keep_alive_s=_number(environment, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5),
        transfer=transfer,
        host_bytes=host_bytes,
        files=files,
        exchange_bytes=_number(environment, "MORI_SHMEM_HEAP_SIZE", 4 * 2**30) if by_mori else 0,
        hybrid=None if separate is None else not separate,
        adapters=_adapters(namespace, environment),
        draft=_draft(namespace, environment),
        kv_events=_kv_events(namespace),
        scale_out=bool(getattr(namespace, "enable_scale_out", False)),
    )


def _refuse(namespace: argparse.Namespace) -> None:
    """Check the flags that need no other knowledge.

    Raises:
        StartRefusal: vLLM wouldn't start with a flag, or a flag isn't simulated.
    """
    if namespace.pipeline_parallel_size != 1:
        raise StartRefusal(1, "llmd-oke rehearsal: --pipeline-parallel-size other than 1 isn't simulated.")
    for name in ("config", "uds", "ssl_keyfile", "headless", "grpc", *_OUTER_RANKS):
        if getattr(namespace, name):
            raise StartRefusal(1, f"llmd-oke rehearsal: --{name.replace('_', '-')} isn't simulated.")
    if namespace.enable_auto_tool_choice and not namespace.tool_call_parser:
        raise StartRefusal(1, "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser")
    if namespace.model_tag is None and namespace.model is None:
        raise StartRefusal(1, "ValueError: no model was given; vLLM's own default isn't in the catalogue.")
    if not 0 < namespace.gpu_memory_utilization <= 1:
        raise StartRefusal(
            1, f"ValueError: GPU memory utilization must be less than 1.0. Got {namespace.gpu_memory_utilization}."
        )


def _parallelism(
    namespace: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[Parallelism, ServerNode | None]:
    """Return the parallelism of the whole server, and this container's position in it; None for a server in a single
    container.
    """
    tensor, data = namespace.tensor_parallel_size, namespace.data_parallel_size
    nodes = namespace.nnodes or 1
    spread = Parallelism(tensor, data, bool(namespace.enable_expert_parallel), nodes)
    local = namespace.data_parallel_size_local or data // nodes
    if nodes == 1:
        if namespace.data_parallel_hybrid_lb or local != data:
            raise StartRefusal(1, "llmd-oke rehearsal: ranks of other pods without --nnodes: that isn't simulated.")
        return spread, None
    rank = namespace.node_rank or 0
    if spread.gpus % nodes:
        raise StartRefusal(
            1,
            f"ValueError: Invalid data-parallel launch options: `--nnodes {nodes}` must evenly divide the total world "
            f"size ({spread.gpus}).",
        )
    if not 0 <= rank < nodes:
        raise StartRefusal(
            1,
            "ValueError: Invalid data-parallel launch options: `--node-rank` must be between 0 and "
            f"{nodes - 1}; got `--node-rank {rank}`.",
        )
    if not namespace.data_parallel_hybrid_lb or local * nodes != data:
        raise StartRefusal(
            1,
            "llmd-oke rehearsal: --nnodes is simulated with --data-parallel-hybrid-lb and as many ranks on each node.",
        )
    address = namespace.data_parallel_address or namespace.master_addr or "127.0.0.1"
    wait_s = float(_number(environment, "VLLM_ENGINE_READY_TIMEOUT_S", 600))
    return spread, ServerNode(rank, address, namespace.data_parallel_rpc_port or _RPC_PORT, wait_s)


def _adapters(namespace: argparse.Namespace, environment: Mapping[str, str]) -> AdapterSettings | None:
    """Return the settings of LoRA adapters after the checks of vllm/config/lora.py; None if adapters are off."""
    if not namespace.enable_lora:
        return None
    slots, host = namespace.max_loras, namespace.max_cpu_loras
    if host is not None and host < slots:
        raise StartRefusal(1, f"ValueError: max_cpu_loras ({host}) must be >= max_loras ({slots}).")
    if namespace.lora_modules or namespace.fully_sharded_loras or namespace.default_mm_loras:
        raise StartRefusal(1, "llmd-oke rehearsal: of adapters only those in a folder are simulated.")
    updates = environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").strip().lower() in {"1", "true"}
    folder = environment.get("VLLM_LORA_RESOLVER_CACHE_DIR") or None
    room = AdapterSlots(slots=slots, max_rank=namespace.max_lora_rank, host_slots=host)
    return AdapterSettings(room, folder, updates, environment.get(IGNORED_ADAPTERS) == "1")


def _draft(namespace: argparse.Namespace, environment: Mapping[str, str]) -> DraftSettings | None:
    """Speculative decoding, as vllm/config/speculative.py checks it."""
    if namespace.speculative_config is None:
        return None
    values = _object(namespace.speculative_config, "speculative-config")
    model, tokens = values.get("model"), values.get("num_speculative_tokens")
    method = str(values.get("method") or "draft_model")
    if _MTP.fullmatch(method):
        method = "mtp"
    if method not in _DRAFTING:
        raise StartRefusal(1, f"llmd-oke rehearsal: drafts by {method} aren't simulated.")
    if not isinstance(tokens, int):
        raise StartRefusal(1, "ValueError: num_speculative_tokens must be provided with speculative model.")
    if tokens < 1:
        raise StartRefusal(1, "ValidationError: num_speculative_tokens: Input should be greater than 0")
    if model is None and method != "mtp":
        raise StartRefusal(1, "ValueError: num_speculative_tokens was provided but without speculative model.")
    percent = min(100, max(0, _number(environment, ACCEPTED_PERCENT, _ACCEPTED_PERCENT)))
    return DraftSettings(method, model, values.get("revision"), tokens, percent)


def _kv_events(namespace: argparse.Namespace) -> KvEventSettings | None:
    """KV cache events, None if the server publishes none (vllm/config/kv_events.py)."""
    values = _object(namespace.kv_events_config or {}, "kv-events-config")
    if not values.get("enable_kv_cache_events") or values.get("publisher") == "null":
        return None
    endpoint = re.fullmatch(r"tcp://\*:(\d+)", values.get("endpoint", "tcp://*:5557"))
    if endpoint is None or values.get("replay_endpoint") is not None:
        raise StartRefusal(1, "llmd-oke rehearsal: KV cache events are simulated at tcp://*:PORT, without a replay.")
    return KvEventSettings(int(endpoint[1]), values.get("topic", ""))


def _batched_tokens(namespace: argparse.Namespace, argv: Sequence[str], max_model_len: int | None) -> int:
    """Tokens of a step: where prompts aren't computed in chunks and nothing is given, at least those of a prompt
    (vllm/engine/arg_utils.py).
    """
    given = any(flag_of(word) == "--max-num-batched-tokens" for word in argv)
    whole = 0 if given or namespace.enable_chunked_prefill else max_model_len or 0
    return max(namespace.max_num_batched_tokens, whole)


def _max_model_len(text: str | None) -> int | None:
    if text is None or text in {"auto", "-1"}:
        return None
    try:
        return human_readable_int(text)
    except ValueError:
        raise StartRefusal(
            2, f"vllm serve: error: argument --max-model-len: invalid human_readable_int value: {text!r}"
        ) from None


def _quick_reduce(environment: Mapping[str, str]) -> QuickReduceFormat:
    """Return the quantization of QuickReduce from the environment variable that vLLM reads."""
    level = environment.get(QUICK_REDUCE_VARIABLE, "NONE")
    method = quantization(level)
    if method is None:
        raise StartRefusal(
            1,
            f"ValueError: Invalid value {level!r} for {QUICK_REDUCE_VARIABLE}. Valid options: {list(QUANTIZATIONS)}.",
        )
    return method


def _attention_backend(namespace: argparse.Namespace) -> str | None:
    """Return the attention backend's name in capitals, as vLLM does; None if vLLM chooses the backend."""
    nested = _object(namespace.attention_config or {}, "attention-config").get("backend")
    if nested and namespace.attention_backend:
        raise StartRefusal(1, "ValueError: attention_backend and attention_config.backend are mutually exclusive")
    backend = namespace.attention_backend or nested
    return str(backend).upper() if backend else None


def _connectors(
    namespace: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[KeyValueTransfer | None, int, str | None]:
    """Return the connector that hands over KV caches (None without one), the bytes of the KV cache in the node's
    memory, and the directory of that in files. The connector of `--kv-offloading-size` silently replaces any other, as
    in vLLM.
    """
    if (gib := namespace.kv_offloading_size) is not None:
        return None, int(gib * 2**30), None
    if namespace.kv_transfer_config is None:
        return None, 0, None
    values = _object(namespace.kv_transfer_config, "kv-transfer-config")
    extra = _object(values.get("kv_connector_extra_config") or {}, "kv-transfer-config")
    several = extra.get("connectors", []) if values.get("kv_connector") == MULTI_CONNECTOR else [values]
    parts = [_object(part, "kv-transfer-config") for part in several]
    hosts = [part for part in parts if part.get("kv_connector") == OFFLOADING_CONNECTOR]
    others = [part for part in parts if part not in hosts]
    if len(hosts) > 1 or len(others) > 1 or not parts:
        known = "one that hands over and one to host memory"
        raise StartRefusal(1, f"llmd-oke rehearsal: a MultiConnector of others than {known} isn't simulated.")
    whole = {name: values[name] for name in ("kv_load_failure_policy", "engine_id") if name in values}
    transfer = _transfer({**others[0], **whole}, environment) if others else None
    return transfer, sum(map(_host_bytes, hosts)), next(filter(None, map(_files, hosts)), None)


def _files(connector: Mapping[str, Any]) -> str | None:
    """Return the directory of a connector's tier of files; None if it has no such tier."""
    told = _object(connector.get("kv_connector_extra_config") or {}, "kv-transfer-config")
    if (name := told.get("spec_name", _HOST_SPEC)) == _HOST_SPEC:
        return None
    if name != _TIERING_SPEC:
        raise StartRefusal(1, f"ValueError: Unsupported spec type: {name}")
    tiers = cast("list[Mapping[str, Any]]", told.get("secondary_tiers") or [])
    if [tier.get("type") for tier in tiers] != ["fs"] or "root_dir" not in tiers[0]:
        raise StartRefusal(1, "llmd-oke rehearsal: of tiers behind the node's memory only one, `fs`, is simulated.")
    return str(tiers[0]["root_dir"])


def _host_bytes(connector: Mapping[str, Any]) -> int:
    told = _object(connector.get("kv_connector_extra_config") or {}, "kv-transfer-config")
    if not told.get("cpu_bytes_to_use"):
        raise StartRefusal(1, "Exception: cpu_bytes_to_use must be specified in kv_connector_extra_config")
    return int(told["cpu_bytes_to_use"])


def _transfer(values: Mapping[str, Any], environment: Mapping[str, str]) -> KeyValueTransfer:
    connector, role = values.get("kv_connector"), values.get("kv_role")
    if connector is not None and role is None:
        raise StartRefusal(
            1, f"ValueError: Please specify kv_role when kv_connector is set, supported roles are {list(_ROLES)}"
        )
    if role not in _ROLES:
        raise StartRefusal(1, f"ValueError: Unsupported kv_role: {role}. Supported roles are {list(_ROLES)}")
    if connector not in _KNOWN_CONNECTORS:
        raise StartRefusal(1, f"ValueError: Unsupported connector type: {connector}")
    if connector not in (*NIXL_CONNECTORS, DECODE_BENCH_CONNECTOR):
        raise StartRefusal(1, f"llmd-oke rehearsal: the connector {connector} isn't simulated.")
    policy = values.get("kv_load_failure_policy", "fail")
    if policy not in {"fail", "recompute"}:
        raise StartRefusal(
            1, f"ValueError: kv_load_failure_policy: Input should be 'recompute' or 'fail', got {policy!r}"
        )
    extra = _object(values.get("kv_connector_extra_config") or {}, "kv-transfer-config")
    return KeyValueTransfer(
        connector=connector,
        engine_id=str(values.get("engine_id") or uuid.uuid4()),
        recompute_on_failure=policy == "recompute",
        side_channel_host=environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        side_channel_port=_number(environment, "VLLM_NIXL_SIDE_CHANNEL_PORT", 5600),
        lease_s=float(extra.get("kv_lease_duration", _LEASE_S)),
        corrupted_percent=_number(environment, CORRUPTED_PERCENT, 0),
        failed_prefill_percent=_number(environment, FAILED_PREFILL_PERCENT, 0),
        crashes_after_prefill_restart=environment.get(CRASH_AFTER_PREFILL_RESTART) == "1",
        layout=environment.get("VLLM_KV_CACHE_LAYOUT", "HND").upper(),
    )


def _object(value: object, flag: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StartRefusal(2, f"vllm serve: error: argument --{flag}: not an object")
    return cast("dict[str, Any]", value)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environment.get(name, default))
    except ValueError:
        raise StartRefusal(
            1, f"ValueError: invalid literal for int() with base 10: {environment[name]!r} ({name})"
        ) from None
