"""`scripts/bench-load`: comparison of load generators at rising rates against a server with exact latencies."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from exact_server import TTFT_S
from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_bench.load.records import percentile
from llmd_bench.load.workload import WORDS
from llmd_rehearsal.namespaces import processor_seconds_of
from rich.console import Console
from rich.table import Table

LOOK_INTERVAL_S = 0.25

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class ProcessUsage:
    """Output and resource usage of a program that has ended; `memory_mib` is the peak of the summed resident memory of
    all its processes.
    """

    output: str
    wall_s: float
    cpu_s: float
    memory_mib: float


def run_watched(command: Sequence[str], limit_s: float) -> ProcessUsage:
    """Run a program to its end, and return its output and resource usage.

    Raises:
        KitError: the program failed or didn't end within `limit_s` seconds; the message has its last lines of output.
    """
    started_s = time.monotonic()
    cpu_s: dict[int, float] = {}
    memory_mib = 0.0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=output, stderr=errors, stdin=subprocess.DEVNULL) as process:
            while process.poll() is None:
                memory_mib = max(memory_mib, _look(process.pid, cpu_s))
                if time.monotonic() - started_s > limit_s:
                    process.kill()
                time.sleep(LOOK_INTERVAL_S)
        text, complaint = _text(output), _text(errors)
    if process.returncode:
        last = "\n".join((text + complaint).splitlines()[-5:])
        raise KitError(f"{Path(command[0]).name} ended with code {process.returncode}: {last}")
    return ProcessUsage(text, time.monotonic() - started_s, sum(cpu_s.values()), memory_mib)


def _text(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def _look(root: int, cpu_s: dict[int, float]) -> float:
    """Record each process's CPU time in `cpu_s`, and return the sum of their resident memory in MiB."""
    memory_mib = 0.0
    for pid in _family(root):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        cpu_s[pid] = processor_seconds_of(pid) or cpu_s.get(pid, 0.0)
        memory_mib += pages * _PAGE_MIB
    return memory_mib


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


@dataclass(frozen=True)
class ConstantLoad:
    """Load at a constant rate that a load generator sends to the server with exact latencies (`dev/exact_server.py`) at
    `url`; the load generator may write into `folder`.
    """

    url: str
    requests_per_s: float
    duration_s: float
    folder: Path

    @property
    def requests(self) -> int:
        """Number of requests of the load."""
        return round(self.requests_per_s * self.duration_s)


@dataclass(frozen=True)
class Ttft:
    """Time to first token of a load as a load generator reports it."""

    mean_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Tool:
    """Load generator that is compared: the function that returns its command, and the function that reads its result
    from its directory and standard output.
    """

    name: str
    command: Callable[[ConstantLoad], Sequence[str]]
    read: Callable[[Path, str], Ttft]


def _read_ours(_: Path, output: str) -> Ttft:
    document: Mapping[str, float] = json.loads(output)
    return Ttft(document["mean_ms"], document["p99_ms"])


def _aiperf_command(program: str) -> Callable[[ConstantLoad], Sequence[str]]:
    def command(load: ConstantLoad) -> Sequence[str]:
        return [
            *(program, "profile", "--model", "model", "--url", load.url, "--endpoint-type", "completions"),
            *("--streaming", "--request-rate", str(load.requests_per_s), "--request-rate-mode", "constant"),
            *("--request-count", str(load.requests), "--isl", "128", "--isl-stddev", "0", "--osl", "50"),
            *("--tokenizer", str(_tokenizer(load.folder)), "--use-server-token-count", "--no-gpu-telemetry"),
            *("--no-server-metrics", "--ui", "none", "--artifact-dir", str(load.folder)),
        ]

    return command


def _read_aiperf(folder: Path, _: str) -> Ttft:
    document: Mapping[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    ttft = document["time_to_first_token"]
    return Ttft(ttft["avg"], ttft["p99"])


def _guidellm_command(program: str) -> Callable[[ConstantLoad], Sequence[str]]:
    def command(load: ConstantLoad) -> Sequence[str]:
        return [
            *(program, "run", "--backend", f"kind=openai_http,target={load.url},model=model"),
            *("--profile", f"kind=constant,rate={load.requests_per_s:g}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
            *("--data", "kind=synthetic_text,prompt_tokens=128,output_tokens=50"),
            *("--tokenizer", f"kind=huggingface_auto,model={_tokenizer(load.folder)}"),
            *("--output", f"kind=json,path={load.folder / 'guidellm.json'}", "--disable-console"),
        ]

    return command


def _read_guidellm(folder: Path, _: str) -> Ttft:
    document: Mapping[str, Any] = json.loads((folder / "guidellm.json").read_text())
    ttft = document["dev"][0]["metrics"]["time_to_first_token_ms"]["successful"]
    return Ttft(ttft["mean"], ttft["percentiles"]["p99"])


def _tokenizer(folder: Path) -> Path:
    """Write a tokenizer of whole words, so that none must be downloaded, and return its directory."""
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[EOS]", *WORDS])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    rest: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": list[str](),
        **rest,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": model,
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    files: dict[str, Any] = {"tokenizer": whole, "tokenizer_config": settings, "config": {"model_type": "gpt2"}}
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


OURS = Tool(
    "llmd-oke",
    lambda load: [sys.executable, str(HERE / "own_load.py"), load.url, str(load.requests_per_s), str(load.duration_s)],
    _read_ours,
)


def installed() -> list[Tool]:
    """Return the load generators to compare: this kit's own, and the others that are installed."""
    aiperf = os.environ.get("AIPERF") or shutil.which("aiperf")
    guidellm = os.environ.get("GUIDELLM") or shutil.which("guidellm")
    others = [
        Tool("aiperf", _aiperf_command(aiperf), _read_aiperf) if aiperf else None,
        Tool("guidellm", _guidellm_command(guidellm), _read_guidellm) if guidellm else None,
    ]
    return [OURS, *(tool for tool in others if tool)]


HERE = Path(__file__).parent

RATES = (50.0, 100.0, 200.0, 300.0, 400.0, 500.0)

HELD_TO = 400.0
"""Highest rate in requests/s at which this kit's load generator must meet its limits of accuracy."""

MAX_MEAN_ERROR_MS, MAX_DEVIATION_MS, MAX_MEMORY_MIB, MIN_RATE_SHARE = 1.0, 5.0, 150.0, 0.99

START_LIMIT_S = 90.0
"""Seconds that a load generator may take to start and to report, in addition to the load's duration."""


@dataclass(frozen=True)
class Measurement:
    """Measurement of a load generator.

    Attributes:
        tool: name of the load generator.
        requests_per_s: rate.
        mean_error_ms: mean TTFT that the tool reports minus the server's exact TTFT.
        p99_error_ms: the same difference for the 99th percentile of TTFT.
        p99_deviation_ms: 99th percentile of the deviation from even intervals at the server.
        achieved_requests_per_s: rate that arrived at the server.
        memory_mib: peak resident memory.
        cpu_s_per_1000_requests: CPU seconds per 1000 requests.
        server_late_ms: mean delay of the server's own first tokens, which is part of the errors.
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
        """Names of the limits of accuracy that the load generator doesn't meet."""
        checks = {
            "mean TTFT error": abs(self.mean_error_ms) > MAX_MEAN_ERROR_MS,
            "schedule": self.p99_deviation_ms > MAX_DEVIATION_MS,
            "rate": self.achieved_requests_per_s < MIN_RATE_SHARE * self.requests_per_s,
            "memory": self.memory_mib > MAX_MEMORY_MIB,
        }
        return [name for name, missed in checks.items() if missed]


@contextmanager
def _server() -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, str(HERE / "exact_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout  # noqa: S101 - a pipe was asked for
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}", server
        finally:
            server.kill()


def measure(tool: Tool, requests_per_s: float, duration_s: float) -> Measurement:
    """Run a load generator once against the server with exact latencies (`dev/exact_server.py`), and return the
    measurement.

    Raises:
        KitError: the load generator failed.
    """
    with tempfile.TemporaryDirectory() as folder, _server() as (url, server):
        load = ConstantLoad(url, requests_per_s, duration_s, Path(folder))
        usage = run_watched(tool.command(load), duration_s + START_LIMIT_S)
        ttft = tool.read(load.folder, usage.output)
        log: dict[str, Any] = json.loads(server.communicate()[0])
    arrivals_s = sorted(log["arrivals_s"])
    late_s = log["first_token_late_s"]
    return Measurement(
        tool=tool.name,
        requests_per_s=requests_per_s,
        mean_error_ms=ttft.mean_ms - 1000 * TTFT_S,
        p99_error_ms=ttft.p99_ms - 1000 * TTFT_S,
        p99_deviation_ms=_deviation_ms(arrivals_s, requests_per_s),
        achieved_requests_per_s=(len(arrivals_s) - 1) / (arrivals_s[-1] - arrivals_s[0]),
        memory_mib=usage.memory_mib,
        cpu_s_per_1000_requests=1000 * usage.cpu_s / len(arrivals_s),
        server_late_ms=1000 * sum(late_s) / len(late_s),
    )


def _deviation_ms(arrivals_s: Sequence[float], requests_per_s: float) -> float:
    """Return the 99th percentile of the arrivals' absolute deviation from even intervals, aligned to the median
    deviation.
    """
    offsets_s = [arrival_s - number / requests_per_s for number, arrival_s in enumerate(arrivals_s)]
    start_s = percentile(sorted(offsets_s), 50)
    return 1000 * percentile(sorted(abs(offset_s - start_s) for offset_s in offsets_s), 99)


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


def _table(measurements: Sequence[Measurement], runs: int) -> Table:
    """Return the table of the measurements; the last column lists the limits of this kit's load generator that each
    misses.
    """
    title = (
        f"128 tokens in, 50 out, TTFT 100 ms, ITL 10 ms; best of {runs}. In ms: error of TTFT (mean, p99), slip of\n"
        "the schedule, how late the server was (part of the error); CPU seconds of the generator for 1000 requests"
    )
    table = Table(title=title, box=None, title_justify="left", padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column not in {"tool", ""} else "left", no_wrap=True)
    for measurement in measurements:
        table.add_row(
            measurement.tool,
            f"{measurement.requests_per_s:g}",
            f"{measurement.mean_error_ms:.2f}",
            f"{measurement.p99_error_ms:.2f}",
            f"{measurement.p99_deviation_ms:.2f}",
            f"{measurement.achieved_requests_per_s:.1f}",
            f"{measurement.memory_mib:.0f}",
            f"{measurement.cpu_s_per_1000_requests:.2f}",
            f"{measurement.server_late_ms:.2f}",
            "clean" if not measurement.misses else f"misses {', '.join(measurement.misses)}",
        )
    return table


def main(
    rates: Annotated[str, typer.Option(help="Requests/s, separated by commas.")] = ",".join(f"{r:g}" for r in RATES),
    duration: Annotated[float, typer.Option(help="Seconds of load in each run.", min=1)] = 10.0,
    runs: Annotated[int, typer.Option(help="Runs of which the least disturbed one counts.", min=1)] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Tool to run; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure all installed load generators; exit with 1 if this kit's misses a limit at 400 requests/s or less.

    Other load generators are found on PATH or through the variables AIPERF and GUIDELLM. Run nothing else meanwhile:
    server and load generator share the machine's CPUs.
    """
    measurements: list[Measurement] = []
    errors = Console(stderr=True, highlight=False)
    for rate in map(float, rates.split(",")):
        for tool in installed():
            if only and tool.name not in only:
                continue
            errors.print(f"{tool.name} at {rate:g} requests/s")
            try:
                every = [measure(tool, rate, duration) for _ in range(runs)]
            except KitError as error:
                errors.print(f"  failed: {error}", markup=False)
                continue
            measurements.append(min(every, key=lambda measurement: abs(measurement.mean_error_ms)))
    if as_json:
        print(
            json.dumps(
                [{**asdict(measurement), **document("misses", measurement)} for measurement in measurements], indent=2
            )
        )
    else:
        Console(highlight=False).print(_table(measurements, runs))
    if any(
        measurement.misses
        for measurement in measurements
        if measurement.tool == OURS.name and measurement.requests_per_s <= HELD_TO
    ):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
