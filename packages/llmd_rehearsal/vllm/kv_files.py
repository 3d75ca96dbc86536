"""KV cache in files on a simulated node's disks, beside that in its memory."""

import os
from collections.abc import Iterable
from pathlib import Path

_HASH_BITS = (1 << 64) - 1


class KvFiles:
    """Files with KV blocks in a directory, one for each block, as vLLM's tier of files writes them
    (v1/kv_offload/tiering/fs/manager.py). They have a block's size, but no content, so that they take no space.

    Nothing here deletes files: a container beside vLLM does, and a file that is gone is a miss.

    Args:
        folder: directory of the server on this machine.
        block_bytes: size of a block in bytes.
    """

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self._folder, self._block_bytes = folder, block_bytes

    def store(self, contents: Iterable[int]) -> int:
        """Write the blocks that have no file yet, by the hashes of their contents, and return their number."""
        added = 0
        for content in contents:
            file = self._file(content)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as opened:
                    opened.truncate(self._block_bytes)
                added += 1
        return added

    def load(self, content: int) -> bool:
        """Tell whether a block has a file, which is then its last use."""
        try:
            os.utime(self._file(content))
        except OSError:
            return False
        return True

    def _file(self, content: int) -> Path:
        name = f"{content & _HASH_BITS:016x}"
        return self._folder / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"
