"""Measures one deployment: introduces its servers, warms up, then one stage after the other, each stored when it ends.

It runs as a program of its own (`llmd-oke experiment measure`), because a rehearsed deployment can be reached from
inside its world only.
"""

import asyncio
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmd_oke import planning
from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.deployment.metrics import Snapshot
from llmd_oke.bench.load.introductions import introduce
from llmd_oke.bench.load.live import Live
from llmd_oke.bench.load.load import Load, run_load
from llmd_oke.bench.load.stage import Conditions, StageResult
from llmd_oke.bench.load.stage import Stage as LoadStage
from llmd_oke.bench.load.stages import run_stages
from llmd_oke.bench.load.waiting import wait_for_answer
from llmd_oke.bench.records.failures import classify
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.records.windows import Trim
from llmd_oke.bench.smoke.hygiene import remarks
from llmd_oke.bench.smoke.smoke import (
    WARMUP_OUTPUT_TOKENS,
    SmokePlan,
    SmokeResult,
    evaluate,
    prove,
    server_stability,
    take_snapshot,
)
from llmd_oke.bench.smoke.thresholds import Thresholds, accuracy, judge
from llmd_oke.bench.workload.lengths import Fixed
from llmd_oke.bench.workload.prompts import PromptSource
from llmd_oke.bench.workload.shapes import ClosedLoop
from llmd_oke.bench.workload.workloads import Workload
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.experiments.deployed.smoke import smoke_plan
from llmd_oke.experiments.measurements import performance
from llmd_oke.experiments.measurements.storing import store_stage
from llmd_oke.experiments.recipes.schedule import Stage
from llmd_oke.experiments.runs.assignment import FAILURE_FILE, Assignment
from llmd_oke.experiments.runs.folders import RunFolder
from llmd_oke.progress import Progress, Ticker
from llmd_oke.rehearsal.exclusive import exclusive
from llmd_oke.results.files import write_whole
from llmd_oke.results.row import Basis

INTERVAL_S = 5.0
"""Between two lines of progress."""

WARMUP_USERS = 8

KEPT_UP_SHARE = 0.97
"""Rate of answers over that of arrivals below which a run was no steady state."""

BUSY_TIMEOUT_S = 24 * 3600.0
"""How long to wait for a measurement of the same run whose command was killed and that goes on without it."""


def measure(assignment: Assignment, progress: Progress) -> None:
    """Measures what isn't there yet. What is interrupted leaves nothing of the stage that it was in.

    Raises:
        KitError: the deployment does not answer, or not all of a stage could be sent.
    """
    folder = RunFolder(assignment.folder)
    with exclusive(folder.path / "measuring.lock", "finish measuring in this run", progress, BUSY_TIMEOUT_S):
        if left := folder.left(assignment.deployment):
            asyncio.run(_measure(assignment, folder, left, progress))


def base_plan(assignment: Assignment) -> SmokePlan:
    """Where the deployment is, what it consists of, and what its servers have to say."""
    planned = planning.plan_stack_file(assignment.project, assignment.stack, assignment.router)
    model = next(model for model in planned.models if model.name == assignment.deployment)
    basis = Basis.CALIBRATED if assignment.simulated else Basis.MEASURED
    how = Circumstances(assignment.time_scale, basis, assignment.simulated, assignment.ran)
    access = ClusterAccess(planned.kubeconfig_context)
    found = smoke_plan(assignment.stack, planned, model, access, how)
    return replace(found, questions=None) if assignment.subject == "decode-only" else found  # its prompts are made up


async def _measure(assignment: Assignment, folder: RunFolder, left: Sequence[Stage], progress: Progress) -> None:
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


async def _warm_up(plan: SmokePlan, stage: Stage, progress: Progress) -> Sequence[RequestRecord]:
    """Introductions, and a few requests with the lengths of the first stage."""
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
    load = Load(users, ClosedLoop(users), prompts, output_tokens, limit_s, label="warm-up")
    return [*acquainted, *await run_load(plan.target, load, limit_s=limit_s)]


async def _evaluate(plan: SmokePlan, progress: Progress) -> None:
    """Asks the plan's questions, if it has any, before anything is measured.

    Raises:
        KitError: too few answers are right: figures of such a deployment are worth nothing.
    """
    said = Ticker(progress, INTERVAL_S)
    limit_s = plan.timeout_s * max(1.0, plan.time_scale)
    examined = await evaluate(plan, limit_s, lambda news: said.tell(str(news), news.phase))
    if examined is None:
        return
    check = accuracy(plan.thresholds.min_accuracy or 0.0, examined)
    if not check.passed:
        why = f"accuracy {examined.score:.1%}, at least {check.limit:.1%}: {check.evidence}"
        raise KitError(f"{plan.topology.name} answers wrongly ({why}).", "`llmd-oke check` says what changes answers.")


async def _stage(
    assignment: Assignment, base: SmokePlan, stage: Stage, warmup: Sequence[RequestRecord], progress: Progress
) -> SmokeResult:
    limit_s = assignment.limits_s[stage.name]
    plan = _plan_of(base, stage, limit_s)
    workload = Workload(Fixed(stage.input_tokens), Fixed(stage.output_tokens), stage.seed)
    said = Ticker(progress, INTERVAL_S)
    before = await take_snapshot(base)
    (found,) = await run_stages(
        base.target,
        [LoadStage(stage.shape, stage.requests, label=stage.name)],
        workload,
        limit_s=limit_s,
        on_progress=lambda live: said.tell(_news(live)),
        conditions=Conditions(assignment.time_scale, Trim(busy=stage.steady_state), request_timeout_s=limit_s),
    )
    if found.interrupted:
        raise asyncio.CancelledError
    if found.shortfall:
        raise KitError(*_unmeasured(assignment, stage, found, limit_s))
    after = await take_snapshot(base)
    stable = server_stability(base, (before, after))
    if stable and stable.restarted:
        raise KitError(
            f"{assignment.deployment} was not measured under {stage.name}: {stable}",
            "Why? `kubectl logs --previous` of these pods. The same command tries the stage again.",
        )
    result = _conclude(plan, stage, workload.run, found, (before, after))
    notes = remarks(
        stage.input_tokens, stage.concurrency or 1, result.performance, warmup, found.records, (before, after)
    )
    unknown = (str(stable),) if stable and stable.restarted is None else ()
    return replace(result, notes=(*_notes(assignment, stage, found), *unknown, *notes))


def _unmeasured(assignment: Assignment, stage: Stage, found: StageResult, limit_s: float) -> tuple[str, str]:
    """What is wrong with a stage that is no measurement, and what would be right."""
    tries = f"; the first try: {found.second_try_because}" if found.second_try_because else ""
    failures = "".join(f"; {failure}" for failure in classify(found.records))
    return (
        f"{assignment.deployment} was not measured under {stage.name}: {found.shortfall} "
        f"(limit {limit_s:.0f} s){tries}{failures}",
        "Does the deployment answer, and has this machine time to spare? The same command tries it again.",
    )


def _plan_of(base: SmokePlan, stage: Stage, limit_s: float) -> SmokePlan:
    return replace(
        base,
        input_tokens=stage.input_tokens,
        output_tokens=stage.output_tokens,
        requests=stage.requests,
        concurrency=stage.concurrency or 1,
        timeout_s=limit_s,
        seed=stage.seed,
    )


def _conclude(
    plan: SmokePlan, stage: Stage, run: str, found: StageResult, snapshots: tuple[Snapshot, Snapshot]
) -> SmokeResult:
    started = found.started or datetime.now(UTC)
    gpus = plan.topology.gpus
    whole = performance.of_all(found, stage, gpus)
    return SmokeResult(
        plan=plan,
        run=run,
        started=started,
        ended=started + timedelta(seconds=found.wall_s),
        wall_s=found.wall_s,
        records=found.records,
        performance=performance.of_window(found, stage, gpus),
        remote_prefill=prove(plan, whole, snapshots),
        verdict=judge(Thresholds(max_failures=None), whole, None),
        before=snapshots[0],
        after=snapshots[1],
        notes=(),
    )


def _notes(assignment: Assignment, stage: Stage, found: StageResult) -> Iterator[str]:
    """What a reader must know beside the remarks of every benchmark."""
    if found.second_try_because:
        yield f"measured at the second try; the first: {found.second_try_because}"
    if found.health.spoiled:
        yield found.health.spoiled
    yield from map(str, classify(found.records))
    if stage.requests < stage.recipe_requests:
        waits = "" if stage.concurrency else "; waiting for the last answers weighs on rates"
        yield f"scaled down: {stage.requests} requests where the recipe has {stage.recipe_requests}{waits}"
    if stage.steady_state:
        yield f"steady state: {found.window.rule}, {found.window.duration_s:.1f} s"
    if assignment.subject == "decode-only":
        yield "prompts were filled in, not computed: time to first token is not that of a prefill"
    answered, came = answered_per_s(found), came_per_s(found)
    if not stage.concurrency and answered < KEPT_UP_SHARE * came:
        yield f"{answered:.2f} requests/s were answered of {came:.2f} that came: a queue grew"


def answered_per_s(found: StageResult) -> float:
    """Answers per second, without the time that the last request takes anyway: the mean latency."""
    good = [record for record in found.records if record.succeeded]
    if not good:
        return 0.0
    latency_s = sum(record.latency_s for record in good) / len(good)
    span_s = max(record.ended_s for record in good) - min(record.started_s for record in good)
    return (len(good) - 1) / max(span_s - latency_s, 1e-6)


def came_per_s(found: StageResult) -> float:
    """Requests per second that were due: of few random arrivals not quite the rate that was asked for."""
    due_s = [record.due_s for record in found.records if record.due_s is not None]
    return (len(due_s) - 1) / (max(due_s) - min(due_s)) if len(set(due_s)) > 1 else 0.0


def _news(live: Live) -> str:
    failed = f", {live.failures} failed" if live.failures else ""
    rates = f"{live.in_flight} in flight, {live.achieved_requests_per_s:.1f} requests/s"
    return f"{live.label}: {live.ended} of {live.planned} requests{failed}, {rates}"


def measure_file(file: Path, progress: Progress) -> int:
    """Measures what an assignment file asks for; the answer is an exit code. A failure is told in a file beside it."""
    assignment = Assignment.model_validate_json(file.read_text(encoding="utf-8"))
    try:
        measure(assignment, progress)
    except KitError as error:
        write_whole(file.with_name(FAILURE_FILE), json.dumps({"cause": str(error)}))
        return 1
    return 0
