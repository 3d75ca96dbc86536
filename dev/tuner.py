"""Benchmark of the tuner's speed, with the limit of each figure (`scripts/bench-tune`)."""

import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

RUNS = 5
"""Number of runs of each measurement, of which the fastest counts, since other work on the machine only adds time."""

PEER = "aiconfigurator"
PEER_ARGUMENTS = (
    *("cli", "default", "--model-path", "Qwen/Qwen3-32B", "--total-gpus", "16", "--system", "h200_sxm"),
    *("--isl", "4096", "--osl", "256", "--ttft", "2000", "--tpot", "25"),
)
"""Arguments of a comparable search by aiconfigurator: 16 GPUs, aggregated and disaggregated, the same lengths and
targets, but NVIDIA GPUs, since it supports none of AMD.
"""

PEER_LIMIT_S = 300


@dataclass(frozen=True)
class TunerFigure:
    """Measured figure of the tuner's speed; `limit` is None for a figure without limit, and an upper limit unless
    `least` says that it is a lower one.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    least: bool = False

    @property
    def met(self) -> bool:
        """True if the figure meets its limit or has none."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        """Return one line of the table."""
        limit = "" if self.limit is None else f"   limit {self.limit:,.6g}   {'held' if self.met else 'MISSED'}"
        return f"{self.name:52} {self.value:12,.2f} {self.unit:10}{limit}"


def main() -> int:
    """Measure the tuner's speed and print the figures; return 1 if one misses its limit, else 0."""
    figures = measured()
    if "--json" in sys.argv[1:]:
        print(json.dumps([{**asdict(figure), "met": figure.met} for figure in figures], indent=2))
    else:
        print("\n".join(map(str, figures)))
    return 0 if all(figure.met for figure in figures) else 1


def measured() -> list[TunerFigure]:
    """Measure all figures of the tuner's speed, in CPU time, which other work on the machine doesn't affect."""
    matplotlib_s = _cpu_s(lambda: importlib.import_module("matplotlib.backends.backend_svg"))
    from llmd_oke.catalogue.latency_figures import known_figures  # noqa: PLC0415
    from llmd_tuner import charts, ranking, search_inputs  # noqa: PLC0415 - after the clock has started
    from llmd_tuner.confidence import confine  # noqa: PLC0415
    from llmd_tuner.search import LOADS, frontier_of, search  # noqa: PLC0415
    from llmd_tuner.search_inputs import parse_targets  # noqa: PLC0415
    from llmd_tuner.workload import of_lengths  # noqa: PLC0415

    model, shape = search_inputs.known_model("gpt-oss-120b"), search_inputs.known_shape("BM.GPU.MI300X.8")
    figures = known_figures(model, shape.gpu)
    targets = parse_targets("ttft=2000,itl=25,qps=45")
    question = search_inputs.question_of(model, shape, figures, of_lengths(4096, 256), targets, 16)
    known, trust = confine(question, figures, allow_extrapolation=True)

    def full() -> None:
        charts.html(charts.picture(model.name, known, trust, ranking.rank(known)))

    scored = [deployment for deployment in search(question).deployments() if deployment.copies == 1]
    points = len(LOADS) * len(scored)  # what a frontier scores: tensor and data parallel sizes, experts, nodes, counts
    first = list(search(question).deployments(10))
    scored_s = _best(lambda: frontier_of(question))
    full_s = _best(full)
    simulated_s = _cpu_s(lambda: list(ranking.simulate_finalists(question, model, shape, first)))
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        TunerFigure("configurations scored", points / scored_s, "per s", 100_000, least=True),
        TunerFigure("full search, sensitivity and plots, 16 GPUs", full_s, "s", 1.0),
        TunerFigure("  of which search alone", _best(lambda: search(question)), "s"),
        TunerFigure("  beside it, once: import of matplotlib", matplotlib_s, "s"),
        TunerFigure("event simulation of the ten best, 120 s each", simulated_s, "s", 10.0),
        TunerFigure("memory at most", memory_mib, "MiB", 300),
        *_peer(full_s),
    ]


def _peer(own_s: float) -> list[TunerFigure]:
    """Return the wall time of aiconfigurator's search, including its start; empty if it isn't installed (PATH, or the
    variable AICONFIGURATOR).
    """
    program = os.environ.get(PEER.upper()) or shutil.which(PEER)
    if program is None:
        return []
    start = time.monotonic()
    try:
        ended: Any = subprocess.run(
            [program, *PEER_ARGUMENTS], capture_output=True, check=False, timeout=PEER_LIMIT_S, text=True
        )
    except subprocess.TimeoutExpired:
        print(f"{PEER} did not end within {PEER_LIMIT_S} s", file=sys.stderr)
        return []
    seconds = time.monotonic() - start
    if ended.returncode:
        print(f"{PEER} failed: {ended.stderr.strip()[-500:]}", file=sys.stderr)
        return []
    return [
        TunerFigure(f"{PEER}, a comparable search", seconds, "s"),
        TunerFigure("  times ours", seconds / own_s, "x"),
    ]


def _best(work: Callable[[], object]) -> float:
    return min(_cpu_s(work) for _ in range(RUNS))


def _cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
