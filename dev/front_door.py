"""Benchmark of the latency that a stack's front door adds to the time to first token, by alternating loads with and
without it.

The stack is rehearsed: Envoy is real, servers are simulated, without routers, whose times would vary more than the
measured difference. The two loads of a pair have equal prompts and arrivals; the result is the mean of the pairs'
differences with its 95 % confidence interval.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench_projects import project_copy
from llmd_base.errors import KitError
from llmd_bench.comparison import t_quantile
from llmd_bench.load.records import read_lines

STACK, MODEL = "front-door", "openai/gpt-oss-120b"
THROUGH = "https://front-door.llm-d.svc.cluster.local"
STRAIGHT = "http://gpt-oss-120b.llm-d.svc.cluster.local"
LIMIT_S = 900
MAX_MS = 2.0
"""Highest latency in milliseconds that the front door may add to the time to first token at 50 requests/s; chosen by
us.
"""


class FrontDoorBenchmark:
    """Rehearsed stack of one model with a front door, under load."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        project = project_copy(source, folder, STACK)
        self.command = partial(project.command, limit_s=LIMIT_S)
        workload = {"inputTokens": 32, "outputTokens": 2}
        model = {"model": "gpt-oss-120b", "topology": "agg-tp1-4r", "router": {"mode": "none"}, "workload": workload}
        stack = {
            "cluster": {"mode": "existing", "identifier": STACK},
            "gpuPools": [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 1}],
            "release": "llm-d-0.9.0",
            "models": [model],
            "frontDoor": {
                "host": "llm.example.com",
                "tls": {"kind": "config"},
                "authentication": {"kind": "api-keys"},
            },
        }
        project.write_stack(stack)

    def ttft_ms(self, address: str, rate: float, requests: int, seed: int) -> float:
        """Send a load at `rate` requests/s to `address` (of the front door, or of the model's Service behind it) and
        return its mean time to first token in milliseconds.
        """
        access = self.folder / ".rehearsal" / STACK / "front-door"
        key: str = json.loads((access / "secrets.json").read_text())["frontDoorKeys"]["rehearsal"]
        output = self.folder / f"{seed}-{address.partition(':')[0]}.jsonl"
        load = ("--shape", f"poisson:{rate:g}", "--requests", str(requests), "--seed", str(seed))
        where = ("--url", address, "--certificates", str(access / "chain.pem"), "--model", MODEL)
        lengths = ("--input-tokens", "32", "--output-tokens", "2", "--output", str(output))
        bench = (sys.executable, "-m", "llmd_oke", "bench", *where, *load, *lengths)
        self.command("rehearse", "run", "--stack", STACK, "--", "env", f"LLMD_OKE_BENCH_TOKEN={key}", *bench)
        records = [record for _, record in read_lines(output.read_text().splitlines())]
        if failed := [record for record in records if not record.succeeded]:
            raise KitError(f"{len(failed)} of {len(records)} requests to {address} failed: {failed[0].error}")
        return statistics.fmean(record.event_times_s[0] for record in records) * 1e3


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of differences in latency, and half the width of its 95 % confidence interval."""
    half = t_quantile(0.975, len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    return statistics.fmean(differences), half


def main() -> None:
    """Send pairs of loads with and without the front door, print each pair's latencies and the mean difference; exit
    with 1 if that may exceed `MAX_MS`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Ten pairs take about ten minutes, on a machine that does nothing else."
    )
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=50.0, help="requests/s (50)")
    parser.add_argument("--requests", type=int, default=1000, help="of each load (1000)")
    parser.add_argument("--pairs", type=int, default=10, help="how many, two at least (10)")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs: an interval takes two at least")
    loads_s = 2 * options.pairs * options.requests / options.rate
    print(
        f"rehearsing {STACK}; then {options.pairs} pairs, {loads_s / 60:.0f} min of load", file=sys.stderr, flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        benchmark = FrontDoorBenchmark(options.project, Path(folder) / "project")
        try:
            benchmark.command("rehearse", "--stack", STACK, "--no-benchmark", "--time-scale", "1")
            differences: list[float] = []
            for pair in range(options.pairs):
                order = (STRAIGHT, THROUGH) if pair % 2 else (THROUGH, STRAIGHT)
                ttft_ms = {
                    address: benchmark.ttft_ms(address, options.rate, options.requests, pair) for address in order
                }
                differences.append(ttft_ms[THROUGH] - ttft_ms[STRAIGHT])
                which = f"pair {pair + 1} of {options.pairs}"
                print(f"{which}: straight {ttft_ms[STRAIGHT]:.2f} ms, through {ttft_ms[THROUGH]:.2f} ms", flush=True)
        except KitError as error:
            sys.exit(f"error {error}")
        finally:
            benchmark.command("rehearse", "down", "--stack", STACK)
    mean_ms, half_ms = interval(differences)
    print(f"adds {mean_ms:.2f} ± {half_ms:.2f} ms to mean TTFT (95%, measured; servers simulated)")
    sys.exit(mean_ms + half_ms > MAX_MS)


if __name__ == "__main__":
    main()
