"""`llmd-oke bench`: load on a deployed model or a URL, from this machine, from pods, or by another tool."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llmd_oke.bench.deployment.streams import Api
from llmd_oke.cli import options, times
from llmd_oke.cli.gathering import gathered
from llmd_oke.errors import KitError

if TYPE_CHECKING:
    from llmd_oke.cli.bench_wanted import Timing, Wanted

REQUEST_TIMEOUT_S = 300.0

Shapes = Annotated[
    list[str],
    typer.Option(
        "--shape",
        "--load",
        "-l",
        help="closed:USERS, constant:RATE, poisson:RATE (requests/s; several values make a sweep) or trace:FILE "
        "(JSON Lines, CSV). May be given several times.",
    ),
]
Stack = Annotated[str | None, typer.Option("--stack", "-s", help="Stack whose model is loaded.")]
Url = Annotated[str | None, typer.Option(help="Address to load instead: what stands before /v1/.")]
Model = Annotated[str | None, typer.Option(help="Model; needed where there are several.")]
Requests = Annotated[int | None, typer.Option(min=1, help="Requests of each stage.")]
Duration = Annotated[float | None, times.option(about="Time of each stage, in model time: 90s, 10m")]
InputTokens = Annotated[
    str | None,
    typer.Option(help="TOKENS, normal:MEAN,SD or lognormal:MEAN,SD; else the workload's (for a URL 1024)."),
]
OutputTokens = Annotated[str | None, typer.Option(help="The same for answers (for a URL 128).")]
Prefix = Annotated[str | None, typer.Option(help="Prefixes that prompts share, TOKENSxGROUPS: 2048x10.")]
Dialogues = Annotated[
    str | None,
    typer.Option("--conversations", help="Conversations, AT_A_TIMExTURNS: 64x5."),
]
Trim = Annotated[str, typer.Option(help="What not to count: none, busy, or a share of the time at both ends.")]
Rest = Annotated[float, times.option(about="Time between two stages", least_s=0, default_s=0)]
Limit = Annotated[float | None, times.option(about="Time after which the whole run ends")]
RequestTimeout = Annotated[float, times.option(about="Time for one request", default_s=REQUEST_TIMEOUT_S)]
Seed = Annotated[int, typer.Option(help="Of lengths and arrivals.")]
InCluster = Annotated[bool, typer.Option("--in-cluster", help="Send the load from pods of a Job that goes afterwards.")]
Parallelism = Annotated[int, typer.Option(min=1, max=64, help="Pods that send the load together.")]
Processes = Annotated[int, typer.Option(min=1, max=64, help="Processes of each generator.")]
Tool = Annotated[
    Literal["own", "inference-perf"], typer.Option(help="What sends the load; inference-perf does in the cluster.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the manifests of the Job, and create nothing.")]
Gpu = Annotated[str | None, typer.Option(help="GPU behind --url, for rows.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs behind --url, for rows.")]
Certificates = Annotated[Path | None, typer.Option(exists=True, help="Authority that signed for --url (PEM).")]
Output = Annotated[Path | None, typer.Option(help="File for all requests (JSON Lines), written as they end.")]
Rows = Annotated[Path | None, typer.Option(help="File for a row per stage (JSON Lines, CSV).")]


@dataclass(frozen=True)
class Subject:
    """The options that say what is loaded."""

    stack: Stack = None
    url: Url = None
    model: Model = None
    api: Annotated[Api, typer.Option(help="API to load.")] = "completions"
    gpu: Gpu = None
    gpus: Gpus = None
    certificates: Certificates = None


@dataclass(frozen=True)
class Load:
    """The options that say which load is sent."""

    load: Shapes
    requests: Requests = None
    duration: Duration = None
    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None
    prefix: Prefix = None
    conversations: Dialogues = None
    trim: Trim = "none"
    rest: Rest = 0.0
    limit: Limit = None
    seed: Seed = 0

    def wanted(self) -> "Wanted":
        """The same, ready to be read."""
        from llmd_oke.cli.bench_wanted import Wanted  # noqa: PLC0415 - not needed by other commands

        return Wanted(
            tuple(self.load),
            self.requests,
            self.duration,
            self.input_tokens,
            self.output_tokens,
            self.prefix,
            self.conversations,
            self.trim,
            self.rest,
            self.limit,
            self.seed,
        )


@dataclass(frozen=True)
class Clock:
    """The options that say in which time."""

    request_timeout: RequestTimeout = REQUEST_TIMEOUT_S
    time_scale: options.TimeScale = 1.0
    simulated: options.Simulated = None

    def timing(self) -> "Timing":
        """The same, ready to be read."""
        from llmd_oke.cli.bench_wanted import Timing  # noqa: PLC0415 - not needed by other commands

        return Timing(self.time_scale, tuple(self.simulated or ()), self.request_timeout)


@dataclass(frozen=True)
class Sender:
    """The options that say who sends it."""

    processes: Processes = 1
    in_cluster: InCluster = False
    parallelism: Parallelism = 1
    tool: Tool = "own"
    dry_run: DryRun = False

    @property
    def pods(self) -> bool:
        """Whether pods do."""
        return self.in_cluster or self.tool != "own"


@dataclass(frozen=True)
class Results:
    """The options that say where results go."""

    output: Output = None
    rows: Rows = None
    reports: options.Reports = None
    project: options.Project = options.HERE
    as_json: options.Json = False


@gathered
def bench(subject: Subject, load: Load, clock: Clock, sender: Sender, results: Results) -> None:
    """Load a model and tell its latencies and rates, what went wrong, and how well the generator itself did.

    A stage of which not all could be sent is tried again once; if that falls short too, it has no row, and the exit
    code is 1, as it is where no request succeeded. Ctrl-C ends the run and keeps what was measured until then: rows of
    whole stages, and all requests. A token for --url is taken from LLMD_OKE_BENCH_TOKEN.
    """
    if sender.pods:
        _from_pods(subject, load, clock, sender, results)
    else:
        _from_here(subject, load, clock, sender, results)


def _from_pods(subject: Subject, load: Load, clock: Clock, sender: Sender, results: Results) -> None:
    from llmd_oke.cli import bench_jobs  # noqa: PLC0415 - not needed by other commands

    given = {"--output": results.output, "--rows": results.rows, "--json": results.as_json}
    _refuse({"--url": subject.url, **given, "--api": subject.api != "completions"})
    stack = _given(subject)
    pods = bench_jobs.Pods(sender.parallelism, sender.processes, sender.tool, sender.dry_run)
    bench_jobs.run(results.project, stack, subject.model, load.wanted(), clock.timing(), pods, results.reports)


def _from_here(subject: Subject, load: Load, clock: Clock, sender: Sender, results: Results) -> None:
    from llmd_oke.cli import bench_here, bench_target  # noqa: PLC0415 - not needed by other commands

    if sender.parallelism > 1:
        raise KitError("--parallelism is for pods.", "Give --in-cluster, or --processes for this machine.")
    if sender.dry_run:
        raise KitError("--dry-run prints a Job, and this load is sent from here.", "Give --in-cluster too, or --tool.")
    if subject.url and not subject.stack:
        found = bench_target.of_url(
            subject.url, subject.model, subject.api, subject.certificates, subject.gpu, subject.gpus
        )
    else:
        stack = _given(subject)
        found = bench_target.of_stack(results.project, stack, subject.model, subject.api, results.reports)
    kept = bench_here.Files(results.output or found.requests_file, results.rows or found.rows_file)
    bench_here.run(found, load.wanted(), clock.timing(), sender.processes, kept, as_json=results.as_json)


def _given(subject: Subject) -> str:
    if subject.stack is None:
        raise KitError("Nothing says what to load.", "Give --stack or --url.")
    if subject.url:
        raise KitError("--stack and --url both say what to load.", f"Leave out --stack {subject.stack} or --url.")
    return subject.stack


def _refuse(given: Mapping[str, object]) -> None:
    found = [name for name, value in given.items() if value]
    if found:
        raise KitError(
            f"{', '.join(found)}: not for a load that pods send.", "Leave it out, or --in-cluster and --tool."
        )
