"""NIXL between the servers of one rehearsal: who holds which KV cache, and how long it takes to pull it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from llmd_oke.rehearsal.vllm.sequences import RemoteBlocks
from llmd_oke.tuning.servers.latency import LatencyModel

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Identity:
    """What must agree, or be known, between two servers that hand over KV caches (vLLM's handshake compatibility).

    `splits_by_heads` says whether another tensor parallel size can take its part of a KV cache; vLLM doesn't ask.
    """

    engine_id: str
    host: str
    port: int
    network: str | None
    model: str
    image: str
    block_size: int
    kv_cache_dtype: str
    tensor_parallel_size: int
    latent_attention: bool
    attention_backend: str | None = None
    splits_by_heads: bool = True
    kv_cache_layout: str = "HND"

    @property
    def version(self) -> str:
        """What two servers that hand over KV caches must have in common, in words."""
        backend = self.attention_backend or "the backend that vLLM chooses"
        return f"{self.model}, {self.image}, {backend}, KV cache {self.kv_cache_dtype}, blocks of {self.block_size}"


class Holder(Protocol):
    """A server that keeps KV caches for others."""

    def holds(self, request_id: str) -> bool:
        """The KV cache of that request is still there."""
        ...

    def claim(self, request_id: str) -> None:
        """A decode server has a request for that KV cache."""
        ...

    def let_go(self, request_id: str) -> None:
        """The KV cache of that request was pulled, or nobody wants it any more."""
        ...


@dataclass
class Peer:
    """A server on the side channel.

    `port_free_s` is when its ports have sent what was asked of them, `met` when the handshake with an engine is over,
    `lost` the engines of these that are gone.
    """

    identity: Identity
    holder: Holder
    port_free_s: float = 0.0
    met: dict[str, float] = field(default_factory=dict[str, float])
    lost: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Pull:
    """A transfer under way. `failure` says why it will fail, `garbled` that it brings what nobody can read; times are
    model seconds. It is `after_loss` where its handshake is the first with an engine, and another one that was known is
    gone.
    """

    end_s: float
    duration_s: float
    byte_count: float
    failure: str | None = None
    after_loss: bool = False
    garbled: bool = False


class Network:
    """All servers of the rehearsal that hand over KV caches, by engine id.

    `pairings` counts the pulls by what held the KV cache and what asked for it, those that failed included.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self.pairings: Counter[tuple[str, str]] = Counter()

    def join(self, identity: Identity, holder: Holder) -> Callable[[], None]:
        """Make a server known; the result takes it away again."""
        peer = self._peers[identity.engine_id] = Peer(identity, holder)

        def leave() -> None:
            if self._peers.get(identity.engine_id) is peer:
                del self._peers[identity.engine_id]
                for other in self._peers.values():
                    other.lost |= {identity.engine_id} & other.met.keys()

        return leave

    def claim(self, remote: RemoteBlocks) -> None:
        """Tell the holder that the KV cache will be pulled. vLLM does so by a heartbeat, until it is pulled."""
        peer = self._peers.get(remote.engine_id)
        if peer is not None:
            peer.holder.claim(remote.request_id)

    def pull(self, local_id: str, remote: RemoteBlocks, tokens: int, latency: LatencyModel, now_s: float) -> Pull:
        """Plan the transfer of the KV cache of `tokens`; the ports of the holder serve one transfer after the other."""
        local, peer = self._peers[local_id], self._peers.get(remote.engine_id)
        after_loss = bool(local.lost) and remote.engine_id not in local.met
        met_s = local.met.setdefault(remote.engine_id, now_s + latency.factors.handshake_s)
        failure = _failure(local.identity, peer, remote)
        if peer is not None:
            self.pairings[peer.identity.version, local.identity.version] += 1
        if peer is None or failure is not None:
            del local.met[remote.engine_id]
            return Pull(max(met_s, now_s), 0.0, 0.0, failure)
        rails = min(local.identity.tensor_parallel_size, peer.identity.tensor_parallel_size)
        duration_s = latency.key_value_transfer_s(tokens, rails, local.identity.block_size)
        end_s = max(now_s, met_s, peer.port_free_s) + duration_s
        peer.port_free_s = end_s
        byte_count = tokens * latency.sizes.key_value_bytes_per_token
        garbled = _garbled(local.identity, peer.identity)
        return Pull(end_s, duration_s, byte_count, after_loss=after_loss, garbled=garbled)

    def finish(self, remote: RemoteBlocks) -> str | None:
        """The holder may free the blocks; says what was wrong where they are gone already."""
        peer = self._peers.get(remote.engine_id)
        if peer is None:
            return f"engine {remote.engine_id} went away during the transfer"
        if not peer.holder.holds(remote.request_id):
            return f"the KV cache of request {remote.request_id} is not held by engine {remote.engine_id} any more"
        peer.holder.let_go(remote.request_id)
        return None


def _failure(local: Identity, peer: Peer | None, remote: RemoteBlocks) -> str | None:
    """Why the handshake with a holder fails, or None."""
    if peer is None:
        return f"NIXL handshake failed: no engine {remote.engine_id} at {remote.host}:{remote.port}"
    other = peer.identity
    if (remote.host, remote.port) != (other.host, other.port):
        return f"NIXL handshake failed: engine {other.engine_id} doesn't listen at {remote.host}:{remote.port}"
    if other.host in _LOOPBACK and other.network != local.network:
        return f"NIXL handshake failed: {other.host} is another pod's loopback; set VLLM_NIXL_SIDE_CHANNEL_HOST"
    return _incompatible(local, other)


def _incompatible(local: Identity, other: Identity) -> str | None:
    for name in ("model", "image", "attention_backend", "kv_cache_dtype", "block_size"):
        here, there = getattr(local, name), getattr(other, name)
        if here != there:
            return f"NIXL compatibility hash mismatch: {name} is {here} here and {there} on the remote engine"
    if local.tensor_parallel_size % other.tensor_parallel_size and not local.latent_attention:
        return (
            f"AssertionError: Local TP size {local.tensor_parallel_size} is not divisible by remote TP size "
            f"{other.tensor_parallel_size} (decode needs a TP of at least prefill's)"
        )
    return _layout_failure(local, other)


def _layout_failure(local: Identity, other: Identity) -> str | None:
    """As newer vLLM says it (`_validate_remote_agent_handshake`); older ones hand over garbage."""
    if local.latent_attention:
        return None
    if local.kv_cache_layout != other.kv_cache_layout:
        return "RuntimeError: Heterogeneous TP expects same kv_cache_layout."
    if local.kv_cache_layout != "HND" and local.tensor_parallel_size != other.tensor_parallel_size:
        return "RuntimeError: Heterogeneous TP head-dimension splitting requires contiguous heads. Use HND layout."
    return None


def _garbled(local: Identity, other: Identity) -> bool:
    """Heads of one rank end up in the places of another's (vllm issue 35444); a latent cache has no heads to split."""
    if local.latent_attention or local.tensor_parallel_size == other.tensor_parallel_size:
        return False
    return not (local.splits_by_heads and other.splits_by_heads)
