"""Settings of a vLLM server, resolved once here for plans, pods, reports and forecasts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.expert_parallel import All2AllBackend
from llmd_oke.catalogue.kv_connectors import HandOver
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.releases import KvCacheSettings, Release
from llmd_oke.catalogue.speculation import ServerDraft
from llmd_oke.config.engine import AdapterSlots, Engine, Role, SettingValue, engine_settings
from llmd_oke.config.model import HANDING_OVER, KEEPING
from llmd_oke.config.stack import QuickReduceFormat

QUICK_REDUCE_VARIABLE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
"""Environment variable with vLLM's number format of all-reduce."""

SERVER_PORT = 8000
"""Port at which clients and the endpoint picker reach every model server."""

BEHIND_SIDECAR_PORT = 8200
"""Port at which vLLM listens when the routing sidecar listens at 8000 (llm-d guides)."""

SPARE_SHARE = 0.05
"""Share of a disk or a model cache kept free besides weights, for tokenizers, partial downloads and the file system
itself; our assumption.
"""

QUANTIZATIONS: tuple[QuickReduceFormat, ...] = get_args(QuickReduceFormat)

_QUANTIZATIONS: dict[str, QuickReduceFormat] = {str(each): each for each in QUANTIZATIONS}


def quantization(text: str) -> QuickReduceFormat | None:
    """Return the quick all-reduce format with this name; None if vLLM has no such format."""
    return _QUANTIZATIONS.get(text)


@dataclass(frozen=True)
class ServerSettings:
    """Resolved settings of the servers of one role of a model.

    Attributes:
        role: role of the servers.
        parallelism: parallelism of each server.
        virtual_functions: number of virtual functions of the RDMA network in each pod of a server.
        kv_cache: whether the servers have a KV connector, attention backend and block size.
        kv_transfer: vLLM's `--kv-transfer-config` with the kit's KV connectors; None if the servers have no such
            connector.
        hand_over: connector that transfers KV cache between servers, with its requirements; None if the servers
            transfer none.
        vllm_port: port at which vLLM itself listens.
        hybrid_argument: argument that keeps the hybrid KV cache manager on; None if it is not needed or not permitted.
        quick_reduce: number format of all-reduce between the GPUs of a server; None if its environment variable is
            unset, which vLLM treats as NONE.
        host_memory_gib: memory of the node in which the server keeps KV cache, in GiB; 0 if it keeps none there.
        offload_gib: host memory in whole GiB that the pod requests for this KV cache, allocation overhead included.
        disk_gib: space on the node's disks for KV cache in files of all servers there, in GiB; 0 if there are no files.
        adapters: slots for LoRA adapters; None if the servers have none.
        all2all: backend by which ranks exchange tokens with experts; None if the stack file names none, or the server
            has nothing to exchange.
        draft: module that drafts tokens; None without speculative decoding.
        table: values of the table of settings (`values/vllm/engine-settings.yaml`) by field.
        feature_arguments: arguments for features of the model, such as tool calling.
        extra_args: the user's additional arguments, which come last.
        env: the user's additional environment variables, which override all others.
    """

    role: Role
    parallelism: Parallelism
    virtual_functions: int
    kv_cache: KvCacheSettings
    kv_transfer: Mapping[str, object] | None
    hand_over: HandOver | None
    vllm_port: int
    hybrid_argument: str | None
    quick_reduce: QuickReduceFormat | None
    host_memory_gib: float
    offload_gib: int
    disk_gib: int
    adapters: AdapterSlots | None
    all2all: All2AllBackend | None
    draft: ServerDraft | None
    table: Mapping[str, SettingValue]
    feature_arguments: tuple[str, ...]
    extra_args: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def hands_over(self) -> bool:
        """True if the servers transfer KV cache between each other."""
        return self.role in HANDING_OVER

    @property
    def attention_backend(self) -> str:
        """Value of vLLM's `--attention-backend`."""
        return self.kv_cache.attention_backend

    @property
    def block_size(self) -> int:
        """Number of tokens in a block of KV cache."""
        return self.kv_cache.block_size

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens in a sequence, prompt and output together."""
        return int(self.table["max_model_len"])

    @property
    def max_num_seqs(self) -> int:
        """Maximum number of sequences that a server runs at a time, over all its data-parallel ranks."""
        return int(self.table["max_num_seqs"]) * self.parallelism.data_parallel_size

    @property
    def gpu_memory_utilization(self) -> float:
        """Share of each GPU's memory that vLLM may use."""
        return float(self.table["gpu_memory_utilization"])

    @property
    def table_arguments(self) -> list[str]:
        """Arguments of vLLM for the settings of the table, in the table's order."""
        rows = (row for row in engine_settings().settings if row.field in self.table)
        return [row.argument(self.table[row.field]) for row in rows]


def server_settings(
    release: Release, model: CatalogueModel, engine: Engine, role: Role, parallelism: Parallelism, *, rdma: bool
) -> ServerSettings:
    """Return the settings of the servers of one role. A value comes from `engine`'s settings of the role, else from
    those for all roles, else from the model or the release.

    `rdma` tells whether KV cache is transferred over the RDMA network.
    """
    engine = engine.of_role(role)
    vllm, arguments = release.vllm, engine.extra_args
    hands_over = role in HANDING_OVER
    kv_cache = vllm.kv_cache_settings(model, engine, hands_over=hands_over)
    connectors, port = vllm.kv_connector, vllm_port(role)
    by_argument = (connectors.offload_gib(arguments) or 0) * parallelism.data_parallel_size_local
    kept_gib = (engine.kv_cache.host_memory_gib if role in KEEPING else None) or by_argument
    return ServerSettings(
        role=role,
        parallelism=parallelism,
        virtual_functions=virtual_functions(role, parallelism, rdma=rdma),
        kv_cache=kv_cache,
        kv_transfer=connectors.config(engine.kv_cache, role, parallelism.data_parallel_size_local, port),
        hand_over=connectors.way(engine.kv_cache) if hands_over else None,
        vllm_port=port,
        hybrid_argument=connectors.hybrid_argument(model, arguments) if hands_over else None,
        quick_reduce=_quick_reduce(release, model, engine, parallelism.tensor_parallel_size),
        host_memory_gib=kept_gib,
        offload_gib=math.ceil(kept_gib * connectors.offload_factor),
        disk_gib=(engine.kv_cache.disk_gib if role in KEEPING else None) or 0,
        adapters=engine.adapters,
        all2all=vllm.all2all.get(engine.all2all_backend or "") if exchanges(parallelism) else None,
        draft=model.server_draft(engine.speculation),
        table={"max_model_len": model.max_model_len, **engine.settings(), "block_size": kv_cache.block_size},
        feature_arguments=model.feature_arguments(engine.features),
        extra_args=tuple(arguments),
        env=engine.env,
    )


def vllm_port(role: str) -> int:
    """Return the port at which vLLM itself listens in servers of a role: for decode servers, the port behind the
    routing sidecar.
    """
    return BEHIND_SIDECAR_PORT if role == "decode" else SERVER_PORT


def virtual_functions(role: Role, parallelism: Parallelism, *, rdma: bool) -> int:
    """Return the number of virtual functions of one pod of a server: with `rdma`, one per GPU of servers that transfer
    KV cache or span nodes; otherwise 0.
    """
    used = role in HANDING_OVER or parallelism.nodes > 1
    return parallelism.gpus_per_node if rdma and used else 0


def server_disk_gib(release: Release, model: CatalogueModel, draft: ServerDraft | None, *, own_weights: bool) -> int:
    """Return the space in GiB that a server may fill on its node's disk: compiled kernels and logs, and, if there is no
    model cache, its own weights and those of its draft.
    """
    weights = model.files_gib(draft) * (1 + SPARE_SHARE) if own_weights else 0.0
    return release.vllm.scratch_gib + math.ceil(weights)


def exchanges(parallelism: Parallelism) -> bool:
    """Tell whether ranks of a server exchange tokens with each other's experts."""
    return parallelism.data_parallel_size > 1 and parallelism.expert_parallel


def reduced(quantization: QuickReduceFormat | None, most_gpus: int) -> QuickReduceFormat | None:
    """Return the number format of all-reduce for servers with up to `most_gpus` GPUs; None for a single GPU, which
    needs no all-reduce.
    """
    return quantization if most_gpus > 1 else None


def _quick_reduce(
    release: Release, model: CatalogueModel, engine: Engine, tensor_parallel_size: int
) -> QuickReduceFormat | None:
    """Return the quantization of all-reduce: that in the environment variables of the user or the model, else the
    user's override, else the model's, which an evaluation has passed because quantization changes answers; None without
    quantization. Environment variables apply whatever the server's size; the others only to more than one GPU.
    """
    environment = {**model.environment, **engine.env}
    if (written := environment.get(QUICK_REDUCE_VARIABLE)) is not None:
        return quantization(written)
    passed = model.quick_reduce.quantization if model.quick_reduce else None
    return reduced(release.vllm.quick_reduce or passed, tensor_parallel_size)
