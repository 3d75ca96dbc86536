"""Measurement of one deployment: connects its decode servers with its prefill servers, warms all up, then runs one
stage after the other and stores the result of each.

It runs as a program of its own (`llmd-oke experiment measure`), because a rehearsed deployment can be reached from
inside its local cluster only.
"""

import asyncio
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress, Ticker
from llmd_base.records import collected, document
from llmd_base.row import Row
from llmd_bench.deployment import Parallelism, Snapshot, change
from llmd_bench.evidence import VLLM_COUNTERS
from llmd_bench.files import REQUESTS_FILE, write_whole
from llmd_bench.load.generator import GeneratedLoad, introduce, run_load, wait_for_answer
from llmd_bench.load.records import RequestRecord, Trim, classify, write_file
from llmd_bench.load.stages import Live, LoadStage, StageConditions, StageResult, run_stages
from llmd_bench.load.workload import ClosedLoop, Fixed, PromptSource, RequestWorkload
from llmd_bench.performance import Performance, summarize
from llmd_bench.report import build_report, summarize_result, to_yaml
from llmd_bench.report_format import BenchmarkReport
from llmd_bench.reports import to_v01
from llmd_bench.rows import smoke_row
from llmd_bench.smoke import (
    WARMUP_OUTPUT_TOKENS,
    SmokePlan,
    SmokeResult,
    evaluate,
    prove,
    remarks,
    server_stability,
    take_snapshot,
)
from llmd_bench.smoke_request import SmokeLimits, accuracy, judge
from llmd_oke import planning
from llmd_oke.catalogue.models import model_name
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.locks import file_lock
from llmd_oke.operations.smoke import run_context_of, smoke_plan

from llmd_tuner.experiments.recipes import RecipeStage
from llmd_tuner.experiments.runs import FAILURE_FILE, DeploymentRun, RunFolder

TOOL = "llmd-oke experiment"

_SUBJECTS = {"end-to-end": "end-to-end", "prefill-only": "prefill", "decode-only": "decode"}

REPORT_FILE = "benchmark_report_v0.2,_{stage}.yaml"

OLDER_REPORT_FILE = "benchmark_report,_{stage}.yaml"
"""File names of a stage's reports of version 0.2 and 0.1, as llm-d-benchmark names them."""

INTERVAL_S = 5.0
"""Seconds between two lines of progress."""

WARMUP_USERS = 8

KEPT_UP_SHARE = 0.97
"""Minimum ratio of the rate of answers to the rate at which requests arrived (0.97 is 97 %) at which a run was in
steady state.
"""

BUSY_TIMEOUT_S = 24 * 3600.0
"""Seconds to wait for the end of a measurement of the same run that still goes on although the command that started it
was killed.
"""


def measure(assignment: DeploymentRun, progress: Progress) -> None:
    """Measure a deployment under the stages of load that have no result yet. An interrupted stage leaves no files.

    Raises:
        KitError: the deployment does not answer, or the load generator could not send all requests of a stage.
    """
    folder = RunFolder(assignment.folder)
    with file_lock(folder.path / "measuring.lock", "finish measuring in this run", progress, BUSY_TIMEOUT_S):
        if left := folder.left(assignment.deployment):
            asyncio.run(_measure(assignment, folder, left, progress))


def base_plan(assignment: DeploymentRun) -> SmokePlan:
    """Return the settings of a smoke benchmark for a deployment of an experiment: its address, its servers, and their
    Prometheus counters.
    """
    planned = planning.plan_stack_file(assignment.project, assignment.stack, assignment.router)
    model = next(model for model in planned.models if model.name == assignment.deployment)
    how = run_context_of(planned, assignment.time_scale, assignment.simulated, assignment.ran)
    access = ClusterAccess(planned.kubeconfig_context)
    plan = smoke_plan(assignment.stack, planned, model, access, how)
    return replace(plan, questions=None) if assignment.subject == "decode-only" else plan  # its prompts are made up


async def _measure(
    assignment: DeploymentRun, folder: RunFolder, left: Sequence[RecipeStage], progress: Progress
) -> None:
    plan = base_plan(assignment)
    progress.detail(f"{assignment.deployment}: waiting for an answer")
    limit_s = plan.router_timeout_s * max(1.0, assignment.time_scale)
    await wait_for_answer(plan.target, limit_s=limit_s, time_scale=assignment.time_scale)
    warmup = await _warm_up(plan, left[0], progress)
    await _evaluate(plan, progress)
    for number, stage in enumerate(left, 1):
        progress.detail(f"{assignment.deployment}: {stage.name} ({number} of {len(left)})")
        result = await _stage(assignment, plan, stage, warmup, progress)
        with folder.making(assignment.deployment, stage.name) as unfinished:
            store_stage(result, stage, assignment, unfinished)
        folder.gather()


async def _warm_up(plan: SmokePlan, stage: RecipeStage, progress: Progress) -> Sequence[RequestRecord]:
    """Introduce the servers to each other, and send a few requests with the lengths of the first stage."""
    run = uuid.uuid4().hex
    limit_s = plan.timeout_s * max(1.0, plan.time_scale)
    pairs = len(plan.introductions)
    if pairs:
        handshakes = "their handshakes take seconds of model time"
        progress.detail(f"introducing {pairs} pairs of prefill and decode servers: {handshakes}")
    acquainted = await introduce(plan.introductions, run, limit_s=limit_s, on_done=lambda _: None)
    progress.detail("warming up")
    prompts = PromptSource(stage.input_tokens, 0, run)
    output_tokens = min(stage.output_tokens, WARMUP_OUTPUT_TOKENS)
    users = max(WARMUP_USERS, sum(servers.replicas for servers in plan.topology.servers))
    load = GeneratedLoad(users, ClosedLoop(users), prompts, output_tokens, limit_s, label="warm-up")
    return [*acquainted, *await run_load(plan.target, load, limit_s=limit_s)]


async def _evaluate(plan: SmokePlan, progress: Progress) -> None:
    """Ask the plan's questions, if it has any, before anything is measured.

    Raises:
        KitError: too few answers are right: figures of such a deployment are worth nothing.
    """
    ticker = Ticker(progress, INTERVAL_S)
    limit_s = plan.timeout_s * max(1.0, plan.time_scale)
    examined = await evaluate(plan, limit_s, lambda news: ticker.tell(str(news), news.phase))
    if examined is None:
        return
    check = accuracy(plan.thresholds.min_accuracy or 0.0, examined)
    if not check.passed:
        why = f"accuracy {examined.score:.1%}, at least {check.limit:.1%}: {check.evidence}"
        raise KitError(f"{plan.topology.name} answers wrongly ({why}).", "`llmd-oke check` says what changes answers.")


async def _stage(
    assignment: DeploymentRun,
    plan_base: SmokePlan,
    stage: RecipeStage,
    warmup: Sequence[RequestRecord],
    progress: Progress,
) -> SmokeResult:
    limit_s = assignment.limits_s[stage.name]
    plan = _plan_of(plan_base, stage, limit_s)
    workload = RequestWorkload(Fixed(stage.input_tokens), Fixed(stage.output_tokens), stage.seed)
    ticker = Ticker(progress, INTERVAL_S)
    before = await take_snapshot(plan_base)
    (measured,) = await run_stages(
        plan_base.target,
        [LoadStage(stage.shape, stage.requests, label=stage.name)],
        workload,
        limit_s=limit_s,
        on_progress=lambda live: ticker.tell(_news(live)),
        conditions=StageConditions(assignment.time_scale, Trim(busy=stage.steady_state), request_timeout_s=limit_s),
    )
    if measured.interrupted:
        raise asyncio.CancelledError
    if measured.shortfall:
        raise KitError(*_unmeasured(assignment, stage, measured, limit_s))
    after = await take_snapshot(plan_base)
    stable = server_stability(plan_base, (before, after))
    if stable and stable.restarted:
        raise KitError(
            f"{assignment.deployment} was not measured under {stage.name}: {stable}",
            "Why? `kubectl logs --previous` of these pods. The same command tries the stage again.",
        )
    result = _conclude(plan, stage, workload.run, measured, (before, after))
    notes = remarks(
        stage.input_tokens, stage.concurrency or 1, result.performance, warmup, measured.records, (before, after)
    )
    unknown = (str(stable),) if stable and stable.restarted is None else ()
    return replace(result, notes=(*_notes(assignment, stage, measured), *unknown, *notes))


def _unmeasured(
    assignment: DeploymentRun, stage: RecipeStage, measured: StageResult, limit_s: float
) -> tuple[str, str]:
    """Return what is wrong with a stage that is no measurement, and what would be right."""
    tries = f"; the first try: {measured.second_try_because}" if measured.second_try_because else ""
    failures = "".join(f"; {failure}" for failure in classify(measured.records))
    return (
        f"{assignment.deployment} was not measured under {stage.name}: {measured.shortfall} "
        f"(limit {limit_s:.0f} s){tries}{failures}",
        "Does the deployment answer, and has this machine time to spare? The same command tries it again.",
    )


def _plan_of(base: SmokePlan, stage: RecipeStage, limit_s: float) -> SmokePlan:
    return replace(
        base,
        concurrency=stage.concurrency or 1,
        timeout_s=limit_s,
        **document("input_tokens output_tokens requests seed", stage),
    )


def _conclude(
    plan: SmokePlan, stage: RecipeStage, run: str, measured: StageResult, snapshots: tuple[Snapshot, Snapshot]
) -> SmokeResult:
    started = measured.started or datetime.now(UTC)
    gpus = plan.topology.gpus
    whole = of_all(measured, stage, gpus)
    return SmokeResult(
        plan=plan,
        run=run,
        started=started,
        ended=started + timedelta(seconds=measured.wall_s),
        wall_s=measured.wall_s,
        records=measured.records,
        performance=of_window(measured, stage, gpus),
        remote_prefill=prove(plan, whole, snapshots),
        verdict=judge(SmokeLimits(max_failures=None), whole, None),
        before=snapshots[0],
        after=snapshots[1],
        notes=(),
    )


def _notes(assignment: DeploymentRun, stage: RecipeStage, measured: StageResult) -> Iterator[str]:
    """Yield what a reader must know beside the remarks of every benchmark."""
    if measured.second_try_because:
        yield f"measured at the second try; the first: {measured.second_try_because}"
    if measured.health.spoiled:
        yield measured.health.spoiled
    yield from map(str, classify(measured.records))
    if stage.requests < stage.recipe_requests:
        waits = "" if stage.concurrency else "; waiting for the last answers weighs on rates"
        yield f"scaled down: {stage.requests} requests where the recipe has {stage.recipe_requests}{waits}"
    if stage.steady_state:
        yield f"steady state: {measured.window.rule}, {measured.window.duration_s:.1f} s"
    if assignment.subject == "decode-only":
        yield "prompts were filled in, not computed: time to first token is not that of a prefill"
    answered, came = answered_per_s(measured), came_per_s(measured)
    if not stage.concurrency and answered < KEPT_UP_SHARE * came:
        yield f"{answered:.2f} requests/s were answered of {came:.2f} that came: a queue grew"


def answered_per_s(measured: StageResult) -> float:
    """Return the rate of a stage's answers per second, over the time from the first request to the last answer less one
    mean latency, which the last request takes however fast the servers are.
    """
    good = [record for record in measured.records if record.succeeded]
    if not good:
        return 0.0
    latency_s = sum(record.latency_s for record in good) / len(good)
    span_s = max(record.ended_s for record in good) - min(record.started_s for record in good)
    return (len(good) - 1) / max(span_s - latency_s, 1e-6)


def came_per_s(measured: StageResult) -> float:
    """Return the rate in requests per second at which a stage's requests were scheduled. With a few random arrivals it
    differs from the requested rate.
    """
    due_s = [record.due_s for record in measured.records if record.due_s is not None]
    return (len(due_s) - 1) / (max(due_s) - min(due_s)) if len(set(due_s)) > 1 else 0.0


def _news(live: Live) -> str:
    failed = f", {live.failures} failed" if live.failures else ""
    rates = f"{live.in_flight} in flight, {live.achieved_requests_per_s:.1f} requests/s"
    return f"{live.label}: {live.ended} of {live.planned} requests{failed}, {rates}"


def measure_file(file: Path, progress: Progress) -> int:
    """Measure the deployment that an assignment file describes, and return the exit code. The reason of a failure is
    written to a file beside it.
    """
    assignment = DeploymentRun.model_validate_json(file.read_text(encoding="utf-8"))
    try:
        measure(assignment, progress)
    except KitError as error:
        write_whole(file.with_name(FAILURE_FILE), json.dumps({"cause": str(error)}))
        return 1
    return 0


def row_of(result: SmokeResult, stage: RecipeStage, assignment: DeploymentRun) -> Row:
    """Return the result of one stage of a deployment as a row of the table of results."""
    row = smoke_row(result, model=model_name(result.plan.model))
    spread = result.plan.topology.servers[0].parallelism
    # The share that a prefix cache answered is by the servers' own counters.
    cached = change(result.before, result.after, "aggregated", VLLM_COUNTERS.cached_tokens).value
    prompt_tokens = sum(record.input_tokens for record in result.records if record.succeeded)
    counted = assignment.subject == "prefill-only" and cached is not None and prompt_tokens
    origin = {
        "tool": TOOL,
        "file": f"{assignment.deployment}/{stage.name}/row.json",
        "run": f"{assignment.recipe}/{assignment.folder.name}",
    }
    named = {
        "subject": _SUBJECTS[assignment.subject],
        "origin": row.origin.model_copy(update=origin),
        **({} if assignment.subject == "end-to-end" else _of_server(spread)),
        "gpus_reserved": row.gpus_reserved or row.gpus_counted,
        "offered_requests_per_s": None if stage.concurrency else stage.level,
        "prefix_cache_hit_share": cached / prompt_tokens if counted and cached is not None else None,
        "goodput_share": _goodput_share(result, assignment),
    }
    keys = (*named, "arrival", "seed", "max_num_seqs", "price_usd_per_hour")
    return row.model_copy(update=collected("row", keys, (stage, assignment), named))


def _of_server(spread: Parallelism) -> dict[str, int | bool]:
    """Return the fields of a row that tell how a single server is spread over GPUs; ranks, experts and nodes only of
    those that have them.
    """
    more = " data_parallel_size expert_parallel nodes" if spread != Parallelism(spread.tensor_parallel_size) else ""
    return document(f"tensor_parallel_size{more}", spread)


def _goodput_share(result: SmokeResult, assignment: DeploymentRun) -> float | None:
    """Return the share of requests with a first token and a mean gap within the targets."""
    ttft_ms, itl_ms = assignment.slo.ttft_ms, assignment.slo.itl_ms
    if (ttft_ms is None and itl_ms is None) or not result.records:
        return None
    good = [
        record
        for record in result.records
        if record.succeeded
        and (ttft_ms is None or 1000 * (record.ttft_s or 0) <= ttft_ms)
        and (itl_ms is None or 1000 * (record.tpot_s or 0) <= itl_ms)
    ]
    return len(good) / len(result.records)


def of_all(result: StageResult, stage: RecipeStage, gpus: int) -> Performance:
    """Summarize all requests of a stage, from the first request to the last answer."""
    return summarize(result.records, planned=stage.requests, gpus=gpus, concurrency=stage.concurrency)


def of_window(result: StageResult, stage: RecipeStage, gpus: int) -> Performance:
    """Summarize the steady part of a stage: latencies of the requests sent in it, and rates of the tokens received in
    it. The numbers of requests and of failures are those of the whole stage.
    """
    whole = of_all(result, stage, gpus)
    duration_s = result.window.duration_s
    if not stage.steady_state or not duration_s or not result.counted:
        return whole
    counted = summarize(result.counted, planned=stage.requests, gpus=gpus, concurrency=stage.concurrency)
    users = stage.concurrency or result.concurrency
    return replace(
        counted,
        requests=whole.requests,
        failures=whole.failures,
        incomplete=whole.incomplete,
        failure_reasons=whole.failure_reasons,
        duration_s=duration_s,
        requests_per_s=result.requests_per_s,
        input_tokens_per_s=counted.input_tokens / duration_s,
        output_tokens_per_s=result.output_tokens_per_s,
        users=users,
        tpsg=result.output_tokens_per_s / gpus,
        tpsu=result.output_tokens_per_s / users if users else 0.0,
    )


def store_stage(result: SmokeResult, stage: RecipeStage, assignment: DeploymentRun, folder: Path) -> None:
    """Write the row, the reports and the requests of a stage into its folder."""
    row = row_of(result, stage, assignment)
    report = of_stage(build_report(result, experiment=assignment.folder.name), stage, assignment)
    (folder / "row.json").write_text(row.model_dump_json(exclude_defaults=True, indent=2) + "\n", encoding="utf-8")
    (folder / REPORT_FILE.format(stage=stage.name)).write_text(to_yaml(report), encoding="utf-8")
    if older := to_v01(report):
        (folder / OLDER_REPORT_FILE.format(stage=stage.name)).write_text(to_yaml(older), encoding="utf-8")
    write_file(folder / REQUESTS_FILE, result.records)
    (folder / "summary.json").write_text(json.dumps(summarize_result(result), indent=2) + "\n", encoding="utf-8")


def of_stage(report: BenchmarkReport, stage: RecipeStage, assignment: DeploymentRun) -> BenchmarkReport:
    """Return the report of a stage of an experiment, made from a smoke benchmark's report: with the experiment's name,
    and with the request rate where the load was an open loop.
    """
    scenario = report.scenario
    assert scenario is not None  # noqa: S101 - build_report gives one
    assert scenario.load is not None  # noqa: S101 - build_report gives one
    open_loop = {"concurrency": None, "rate_qps": stage.level} if stage.concurrency is None else {}
    standardized = scenario.load.standardized.model_copy(update=open_loop)
    config: dict[str, object] = {**(scenario.load.native.config or {}), "shape": stage.arrival, "level": stage.level}
    load = scenario.load.model_copy(
        update={"standardized": standardized, "native": scenario.load.native.model_copy(update={"config": config})}
    )
    description = (
        f"Experiment {assignment.recipe}: {assignment.deployment} under {stage.name}, {stage.requests} requests."
    )
    words = (report.run.description or "").split(". ", 1)[-1]
    keywords = ["experiment" if word == "smoke" else word for word in report.run.keywords or ()]
    run = report.run.model_copy(update={"description": f"{description} {words}", "keywords": keywords})
    return report.model_copy(update={"run": run, "scenario": scenario.model_copy(update={"load": load})})
