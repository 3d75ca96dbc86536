"""Benchmark of the search for signatures in logs.

`scripts/bench-doctor` runs it: it writes logs with healthy lines and one line of each signature to a temporary folder,
diagnoses the folder as `llmd-oke doctor --from` does, and ends with 1 if a GiB takes longer than `LIMIT_S`.
"""

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from llmd_base.records import document
from llmd_oke.catalogue.signatures import text_signatures
from llmd_oke.operations.doctor.diagnosis import diagnose
from llmd_oke.operations.doctor.sources import open_source

LIMIT_S = 10.0
"""Limit of wall seconds in which the doctor must search a GiB of logs for signatures."""

FILE_MIB = 64
BLOCK_BYTES = 2**20

_LINES = (
    "(APIServer pid=1) INFO 11-29 02:11:{0:02} [loggers.py:257] Engine 000: Avg prompt throughput: {1}.5 tokens/s, "
    "Avg generation throughput: {2}.0 tokens/s, Running: {0} reqs, Waiting: 0 reqs, GPU KV cache usage: 12.3%, "
    "Prefix cache hit rate: 45.6%",
    '(APIServer pid=1) INFO:     10.0.12.{0}:39114 - "POST /v1/completions HTTP/1.1" 200 OK',
    '{{"level":"info","ts":"2026-11-29T02:11:{0:02}Z","caller":"server.go:120","msg":"EPP received request",'
    '"x-request-id":"{1}{2}"}}',
    '{{"time":"2026-11-29T02:11:{0:02}Z","status":200,"details":"via_upstream","flags":"-","model":"m","ms":{1}}}',
    "INFO 11-29 02:11:{0:02} [metrics.py:103] KV Transfer metrics: Num successful transfers={0}, Avg xfer time={1}",
)


@dataclass(frozen=True)
class SpeedResult:
    """Wall and CPU seconds of the fastest search through `mib` MiB of logs, and the number of signatures that were
    found.
    """

    mib: int
    lines: int
    wall_s: float
    cpu_s: float
    fired: int

    @property
    def mb_per_s(self) -> float:
        """Speed of the search in 10^6 bytes of logs for each wall second."""
        return self.mib * 2**20 / 1e6 / self.wall_s

    @property
    def passed(self) -> bool:
        """True if a GiB of logs is searched within the limit."""
        return self.wall_s * 1024 / self.mib <= LIMIT_S


def write_logs(folder: Path, mib: int, seed: int = 1) -> int:
    """Write random logs of `mib` MiB, for the doctor to search, in files of at most `FILE_MIB`; return the number of
    lines.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    recorded = itertools.cycle(signature.recorded for signature in text_signatures().values())
    lines = 0
    for start in range(0, mib, FILE_MIB):
        path = folder / "logs" / f"decode-{start}" / "vllm.log"
        path.parent.mkdir(parents=True)
        with path.open("w") as file:
            for _ in range(min(FILE_MIB, mib - start)):
                block = [next(recorded)]
                size = 0
                while size < BLOCK_BYTES:
                    line = chance.choice(_LINES).format(*(chance.randrange(60) for _ in range(3)))
                    block.append(line)
                    size += len(line) + 1
                chance.shuffle(block)
                lines += len(block)
                file.write("\n".join(block) + "\n")
    return lines


def measure(folder: Path, mib: int, lines: int, runs: int) -> SpeedResult:
    """Let the doctor diagnose the folder of logs `runs` times; return the fastest run."""
    results: list[SpeedResult] = []
    for _ in range(runs):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        diagnosis = diagnose(open_source(folder))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        results.append(SpeedResult(mib, lines, wall_s, cpu_s, len(diagnosis.findings)))
    return min(results, key=lambda result: result.wall_s)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark of the doctor; return 1 if a GiB of logs takes longer than the limit."""
    parser = argparse.ArgumentParser(prog="scripts/bench-doctor", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the logs (default 1024)")
    parser.add_argument("--runs", type=int, default=3, help="runs, of which the fastest counts (default 3)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="llmd-oke-") as folder:
        lines = write_logs(Path(folder), options.mib)
        result = measure(Path(folder), options.mib, lines, options.runs)
    if options.json:
        print(json.dumps({**asdict(result), **document("mb_per_s passed", result)}))
    else:
        print(
            f"{result.mib} MiB in {result.lines:,} lines: {result.wall_s:.2f} s, {result.mb_per_s:.0f} MB/s "
            f"({result.cpu_s:.2f} s of a processor), {result.fired} signatures fired"
        )
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
