"""From a container's command to the settings of a simulated server, or to the refusal that vLLM would give."""

import argparse
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.rehearsal.vllm import flags
from llmd_oke.rehearsal.vllm.refusal import Refusal
from llmd_oke.tuning.servers.conditions import QUANTIZATIONS, quantization

NIXL_CONNECTORS = ("NixlConnector", "NixlPullConnector")
DECODE_BENCH_CONNECTOR = "DecodeBenchConnector"
CORRUPTED_PERCENT = "LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT"
FAILED_PREFILL_PERCENT = "LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT"
CRASH_AFTER_PREFILL_RESTART = "LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART"
_LEASE_S = 30
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_KNOWN_CONNECTORS = {
    *NIXL_CONNECTORS,
    DECODE_BENCH_CONNECTOR,
    "NixlPushConnector",
    "MultiConnector",
    "MoRIIOConnector",
    "MooncakeConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "OffloadingConnector",
    "P2pNcclConnector",
    "SharedStorageConnector",
    "ExampleConnector",
}  # fmt: skip - the names that vLLM's KVConnectorFactory registers


@dataclass(frozen=True)
class KeyValueTransfer:
    """`--kv-transfer-config` and the environment of the NIXL side channel.

    `lease_s` is the model time for which a finished prefill waits for a decode server to know of it
    (`kv_connector_extra_config.kv_lease_duration`).

    `layout` of the KV cache is HND, which NIXL asks for, or what the environment says.

    The rest are faults to rehearse, which vLLM itself knows nothing of: `corrupted_percent` of transfers damage what
    they carry; `failed_prefill_percent` of prompts that are to be handed over are answered with 500; a server that
    `crashes_after_prefill_restart` does so when it meets a new server after one that it knew is gone. Real ones may do
    that (vllm issue 49238) and need not, so that it is not the default of any release.
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
        """KV caches are pulled from other servers."""
        return self.connector in NIXL_CONNECTORS

    @property
    def decode_bench(self) -> bool:
        """Prompts are filled with dummy KV caches, for decode-only benchmarks."""
        return self.connector == DECODE_BENCH_CONNECTOR


@dataclass(frozen=True)
class Settings:
    """What the command and environment of a container ask for. `max_model_len` is None for the model's own length.

    `keep_alive_s` is the wall time after which an idle connection is closed: those who hold it are real programs.
    """

    model: str
    revision: str | None
    served_model_names: tuple[str, ...]
    host: str
    port: int
    tensor_parallel_size: int
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
    shutdown_timeout_s: float
    quick_reduce: QuickReduceFormat
    attention_backend: str | None
    keep_alive_s: float
    transfer: KeyValueTransfer | None


def settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings in a container's command.

    Raises:
        Refusal: vLLM would not start with it, or it is no vLLM command that can be simulated.
    """
    program, words = _program(argv)
    namespace = flags.parse(words, program)
    _refuse_unsimulated(namespace)
    model = namespace.model_tag or namespace.model
    if model is None:
        raise Refusal(
            1,
            "ValueError: no model was given; vLLM's own default isn't in the catalogue.",
        )
    return _settings(namespace, str(model), environment)


def _program(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The program's name and its arguments, for the two plain forms of a command."""
    words = list(argv)
    name = PurePosixPath(words[0]).name if words else ""
    if name == "vllm" and words[1:2] == ["serve"]:
        return "vllm serve", words[2:]
    if name.startswith("python") and words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
        return "api_server.py", words[3:]
    raise Refusal(
        2,
        f"llmd-oke rehearsal: {' '.join(words)[:200]!r} can't be simulated; accepted are `vllm serve MODEL ...` and "
        "`python3 -m vllm.entrypoints.openai.api_server ...`, without a shell around them.",
    )


def _refuse_unsimulated(namespace: argparse.Namespace) -> None:
    for name in ("data_parallel_size", "pipeline_parallel_size"):
        if getattr(namespace, name) != 1:
            raise Refusal(1, f"llmd-oke rehearsal: --{name.replace('_', '-')} other than 1 isn't simulated.")
    for name in ("config", "uds", "ssl_keyfile", "headless", "grpc"):
        if getattr(namespace, name):
            raise Refusal(1, f"llmd-oke rehearsal: --{name.replace('_', '-')} isn't simulated.")


def _settings(namespace: argparse.Namespace, model: str, environment: Mapping[str, str]) -> Settings:
    _check_values(namespace)
    return Settings(
        model=model,
        revision=namespace.revision,
        served_model_names=tuple(namespace.served_model_name or (model,)),
        host=namespace.host or "0.0.0.0",  # noqa: S104 - vLLM's own default, inside the pod's network namespace
        port=namespace.port,
        tensor_parallel_size=namespace.tensor_parallel_size,
        max_model_len=_max_model_len(namespace.max_model_len),
        allow_long_max_model_len=environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") == "1",
        block_size=namespace.block_size,
        gpu_memory_utilization=namespace.gpu_memory_utilization,
        kv_cache_memory_bytes=namespace.kv_cache_memory_bytes,
        num_gpu_blocks_override=namespace.num_gpu_blocks_override,
        kv_cache_dtype=namespace.kv_cache_dtype,
        enable_prefix_caching=namespace.enable_prefix_caching,
        enable_chunked_prefill=namespace.enable_chunked_prefill,
        max_num_batched_tokens=namespace.max_num_batched_tokens,
        max_num_seqs=namespace.max_num_seqs,
        prompt_tokens_details=bool(namespace.enable_prompt_tokens_details),
        shutdown_timeout_s=namespace.shutdown_timeout,
        quick_reduce=_quick_reduce(environment),
        attention_backend=_attention_backend(namespace),
        keep_alive_s=_number(environment, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5),
        transfer=_transfer(namespace.kv_transfer_config, environment),
    )


def _check_values(namespace: argparse.Namespace) -> None:
    if not 0 < namespace.gpu_memory_utilization <= 1:
        raise Refusal(
            1, f"ValueError: GPU memory utilization must be less than 1.0. Got {namespace.gpu_memory_utilization}."
        )
    if namespace.max_num_batched_tokens < namespace.max_num_seqs:
        raise Refusal(
            1,
            f"ValueError: max_num_batched_tokens ({namespace.max_num_batched_tokens}) must be greater than or equal to "
            f"max_num_seqs ({namespace.max_num_seqs}).",
        )


def _max_model_len(text: str | None) -> int | None:
    if text is None or text in {"auto", "-1"}:
        return None
    try:
        return flags.size(text)
    except ValueError:
        raise Refusal(
            2, f"vllm serve: error: argument --max-model-len: invalid human_readable_int value: {text!r}"
        ) from None


def _quick_reduce(environment: Mapping[str, str]) -> QuickReduceFormat:
    """QuickReduceFormat sends fewer bytes; only the name without _VALS is read by vLLM."""
    level = environment.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE")
    found = quantization(level)
    if found is None:
        raise Refusal(
            1,
            f"ValueError: Invalid value {level!r} for VLLM_ROCM_QUICK_REDUCE_QUANTIZATION. "
            f"Valid options: {list(QUANTIZATIONS)}.",
        )
    return found


def _attention_backend(namespace: argparse.Namespace) -> str | None:
    """The backend's name in capitals, as vLLM takes it; None leaves the choice to vLLM."""
    inner = _object(namespace.attention_config or {}, "attention-config").get("backend")
    if inner and namespace.attention_backend:
        raise Refusal(1, "ValueError: attention_backend and attention_config.backend are mutually exclusive")
    asked = namespace.attention_backend or inner
    return str(asked).upper() if asked else None


def _transfer(config: Any, environment: Mapping[str, str]) -> KeyValueTransfer | None:
    if config is None:
        return None
    values = _object(config, "kv-transfer-config")
    _check_transfer(values)
    extra = _object(values.get("kv_connector_extra_config") or {}, "kv-transfer-config")
    return KeyValueTransfer(
        connector=values["kv_connector"],
        engine_id=str(values.get("engine_id") or uuid.uuid4()),
        recompute_on_failure=values.get("kv_load_failure_policy", "fail") == "recompute",
        side_channel_host=environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        side_channel_port=_number(environment, "VLLM_NIXL_SIDE_CHANNEL_PORT", 5600),
        lease_s=float(extra.get("kv_lease_duration", _LEASE_S)),
        corrupted_percent=_number(environment, CORRUPTED_PERCENT, 0),
        failed_prefill_percent=_number(environment, FAILED_PREFILL_PERCENT, 0),
        crashes_after_prefill_restart=environment.get(CRASH_AFTER_PREFILL_RESTART) == "1",
        layout=environment.get("VLLM_KV_CACHE_LAYOUT", "HND").upper(),
    )


def _object(value: Any, flag: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(2, f"vllm serve: error: argument --{flag}: not an object")
    return cast("dict[str, Any]", value)


def _check_transfer(config: Mapping[str, Any]) -> None:
    connector, role = config.get("kv_connector"), config.get("kv_role")
    if connector is not None and role is None:
        raise Refusal(
            1, f"ValueError: Please specify kv_role when kv_connector is set, supported roles are {list(_ROLES)}"
        )
    if role not in _ROLES:
        raise Refusal(1, f"ValueError: Unsupported kv_role: {role}. Supported roles are {list(_ROLES)}")
    if connector not in _KNOWN_CONNECTORS:
        raise Refusal(1, f"ValueError: Unsupported connector type: {connector}")
    if connector not in (*NIXL_CONNECTORS, DECODE_BENCH_CONNECTOR):
        raise Refusal(1, f"llmd-oke rehearsal: the connector {connector} isn't simulated.")
    policy = config.get("kv_load_failure_policy", "fail")
    if policy not in {"fail", "recompute"}:
        raise Refusal(1, f"ValueError: kv_load_failure_policy: Input should be 'recompute' or 'fail', got {policy!r}")


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environment.get(name, default))
    except ValueError:
        raise Refusal(
            1, f"ValueError: invalid literal for int() with base 10: {environment[name]!r} ({name})"
        ) from None
