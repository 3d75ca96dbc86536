"""`scripts/bench-load`: our load generator beside others, at rising rates against a server with exact latencies."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from llmd_oke.bench.proving.processes import run_watched
from llmd_oke.bench.proving.server import TTFT_S
from llmd_oke.bench.proving.tools import OURS, Load, Tool, installed
from llmd_oke.bench.records.percentiles import percentile
from llmd_oke.errors import KitError

RATES = (50.0, 100.0, 200.0, 300.0, 400.0, 500.0)

HELD_TO = 400.0
"""Requests/s up to which ours has to be clean."""

MOST_MEAN_ERROR_MS, MOST_DEVIATION_MS, MOST_MEMORY_MIB, LEAST_RATE_SHARE = 1.0, 5.0, 150.0, 0.99

START_LIMIT_S = 90.0
"""For a tool to start and to write its report, beside the load itself."""


@dataclass(frozen=True)
class Measured:
    """One run of a tool. Errors are what it says beyond the server's latency; deviation is what the server saw.

    `server_late_ms` is the mean of how late the server itself was with first tokens; it is part of the errors.
    """

    tool: str
    requests_per_s: float
    mean_error_ms: float
    p99_error_ms: float
    p99_deviation_ms: float
    achieved_requests_per_s: float
    memory_mib: float
    cpu_s_per_1000_requests: float
    server_late_ms: float

    @property
    def misses(self) -> list[str]:
        """Which limits it does not keep."""
        checks = {
            "mean TTFT error": abs(self.mean_error_ms) > MOST_MEAN_ERROR_MS,
            "schedule": self.p99_deviation_ms > MOST_DEVIATION_MS,
            "rate": self.achieved_requests_per_s < LEAST_RATE_SHARE * self.requests_per_s,
            "memory": self.memory_mib > MOST_MEMORY_MIB,
        }
        return [name for name, missed in checks.items() if missed]


@contextmanager
def _server() -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, "-m", "llmd_oke.bench.proving.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout  # noqa: S101 - a pipe was asked for
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}", server
        finally:
            server.kill()


def measure(tool: Tool, requests_per_s: float, duration_s: float) -> Measured:
    """Run a tool once.

    Raises:
        KitError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder, _server() as (url, server):
        load = Load(url, requests_per_s, duration_s, Path(folder))
        ran = run_watched(tool.command(load), duration_s + START_LIMIT_S)
        ttft = tool.read(load.folder, ran.output)
        seen: dict[str, Any] = json.loads(server.communicate()[0])
    arrivals_s = sorted(seen["arrivals_s"])
    late_s = seen["first_token_late_s"]
    return Measured(
        tool=tool.name,
        requests_per_s=requests_per_s,
        mean_error_ms=ttft.mean_ms - 1000 * TTFT_S,
        p99_error_ms=ttft.p99_ms - 1000 * TTFT_S,
        p99_deviation_ms=_deviation_ms(arrivals_s, requests_per_s),
        achieved_requests_per_s=(len(arrivals_s) - 1) / (arrivals_s[-1] - arrivals_s[0]),
        memory_mib=ran.memory_mib,
        cpu_s_per_1000_requests=1000 * ran.cpu_s / len(arrivals_s),
        server_late_ms=1000 * sum(late_s) / len(late_s),
    )


def _deviation_ms(arrivals_s: Sequence[float], requests_per_s: float) -> float:
    """How far arrivals are from even intervals, in the 99th percentile; the start that fits best is taken."""
    offsets_s = [arrival_s - number / requests_per_s for number, arrival_s in enumerate(arrivals_s)]
    start_s = percentile(sorted(offsets_s), 50)
    return 1000 * percentile(sorted(abs(offset_s - start_s) for offset_s in offsets_s), 99)


def best_of(tool: Tool, requests_per_s: float, duration_s: float, runs: int) -> Measured:
    """The run that was disturbed least: the one with the smallest mean error."""
    found = [measure(tool, requests_per_s, duration_s) for _ in range(runs)]
    return min(found, key=lambda each: abs(each.mean_error_ms))


_COLUMNS = (
    "tool",
    "req/s",
    "error",
    "p99",
    "slip p99",
    "sent/s",
    "MiB",
    "CPU",
    "late",
    "",
)


def _table(found: Sequence[Measured], runs: int) -> Table:
    """The last column holds all against the limits of ours."""
    title = (
        f"128 tokens in, 50 out, TTFT 100 ms, ITL 10 ms; best of {runs}. In ms: error of TTFT (mean, p99), slip of\n"
        "the schedule, how late the server was (part of the error); CPU seconds of the generator for 1000 requests"
    )
    table = Table(title=title, box=None, title_justify="left", padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column not in {"tool", ""} else "left", no_wrap=True)
    for each in found:
        table.add_row(
            each.tool,
            f"{each.requests_per_s:g}",
            f"{each.mean_error_ms:.2f}",
            f"{each.p99_error_ms:.2f}",
            f"{each.p99_deviation_ms:.2f}",
            f"{each.achieved_requests_per_s:.1f}",
            f"{each.memory_mib:.0f}",
            f"{each.cpu_s_per_1000_requests:.2f}",
            f"{each.server_late_ms:.2f}",
            "clean" if not each.misses else f"misses {', '.join(each.misses)}",
        )
    return table


def main(
    rates: Annotated[str, typer.Option(help="Requests/s, separated by commas.")] = ",".join(f"{r:g}" for r in RATES),
    duration: Annotated[float, typer.Option(help="Seconds of load in each run.", min=1)] = 10.0,
    runs: Annotated[int, typer.Option(help="Runs of which the least disturbed one counts.", min=1)] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Tool to run; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure all tools that are installed; exit code 1 where ours is not clean up to 400 requests/s.

    Other tools are found on PATH, or named by the variables AIPERF and GUIDELLM. Let nothing else run meanwhile: server
    and generator share the machine's processors.
    """
    found: list[Measured] = []
    errors = Console(stderr=True, highlight=False)
    for rate in map(float, rates.split(",")):
        for tool in installed():
            if only and tool.name not in only:
                continue
            errors.print(f"{tool.name} at {rate:g} requests/s")
            try:
                found.append(best_of(tool, rate, duration, runs))
            except KitError as error:
                errors.print(f"  failed: {error}", markup=False)
    if as_json:
        print(json.dumps([{**asdict(each), "misses": each.misses} for each in found], indent=2))
    else:
        Console(highlight=False).print(_table(found, runs))
    if any(each.misses for each in found if each.tool == OURS.name and each.requests_per_s <= HELD_TO):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
