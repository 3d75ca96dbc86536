"""One server's side of the NIXL hand-over: KV caches that it keeps for others, and those that it pulls."""

import zlib
from collections.abc import Callable

from llmd_oke.rehearsal.vllm.clocks import Clock, Handle
from llmd_oke.rehearsal.vllm.command import KeyValueTransfer
from llmd_oke.rehearsal.vllm.metrics import ServerMetrics
from llmd_oke.rehearsal.vllm.sequences import Sequence
from llmd_oke.rehearsal.vllm.transfers import Network
from llmd_oke.tuning.servers.latency import LatencyModel


class Handover:
    """What a server with a KV connector holds and receives. `free` takes back a sequence's blocks, `crash` ends all."""

    def __init__(
        self,
        transfer: KeyValueTransfer,
        network: Network,
        latency: LatencyModel,
        metrics: ServerMetrics,
        clock: Clock,
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
        self._held: dict[str, tuple[Sequence, Handle]] = {}

    def hold(self, sequence: Sequence) -> None:
        """Keep the KV cache of a finished prefill until a decode server pulled it or nobody came for it."""

        def expire() -> None:
            self._metrics.expired_transfers += 1
            self._log(
                f"WARNING Releasing expired KV blocks for request {sequence.request_id} which were retrieved by 0 "
                "remote worker(s) before lease expired."
            )
            self.let_go(sequence.request_id)

        timer = self._clock.call_at(self._clock.now() + self._transfer.lease_s, expire)
        self._held[sequence.request_id] = (sequence, timer)

    def holds(self, request_id: str) -> bool:
        """The KV cache of that finished prefill waits to be pulled."""
        return request_id in self._held

    def claim(self, sequence: Sequence) -> None:
        """Keep the holder of a sequence's KV cache from giving it up while the sequence waits."""
        if sequence.remote is not None:
            self._network.claim(sequence.remote)

    def claimed(self, request_id: str) -> None:
        """A decode server renews the lease for as long as it has the request."""
        if request_id in self._held:
            self._held[request_id][1].cancel()

    def let_go(self, request_id: str) -> None:
        """Free the KV cache of a finished prefill."""
        held = self._held.pop(request_id, None)
        if held is not None:
            sequence, timer = held
            timer.cancel()
            self._free(sequence)

    def pull(self, sequence: Sequence, now_s: float, done: Callable[[Sequence, bool], None]) -> None:
        """Fetch what isn't cached here of a prompt's KV cache; `done` gets told whether it came."""
        remote = sequence.remote
        if remote is None:
            raise AssertionError("only sequences with a remote prefill are pulled")
        tokens = sequence.prompt_tokens - sequence.computed
        pull = self._network.pull(self._transfer.engine_id, remote, tokens, self._latency, now_s)
        if pull.after_loss and self._transfer.crashes_after_prefill_restart:
            self._log("!!!!!!! Segfault encountered !!!!!!!\n  nixlAgent::loadRemoteMD, ucp_ep_rkey_unpack")
            self._crash()

        def end() -> None:
            failure = pull.failure or self._network.finish(remote)
            self._record(sequence, failure, pull.duration_s, pull.byte_count, tokens)
            sequence.remote = None
            damaged = pull.garbled or self._corrupts(sequence)
            sequence.corrupted = failure is None and tokens > 0 and damaged
            done(sequence, failure is None)

        self._clock.call_at(pull.end_s, end)

    def _corrupts(self, sequence: Sequence) -> bool:
        """Whether this transfer is one of those that the rehearsal's fault damages."""
        return zlib.crc32(sequence.request_id.encode()) % 100 < self._transfer.corrupted_percent

    def release_remote(self, sequence: Sequence) -> None:
        """Tell the holder of a KV cache that nobody will pull it."""
        if sequence.remote is not None:
            self._network.finish(sequence.remote)
            sequence.remote = None

    def _record(
        self, sequence: Sequence, failure: str | None, duration_s: float, byte_count: float, tokens: int
    ) -> None:
        if failure is not None:
            self._metrics.failed_transfers += 1
            self._log(f"ERROR KV load failed for request {sequence.request_id}: {failure}")
            return
        self._metrics.transfer.observe(duration_s)
        self._metrics.transferred.observe(byte_count)
        self._metrics.external_hits += tokens
