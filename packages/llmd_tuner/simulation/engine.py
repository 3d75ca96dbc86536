"""Simulation of one vLLM server: continuous batching with chunked prefill, in the order of vLLM's scheduler.

A step computes one token for each running sequence and, with what is left of its token budget, prompts in the order of
their arrival. Three simplifications: a sequence reserves KV blocks for all its tokens when it is admitted, so that
nothing is ever preempted; prompts share no prefix but what the workload says; the scheduler itself costs nothing.
"""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from llmd_tuner.latency import ServerLatency
from llmd_tuner.simulation.deployment import ServerLimits


class Calendar:
    """Queue of scheduled calls in simulated time. Calls at the same time run in the order in which they were scheduled,
    so that runs repeat exactly.
    """

    __slots__ = ("_heap", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Schedule `call(argument)` at a simulated time that is not in the past."""
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, call, argument))

    def run(self) -> None:
        """Run all scheduled calls in the order of their times, until none is left."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            self.now_s, _, call, argument = pop(heap)
            call(argument)


class Gaps:
    """Record of all intervals between two successive tokens of a request: around the simulated time `times_s[i]`,
    `counts[i]` intervals of `gaps_s[i]` seconds each ended. Decode steps of an unchanged batch are recorded together,
    at the middle of their time.
    """

    __slots__ = ("counts", "gaps_s", "times_s")

    def __init__(self) -> None:
        self.times_s = array("d")
        self.gaps_s = array("d")
        self.counts = array("d")

    def add(self, time_s: float, gap_s: float, count: int) -> None:
        """Record `count` tokens at the simulated time `time_s`, each of which came `gap_s` seconds after its request's
        last token.
        """
        self.times_s.append(time_s)
        self.gaps_s.append(gap_s)
        self.counts.append(count)


class DecodeRun:
    """Sequence of decode steps of an unchanged batch: `steps` of them from `start_s` (simulated seconds) on, with
    `context_tokens` over all sequences of the batch at first.
    """

    __slots__ = ("batch", "first_s", "growth_s", "start_s", "steps")

    def __init__(self, latency: ServerLatency, start_s: float, batch: int, context_tokens: int, steps: int) -> None:
        context = context_tokens / batch
        self.start_s = start_s
        self.batch = batch
        self.steps = steps
        self.first_s = latency.decode_step_s(batch, context)
        # Over the whole run, not one token: the model bends where contexts outgrow a sliding window.
        self.growth_s = (latency.decode_step_s(batch, context + steps) - self.first_s) / steps

    @property
    def end_s(self) -> float:
        """Simulated time in seconds at which the last of these decode steps ends."""
        return self.start_s + self._time_s(self.steps)

    def steps_until(self, time_s: float) -> int:
        """Return the number of steps, at least one, until the first step that ends at `time_s` or later."""
        elapsed_s, growth_s = time_s - self.start_s, self.growth_s
        linear_s = self.first_s - growth_s / 2
        root_s = math.sqrt(linear_s * linear_s + 2 * growth_s * elapsed_s)
        steps = max(1, math.ceil(2 * elapsed_s / (linear_s + root_s)))
        return steps if self._time_s(steps) >= elapsed_s else steps + 1

    def boundary_s(self, time_s: float) -> float:
        """Return the simulated time at which the decode step ends that is running at `time_s`."""
        return self.start_s + self._time_s(self.steps_until(time_s))

    def _time_s(self, steps: int) -> float:
        return steps * (self.first_s + self.growth_s * (steps - 1) / 2)


if TYPE_CHECKING:
    from llmd_tuner.simulation.deployment import RequestClass


class Request:
    """Simulated request: a prompt, and the tokens that are generated for it.

    `prefill` and `decode` are its servers, the same one without disaggregation. `computed` counts the prompt tokens
    whose KV cache is on the server: initially those of whole cached blocks, or all but one in a decode benchmark.
    `remote` says that its KV cache must be pulled from `prefill`. `first_s` and `last_s` are the times of its first and
    last token, in simulated seconds. It needs `prompt_room` tokens of KV cache to prefill and `whole_room` to decode.
    `prefix` identifies a prefix of `prefix_tokens` tokens that it shares with other requests; `sent_tokens` are the
    tokens that the router counted for it.
    """

    __slots__ = (
        "arrival_s",
        "computed",
        "decode",
        "first_s",
        "input_tokens",
        "last_s",
        "output_tokens",
        "prefill",
        "prefix",
        "prefix_tokens",
        "prompt_room",
        "remote",
        "sent_tokens",
        "whole_room",
    )

    def __init__(
        self,
        arrival_s: float,
        size: "RequestClass",
        prefill: "EngineSimulation",
        decode: "EngineSimulation",
        prefix: int | None = None,
        sent_tokens: int = 0,
    ) -> None:
        self.arrival_s = arrival_s
        self.input_tokens = size.input_tokens
        self.output_tokens = size.output_tokens
        block_size = prefill.block_size
        whole = size.cached_tokens >= size.input_tokens
        self.computed = size.input_tokens - 1 if whole else size.cached_tokens // block_size * block_size
        self.prefix = prefix
        self.prefix_tokens = min(size.prefix_tokens, size.input_tokens - 1) // block_size * block_size
        self.sent_tokens = sent_tokens
        self.prefill = prefill
        self.decode = decode
        self.prompt_room = -(-(size.input_tokens + 1) // block_size) * block_size
        self.whole_room = -(-(size.input_tokens + size.output_tokens) // block_size) * block_size
        self.remote = False
        self.first_s = 0.0
        self.last_s = 0.0


class EngineSimulation:
    """Event simulation of one server.

    `ended` is called with each request whose last token was generated here. A server with `prefills_only` computes
    prompts and their first token, and keeps their KV cache until `release`. `pull` starts the transfer of a remote
    request's KV cache, which ends in `received`. `assigned` counts the requests that a router sent here and that are
    unanswered, `assigned_tokens` the tokens of their prompts before the first token; `sent_prefixes` are the prefixes
    that the router has sent here. `waiting` are requests that are in no batch yet, as in vLLM's `num_requests_waiting`;
    `busy_s` is the time in which a step ran, `sequence_s` the integral of the batch over time. Its network port and its
    link to the node's memory are busy until `port_free_s` and `link_free_s`.
    """

    def __init__(
        self,
        calendar: Calendar,
        latency: ServerLatency,
        limits: ServerLimits,
        gaps: Gaps,
        *,
        ended: Callable[[Request], None],
        pull: Callable[[Request, float], None],
        prefills_only: bool = False,
    ) -> None:
        self.assigned = 0
        self.assigned_tokens = 0
        self.sent_prefixes: set[int] = set()
        self.waiting = 0
        self.busy_s = 0.0
        self.sequence_s = 0.0
        self.port_free_s = 0.0
        self.link_free_s = 0.0
        self.latency = latency
        self.block_size = limits.block_size
        self._calendar = calendar
        self._limits = limits
        self._gaps = gaps
        self._ended = ended
        self._pull = pull
        self._prefills_only = prefills_only
        self._reserved: Callable[[Request], int] = attrgetter("prompt_room" if prefills_only else "whole_room")
        self._max_num_seqs = limits.max_num_seqs
        self._waiting: deque[Request] = deque()
        self._ready: deque[Request] = deque()
        self._prefilling: list[Request] = []
        self._batch: list[tuple[int, int, Request]] = []
        self._context_tokens = 0
        self._free_tokens = limits.key_value_tokens
        self._steps = 0
        self._joined: list[Request] = []
        self._order = 0
        self._busy = False
        self._run: DecodeRun | None = None
        self._prefixes: set[int] = set()

    @property
    def running(self) -> int:
        """Number of requests in the batch, as in vLLM's `num_requests_running`."""
        return len(self._batch) + len(self._prefilling)

    @property
    def cache_use(self) -> float:
        """Share of the server's KV cache that is in use (1 is full)."""
        return 1 - self._free_tokens / self._limits.key_value_tokens

    def submit(self, request: Request) -> None:
        """Put a request at the end of the server's queue at the current simulated time."""
        self.waiting += 1
        self._waiting.append(request)
        now_s, run = self._calendar.now_s, self._run
        if not self._busy:
            self._begin(now_s)
        elif run is not None and self._has_room(self._waiting[0]):
            if request.remote:
                self._admit_remote(run.boundary_s(now_s))
            else:
                self._shorten(run, now_s)

    def received(self, request: Request) -> None:
        """Admit a remote request whose KV cache has arrived, ahead of the queue."""
        self._ready.append(request)
        if not self._busy:
            self._begin(self._calendar.now_s)
        elif self._run is not None and len(self._batch) < self._max_num_seqs:
            self._shorten(self._run, self._calendar.now_s)

    def release(self, request: Request) -> None:
        """Free the KV cache of a finished prefill after a decode server has pulled it."""
        self._free_tokens += self._reserved(request)
        if not self._busy:
            self._begin(self._calendar.now_s)

    # Admission.

    def _has_room(self, request: Request) -> bool:
        return self.running < self._max_num_seqs and self._reserved(request) <= self._free_tokens

    def _admit_remote(self, start_s: float) -> None:
        """Ask for the KV caches of remote requests at the head of the queue."""
        waiting = self._waiting
        while waiting and waiting[0].remote and self._has_room(waiting[0]):
            request = waiting.popleft()
            self._free_tokens -= self._reserved(request)
            self._pull(request, start_s)

    def _join(self, request: Request, context_tokens: int, steps: int) -> None:
        """Let the request decode from the next step on, for `steps` steps."""
        self._context_tokens += context_tokens
        self._order += 1
        heapq.heappush(self._batch, (self._steps + steps, self._order, request))

    # Steps.

    def _begin(self, now_s: float) -> None:
        """Decide what runs next."""
        ready, batch = self._ready, self._batch
        while ready and len(batch) < self._max_num_seqs:
            request = ready.popleft()
            self.waiting -= 1
            self._join(request, request.input_tokens - 1, request.output_tokens)
            self._joined.append(request)
        if self._waiting and self._waiting[0].remote:
            self._admit_remote(now_s)
        if self._waiting or self._prefilling:
            chunks = self._chunks()
            if chunks:
                self._begin_mixed(now_s, chunks)
                return
        self._busy = bool(batch)
        if batch:  # decode alone, until the first sequence ends or something comes
            run = DecodeRun(self.latency, now_s, len(batch), self._context_tokens, batch[0][0] - self._steps)
            self._run = run
            self._calendar.at(run.end_s, self._finish_run, (run, run.steps))

    def _chunks(self) -> list[tuple[Request, int]]:
        """Return how many tokens of which prompts the next step computes."""
        budget = self._limits.max_num_batched_tokens - len(self._batch)
        chunks: list[tuple[Request, int]] = []
        for request in self._prefilling:  # at most one: a step leaves only its last prompt unfinished
            budget = self._take(request, budget, chunks)
        waiting = self._waiting
        while waiting and budget > 0 and not waiting[0].remote and self._has_room(waiting[0]):
            request = waiting.popleft()
            self._free_tokens -= self._reserved(request)
            self.waiting -= 1
            if request.prefix in self._prefixes:
                request.computed = max(request.computed, request.prefix_tokens)
            self._prefilling.append(request)
            budget = self._take(request, budget, chunks)
        return chunks

    @staticmethod
    def _take(request: Request, budget: int, chunks: list[tuple[Request, int]]) -> int:
        """Put as much of a prompt into the step as the budget allows, and return the budget that is left."""
        tokens = min(request.input_tokens - request.computed, budget)
        if tokens > 0:
            chunks.append((request, tokens))
        return budget - max(0, tokens)

    def _begin_mixed(self, now_s: float, chunks: list[tuple[Request, int]]) -> None:
        """Begin one step with prompts in it."""
        latency, batch = self.latency, len(self._batch)
        prefill_s = sum([latency.prefill_s(tokens, request.computed) for request, tokens in chunks])
        if batch:
            duration_s = prefill_s + latency.decode_step_s(batch, self._context_tokens / batch)
            self._gaps.add(now_s, duration_s, batch)
        else:
            duration_s = max(prefill_s, latency.decode_step_s(len(chunks), 0.0))
        self._busy = True
        self._run = None
        self.busy_s += duration_s
        self.sequence_s += duration_s * batch
        self._calendar.at(now_s + duration_s, self._finish_mixed, chunks)

    def _finish_mixed(self, chunks: list[tuple[Request, int]]) -> None:
        self._steps += 1
        self._context_tokens += len(self._batch)
        for request, tokens in chunks:
            request.computed += tokens
            if request.computed == request.input_tokens:
                self._prefilling.remove(request)
                self._finish_prompt(request)
        self._end_finished()
        self._begin(self._calendar.now_s)

    def _finish_prompt(self, request: Request) -> None:
        """End a prompt that is computed, which gives the first token."""
        now_s = self._calendar.now_s
        request.first_s = now_s
        if request.prefix is not None:
            self._prefixes.add(request.prefix)
        if not self._prefills_only:
            self.assigned_tokens -= request.sent_tokens
        if self._prefills_only:
            self._ended(request)
        elif request.output_tokens == 1:
            self._end(request)
        else:
            self._join(request, request.input_tokens, request.output_tokens - 1)

    def _shorten(self, run: DecodeRun, now_s: float) -> None:
        """End the run with the step that runs now."""
        steps = run.steps_until(now_s)
        if steps < run.steps:
            run.steps = steps
            self._calendar.at(run.end_s, self._finish_run, (run, steps))

    def _finish_run(self, planned: tuple[DecodeRun, int]) -> None:
        run, steps = planned
        if run is not self._run or steps != run.steps:
            return  # it was shortened
        now_s = self._calendar.now_s
        self._run = None
        self._record(run, now_s)
        self._steps += steps
        self._context_tokens += steps * run.batch
        self._end_finished()
        self._begin(now_s)

    def _record(self, run: DecodeRun, end_s: float) -> None:
        elapsed_s = end_s - run.start_s
        self.busy_s += elapsed_s
        self.sequence_s += elapsed_s * run.batch
        gaps = run.steps * run.batch - len(self._joined)
        for request in self._joined:
            request.first_s = run.start_s + run.first_s
        self._joined.clear()
        self._gaps.add((run.start_s + end_s) / 2, elapsed_s / run.steps, gaps)

    # Ends.

    def _end_finished(self) -> None:
        batch = self._batch
        while batch and batch[0][0] <= self._steps:
            request = heapq.heappop(batch)[2]
            self._context_tokens -= request.input_tokens + request.output_tokens - 1
            self._end(request)

    def _end(self, request: Request) -> None:
        request.last_s = self._calendar.now_s
        self._free_tokens += self._reserved(request)
        self._ended(request)
