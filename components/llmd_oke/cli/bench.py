"""`llmd-oke bench`: load on a deployed model or a URL, from this machine, from pods, or by another tool."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from llmd_oke.bench.deployment.streams import Api
from llmd_oke.cli import options
from llmd_oke.errors import KitError

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
Duration = Annotated[float | None, typer.Option(min=0.001, help="Seconds of each stage, in model time.")]
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
Rest = Annotated[float, typer.Option(min=0, help="Seconds between two stages.")]
Limit = Annotated[float | None, typer.Option(min=0.001, help="Seconds after which the whole run ends.")]
RequestTimeout = Annotated[float, typer.Option(min=0.001, help="Seconds for one request.")]
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


def bench(
    load: Shapes,
    stack: Stack = None,
    url: Url = None,
    model: Model = None,
    requests: Requests = None,
    duration: Duration = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    prefix: Prefix = None,
    conversations: Dialogues = None,
    api: Annotated[Api, typer.Option(help="API to load.")] = "completions",
    trim: Trim = "none",
    rest: Rest = 0.0,
    limit: Limit = None,
    request_timeout: RequestTimeout = 300.0,
    seed: Seed = 0,
    processes: Processes = 1,
    in_cluster: InCluster = False,
    parallelism: Parallelism = 1,
    tool: Tool = "own",
    dry_run: DryRun = False,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    certificates: Certificates = None,
    output: Output = None,
    rows: Rows = None,
    reports: options.Reports = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Load a model and tell its latencies and rates, what went wrong, and how well the generator itself did.

    Ctrl-C ends the run and keeps what was measured. Exit code 1 where no request succeeded. A token for --url is taken
    from LLMD_OKE_BENCH_TOKEN.
    """
    from llmd_oke.cli import bench_here, bench_jobs, bench_target  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.cli.bench_wanted import Timing, Wanted  # noqa: PLC0415

    wanted = Wanted(
        tuple(load), requests, duration, input_tokens, output_tokens, prefix, conversations, trim, rest, limit, seed
    )
    timing = Timing(time_scale, tuple(simulated or ()), request_timeout)
    if in_cluster or dry_run or tool != "own":
        _refuse({"--url": url, "--output": output, "--rows": rows, "--json": as_json, "--api": api != "completions"})
        pods = bench_jobs.Pods(parallelism, processes, tool, dry_run)
        bench_jobs.run(project, _given(stack), model, wanted, timing, pods, reports)
        return
    if parallelism > 1:
        raise KitError("--parallelism is for pods.", "Give --in-cluster, or --processes for this machine.")
    if url and not stack:
        subject = bench_target.of_url(url, model, api, certificates, gpu, gpus)
    else:
        subject = bench_target.of_stack(project, _given(None if url else stack), model, api, reports)
    kept = bench_here.Files(output or subject.requests_file, rows or subject.rows_file)
    bench_here.run(subject, wanted, timing, processes, kept, as_json=as_json)


def _given(stack: str | None) -> str:
    if stack is None:
        raise KitError("Nothing says what to load, or two things do.", "Give --stack or --url.")
    return stack


def _refuse(given: Mapping[str, object]) -> None:
    found = [name for name, value in given.items() if value]
    if found:
        raise KitError(
            f"{', '.join(found)}: not for a load that pods send.", "Leave it out, or --in-cluster and --tool."
        )
