"""Simulated transfers of KV caches by NIXL between the servers of one rehearsal, with their durations."""

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from llmd_tuner.latency import LatencyModel

from llmd_rehearsal.vllm.clocks import Handle, ModelClock
from llmd_rehearsal.vllm.command import KeyValueTransfer
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.sequences import RemoteBlocks, Sequence

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Identity:
    """Address of a simulated server, and the properties in which prefill and decode server must agree (vLLM's
    handshake).

    `splits_by_heads` tells whether servers of other tensor parallel sizes can read their part of the KV cache; vLLM
    doesn't check this.
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
    hybrid: bool = False

    @property
    def version(self) -> str:
        """Text of the properties (such as model, image and block size) that must be equal at two servers that hand over
        KV caches.
        """
        backend = self.attention_backend or "the backend that vLLM chooses"
        return f"{self.model}, {self.image}, {backend}, KV cache {self.kv_cache_dtype}, blocks of {self.block_size}"


class Holder(Protocol):
    """Interface of a server that holds KV caches of finished prefills for decode servers."""

    def holds(self, request_id: str) -> bool:
        """Tell whether the server still holds the KV cache of this request."""
        ...

    def claim(self, request_id: str, engine_id: str) -> None:
        """Renew the lease of a request's KV cache for the decode server `engine_id`, which has a request that needs
        it.
        """
        ...

    def abandon(self, request_id: str, engine_id: str) -> None:
        """Record that the decode server `engine_id` stopped renewing the lease of a request's KV cache without having
        pulled it.
        """
        ...

    def abandon_all(self, engine_id: str) -> None:
        """Record that the decode server `engine_id` has ended and renews no lease any more."""
        ...

    def release(self, request_id: str) -> None:
        """Free the KV cache of a request, which was pulled or isn't needed any more. A server that no longer holds the
        KV cache writes an error to its log.
        """
        ...


@dataclass
class TransferPeer:
    """Server that others can reach by NIXL's side channel.

    `port_free_s` is the time in model seconds at which its RDMA ports have sent all requested KV caches, `handshakes`
    the end of the handshake with each other server by engine id, and `lost` the ids of engines with a handshake that
    have ended.
    """

    identity: Identity
    holder: Holder
    port_free_s: float = 0.0
    handshakes: dict[str, float] = field(default_factory=dict[str, float])
    lost: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Pull:
    """Transfer of a KV cache from a prefill server to a decode server; times are in model seconds (seconds on real
    hardware). `failure` is the reason for its failure, None if it will succeed; `garbled` tells whether the transferred
    KV cache is unusable; `after_loss` whether this is the first handshake with this engine after another known engine
    has ended.
    """

    end_s: float
    duration_s: float
    byte_count: float
    failure: str | None = None
    after_loss: bool = False
    garbled: bool = False


class TransferNetwork:
    """All servers of the rehearsal that hand over KV caches, by engine id.

    `pairings` counts the transfers, including failed ones, by the versions of prefill and decode server. Two simulated
    faults: `slowdown` is a factor of all transfers' durations, and `corrupted_percent` the minimum share in percent of
    transfers that arrive corrupted at each server; a higher one in the settings of a server takes precedence there.
    """

    def __init__(self) -> None:
        self.slowdown = 1.0
        self.corrupted_percent = 0
        self._peers: dict[str, TransferPeer] = {}
        self.pairings: Counter[tuple[str, str]] = Counter()

    def join(self, identity: Identity, holder: Holder) -> Callable[[], None]:
        """Add a server to those that hand over KV caches, and return a function that removes it."""
        peer = self._peers[identity.engine_id] = TransferPeer(identity, holder)

        def leave() -> None:
            if self._peers.get(identity.engine_id) is peer:
                del self._peers[identity.engine_id]
                for other in self._peers.values():
                    other.lost |= {identity.engine_id} & other.handshakes.keys()
                    other.holder.abandon_all(identity.engine_id)

        return leave

    def claim(self, local_id: str, remote: RemoteBlocks) -> None:
        """Renew the lease of a KV cache at the server that holds it, as vLLM does by heartbeats until the KV cache is
        pulled.
        """
        peer = self._peers.get(remote.engine_id)
        if peer is not None:
            peer.holder.claim(remote.request_id, local_id)

    def abandon(self, local_id: str, remote: RemoteBlocks) -> None:
        """End the heartbeats for a KV cache that wasn't pulled; the server that holds it frees it when the lease
        ends.
        """
        peer = self._peers.get(remote.engine_id)
        if peer is not None:
            peer.holder.abandon(remote.request_id, local_id)

    def knows(self, remote: RemoteBlocks) -> bool:
        """Tell whether the server that holds a KV cache is still running."""
        return remote.engine_id in self._peers

    def pull(self, local_id: str, remote: RemoteBlocks, tokens: int, latency: LatencyModel, now_s: float) -> Pull:
        """Return a transfer of the KV cache of `tokens` tokens from the server `remote` to the server `local_id`,
        beginning at `now_s` model seconds at the earliest; a server's ports send one KV cache at a time.
        """
        local, peer = self._peers[local_id], self._peers.get(remote.engine_id)
        after_loss = bool(local.lost) and remote.engine_id not in local.handshakes
        handshake_end_s = local.handshakes.setdefault(remote.engine_id, now_s + latency.factors.handshake_s)
        failure = _handshake_failure(local.identity, peer, remote)
        if peer is not None:
            self.pairings[peer.identity.version, local.identity.version] += 1
        if peer is None or failure is not None:
            del local.handshakes[remote.engine_id]
            return Pull(max(handshake_end_s, now_s), 0.0, 0.0, failure)
        rails = min(local.identity.tensor_parallel_size, peer.identity.tensor_parallel_size)
        duration_s = latency.key_value_transfer_s(tokens, rails, local.identity.block_size) * self.slowdown
        end_s = max(now_s, handshake_end_s, peer.port_free_s) + duration_s
        peer.port_free_s = end_s
        byte_count = latency.key_value_bytes(tokens, local.identity.block_size)
        garbled = _arrives_garbled(local.identity, peer.identity)
        return Pull(end_s, duration_s, byte_count, after_loss=after_loss, garbled=garbled)

    def finish(self, remote: RemoteBlocks) -> bool:
        """Free the pulled KV blocks at the server that held them, and return whether it still held them; vLLM reads
        blocks without checking this.
        """
        peer = self._peers.get(remote.engine_id)
        held = peer is not None and peer.holder.holds(remote.request_id)
        if peer is not None:
            peer.holder.release(remote.request_id)
        return held


def _handshake_failure(local: Identity, peer: TransferPeer | None, remote: RemoteBlocks) -> str | None:
    """Return the reason why the handshake with a holder fails; None if it succeeds."""
    if peer is None:
        return f"NIXL handshake failed: no engine {remote.engine_id} at {remote.host}:{remote.port}"
    other = peer.identity
    if (remote.host, remote.port) != (other.host, other.port):
        return f"NIXL handshake failed: engine {other.engine_id} doesn't listen at {remote.host}:{remote.port}"
    if other.host in _LOOPBACK and other.network != local.network:
        return f"NIXL handshake failed: {other.host} is another pod's loopback; set VLLM_NIXL_SIDE_CHANNEL_HOST"
    for name in ("model", "image", "attention_backend", "kv_cache_dtype", "hybrid", "block_size"):
        here, there = getattr(local, name), getattr(other, name)
        if here != there:
            return f"NIXL compatibility hash mismatch: {name} is {here} here and {there} on the remote engine"
    return None if local.latent_attention else _split_failure(local, other)


def _split_failure(local: Identity, other: Identity) -> str | None:
    """Return the reason why heads can't be split between ranks; None if they can be. The errors about the layout are
    those of newer versions of vLLM (`_validate_remote_agent_handshake`); older ones transfer unusable KV caches.
    """
    if local.tensor_parallel_size % other.tensor_parallel_size:
        return (
            f"AssertionError: Local TP size {local.tensor_parallel_size} is not divisible by remote TP size "
            f"{other.tensor_parallel_size} (decode needs a TP of at least prefill's)"
        )
    if local.kv_cache_layout != other.kv_cache_layout:
        return "RuntimeError: Heterogeneous TP expects same kv_cache_layout."
    if local.kv_cache_layout != "HND" and local.tensor_parallel_size != other.tensor_parallel_size:
        return "RuntimeError: Heterogeneous TP head-dimension splitting requires contiguous heads. Use HND layout."
    return None


def _arrives_garbled(local: Identity, other: Identity) -> bool:
    """Tell whether heads of one rank are written to another's positions (vllm issue 35444). A latent cache has no
    heads.
    """
    if local.latent_attention or local.tensor_parallel_size == other.tensor_parallel_size:
        return False
    return not (local.splits_by_heads and other.splits_by_heads)


@dataclass
class _Held:
    """KV cache that is held until `lease_end_s` (model time), or for as long as a decode server renews the lease."""

    sequence: Sequence
    lease_end_s: float
    renewed_by: str | None = None
    timer: Handle | None = None

    def stop_expiry(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Handover:
    """Transfers of one server: the KV caches that it holds for others, and those that it pulls.

    `free` is the function that frees a sequence's blocks, `crash` the one that ends the server.
    """

    def __init__(
        self,
        transfer: KeyValueTransfer,
        network: TransferNetwork,
        latency: LatencyModel,
        metrics: ServerMetrics,
        clock: ModelClock,
        log: Callable[[str], None],
        free: Callable[[Sequence], None],
        crash: Callable[[], None],
    ) -> None:
        self.recompute_on_failure = transfer.recompute_on_failure
        self._transfer = transfer
        self._network = network
        self._latency = latency
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._free = free
        self._crash = crash
        self._held: dict[str, _Held] = {}

    def hold(self, sequence: Sequence) -> None:
        """Hold the KV cache of a finished prefill until a decode server has pulled it or the lease ends."""
        held = self._held[sequence.request_id] = _Held(sequence, self._clock.now() + self._transfer.lease_s)
        self._let_expire(held)

    def _let_expire(self, held: "_Held") -> None:
        def expire() -> None:
            self._metrics.expired_transfers += 1
            self._log(
                f"WARNING Releasing expired KV blocks for request {held.sequence.request_id} which were retrieved by 0 "
                "remote worker(s) before lease expired."
            )
            self.release(held.sequence.request_id)

        held.timer = self._clock.call_at(held.lease_end_s, expire)

    def holds(self, request_id: str) -> bool:
        """Tell whether this server holds the KV cache of a finished prefill for a decode server."""
        return request_id in self._held

    @property
    def holds_none(self) -> bool:
        """Tell whether this server holds no KV cache for decode servers."""
        return not self._held

    def claim(self, sequence: Sequence) -> None:
        """Renew the lease of a sequence's KV cache at the prefill server that holds it, so that it is kept while the
        sequence waits.
        """
        if sequence.remote is not None:
            self._network.claim(self._transfer.engine_id, sequence.remote)

    def renew(self, request_id: str, engine_id: str) -> None:
        """Keep a KV cache that this server holds from expiring while the decode server `engine_id` has a request that
        needs it.
        """
        held = self._held.get(request_id)
        if held is not None:
            held.renewed_by = engine_id
            held.stop_expiry()

    def abandon(self, request_id: str, engine_id: str) -> None:
        """Let the lease of a KV cache run out, since the decode server `engine_id` ended its request without pulling
        the KV cache. The lease ends as long after now as one more heartbeat would have extended it.
        """
        held = self._held.get(request_id)
        if held is not None and held.renewed_by == engine_id:
            held.renewed_by = None
            extension_s = self._transfer.lease_s * 2 // 3  # vLLM 0.26, `nixl/base_worker.py`
            held.lease_end_s = max(held.lease_end_s, self._clock.now() + extension_s)
            self._let_expire(held)

    def abandon_all(self, engine_id: str) -> None:
        """End all heartbeats of the decode server `engine_id`, which has ended."""
        for request_id in list(self._held):
            self.abandon(request_id, engine_id)

    def release(self, request_id: str) -> None:
        """Free the KV cache of a finished prefill that this server holds; write an error to the log if it holds
        none.
        """
        held = self._held.pop(request_id, None)
        if held is None:
            self._log(
                f"ERROR Potentially invalid KV blocks for unrecognized request {request_id} were retrieved by a decode "
                "worker. They may have expired."
            )
            return
        held.stop_expiry()
        self._free(held.sequence)

    def pull(self, sequence: Sequence, now_s: float, done: Callable[[Sequence, bool], None]) -> None:
        """Pull the part of a prompt's KV cache that this server hasn't cached; then call `done` with the sequence, and
        with True if that succeeded.
        """
        remote = sequence.remote
        if remote is None:
            raise AssertionError("only sequences with a remote prefill are pulled")
        tokens = sequence.prompt_tokens - sequence.computed
        pull = self._network.pull(self._transfer.engine_id, remote, tokens, self._latency, now_s)
        if pull.after_loss and self._transfer.crashes_after_prefill_restart:
            self._log("!!!!!!! Segfault encountered !!!!!!!\n  nixlAgent::loadRemoteMD, ucp_ep_rkey_unpack")
            self._crash()

        def end() -> None:
            failure = pull.failure
            if failure is None and not self._network.knows(remote):
                failure = f"engine {remote.engine_id} went away during the transfer"
            sequence.remote = None
            if failure is not None:
                self._network.abandon(self._transfer.engine_id, remote)
                self._metrics.failed_transfers += 1
                self._log(f"ERROR KV load failed for request {sequence.request_id}: {failure}")
            else:
                self._metrics.transfer.observe(pull.duration_s)
                self._metrics.transferred.observe(pull.byte_count)
                self._metrics.external_hits += tokens
                # Blocks that are held no more may have another prompt's; the rehearsal's fault damages some transfers.
                stale = not self._network.finish(remote)
                percent = max(self._transfer.corrupted_percent, self._network.corrupted_percent)
                faulty = zlib.crc32(sequence.request_id.encode()) % 100 < percent
                sequence.corrupted = tokens > 0 and (pull.garbled or stale or faulty)
            done(sequence, failure is None)

        self._clock.call_at(pull.end_s, end)

    def release_remote(self, sequence: Sequence) -> None:
        """Free a sequence's KV cache at the prefill server that holds it; if that server has ended, count a failed
        notification.
        """
        if sequence.remote is not None:
            if not self._network.knows(sequence.remote):
                self._metrics.failed_notifications += 1
            self._network.finish(sequence.remote)
            sequence.remote = None
