"""Simulated scheduler of vLLM, which selects the sequences of the next step and allocates KV blocks to them.

Running sequences come first, then the queue in order of arrival; a step has at most `max_num_batched_tokens` tokens.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from llmd_rehearsal.vllm.command import CommandSettings
from llmd_rehearsal.vllm.kv_events import KvEventLog
from llmd_rehearsal.vllm.kv_files import KvFiles
from llmd_rehearsal.vllm.metrics import AdapterMetrics, ServerMetrics
from llmd_rehearsal.vllm.sequences import Sequence
from llmd_rehearsal.vllm.startup import CacheSize


class BlockPool:
    """The KV blocks of one server: a fixed number, with reference counts and the prefix cache.

    Unused blocks keep their content until they are allocated again, the least recently used first; `evicted` is then
    called with the content's hash.
    """

    def __init__(self, blocks: int, evicted: Callable[[int], None] = lambda _: None) -> None:
        self.size = blocks
        self._evicted = evicted
        self._untouched = 0
        self._free: OrderedDict[int, None] = OrderedDict()
        self._users: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._content: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Number of KV blocks that no sequence uses, with or without cached content."""
        return self.size - len(self._users)

    @property
    def usage(self) -> float:
        """Share of the server's KV blocks that are in use, 0 to 1."""
        return len(self._users) / self.size

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` blocks to one sequence, evicting cached content as needed, and return the blocks' numbers;
        None, without any allocation, if too few are unused.
        """
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def cached(self, hashes: Iterable[int]) -> list[int]:
        """Return the blocks of the longest cached prefix of a chain of hashes; their use isn't counted yet."""
        prefix: list[int] = []
        for content in hashes:
            block = self._block_of.get(content)
            if block is None:
                break
            prefix.append(block)
        return prefix

    def share(self, blocks: list[int]) -> None:
        """Count one more sequence that uses each of these cached blocks."""
        for block in blocks:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def cache(self, block: int, content: int) -> None:
        """Record the hash of a block's content, so that a prompt with the same prefix finds the block."""
        if content not in self._block_of:
            self._forget(block)
            self._block_of[content] = block
            self._content[block] = content

    def release(self, blocks: list[int]) -> None:
        """Count one sequence less that uses each block. Later blocks of a prompt are evicted before earlier ones."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._free[block] = None

    def _take(self) -> int:
        if self._untouched < self.size:
            block = self._untouched
            self._untouched += 1
        else:
            block, _ = self._free.popitem(last=False)
            self._forget(block)
        self._users[block] = 1
        return block

    def _forget(self, block: int) -> None:
        content = self._content.pop(block, None)
        if content is not None:
            del self._block_of[content]
            self._evicted(content)


class HostCache:
    """KV blocks of prompts in the node's memory; the least recently used blocks are evicted first.

    Each computed block of a prompt is written to the node's memory too, beside the GPU's prefix cache, and from
    there to a file if there are `files`. Blocks in files are loaded by way of the node's memory.
    """

    def __init__(self, blocks: int, files: KvFiles | None = None) -> None:
        self._size = blocks
        self._files = files
        self._contents: OrderedDict[int, None] = OrderedDict()

    def store(self, contents: Iterable[int]) -> tuple[int, int]:
        """Store blocks in the node's memory and in files by the hashes of their contents, and return how many weren't
        in memory yet, and how many not in files.
        """
        blocks = list(contents) if self._size else []
        return self._keep(blocks), self._files.store(blocks) if self._files else 0

    def cached(self, hashes: Iterable[int]) -> tuple[int, int]:
        """Return how many blocks at the beginning of a chain of hashes are stored in the node's memory or in files, and
        how many of them in files alone. Those come into the node's memory.
        """
        prefix, read = list[int](), 0
        for content in islice(hashes, self._size):
            if content not in self._contents:
                if self._files is None or not self._files.load(content):
                    break
                read += 1
            prefix.append(content)
        self._keep(prefix)
        return len(prefix), read

    def _keep(self, blocks: Iterable[int]) -> int:
        """Make blocks the most recently used ones in the node's memory, and return how many are new there."""
        added = 0
        for content in blocks:
            added += content not in self._contents
            self._contents[content] = None
            self._contents.move_to_end(content)
        while len(self._contents) > self._size:
            self._contents.popitem(last=False)
        return added


class SlotCache:
    """LoRA adapters in the slots of an engine's GPUs; the least recently used one that no running sequence needs is
    evicted first (vLLM, lora/worker_manager.py).
    """

    def __init__(self, slots: int, metrics: AdapterMetrics | None) -> None:
        self._slots, self._metrics = slots, metrics
        self._loaded: OrderedDict[str, None] = OrderedDict()

    def fits(self, adapter: str | None, running: Iterable[Sequence]) -> bool:
        """Tell whether the adapter of a sequence has a slot beside the adapters of the `running` sequences; True
        without an adapter.
        """
        if adapter is None:
            return True
        others = _adapters(running)
        return adapter in others or len(others) < self._slots

    def use(self, adapter: str, running: Iterable[Sequence]) -> None:
        """Load the adapter of an admitted sequence if none of the slots has it."""
        loads = adapter not in self._loaded
        for name in (*_adapters(running), adapter):
            self._loaded[name] = None
            self._loaded.move_to_end(name)
        if len(self._loaded) > self._slots:
            self._loaded.popitem(last=False)
        if self._metrics is not None:
            self._metrics.requests += 1
            self._metrics.loads += loads


def _adapters(sequences: Iterable[Sequence]) -> dict[str, None]:
    return {sequence.adapter: None for sequence in sequences if sequence.adapter is not None}


@dataclass(slots=True)
class SchedulerStep:
    """Work of the simulated GPU's next step: one token for each of `decodes`, and a chunk of the prompt for each of
    `prefills`.

    `pulls` are sequences with allocated blocks whose KV cache is pulled from a prefill server, `loads` those whose KV
    cache is loaded from the node's memory. `budget` is the number of tokens that still fit into the step, `drafted` the
    number of drafted tokens beside each of `decodes`.
    """

    budget: int
    drafted: int = 0
    decodes: list[Sequence] = field(default_factory=list[Sequence])
    prefills: list[tuple[Sequence, int]] = field(default_factory=list[tuple[Sequence, int]])
    pulls: list[Sequence] = field(default_factory=list[Sequence])
    loads: list[Sequence] = field(default_factory=list[Sequence])
    context_tokens: int = 0

    @property
    def empty(self) -> bool:
        """Tell whether the step computes no tokens."""
        return not (self.decodes or self.prefills)

    def add(self, sequence: Sequence, tokens: int) -> None:
        """Add the computation of `tokens` tokens of a sequence to the step."""
        self.budget -= tokens
        if tokens == 1 and sequence.computed + 1 == sequence.tokens:
            self.decodes.append(sequence)
            self.budget -= self.drafted
            self.context_tokens += sequence.computed
        else:
            self.prefills.append((sequence, tokens))


class Scheduler:
    """Queue, running sequences and KV blocks of one simulated engine."""

    def __init__(
        self,
        settings: CommandSettings,
        cache: CacheSize,
        metrics: ServerMetrics,
        events: KvEventLog | None = None,
        files: KvFiles | None = None,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._settings = settings
        self._block_size = cache.block_size
        self._drafted = settings.draft.tokens if settings.draft else 0
        self._metrics = metrics
        self._longest = cache.max_model_len
        self._events = events
        self._pool = BlockPool(cache.blocks, events.remove) if events else BlockPool(cache.blocks)
        self._host = HostCache(cache.host_blocks, files)
        self._slots = SlotCache(settings.adapters.room.slots, metrics.adapters) if settings.adapters else None
        self._decode_bench = settings.transfer is not None and settings.transfer.decode_bench

    @property
    def usage(self) -> float:
        """Share of the engine's KV blocks that are in use, 0 to 1."""
        return self._pool.usage

    def plan(self, now_s: float) -> SchedulerStep:
        """Return the work of the engine's next step. If sequences had to be preempted, no waiting sequence is
        admitted.
        """
        step = SchedulerStep(self._settings.max_num_batched_tokens, self._drafted)
        if not self._continue_running(step):
            self._admit(step, now_s)
        return step

    def cache_computed(self, sequence: Sequence) -> None:
        """Add the computed blocks of a prompt to the prefix cache and to the node's memory."""
        full = min(sequence.computed // self._block_size, len(sequence.hashes))
        for index in range(sequence.cached_blocks, full):
            self._pool.cache(sequence.blocks[index], sequence.hashes[index])
        if self._events is not None:
            self._events.store(sequence, sequence.cached_blocks, full)
        stored, written = self._host.store(sequence.hashes[sequence.cached_blocks : full])
        self._metrics.stored_blocks += stored
        self._metrics.written_blocks += written
        sequence.cached_blocks = max(sequence.cached_blocks, full)

    def forget(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended from the running ones or the queue; its blocks stay allocated."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def free(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence, whose prompt must then be computed again."""
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.loading_blocks = sequence.reading_blocks = 0
        sequence.computed = 0
        sequence.cached_blocks = 0

    def _continue_running(self, step: SchedulerStep) -> bool:
        """Add the running sequences to a step; return whether sequences were preempted for their blocks."""
        preempted = False
        index = 0
        while index < len(self.running) and step.budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.tokens - sequence.computed, step.budget)
            # Checked here and not in _grow, because it is for each token of each sequence.
            room = min(tokens + self._drafted, self._longest - sequence.computed)
            while sequence.computed + room > len(sequence.blocks) * self._block_size and not self._grow(sequence, room):
                preempted = True
                last = self.running.pop()  # the sequence that was admitted last
                self.free(last)
                self.waiting.appendleft(last)
                self._metrics.preemptions += 1
                if last is sequence:
                    return True
            step.add(sequence, tokens)
            index += 1
        return preempted

    def _admit(self, step: SchedulerStep, now_s: float) -> None:
        """Admit waiting sequences in their order, past those whose adapter finds no slot."""
        passed: list[Sequence] = []
        while self.waiting and step.budget > 0 and len(self.running) < self._settings.max_num_seqs:
            sequence = self.waiting[0]
            if self._slots is not None and not self._slots.fits(sequence.adapter, self.running):
                passed.append(self.waiting.popleft())
                continue
            if not sequence.blocks:
                self._use_cached(sequence)
            tokens = sequence.tokens - sequence.computed
            if sequence.remote is not None:
                admitted = self._grow(sequence, tokens)
            elif sequence.loading_blocks:
                admitted = self._grow(sequence, sequence.loading_blocks * self._block_size)
            else:
                fits = tokens <= step.budget or self._settings.enable_chunked_prefill
                admitted = fits and self._grow(sequence, min(tokens, step.budget))
            if not admitted:
                self.free(sequence)  # it must not hold the cached blocks of its prompt
                break
            self._start(self.waiting.popleft(), step, now_s)
        self.waiting.extendleft(reversed(passed))

    def _start(self, sequence: Sequence, step: SchedulerStep, now_s: float) -> None:
        self._record_lookup(sequence)
        if sequence.remote is not None:
            step.pulls.append(sequence)
            return
        if sequence.loading_blocks:
            step.loads.append(sequence)
            return
        if self._slots is not None and sequence.adapter is not None:
            self._slots.use(sequence.adapter, self.running)
        sequence.scheduled_s = sequence.scheduled_s or now_s
        self.running.append(sequence)
        step.add(sequence, min(sequence.tokens - sequence.computed, step.budget))

    def _use_cached(self, sequence: Sequence) -> None:
        """Give a sequence the cached blocks of its prompt; at least the prompt's last token remains to be computed."""
        hashes = sequence.hashes[: (sequence.prompt_tokens - 1) // self._block_size]
        sequence.blocks = self._pool.cached(hashes)
        self._pool.share(sequence.blocks)
        sequence.cached_blocks = len(sequence.blocks)
        if sequence.remote is None:
            found = self._host.cached(hashes[sequence.cached_blocks :])
            sequence.loading_blocks, sequence.reading_blocks = found
        sequence.computed = (
            sequence.prompt_tokens - 1 if self._decode_bench else sequence.cached_blocks * self._block_size
        )

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate the blocks that a sequence needs for `tokens` more tokens; return False if too few are unused."""
        missing = -(-(sequence.computed + tokens) // self._block_size) - len(sequence.blocks)
        blocks = self._pool.allocate(missing) if missing > 0 else []
        if blocks is None:
            return False
        sequence.blocks += blocks
        return True

    def _record_lookup(self, sequence: Sequence) -> None:
        """Count the cache hits of a prompt at its first admission."""
        if sequence.cached_tokens >= 0:
            return
        metrics = self._metrics
        sequence.cached_tokens = sequence.cached_blocks * self._block_size
        missed = sequence.prompt_tokens - sequence.cached_tokens
        if self._settings.enable_prefix_caching:
            metrics.prefix_queries += sequence.prompt_tokens
            metrics.prefix_hits += sequence.cached_tokens
        if self._settings.kv_connector:
            loaded = sequence.loading_blocks * self._block_size
            metrics.external_queries += missed
            metrics.external_hits += missed if self._decode_bench else loaded
            sequence.cached_tokens += loaded
