"""Program of one rank of an all-reduce between GPUs, by PyTorch's `nccl` backend, which is RCCL on ROCm; no launcher is
needed.

Bus bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md): for n ranks, bytes / seconds * 2 (n - 1) / n.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from typing import IO, Any

from llmd_base.errors import KitError

PORT = 29500
"""TCP port at which the ranks meet: PyTorch's default of MASTER_PORT."""

ELEMENT_BYTES = 4

VARIABLE = "LLMD_OKE_ALL_REDUCE"


@dataclass(frozen=True)
class AllReduce:
    """Configuration of an all-reduce of `length_bytes`, done `warm_ups` times and then `repeats` times with timing,
    within `limit_s` seconds.

    This pod's ranks begin with `first_rank`, one for each of `gpus`; `address` is the IP address of the pod with rank
    0.
    """

    address: str
    port: int
    ranks: int
    first_rank: int
    gpus: int
    length_bytes: int
    repeats: int
    warm_ups: int
    limit_s: float

    def bus_gb_per_s(self, seconds: float) -> float:
        """Return the bus bandwidth in GB (10^9 bytes) per second of an all-reduce that took `seconds`."""
        return self.length_bytes / seconds * 2 * (self.ranks - 1) / self.ranks / 1e9


def run(work: AllReduce, program: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Start this pod's ranks, each as a process of the command `program`, and return the bus bandwidth of the slowest
    in GB (10^9 bytes) per second.

    Raises:
        KitError: a rank fails, or the time limit is over.
    """
    deadline_s = time.monotonic() + work.limit_s
    with ExitStack() as stack:
        ranks: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        for gpu in range(work.gpus):
            output = stack.enter_context(tempfile.TemporaryFile())
            text = json.dumps({**asdict(work), "gpu": gpu})
            own = {**(environment or os.environ), VARIABLE: text}
            process = subprocess.Popen([*program], env=own, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append((process, output))
        return min(work.bus_gb_per_s(_seconds(*rank, deadline_s)) for rank in ranks)


def _seconds(process: "subprocess.Popen[bytes]", output: IO[bytes], deadline_s: float) -> float:
    try:
        code = process.wait(max(0.1, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise KitError("an all-reduce did not end in time") from None
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    if code or not lines:
        raise KitError(f"a rank of the all-reduce ended with {code}: {lines[-1][:300] if lines else 'no word'}")
    return float(json.loads(lines[-1])["seconds"])


def main() -> int:
    """Run the rank that the environment variable describes; print the seconds of one all-reduce as JSON in the last
    line.
    """
    value: dict[str, Any] = json.loads(os.environ[VARIABLE])
    gpu = value.pop("gpu")
    print(json.dumps({"seconds": rank_seconds(AllReduce(**value), gpu)}), flush=True)
    return 0


def rank_seconds(work: AllReduce, gpu: int) -> float:
    """Return the mean duration of one all-reduce in seconds, as this rank measures it."""
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    torch.cuda.set_device(gpu)
    distributed.init_process_group(
        "nccl",
        init_method=f"tcp://{work.address}:{work.port}",
        rank=work.first_rank + gpu,
        world_size=work.ranks,
        timeout=timedelta(seconds=work.limit_s),
    )
    buffer = torch.ones(work.length_bytes // ELEMENT_BYTES, dtype=torch.float32, device=f"cuda:{gpu}")
    for _ in range(work.warm_ups):
        distributed.all_reduce(buffer)
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    for _ in range(work.repeats):
        distributed.all_reduce(buffer)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started_s) / work.repeats
    distributed.destroy_process_group()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
