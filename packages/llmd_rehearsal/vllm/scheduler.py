"""vLLM's scheduler, which decides which sequences get KV blocks for the next step.

Running sequences come first, then the queue in order of arrival; a step takes at most `max_num_batched_tokens`.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from llmd_rehearsal.vllm.command import CommandSettings
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.sequences import Sequence
from llmd_rehearsal.vllm.startup import CacheSize


class BlockPool:
    """The KV blocks of one server: a fixed number, with reference counts and the prefix cache.

    Blocks that nobody uses keep their content until they are needed for something else, least recently used first.
    """

    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self._untouched = 0
        self._free: OrderedDict[int, None] = OrderedDict()
        self._users: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._content: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Blocks that nobody uses, whether they hold cached content or not."""
        return self.size - len(self._users)

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody uses, 0 to 1."""
        return len(self._users) / self.size

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` blocks to one user; None where there aren't enough. Evicts cached content as needed."""
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def cached(self, hashes: Iterable[int]) -> list[int]:
        """The blocks of the longest cached prefix of a chain of hashes; they are not yet used by it."""
        prefix: list[int] = []
        for content in hashes:
            block = self._block_of.get(content)
            if block is None:
                break
            prefix.append(block)
        return prefix

    def share(self, blocks: list[int]) -> None:
        """One more user for each of these cached blocks."""
        for block in blocks:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def cache(self, block: int, content: int) -> None:
        """Remember what a block holds, so that a prompt with the same prefix finds it."""
        if content not in self._block_of:
            self._forget(block)
            self._block_of[content] = block
            self._content[block] = content

    def release(self, blocks: list[int]) -> None:
        """One user less for each block; the tail of a prompt is evicted before its head."""
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


class HostCache:
    """KV blocks of prompts that a server keeps in its node's memory; the least recently used ones go first.

    Each block of a prompt is written there as soon as it is computed, beside the GPU's own cache.
    """

    def __init__(self, blocks: int) -> None:
        self._size = blocks
        self._contents: OrderedDict[int, None] = OrderedDict()

    def store(self, contents: Iterable[int]) -> int:
        """Keep blocks, and return how many of them weren't there."""
        added = 0
        for content in contents if self._size else ():
            added += content not in self._contents
            self._contents[content] = None
            self._contents.move_to_end(content)
        while len(self._contents) > self._size:
            self._contents.popitem(last=False)
        return added

    def cached(self, hashes: Iterable[int]) -> int:
        """Return how many blocks of a chain are kept, up to the first that isn't."""
        prefix = list(takewhile(self._contents.__contains__, hashes))
        for content in prefix:
            self._contents.move_to_end(content)
        return len(prefix)


@dataclass(slots=True)
class SchedulerStep:
    """Work of the GPU's next step: one token for each of `decodes`, and a chunk of the prompt for each of `prefills`.

    With a draft each of `decodes` has as many `drafted` tokens beside it. `pulls` are sequences that got their blocks
    and now wait aside for the KV cache of a prefill server, `loads` those that wait for what their node's memory has of
    it.
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
        """Tell whether there is no token to compute."""
        return not (self.decodes or self.prefills)

    def add(self, sequence: Sequence, tokens: int) -> None:
        """Compute `tokens` more of a sequence."""
        self.budget -= tokens
        if tokens == 1 and sequence.computed + 1 == sequence.tokens:
            self.decodes.append(sequence)
            self.budget -= self.drafted
            self.context_tokens += sequence.computed
        else:
            self.prefills.append((sequence, tokens))


class Scheduler:
    """The queue, the running sequences and the KV blocks of one engine."""

    def __init__(self, settings: CommandSettings, cache: CacheSize, metrics: ServerMetrics) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._settings = settings
        self._block_size = cache.block_size
        self._drafted = settings.draft.tokens if settings.draft else 0
        self._metrics = metrics
        self._longest = cache.max_model_len
        self._pool = BlockPool(cache.blocks)
        self._host = HostCache(cache.host_blocks)
        self._decode_bench = settings.transfer is not None and settings.transfer.decode_bench

    @property
    def usage(self) -> float:
        """Share of the KV blocks that are in use, 0 to 1."""
        return self._pool.usage

    def plan(self, now_s: float) -> SchedulerStep:
        """Decide the next step; where somebody lost blocks for it, nobody new is admitted."""
        step = SchedulerStep(self._settings.max_num_batched_tokens, self._drafted)
        if not self._continue_running(step):
            self._admit(step, now_s)
        return step

    def cache_computed(self, sequence: Sequence) -> None:
        """Offer the computed blocks of a prompt to later prompts with the same prefix."""
        full = min(sequence.computed // self._block_size, len(sequence.hashes))
        for index in range(sequence.cached_blocks, full):
            self._pool.cache(sequence.blocks[index], sequence.hashes[index])
        self._metrics.stored_blocks += self._host.store(sequence.hashes[sequence.cached_blocks : full])
        sequence.cached_blocks = max(sequence.cached_blocks, full)

    def forget(self, sequence: Sequence) -> None:
        """Take a sequence that ended out of the batch or the queue; its blocks stay."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def free(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence back; it would have to start again."""
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.loading_blocks = 0
        sequence.computed = 0
        sequence.cached_blocks = 0

    def _continue_running(self, step: SchedulerStep) -> bool:
        """Go on with what runs. True where sequences had to be preempted for their blocks."""
        preempted = False
        index = 0
        while index < len(self.running) and step.budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.tokens - sequence.computed, step.budget)
            # Checked here and not in _grow, because it is for each token of each sequence.
            room = min(tokens + self._drafted, self._longest - sequence.computed)
            while sequence.computed + room > len(sequence.blocks) * self._block_size and not self._grow(sequence, room):
                preempted = True
                if self._preempt_last() is sequence:
                    return True
            step.add(sequence, tokens)
            index += 1
        return preempted

    def _preempt_last(self) -> Sequence:
        """Give the blocks of the youngest sequence back; it starts again from the head of the queue."""
        sequence = self.running.pop()
        self.free(sequence)
        self.waiting.appendleft(sequence)
        self._metrics.preemptions += 1
        return sequence

    def _admit(self, step: SchedulerStep, now_s: float) -> None:
        while self.waiting and step.budget > 0 and len(self.running) < self._settings.max_num_seqs:
            sequence = self.waiting[0]
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
                return
            self._start(self.waiting.popleft(), step, now_s)

    def _start(self, sequence: Sequence, step: SchedulerStep, now_s: float) -> None:
        self._record_lookup(sequence)
        if sequence.remote is not None:
            step.pulls.append(sequence)
            return
        if sequence.loading_blocks:
            step.loads.append(sequence)
            return
        sequence.scheduled_s = sequence.scheduled_s or now_s
        self.running.append(sequence)
        step.add(sequence, min(sequence.tokens - sequence.computed, step.budget))

    def _use_cached(self, sequence: Sequence) -> None:
        """Begin a sequence with what the prefix cache has of its prompt; at least the last token is computed."""
        hashes = sequence.hashes[: (sequence.prompt_tokens - 1) // self._block_size]
        sequence.blocks = self._pool.cached(hashes)
        self._pool.share(sequence.blocks)
        sequence.cached_blocks = len(sequence.blocks)
        if sequence.remote is None:
            sequence.loading_blocks = self._host.cached(hashes[sequence.cached_blocks :])
        sequence.computed = (
            sequence.prompt_tokens - 1 if self._decode_bench else sequence.cached_blocks * self._block_size
        )

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for `tokens` more; False where there are none."""
        missing = -(-(sequence.computed + tokens) // self._block_size) - len(sequence.blocks)
        blocks = self._pool.allocate(missing) if missing > 0 else []
        if blocks is None:
            return False
        sequence.blocks += blocks
        return True

    def _record_lookup(self, sequence: Sequence) -> None:
        """Count the cache hits of a prompt, when it is admitted for the first time."""
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
