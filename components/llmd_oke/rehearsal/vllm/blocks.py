"""KV blocks of one server: allocation, reference counts and the prefix cache, evicted least recently used first."""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """A fixed number of blocks. Blocks that nobody uses keep their content until they are needed for something else."""

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
        """That many blocks for one user, or None where there aren't enough; evicts cached content as needed."""
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def cached(self, hashes: Sequence[int]) -> list[int]:
        """The blocks of the longest cached prefix of a chain of hashes; they are not yet used by it."""
        found: list[int] = []
        for content in hashes:
            block = self._block_of.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for each of these cached blocks."""
        for block in blocks:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def keep(self, block: int, content: int) -> None:
        """Remember what a block holds, so that a prompt with the same prefix finds it."""
        if content not in self._block_of:
            self._forget(block)
            self._block_of[content] = block
            self._content[block] = content

    def release(self, blocks: Sequence[int]) -> None:
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
