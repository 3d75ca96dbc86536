"""vLLM's KV connectors: by which KV cache is handed over, and by which it is kept in the memory of nodes."""

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
"""Things that a connector may not work with: layers of the model, tensor parallel sizes between which KV heads would be
split, or groups of a state space's heads, or of which one has copies of KV heads beside states while prefixes are
cached, ranks, roles over nodes that aren't one server each of equally many ranks, the image of the release, a stack
without RDMA."""


class RankHandOver(Entry):
    """Hand-over between servers of several ranks, by images of the user's own: arguments of the routing sidecar.

    `{data_parallel_size}` and `{data_parallel_size_local}` stand for the ranks of a server, and for those on each of
    its nodes. Where servers span nodes the sidecar has `over_nodes` too, with `{prefill_hosts}` and `{decode_hosts}`:
    names of the pods of the one prefill and the one decode server, in the order of their ranks, all of which must be
    known to DNS before it starts; `$(POD_IP)` is the pod's own address.
    """

    sidecar_arguments: tuple[str, ...]
    over_nodes: tuple[str, ...]


class HandOver(Entry):
    """One of vLLM's connectors by which prefill servers hand KV cache to decode servers, and what it takes.

    `connector` is its name, `extra_config` what it is told (`{vllm_port}` is where vLLM listens). Servers have
    `environment` and the address of their pod in `pod_ip_variables`; they listen at `ports`, each rank one further.
    The routing sidecar has `sidecar_arguments`, with `{tensor_parallel_size}` of its own server, and those of `ranks`
    where servers have several. `refused` says with what it doesn't work, and why; what it says of ranks holds for the
    release's images alone where there are `ranks`. `limits` is what it is known to do wrong.
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


class KvConnector(Entry):
    """vLLM's KV connectors: the kit's own, and those of a user's arguments.

    `roles` is the `kv_role` of the servers that hand KV cache over. A server has a connector as soon as one of `flags`
    is given; where several are, vLLM goes by one of them without a word. `further_flags` say more of such a connector.
    `offload_flag` is that of `flags` whose value is a size in GiB, of which the pod's memory takes `offload_factor`,
    and /dev/shm where it lies `offload_in_shared_memory`; above `max_offload_gib` servers are known not to start. Where
    another of them has one of `offload_words` in its value, it keeps KV cache in host memory too. Connectors
    `without_peers` pull KV cache from no server that a request names. `offload_connector` keeps KV cache in host memory
    for stack files that ask for it, beside the one of `hand_over` that a stack file names; None where that isn't known
    to work.
    `hybrid_flag` keeps the hybrid KV cache manager on beside the kit's connector, with which layers with a sliding
    window hand over their window alone; None where the release hands over every layer in full. `hybrid_flags` are all
    that say something of it. `linear_attention_environment` are variables without which servers don't hand over the
    states of layers with linear attention.
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
    hand_over: dict[KvConnectorName, HandOver]
    hybrid_flag: str | None = None
    linear_attention_environment: dict[EnvironmentName, str] = Field(default={})
    hybrid_flags: tuple[str, ...] = ("--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager")

    def config(self, asked: KvCache, role: Role, ranks: int, vllm_port: int) -> dict[str, object] | None:
        """Return vLLM's `--kv-transfer-config` of the servers of a role with that many ranks on a node; None where the
        kit gives them no connector. What fails to arrive fails the request, in place of a computation that hides it.

        Raises:
            KitError: the release has no such connector.
        """
        children: list[dict[str, object]] = []
        if (kv_role := self.roles.get(role)) is not None:
            way = self.way(asked)
            told = {name: text.format(vllm_port=vllm_port) for name, text in way.extra_config.items()}
            children.append({"kv_connector": way.connector, "kv_role": kv_role, **_extra(told)})
        if asked.host_memory_gib and role in KEEPING:
            told = {"cpu_bytes_to_use": asked.host_memory_gib * BYTES_PER_GIB // ranks}
            children.append({"kv_connector": self._offload_connector, "kv_role": "kv_both", **_extra(told)})
        if len(children) == 1:
            (only,) = children
            names = {name: only.pop(name) for name in ("kv_connector", "kv_role")}
            return {**names, **({"kv_load_failure_policy": "fail"} if kv_role else {}), **only}
        several = {"kv_connector": "MultiConnector", "kv_role": kv_role, "kv_load_failure_policy": "fail"}
        return {**several, **_extra({"connectors": children})} if children else None

    def way(self, asked: KvCache) -> HandOver:
        """Return the connector that a stack file asks for.

        Raises:
            KitError: the release has none of that name.
        """
        if (way := self.hand_over.get(asked.connector)) is None:
            raise KitError(f"The release has no connector {asked.connector}.", f"It has {', '.join(self.hand_over)}.")
        return way

    @property
    def _offload_connector(self) -> str:
        if self.offload_connector is None:
            raise KitError("The release isn't known to keep KV cache in the nodes' memory.", "Take a newer one.")
        return self.offload_connector

    def hybrid_argument(self, model: CatalogueModel, arguments: Sequence[str]) -> str | None:
        """The argument that keeps the hybrid KV cache manager on, for a model with sliding windows or linear attention;
        None where the user's `arguments` say something of it, or have another connector, which may lack it and then
        end vLLM.
        """
        told = {flag_of(argument) for argument in arguments} & {*self.flags, *self.hybrid_flags}
        architecture = model.architecture
        is_hybrid = architecture.sliding_window is not None or architecture.linear_attention is not None
        return self.hybrid_flag if is_hybrid and not told else None

    def given(self, arguments: Iterable[str]) -> list[str]:
        """Return the `flags` that are among a user's arguments, in the order of the arguments, each once."""
        return [flag for flag in dict.fromkeys(map(flag_of, arguments)) if flag in self.flags]

    def naming_peers(self, arguments: Sequence[str]) -> list[str]:
        """Return those of `flags` among a user's arguments by which requests may name servers to pull KV cache from."""
        return [
            flag for flag in self.given(arguments) if flag != self.offload_flag and not self._alone(flag, arguments)
        ]

    def _alone(self, flag: str, arguments: Sequence[str]) -> bool:
        given = argument_of(arguments, flag)
        try:
            value = json.loads(given[1]) if given else None
        except ValueError:
            return False
        return isinstance(value, dict) and value.get("kv_connector") in self.without_peers

    def offload_by_object(self, arguments: Sequence[str]) -> int | None:
        """The position of the first argument by which a connector keeps KV cache in host memory whose size is told by
        something else than `offload_flag`; None where there is none.
        """
        for i, argument in enumerate(arguments):
            if flag_of(argument) not in self.flags or flag_of(argument) == self.offload_flag:
                continue
            value = argument if "=" in argument else " ".join((argument, *arguments[i + 1 : i + 2]))
            if any(word in value for word in self.offload_words):
                return i
        return None

    def offload_gib(self, arguments: Sequence[str]) -> float | None:
        """GiB of host memory that a user's arguments have a server keep KV cache in; 0 where they don't, None where
        the value is no positive number.
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
