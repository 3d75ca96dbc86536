"""`llmd-oke bench`: load on a deployed model or a URL, from this machine, from pods, or by another tool.

Modules that load Pulumi are imported only where pods or a stack are loaded, since a load on a URL doesn't need them.
"""

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO
from urllib.parse import urlsplit

import httpx2
import typer
import yaml
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from llmd_base.records import document, record
from llmd_base.row import Basis, Quantiles, Row
from llmd_bench.deployment import ServerPods, stability
from llmd_bench.files import REQUESTS_FILE, make_folder, write_rows
from llmd_bench.history import ROWS_FILE
from llmd_bench.load.completions import Api, CompletionsTarget, address_of
from llmd_bench.load.notation import read_conversations, read_length, read_prefix, read_shapes, read_trim
from llmd_bench.load.records import RequestRecord, as_line, write_file
from llmd_bench.load.stages import LoadStage, StageConditions, StageResult, check, mark_restarts, run_stages, unmeasured
from llmd_bench.load.workload import RequestWorkload
from llmd_bench.loads import pace
from llmd_bench.rows import stage_row
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from llmd_oke import planning
from llmd_oke.cli import bench_view, console, options
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.results import show_rejected
from llmd_oke.cli.smoke import run_context
from llmd_oke.cli.tables import FittingTable
from llmd_oke.planning import ModelPlan, Plan

if TYPE_CHECKING:
    from llmd_oke.operations.cluster_access import ClusterAccess
    from llmd_oke.operations.load import LoadOptions

REQUEST_TIMEOUT_S = 300.0
MODELS_TIMEOUT_S = 10.0
GRACE_S = 300.0
"""Seconds that a run of `llmd-oke bench` may take beyond its stages' durations, if no limit is given."""

TOKEN_VARIABLE = "LLMD_OKE_BENCH_TOKEN"  # noqa: S105 - the name of a variable

SIGNED_IN_ONCE = (
    "requests go through the API server, all with one token of the kubeconfig's program; OKE's live four minutes, and "
    "later requests fail with 401. Send longer loads with --in-cluster."
)


@dataclass(frozen=True)
class TargetOptions:
    """Options of `llmd-oke bench` that choose the target of the load: a model of a stack, or a URL."""

    stack: Annotated[str | None, typer.Option("--stack", "-s", help="Stack whose model is loaded.")] = None
    url: Annotated[str | None, typer.Option(help="Address to load instead: what stands before /v1/.")] = None
    model: Annotated[str | None, typer.Option(help="Model; needed where there are several.")] = None
    api: Annotated[Api, typer.Option(help="API to load.")] = "completions"
    gpu: Annotated[str | None, typer.Option(help="GPU behind --url, for rows.")] = None
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs behind --url, for rows.")] = None
    certificates: Annotated[
        Path | None, typer.Option(exists=True, help="Authority that signed for --url, or for the Gateway (PEM).")
    ] = None
    through_gateway: Annotated[
        bool, typer.Option("--through-gateway", help="Send requests to the Gateway's own address, as its clients do.")
    ] = False


@dataclass(frozen=True)
class LoadFlags:
    """Options of `llmd-oke bench` that describe the load: its shapes, requests and conditions."""

    load: Annotated[
        list[str],
        typer.Option(
            "--shape",
            "--load",
            "-l",
            help="closed:USERS, constant:RATE, poisson:RATE (requests/s; several values make a sweep) or trace:FILE "
            "(JSON Lines, CSV). May be given several times.",
        ),
    ]
    requests: Annotated[int | None, typer.Option(min=1, help="Requests of each stage.")] = None
    duration: Annotated[float | None, options.time_option(about="Time of each stage, in model time: 90s, 10m")] = None
    input_tokens: Annotated[
        str | None,
        typer.Option(help="TOKENS, normal:MEAN,SD or lognormal:MEAN,SD; else the workload's (for a URL 1024)."),
    ] = None
    output_tokens: Annotated[str | None, typer.Option(help="The same for answers (for a URL 128).")] = None
    prefix: Annotated[str | None, typer.Option(help="Prefixes that prompts share, TOKENSxGROUPS: 2048x10.")] = None
    conversations: Annotated[
        str | None,
        typer.Option("--conversations", help="Conversations, AT_A_TIMExTURNS: 64x5."),
    ] = None
    trim: Annotated[str, typer.Option(help="What not to count: none, busy, or a share of the time at both ends.")] = (
        "none"
    )
    rest: Annotated[float, options.time_option(about="Time between two stages", least_s=0, default_s=0)] = 0.0
    limit: Annotated[float | None, options.time_option(about="Time after which the whole run ends")] = None
    seed: Annotated[int, typer.Option(help="Of lengths and arrivals.")] = 0

    def stages(self) -> list[LoadStage]:
        """Return the stages of the load: one for each value of each shape in the options.

        Raises:
            KitError: a shape is malformed.
        """
        shapes = [shape for text in self.load for shape in read_shapes(text, self.seed)]
        return [LoadStage(shape, self.requests, self.duration) for shape in shapes]

    def workload(self, input_tokens: str, output_tokens: str) -> RequestWorkload:
        """Return the workload of requests by the options. The arguments are the lengths in tokens for options that are
        left out.

        Raises:
            KitError: an option's value is malformed.
        """
        return RequestWorkload(
            read_length(self.input_tokens or input_tokens),
            read_length(self.output_tokens or output_tokens),
            self.seed,
            prefix=read_prefix(self.prefix) if self.prefix else None,
            conversations=read_conversations(self.conversations) if self.conversations else None,
        )

    def conditions(self, clock: "ClockOptions") -> StageConditions:
        """Return the conditions that all stages of the load share.

        Raises:
            KitError: the value of --trim is malformed.
        """
        return StageConditions(clock.time_scale, read_trim(self.trim), self.rest, clock.request_timeout)


@dataclass(frozen=True)
class ClockOptions:
    """Options of `llmd-oke bench` for timeouts and simulated time."""

    request_timeout: Annotated[
        float, options.time_option(about="Time for one request", default_s=REQUEST_TIMEOUT_S)
    ] = REQUEST_TIMEOUT_S
    time_scale: options.TimeScale = 1.0
    simulated: options.Simulated = None


@dataclass(frozen=True)
class SenderOptions:
    """Options of `llmd-oke bench` for the processes or pods that send the load."""

    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes of each generator.")] = 1
    in_cluster: Annotated[
        bool, typer.Option("--in-cluster", help="Send the load from pods of a Job that goes afterwards.")
    ] = False
    parallelism: Annotated[int, typer.Option(min=1, max=64, help="Pods that send the load together.")] = 1
    tool: Annotated[
        Literal["own", "inference-perf"], typer.Option(help="What sends the load; inference-perf does in the cluster.")
    ] = "own"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifests of the Job, and create nothing.")] = (
        False
    )

    @property
    def pods(self) -> bool:
        """True if pods in the cluster send the load, rather than this machine."""
        return self.in_cluster or self.tool != "own"


@dataclass(frozen=True)
class OutputOptions:
    """Options of `llmd-oke bench` for the results' files and format."""

    output: Annotated[Path | None, typer.Option(help="File for all requests (JSON Lines), written as they end.")] = None
    rows: Annotated[Path | None, typer.Option(help="File for a row per stage (JSON Lines, CSV).")] = None
    reports: options.Reports = None
    project: options.Project = options.HERE
    as_json: options.Json = False


@with_option_groups
def bench(
    target: TargetOptions, load: LoadFlags, clock: ClockOptions, sender: SenderOptions, output: OutputOptions
) -> None:
    """Load a model and report its latencies and rates, failed requests, and how well the load generator kept its
    schedule.

    A stage with too few sent requests is repeated once; if the second try falls short too, it gets no row, and the exit
    code is 1, as it is if no request succeeded. Ctrl-C ends the run and keeps what was measured until then: rows of
    complete stages, and all requests. The token for --url or --through-gateway is read from LLMD_OKE_BENCH_TOKEN.
    """
    if sender.pods:
        unfit = {
            "--url": target.url,
            "--output": output.output,
            "--rows": output.rows,
            "--json": output.as_json,
            "--api": target.api != "completions",
            "--through-gateway": target.through_gateway,
        }
        if names := [name for name, value in unfit.items() if value]:
            message = f"{', '.join(names)}: not for a load that pods send."
            raise KitError(message, "Leave it out, or --in-cluster and --tool.")
        run_in_pods(_required_stack(target), target.model, load, clock, sender, output)
        return
    if sender.parallelism > 1:
        raise KitError("--parallelism is for pods.", "Give --in-cluster, or --processes for this machine.")
    if sender.dry_run:
        raise KitError("--dry-run prints a Job, and this load is sent from here.", "Give --in-cluster too, or --tool.")
    if target.url and not target.stack:
        if target.through_gateway:
            raise KitError("--through-gateway is for a stack's model.", "Leave it out: --url is an address already.")
        loaded = target_of_url(target)
    else:
        stack = _required_stack(target)
        way = _gateway_way(target) if target.through_gateway else _service_way
        loaded = target_of_stack(output.project, stack, target.model, target.api, output.reports, way)
    run_here(loaded, load, clock, sender.processes, output)


def _required_stack(target: TargetOptions) -> str:
    if target.stack is None:
        raise KitError("Nothing says what to load.", "Give --stack or --url.")
    if target.url:
        raise KitError("--stack and --url both say what to load.", f"Leave out --stack {target.stack} or --url.")
    return target.stack


@dataclass(frozen=True)
class BenchTarget:
    """Target of a load: the endpoint of a model, and what is known about its deployment.

    `input_tokens` and `output_tokens` are the defaults of options that are left out. `facts` are the fields of rows
    about the deployment; None if too few of them are known to write rows. `simulated_basis` is the basis of figures of
    simulated servers. Results are written to `requests_file` and `rows_file` unless options name other files. `servers`
    lists the pods of the model's servers.
    """

    target: CompletionsTarget
    input_tokens: str = "1024"
    output_tokens: str = "128"
    facts: Mapping[str, Any] | None = None
    simulated_basis: Basis = Basis.CALIBRATED
    requests_file: Path | None = None
    rows_file: Path | None = None
    servers: Callable[[], ServerPods] = lambda: None


Way = Callable[["ClusterAccess", Plan, ModelPlan], HttpEndpoint]
"""Function that returns the HTTP endpoint of a model of a stack."""


def _service_way(access: "ClusterAccess", plan: Plan, model: ModelPlan) -> HttpEndpoint:
    return access.service(plan.namespace, model.name)


def _gateway_way(target: TargetOptions) -> Way:
    from llmd_oke.operations.cluster_access import way_through_gateway  # noqa: PLC0415

    verify, token = _authority(target.certificates) if target.certificates else True, _token()
    return lambda access, plan, model: way_through_gateway(access, plan, model, verify, token)


def target_of_stack(
    project: Path, stack: str, name: str | None, api: Api, reports: Path | None, way_to: Way = _service_way
) -> BenchTarget:
    """Return a model of a deployed stack as the target of a load, at the endpoint that `way_to` returns: by default
    that of its Service.

    Raises:
        KitError: the stack has no such model, or the stack isn't deployed.
    """
    from llmd_oke.catalogue.latency_figures import known_figures  # noqa: PLC0415
    from llmd_oke.operations.cluster_access import ClusterAccess  # noqa: PLC0415
    from llmd_oke.operations.load import new_folder  # noqa: PLC0415
    from llmd_oke.operations.smoke import running_servers  # noqa: PLC0415

    plan = planning.plan_stack_file(project, stack)
    model = _choose_model(plan.models, name)
    access = ClusterAccess(plan.kubeconfig_context)
    way = way_to(access, plan, model)
    if access.expires(way):
        console.errors().print(f"[magenta]note[/] {SIGNED_IN_ONCE}", soft_wrap=True)
    folder = new_folder(reports or project / "reports", stack)
    return BenchTarget(
        target=CompletionsTarget(way.url, model.model.repository, dict(way.headers), way.verify, api),
        input_tokens=str(model.workload.input_tokens),
        output_tokens=str(model.workload.output_tokens),
        facts=_facts(plan, model),
        simulated_basis=known_figures(model.model, plan.pools[0].shape.gpu).basis,
        requests_file=folder / REQUESTS_FILE,
        rows_file=folder / ROWS_FILE,
        servers=lambda: running_servers(plan, model, access),
    )


def target_of_url(target: TargetOptions) -> BenchTarget:
    """Return the URL of the option --url as the target of a load. Without --model the model is the only one that the
    URL serves.

    Raises:
        KitError: the URL doesn't answer or serves several models, or the URL or the token is malformed.
    """
    url, token = target.url or "", _token()
    if "@" in urlsplit(url).netloc:
        raise KitError("--url has a name or a password before its host.", f"A token goes into {TOKEN_VARIABLE}.")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    verify = _authority(target.certificates) if target.certificates else True
    model = target.model or _only_model(url, headers, verify)
    facts = {"model": model, "gpu": target.gpu, "gpus_counted": target.gpus} if target.gpu and target.gpus else None
    return BenchTarget(CompletionsTarget(url.rstrip("/"), model, headers, verify, target.api), facts=facts)


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise KitError(
            f"{TOKEN_VARIABLE} has a blank, a control character or a letter outside ASCII.",
            "Set it to the token alone.",
        )
    return token


def _choose_model(models: Sequence[ModelPlan], name: str | None) -> ModelPlan:
    """Return the model of that name; the only model if `name` is None.

    Raises:
        KitError: no model has this name, or several match.
    """
    matches = [model for model in models if name in {None, model.name}]
    if len(matches) != 1:
        message = "The stack has several models." if name is None else f"The stack has no model {name!r}."
        raise KitError(message, f"Give --model, one of: {', '.join(model.name for model in models)}.")
    return matches[0]


def _facts(plan: Plan, model: ModelPlan) -> dict[str, Any]:
    from llmd_oke.program.smoke import conditions  # noqa: PLC0415

    return document(
        "max_num_seqs config_hash",
        model,
        plan,
        model=model.model.repository,
        gpu=plan.pools[0].shape.gpu.product,
        gpus_counted=model.gpus,
        topology=str(model.topology),
        copies=len(model.units),
        price_usd_per_hour=round(plan.price_usd_per_hour * model.gpus / plan.gpus, 2),
        **conditions(plan, model),
    )


def _authority(certificates: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(certificates))
    except (OSError, ssl.SSLError) as error:
        raise KitError(f"{certificates} has no certificates: {error}", "Give a PEM file.") from error


def _only_model(url: str, headers: Mapping[str, str], verify: ssl.SSLContext | bool) -> str:
    remedy = "Is the address right, and --certificates? With --model NAME its models are not asked for."
    try:
        answer = httpx2.get(
            f"{url.rstrip('/')}/v1/models", headers=headers, verify=verify, timeout=MODELS_TIMEOUT_S, trust_env=False
        )
        models = [str(entry["id"]) for entry in answer.raise_for_status().json()["data"]]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise KitError(f"{url} does not tell its models: {error}", remedy) from error
    if len(models) != 1:
        raise KitError(f"{url} serves {len(models)} models: {', '.join(models)}", "Give --model.")
    return models[0]


def run_here(target: BenchTarget, load: LoadFlags, clock: ClockOptions, processes: int, output: OutputOptions) -> None:
    """Run the load from this machine, write and show the results, and end the command with the exit code that they
    imply.

    Raises:
        KitError: the load can't be run, or a file can't be written.
    """
    stages, conditions = load.stages(), load.conditions(clock)
    workload = load.workload(target.input_tokens, target.output_tokens)
    requests_file, rows_file = output.output or target.requests_file, output.rows or target.rows_file
    address_of(target.target)
    check(stages, workload, processes)
    if rows_file:
        make_folder(rows_file.parent)
    before = target.servers()
    with _RequestsFile(requests_file) as lines, bench_view.BenchProgressView() as watch:
        run = run_stages(
            target.target,
            stages,
            workload,
            limit_s=load.limit or len(stages) * ((load.duration or 0.0) * clock.time_scale + load.rest) + GRACE_S,
            processes=processes,
            on_progress=watch,
            on_records=lines,
            conditions=conditions,
        )
        results = asyncio.run(run)
    stable = stability(before, target.servers())
    results = [mark_restarts(result, stable) for result in results]
    if any(result.second_try_because for result in results) and requests_file and requests_file.is_file():
        write_file(requests_file, *(result.records for result in results))  # without those of first tries
    basis = target.simulated_basis if clock.simulated else Basis.MEASURED
    rows = [
        stage_row(result, **target.facts, basis=basis, seed=load.seed, run=workload.run)
        for result in results
        if target.facts is not None and not result.shortfall
    ]
    if output.as_json:
        summaries = [bench_view.summary(result) for result in results]
        dumped = [row.model_dump(mode="json", exclude_defaults=True) for row in rows]
        console.show_json({"basis": basis, "stages": summaries, "rows": dumped})
    else:
        console.output().print(FittingTable(bench_view.table(results, basis)))
    if rows_file and rows:
        write_rows(rows, rows_file)
    _show_files(results, rows, requests_file, rows_file)
    short = [*unmeasured(results), *(f"{stage.name}: not begun" for stage in stages[len(results) :])]
    bench_view.show_unmeasured(short)
    _exit(results, failed=bool(short))


def _show_files(
    results: Sequence[StageResult], rows: Sequence[Row], requests_file: Path | None, rows_file: Path | None
) -> None:
    for remark in bench_view.remarks(results):
        console.errors().print(f"[magenta]note[/] {escape(remark)}", soft_wrap=True)
    if rows_file and not rows and not any(result.shortfall for result in results):
        console.errors().print("[magenta]note[/] no rows were written: give --gpu and --gpus", soft_wrap=True)
    for name, path in (("requests", requests_file), ("rows", rows_file if rows else None)):
        if path:
            console.tell(f"{name}  {path}")


def _exit(results: Sequence[StageResult], *, failed: bool) -> None:
    if any(result.interrupted for result in results):
        raise typer.Exit(console.INTERRUPTED)
    if failed or not any(record.succeeded for result in results for record in result.records):
        raise typer.Exit(1)


class _RequestsFile:
    """File of requests, to which each request is written when it ends. If writing fails, a note is shown and the run
    continues without the file.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> "_RequestsFile":
        if self._path:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("w", encoding="utf-8")
            except OSError as error:
                raise KitError(f"{self._path} can't be written: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def __call__(self, stage: int, records: Sequence[RequestRecord]) -> None:
        """Write the records of a stage."""
        if self._file is None:
            return
        try:
            self._file.writelines(f"{as_line(stage, record)}\n" for record in records)
            self._file.flush()
        except OSError as error:
            self._file = None
            console.errors().print(f"[magenta]note[/] {self._path} can't be written any more: {error.strerror}")


def run_in_pods(
    stack: str,
    name: str | None,
    load: LoadFlags,
    clock: ClockOptions,
    sender: SenderOptions,
    output: OutputOptions,
) -> None:
    """Load a model of a stack from pods in its cluster, store the result in the stack's reports and show it.

    Raises:
        KitError: the load can't be run, or the Job fails.
    """
    from llmd_oke.operations import load as pod_loads  # noqa: PLC0415

    plan = planning.plan_stack_file(output.project, stack)
    model = _choose_model(plan.models, name)
    how = run_context(plan, clock.time_scale, tuple(clock.simulated or ()), ())
    pod_load = _pod_load(load, clock, sender)
    if sender.dry_run:
        typer.echo(as_yaml(pod_loads.manifests(plan, model, pod_load, sender.tool)))
        return
    send = pod_loads.with_tool if sender.tool == "inference-perf" else pod_loads.in_cluster
    folder = pod_loads.new_folder(output.reports or output.project / "reports", stack)
    keeping = pod_loads.LoadFolder(folder, pod_loads.hints(plan, model, how))
    result = send(plan, model, pod_load, keeping, console.progress())
    rows = result.found.rows
    show_rejected(result.found.rejected)
    console.output().print(FittingTable(_pods_table(rows)))
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        console.output().print(f"note: {note}", markup=False)
    console.show_line(f"report  {folder}")
    bench_view.show_unmeasured(result.unmeasured)
    if result.interrupted:
        raise typer.Exit(console.INTERRUPTED)
    if result.unmeasured or not any((row.requests or 0) > row.failures for row in rows):
        raise typer.Exit(1)


def _pod_load(load: LoadFlags, clock: ClockOptions, sender: SenderOptions) -> "LoadOptions":
    from llmd_oke.operations.load import LoadOptions  # noqa: PLC0415

    if load.prefix or load.conversations or load.rest or load.limit:
        remedy = "Leave out --prefix, --conversations, --rest and --limit, or --in-cluster and --tool."
        raise KitError("Pods send single requests, one stage after the other.", remedy)
    shapes, timeout_s = tuple(load.load), clock.request_timeout
    return record(
        LoadOptions, load, sender, clock, shapes=shapes, duration_s=load.duration, request_timeout_s=timeout_s
    )


def _pods_table(rows: Sequence[Row]) -> Table:
    numbers = ", ".join(sorted({row.basis.value for row in rows})) or "no"
    title = f"Latencies in ms (p50, TTFT also p95), rates per second of model time; {numbers} numbers"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("load", "sent", "failed", "req/s", "tokens/s", "TTFT", "p95", "TPOT", "E2E"):
        table.add_column(column, justify="left" if column == "load" else "right", no_wrap=True)
    for row in rows:
        rates = (_figure(row.achieved_requests_per_s), _figure(row.output_tokens_per_s))
        latencies = (_at(row.ttft_ms, "p50"), _at(row.ttft_ms, "p95"), _at(row.tpot_ms, "p50"), _at(row.e2e_ms, "p50"))
        table.add_row(pace(row), str(row.requests or 0), str(row.failures), *rates, *latencies)
    return table


def _at(quantiles: Quantiles, name: str) -> str:
    return _figure(getattr(quantiles, name))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def as_yaml(manifests: Sequence[object]) -> str:
    """Return manifests as YAML documents without aliases: parts that several manifests share are written in each."""
    return yaml.safe_dump_all(json.loads(json.dumps(manifests)), sort_keys=False)
