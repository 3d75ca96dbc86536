"""Smoke benchmark of a deployed stack: run from this machine, or read from the result of its Job in the cluster."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lightkube.resources.batch_v1 import Job
from llmd_base.config_maps import JOB_ANNOTATION, LABEL
from llmd_base.errors import KitError
from llmd_base.progress import Progress, Ticker
from llmd_base.row import Basis
from llmd_bench.deployment import ServerPods
from llmd_bench.jobs.smoke import RESULT_KEY, unpack
from llmd_bench.report import summarize_result
from llmd_bench.reports import StoredReport, store
from llmd_bench.run_context import RunContext
from llmd_bench.smoke import SmokePlan, SmokeResult, resolve, run_smoke, server_pods
from llmd_bench.tables import render
from rich.console import RenderableType
from rich.text import Text

from llmd_oke.catalogue.models import model_name
from llmd_oke.operations import evals
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.jobs import JobReader, ended, name_of, why_failed
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.conditions import bound_models
from llmd_oke.program.smoke import facts, smoke_request


def run_context_of(plan: Plan, time_scale: float, simulated: tuple[str, ...], ran: Mapping[str, str]) -> RunContext:
    """Return the context of a measurement (time scale, simulated parts, versions of programs). Figures are measured if
    `simulated`, the list of simulated parts, is empty, otherwise calibrated, or bounds for models without calibration.
    """
    if not simulated:
        return RunContext(time_scale, Basis.MEASURED, simulated, ran)
    return RunContext(time_scale, Basis.CALIBRATED, simulated, ran, bound_models(plan))


def smoke_plan(stack: str, plan: Plan, model: ModelPlan, access: ClusterAccess, how: RunContext) -> SmokePlan:
    """Return the plan of one model's smoke benchmark: endpoints, load, checks and facts for the report.

    Raises:
        KitError: the model isn't deployed, or the cluster doesn't answer.
    """
    return resolve(replace(smoke_request(plan, model), facts=facts(stack, plan, model)), access, how)


def running_servers(plan: Plan, model: ModelPlan, access: ClusterAccess) -> ServerPods:
    """Return the pods of a model's servers; None if they can't be listed."""
    try:
        return server_pods(smoke_request(plan, model), access)
    except KitError:
        return None


@dataclass(frozen=True)
class SmokeOutcome:
    """Outcome of the smoke benchmark of one model, as summary and table.

    `failed` are the names of the failed checks, `excuses` reasons why a failure may not be the deployment's fault;
    `report` is the path of the stored report, None if the benchmark measured too little.
    """

    name: str
    failed: tuple[str, ...]
    summary: dict[str, object]
    table: RenderableType
    report: Path | None
    excuses: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if every check of the benchmark passed."""
        return not self.failed


def run_all(
    stack: str, plan: Plan, how: RunContext, reports: Path, started: datetime, progress: Progress
) -> list[SmokeOutcome]:
    """Benchmark the models of a deployed stack one after the other and store their reports in `reports`.

    Raises:
        KitError: a model isn't deployed or doesn't answer.
    """
    access = ClusterAccess(plan.kubeconfig_context)
    outcomes: list[SmokeOutcome] = []
    for model in plan.models:
        progress.step(f"benchmarking {model.name}: {plan.smoke.requests} requests, {plan.smoke.concurrency} at a time")
        ticker = Ticker(progress)
        result = run_smoke(
            smoke_plan(stack, plan, model, access, how), lambda news, ticker=ticker: ticker.tell(str(news), news.phase)
        )
        stored = store_result(result, reports, stack, started, plan, model)
        outcomes.append(outcome(model, result, stored))
    return outcomes


def store_result(
    result: SmokeResult, reports: Path, stack: str, started: datetime | None, plan: Plan, model: ModelPlan
) -> StoredReport:
    """Store the report of a model's benchmark, and the benchmark's evaluation among those of `llmd-oke eval`."""
    if evaluation := evals.of_benchmark(result, model):
        evals.store_result(evaluation, reports, stack, model.name)
    name = model_name(result.plan.model)
    return store(result, reports, stack, model=name, started=started, part=part(plan, model))


def part(plan: Plan, model: ModelPlan) -> str | None:
    """Return the subdirectory for a model's report among its stack's reports; None if the stack has only one model."""
    return model.name if len(plan.models) > 1 else None


def outcome(model: ModelPlan, result: SmokeResult, stored: StoredReport) -> SmokeOutcome:
    """Return the outcome of a model's smoke benchmark, whose result has been stored."""
    failed = tuple(check.name for check in result.verdict.failed)
    return SmokeOutcome(model.name, failed, summarize_result(result), render(result), stored.report, result.excuses)


def fetch(stack: str, plan: Plan, reports: Path) -> list[SmokeOutcome]:
    """Read the result of each model's newest smoke Job, store its report in `reports`, and return the outcomes.

    For a Job without a result, the outcome has the termination message of its pod instead, and nothing is stored.

    Raises:
        KitError: a model has no Job, or its Job hasn't ended.
    """
    reader = JobReader(ClusterAccess(plan.kubeconfig_context).client, plan.namespace)
    jobs = {model.name: _job(reader, model) for model in plan.models}
    results = {name: _result(reader, name, name_of(job)) for name, job in jobs.items()}
    started = min((result.started for result in results.values() if result), default=None)
    outcomes: list[SmokeOutcome] = []
    for model in plan.models:
        result, job = results[model.name], jobs[model.name]
        if result is None:
            last = reader.last_words(name_of(job)) or why_failed(job) or ""
            try:
                words: Mapping[str, Any] = {"message": "", **json.loads(last)}
            except (ValueError, TypeError):
                words = {"message": last}
            passed = ended(job) and words.get("passed") is True
            failed: tuple[str, ...] = () if passed else tuple(words.get("failed") or ["no measurement"])
            text = Text(str(words["message"]) or f"{name_of(job)} left no result and no last words", style="bold")
            outcomes.append(SmokeOutcome(model.name, failed, {**words, "model": model.model.repository}, text, None))
            continue
        stored = store_result(result, reports, stack, started, plan, model)
        outcomes.append(outcome(model, result, stored))
    return outcomes


def _job(reader: JobReader, model: ModelPlan) -> Job:
    job = reader.newest({LABEL: model.name})
    if job is None:
        remedy = "It is part of the deployment where the stack file has smoke.where: cluster. Is the stack deployed?"
        raise KitError(f"There is no smoke benchmark of {model.name} in the cluster.", remedy)
    if ended(job) is None:
        raise KitError(f"The smoke benchmark of {model.name} is still running: Job {name_of(job)}.", "Ask again later.")
    return job


def _result(reader: JobReader, model: str, job: str) -> SmokeResult | None:
    """Return the result of a Job; None if the model's ConfigMap has no result, or that of an earlier Job."""
    content = reader.config_map(f"smoke-{model}")
    if content is None or content.annotations.get(JOB_ANNOTATION) != job or RESULT_KEY not in content.data:
        return None
    return unpack(content.data[RESULT_KEY])
