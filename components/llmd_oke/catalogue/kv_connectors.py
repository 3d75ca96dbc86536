"""vLLM's KV connectors: those that transfer KV cache between servers, and those that keep it in the nodes' memory."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from llmd_base.errors import KitError
from pydantic import Field

from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.models import BYTES_PER_GIB, CatalogueModel
from llmd_oke.config.base import EnvironmentName
from llmd_oke.config.engine import KvCache, KvConnectorName, Role, argument_of, flag_of
from llmd_oke.config.model import KEEPING
from llmd_oke.values import Entry

Obstacle = Literal[
    "sliding-window",
    "linear-attention",
    "unequal-sizes",
    "unequal-state-groups",
    "unequal-state-blocks",
    "data-parallel",
    "other-groups",
    "released-image",
    "no-rdma",
]
"""Conditions under which a KV connector may not work; "sizes" are the tensor parallel sizes of prefill and decode
servers.

- `sliding-window`, `linear-attention`: the model has such layers.
- `unequal-sizes`: the sizes differ, and with the smaller one a GPU has several KV heads.
- `unequal-state-groups`: the sizes differ, and the larger one doesn't divide the groups of a state space's heads.
- `unequal-state-blocks`: the sizes differ, the larger one exceeds the number of KV heads, and servers of a model with
  linear attention cache prefixes.
- `data-parallel`: servers have several data-parallel ranks.
- `other-groups`: servers span nodes, and there isn't one prefill and one decode server with equally many ranks and
  nodes.
- `released-image`: servers run the release's image of vLLM.
- `no-rdma`: the stack has `rdma: none`.
"""


class RankHandOver(Entry):
    """Arguments for the transfer of KV cache between servers with several data-parallel ranks, which needs images of
    the user's own.

    Attributes:
        sidecar_arguments: arguments of the routing sidecar; `{data_parallel_size}` stands for the ranks of a server,
            `{data_parallel_size_local}` for those on each of its nodes.
        over_nodes: further arguments where servers span nodes; `{prefill_hosts}` and `{decode_hosts}` stand for the
            host names of the pods of the one prefill and the one decode server, in the order of their ranks, which DNS
            must know before the sidecar starts.
    """

    sidecar_arguments: tuple[str, ...]
    over_nodes: tuple[str, ...]


class HandOver(Entry):
    """KV connector of vLLM by which prefill servers transfer KV cache to decode servers, with its requirements.

    Attributes:
        connector: vLLM's name of the connector.
        extra_config: `kv_connector_extra_config`; `{vllm_port}` stands for vLLM's port.
        environment: environment variables of the servers.
        pod_ip_variables: environment variables with the address of the pod.
        ports: ports by name at which servers listen; each rank adds 1.
        sidecar_arguments: arguments of the routing sidecar; `{tensor_parallel_size}` stands for that of its server,
            and Kubernetes replaces `$(POD_IP)` by the address of the sidecar's pod.
        ranks: further arguments of the sidecar where servers have several ranks; None if no image is known to take
            such servers.
        refused: conditions under which the connector doesn't work, with the reason. Where `ranks` is set,
            `data-parallel` applies only to stacks without images of their own.
        limits: known faults of the connector.
    """

    connector: str
    extra_config: dict[str, str] = Field(default={})
    environment: dict[EnvironmentName, str] = Field(default={})
    pod_ip_variables: tuple[EnvironmentName, ...] = ()
    ports: dict[str, int]
    sidecar_arguments: tuple[str, ...]
    ranks: RankHandOver | None = None
    refused: dict[Obstacle, str] = Field(default={})
    limits: tuple[KnownLimit, ...] = ()


KV_CACHE_FOLDER = "/kv-cache"
"""Mount path of the directory with KV cache in files."""


class FileTier(Entry):
    """Tier of files behind KV cache in host memory, of `offload_connector`.

    Attributes:
        spec_name: vLLM's name of offloading with several tiers.
        tier: settings of the tier; `root_dir` is added.
    """

    spec_name: str
    tier: dict[str, str | int]


class KvConnector(Entry):
    """vLLM's KV connectors in one release: those that the kit configures, and those in a user's arguments.

    Attributes:
        roles: `kv_role` of the servers that transfer KV cache.
        flags: flags that each give a server a connector; of several, vLLM silently uses one.
        further_flags: flags that configure such a connector.
        offload_flag: the one of `flags` whose value is a size in GiB of host memory for KV cache.
        offload_factor: memory that the pod needs per GiB of that size.
        offload_in_shared_memory: whether that KV cache is in /dev/shm.
        max_offload_gib: size above which servers are known not to start; None if no such size is known.
        offload_words: words in the value of another of `flags` by which the connector keeps KV cache in host memory
            too.
        without_peers: connectors that never pull KV cache from servers that a request names.
        offload_connector: connector that keeps KV cache in host memory for `kvCache.hostMemoryGib`, besides the one in
            `hand_over`; None if that isn't known to work.
        file_tier: tier of files for `kvCache.diskGib`; None if the release isn't known to have one to which a missing
            file is a miss.
        hand_over: connectors that transfer KV cache between servers, by name in the stack file.
        hybrid_flag: flag that keeps the hybrid KV cache manager on besides the kit's connector, so that layers with a
            sliding window transfer only their window; None if the release transfers every layer in full.
        linear_attention_environment: environment variables without which servers don't transfer the states of layers
            with linear attention.
        hybrid_flags: all flags that turn the hybrid KV cache manager on or off.
    """

    roles: dict[Role, str]
    flags: tuple[str, ...]
    further_flags: tuple[str, ...]
    offload_flag: str
    offload_factor: float
    offload_in_shared_memory: bool = False
    max_offload_gib: int | None = None
    offload_words: tuple[str, ...] = ()
    without_peers: tuple[str, ...] = ()
    offload_connector: str | None = None
    file_tier: FileTier | None = None
    hand_over: dict[KvConnectorName, HandOver]
    hybrid_flag: str | None = None
    linear_attention_environment: dict[EnvironmentName, str] = Field(default={})
    hybrid_flags: tuple[str, ...] = ("--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager")

    def config(self, asked: KvCache, role: Role, ranks: int, vllm_port: int) -> dict[str, object] | None:
        """Return vLLM's `--kv-transfer-config` for the servers of a role with that many ranks on a node; None if the
        kit configures no connector for them. If a transfer fails, the request fails, rather than being recomputed,
        which would hide the fault.

        Raises:
            KitError: the release has no such connector.
        """
        children: list[dict[str, object]] = []
        if (kv_role := self.roles.get(role)) is not None:
            way = self.way(asked)
            told = {name: text.format(vllm_port=vllm_port) for name, text in way.extra_config.items()}
            children.append({"kv_connector": way.connector, "kv_role": kv_role, **_extra(told)})
        if asked.host_memory_gib and role in KEEPING:
            if self.offload_connector is None:
                raise KitError("The release isn't known to keep KV cache in the nodes' memory.", "Take a newer one.")
            told: dict[str, object] = {"cpu_bytes_to_use": asked.host_memory_gib * BYTES_PER_GIB // ranks}
            if asked.disk_gib:
                told |= self._files()
            children.append({"kv_connector": self.offload_connector, "kv_role": "kv_both", **_extra(told)})
        if len(children) == 1:
            (only,) = children
            names = {name: only.pop(name) for name in ("kv_connector", "kv_role")}
            return {**names, **({"kv_load_failure_policy": "fail"} if kv_role else {}), **only}
        several = {"kv_connector": "MultiConnector", "kv_role": kv_role, "kv_load_failure_policy": "fail"}
        return {**several, **_extra({"connectors": children})} if children else None

    def _files(self) -> dict[str, object]:
        if self.file_tier is None:
            raise KitError("The release isn't known to keep KV cache on disks.", "Take a newer one.")
        tier = {**self.file_tier.tier, "root_dir": KV_CACHE_FOLDER}
        return {"spec_name": self.file_tier.spec_name, "secondary_tiers": [tier]}

    def way(self, asked: KvCache) -> HandOver:
        """Return the connector that `kvCache.connector` of a stack file chooses.

        Raises:
            KitError: the release has no connector with this name.
        """
        if (way := self.hand_over.get(asked.connector)) is None:
            raise KitError(f"The release has no connector {asked.connector}.", f"It has {', '.join(self.hand_over)}.")
        return way

    def hybrid_argument(self, model: CatalogueModel, arguments: Sequence[str]) -> str | None:
        """Return the argument that keeps the hybrid KV cache manager on, for a model with sliding windows or linear
        attention. None for other models, and if the user's `arguments` set the manager themselves or configure another
        connector, which may not support it and would then make vLLM exit.
        """
        told = {flag_of(argument) for argument in arguments} & {*self.flags, *self.hybrid_flags}
        architecture = model.architecture
        is_hybrid = architecture.sliding_window is not None or architecture.linear_attention is not None
        return self.hybrid_flag if is_hybrid and not told else None

    def given(self, arguments: Iterable[str]) -> list[str]:
        """Return the `flags` among a user's arguments, in the order of the arguments, without repetitions."""
        return [flag for flag in dict.fromkeys(map(flag_of, arguments)) if flag in self.flags]

    def naming_peers(self, arguments: Sequence[str]) -> list[str]:
        """Return the `flags` among a user's arguments whose connector lets requests name servers to pull KV
        cache from.
        """
        naming: list[str] = []
        for flag in self.given(arguments):
            given = argument_of(arguments, flag)
            try:
                value = json.loads(given[1]) if given else None
            except ValueError:
                value = None
            is_alone = isinstance(value, dict) and value.get("kv_connector") in self.without_peers
            if flag != self.offload_flag and not is_alone:
                naming.append(flag)
        return naming

    def offload_by_object(self, arguments: Sequence[str]) -> int | None:
        """Return the index of the first argument whose connector keeps KV cache in host memory without `offload_flag`;
        None if no argument does.
        """
        for i, argument in enumerate(arguments):
            if flag_of(argument) not in self.flags or flag_of(argument) == self.offload_flag:
                continue
            value = argument if "=" in argument else " ".join((argument, *arguments[i + 1 : i + 2]))
            if any(word in value for word in self.offload_words):
                return i
        return None

    def offload_gib(self, arguments: Sequence[str]) -> float | None:
        """Return the GiB of host memory in which a server keeps KV cache by a user's arguments; 0 without such an
        argument, None if its value is no positive number.
        """
        if (given := argument_of(arguments, self.offload_flag)) is None:
            return 0.0
        try:
            size = float(given[1])
        except ValueError:
            return None
        return size if 0 < size < math.inf else None


def _extra(told: Mapping[str, object]) -> dict[str, object]:
    return {"kv_connector_extra_config": dict(told)} if told else {}
