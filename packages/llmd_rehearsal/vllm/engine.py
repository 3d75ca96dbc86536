"""Simulated engine of vLLM: batches of its steps, their durations and the tokens that they emit.

Batching is continuous, with chunked prefill, prefix cache, preemption and KV hand-over.

The engine is driven by its clock alone: a step is planned, lasts as long as the latency model predicts, and then emits
one token for each sequence whose prompt is computed, or several if a draft proposed some. Each step starts at the
planned end of the step before, so that delays of timers don't accumulate.
"""

from collections.abc import Callable
from functools import partial

from llmd_tuner.latency import LatencyModel

from llmd_rehearsal.vllm.clocks import ModelClock
from llmd_rehearsal.vllm.command import CommandSettings
from llmd_rehearsal.vllm.kv_events import KvEventLog
from llmd_rehearsal.vllm.kv_files import KvFiles
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.nixl import Handover, TransferNetwork
from llmd_rehearsal.vllm.scheduler import Scheduler, SchedulerStep
from llmd_rehearsal.vllm.sequences import Finish, Sequence
from llmd_rehearsal.vllm.startup import CacheSize


class SimulatedEngine:
    """Simulation of one vLLM engine (a server, or one data parallel rank). Not thread-safe: all calls must come from
    the event loop of its clock.
    """

    def __init__(
        self,
        settings: CommandSettings,
        cache: CacheSize,
        latency: LatencyModel,
        metrics: ServerMetrics,
        clock: ModelClock,
        network: TransferNetwork,
        log: Callable[[str], None] = lambda _: None,
        crash: Callable[[], None] = lambda: None,
        events: KvEventLog | None = None,
        files: KvFiles | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.cache = cache
        self.clock = clock
        self.dead = False
        self._crash = crash
        self._overhead_s = latency.factors.prefill_overhead_s
        self._server = latency.server(settings.parallelism)
        self._draft = settings.draft
        self._events = events
        self._scheduler = Scheduler(settings, cache, metrics, events, files)
        sizes = latency.sizes  # of windows a server offers one block more than may be needed (vLLM, `blocks_per_sw`)
        offers = sizes.windows_alone and sizes.window_layers
        self._offered_blocks = -(-sizes.window_tokens // settings.block_size) + 1 if offers else 0
        self._prefills = settings.transfer is None or not settings.transfer.decode_bench
        self._arriving: set[Sequence] = set()
        self._receiving: set[Sequence] = set()
        self._step: SchedulerStep | None = None
        self._handover: Handover | None = None
        if settings.transfer is not None:
            self._handover = Handover(settings.transfer, network, latency, metrics, clock, log, self._free, crash)

    @property
    def arriving(self) -> int:
        """Number of requests that aren't queued yet because the overhead before their prefill isn't over."""
        return len(self._arriving)

    @property
    def idle(self) -> bool:
        """Tell whether the engine has no requests, neither running nor waiting."""
        return not (self._scheduler.running or self._scheduler.waiting or self._arriving or self._receiving)

    @property
    def at_rest(self) -> bool:
        """Tell whether the engine has no request and holds no KV cache that another server may pull."""
        return self.idle and (self._handover is None or self._handover.holds_none)

    def fail(self) -> None:
        """Crash the engine, and its server with it."""
        self._crash()

    def submit(self, sequence: Sequence) -> None:
        """Accept a sequence for generation. If its prompt must be computed on this server, it is queued after the
        overhead of a prefill.
        """
        if sequence.remote is not None or not self._prefills:
            if self._handover is not None:
                self._handover.claim(sequence)
            self._enqueue(sequence)
        else:
            self._arriving.add(sequence)
            self.clock.call_at(sequence.arrival_s + self._overhead_s, lambda: self._enqueue(sequence))

    def abort(self, sequence: Sequence, finish: Finish = Finish.ABORT) -> None:
        """End a sequence before its last token, for the reason `finish`; do nothing if it has ended."""
        if sequence.finish is None:
            self._end(sequence, finish)

    def abort_all(self) -> None:
        """Abort all sequences, because the server stops."""
        scheduler = self._scheduler
        for sequence in [*scheduler.running, *scheduler.waiting, *self._arriving, *self._receiving]:
            self.abort(sequence)

    def holds(self, request_id: str) -> bool:
        """Tell whether the engine holds the KV cache of a finished prefill for a decode server."""
        return self._handover is not None and self._handover.holds(request_id)

    def block_groups(self, sequence: Sequence) -> list[list[int]]:
        """Return the blocks of a sequence that decode servers may pull, by kind of layer: the window's blocks for
        layers with a sliding window (only if these layers hand over the window alone), and all blocks. vLLM orders the
        kinds by their first layer; gpt-oss's first layer has a window.
        """
        return [*([sequence.blocks[-self._offered_blocks :]] if self._offered_blocks else []), sequence.blocks]

    def claim(self, request_id: str, engine_id: str) -> None:
        """Keep a KV cache from expiring while a decode server has a request that needs the KV cache."""
        if self._handover is not None:
            self._handover.renew(request_id, engine_id)

    def abandon(self, request_id: str, engine_id: str) -> None:
        """Let a KV cache expire, because the decode server ended its request without pulling the KV cache."""
        if self._handover is not None:
            self._handover.abandon(request_id, engine_id)

    def abandon_all(self, engine_id: str) -> None:
        """Let all KV caches expire that the decode server `engine_id` was to pull, because that server has ended."""
        if self._handover is not None:
            self._handover.abandon_all(engine_id)

    def release(self, request_id: str) -> None:
        """Free the KV cache of a finished prefill on this server."""
        if self._handover is not None:
            self._handover.release(request_id)

    def _free(self, sequence: Sequence) -> None:
        """Free the blocks of a held sequence, and plan a step if none runs, as sequences may wait for blocks."""
        self._scheduler.free(sequence)
        self._wake()

    def _enqueue(self, sequence: Sequence) -> None:
        self._arriving.discard(sequence)
        if sequence.finish is None:
            sequence.queued_s = self.clock.now()
            self._scheduler.waiting.append(sequence)
            self._wake()

    # A step: plan it, let its time pass, emit.

    def _wake(self) -> None:
        if self._step is None:
            self._begin(self.clock.now())
        else:
            self._count()

    def _begin(self, start_s: float) -> None:
        step = self._scheduler.plan(start_s)
        if self._handover is not None:
            for sequence in step.pulls:
                self._receiving.add(sequence)
                self._handover.pull(sequence, start_s, self._received)
        for sequence in step.loads:
            self._receiving.add(sequence)
            size = self.settings.block_size
            load_s = self._server.host_load_s(sequence.loading_blocks * size)
            load_s += self._server.disk_read_s(sequence.reading_blocks * size)
            self.clock.call_at(start_s + load_s, partial(self._loaded, sequence))
        self._count()
        if step.empty:
            self._step = None
            return
        self._step = step
        duration_s = sum(self._server.prefill_s(tokens, sequence.computed) for sequence, tokens in step.prefills)
        if decodes := len(step.decodes):
            drafted = self._draft.tokens if self._draft else 0
            duration_s += self._server.checked_step_s(decodes, step.context_tokens / decodes, drafted)
        else:
            duration_s = max(duration_s, self._server.decode_step_s(len(step.prefills), 0.0))
        deadline_s = start_s + duration_s
        self.clock.call_at(deadline_s, lambda: self._finish_step(step, deadline_s))

    def _finish_step(self, step: SchedulerStep, deadline_s: float) -> None:
        resume_s = self.clock.resume_at(deadline_s)
        for sequence, tokens in step.prefills:
            if sequence.finish is None:
                sequence.computed += tokens
                self._scheduler.cache_computed(sequence)
                if sequence.computed == sequence.tokens:
                    self._emit_first(sequence, deadline_s)
        self._emit_decodes(step.decodes, deadline_s)
        if self.metrics.adapters is not None:
            self.metrics.adapters.record()
        if self._events is not None:
            self._events.publish()
        self._begin(resume_s)

    def _emit_decodes(self, decodes: list[Sequence], now_s: float) -> None:
        """Emit one token for each sequence, and the accepted tokens of its draft. Equal times since the last token are
        recorded in one call.
        """
        waits: dict[float, int] = {}
        tokens = 0
        for sequence in decodes:
            if sequence.finish is not None:
                continue
            if sequence.generated == 0:
                sequence.computed += 1
                self._emit_first(sequence, now_s)
                continue
            wait_s = now_s - sequence.last_token_s
            waits[wait_s] = waits.get(wait_s, 0) + 1
            accepted = 0
            if self._draft is not None:
                accepted = self._draft.accepted(sequence.drafts)
                sequence.drafts += 1
                self.metrics.count_draft(accepted)
            count = min(1 + accepted, sequence.max_tokens - sequence.generated)
            sequence.computed += count
            tokens += count
            self._emit(sequence, now_s, count)
        for wait_s, times in waits.items():
            self.metrics.between_tokens.observe(wait_s, times)
        self.metrics.generation_tokens += tokens

    def _emit_first(self, sequence: Sequence, now_s: float) -> None:
        """Emit the token at the end of a prefill: the first of a sequence, or the next one after a preemption."""
        if sequence.generated == 0:
            sequence.first_token_s = now_s
            if sequence.adapter is not None and self.metrics.adapters is not None:
                self.metrics.adapters.begin(sequence.adapter)
            self.metrics.prompt_tokens += sequence.prompt_tokens
            self.metrics.first_token.observe(max(0.0, now_s - sequence.arrival_s))
        else:
            self.metrics.between_tokens.observe(now_s - sequence.last_token_s)
        self.metrics.generation_tokens += 1
        self._emit(sequence, now_s)

    def _emit(self, sequence: Sequence, now_s: float, tokens: int = 1) -> None:
        sequence.last_token_s = now_s
        sequence.generated += tokens
        sequence.latest = tokens
        if sequence.generated >= sequence.max_tokens:
            self._end(sequence, sequence.end)
        else:
            sequence.emit(sequence)

    # KV caches from the node's memory.

    def _loaded(self, sequence: Sequence) -> None:
        """Put a sequence at the head of the queue; the blocks from the node's memory count as computed."""
        self._receiving.discard(sequence)
        if sequence.finish is not None:
            self._scheduler.free(sequence)
        else:
            self.metrics.loaded_blocks += sequence.loading_blocks
            self.metrics.read_blocks += sequence.reading_blocks
            sequence.computed += sequence.loading_blocks * self.settings.block_size
            sequence.loading_blocks = sequence.reading_blocks = 0
            self._scheduler.cache_computed(sequence)
            self._scheduler.waiting.appendleft(sequence)
        self._wake()

    # KV caches from prefill servers.

    def _received(self, sequence: Sequence, success: bool) -> None:
        """Put a sequence at the head of the queue, with only the prompt's last token to compute; after a failed
        transfer the whole prompt is computed, or the sequence fails.
        """
        self._receiving.discard(sequence)
        if sequence.finish is not None:
            self._scheduler.free(sequence)
        elif success:
            sequence.computed = sequence.prompt_tokens
            self._scheduler.cache_computed(sequence)
            sequence.computed = sequence.prompt_tokens - 1
            self._scheduler.waiting.appendleft(sequence)
        elif self._handover is not None and self._handover.recompute_on_failure:
            self._scheduler.waiting.appendleft(sequence)
        else:
            self._end(sequence, Finish.ERROR)
        self._wake()

    # Ends.

    def _end(self, sequence: Sequence, finish: Finish) -> None:
        sequence.finish = finish
        if finish in {Finish.ABORT, Finish.ERROR}:
            sequence.latest = 0
        self._scheduler.forget(sequence)
        if sequence.generated and sequence.adapter is not None and self.metrics.adapters is not None:
            self.metrics.adapters.end(sequence.adapter)
        self.metrics.finished[finish.value] += 1
        if finish in {Finish.LENGTH, Finish.STOP}:
            self._record(sequence)
        self._settle_blocks(sequence)
        sequence.emit(sequence)
        self._count()

    def _settle_blocks(self, sequence: Sequence) -> None:
        """Free the blocks of an ended sequence, unless they are held for a decode server or a transfer still writes
        them.
        """
        if self._handover is not None and sequence.hold and sequence.finish is Finish.LENGTH:
            self._handover.hold(sequence)
        elif sequence not in self._receiving:
            self._scheduler.free(sequence)
            if self._handover is not None:
                self._handover.release_remote(sequence)

    def _record(self, sequence: Sequence) -> None:
        metrics = self.metrics
        metrics.queue.observe(max(0.0, sequence.scheduled_s - sequence.queued_s))
        metrics.prefill.observe(sequence.first_token_s - sequence.scheduled_s)
        metrics.inference.observe(sequence.last_token_s - sequence.scheduled_s)
        decode_s = sequence.last_token_s - sequence.first_token_s
        metrics.decode.observe(decode_s)
        if sequence.generated > 1:
            metrics.per_token.observe(decode_s / (sequence.generated - 1))
        metrics.whole.observe(max(0.0, sequence.last_token_s - sequence.arrival_s))
        metrics.prompt_length.observe(sequence.prompt_tokens)
        metrics.output_length.observe(sequence.generated)

    def _count(self) -> None:
        self.metrics.running = len(self._scheduler.running)
        self.metrics.waiting = len(self._scheduler.waiting) + len(self._receiving)
        self.metrics.cache_usage = self._scheduler.usage
