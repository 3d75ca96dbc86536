"""The command `python serve.py -- COMMAND`: runs a server after removing what its predecessor left in `/dev/shm`.

With a tier of files vLLM keeps KV cache in host memory in a file there, which it removes only if it ends by itself
(vLLM issues 54002 and 57303, open; 0.30, v1/kv_offload/tiering/spec.py). A pod's `/dev/shm` outlives the container, and
has room for one such file: without this a server that was killed once would never start again.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - in the container
FILES = "vllm_offload_*.mmap"


def server_command(argv: Sequence[str]) -> list[str]:
    """Return the command of the server itself from a container's command, whether or not this program starts the
    server.
    """
    runs = any(word.endswith("/serve.py") for word in argv[:4])
    return list(argv[argv.index("--") + 1 :]) if runs and "--" in argv else list(argv)


def remove_left_memory() -> list[str]:
    """Remove the files with KV cache of servers that ended, and return their names."""
    left = sorted(SHARED_MEMORY.glob(FILES))
    for file in left:
        file.unlink(missing_ok=True)
    return [file.name for file in left]


def main(argv: Sequence[str]) -> None:
    """Remove what is left in shared memory, and replace this process with the server."""
    if removed := remove_left_memory():
        print(f"removed what a server before left in {SHARED_MEMORY}: {', '.join(removed)}", flush=True)
    command = list(argv[argv.index("--") + 1 :])
    os.execvp(command[0], command)  # noqa: S606 - the container's own command


if __name__ == "__main__":
    main(sys.argv[1:])
