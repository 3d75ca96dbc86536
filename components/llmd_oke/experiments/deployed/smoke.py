"""The smoke benchmark of a deployed stack from this machine: where its parts are, and what comes of it."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rich.console import RenderableType

from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.deployment.metrics import Servers
from llmd_oke.bench.reporting.store import Stored, store
from llmd_oke.bench.reporting.summary import summarize_result
from llmd_oke.bench.reporting.tables import render
from llmd_oke.bench.smoke.resolving import resolve, server_pods
from llmd_oke.bench.smoke.smoke import SmokePlan, SmokeResult, run_smoke
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed import evals
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.progress import Progress, Ticker
from llmd_oke.stack.smoke import facts, smoke_request


def smoke_plan(stack: str, plan: Plan, model: ModelPlan, access: ClusterAccess, how: Circumstances) -> SmokePlan:
    """What the benchmark of one model needs.

    Raises:
        KitError: the model is not there, or the cluster does not answer.
    """
    return resolve(replace(smoke_request(plan, model), facts=facts(stack, plan, model)), access, how)


def running_servers(plan: Plan, model: ModelPlan, access: ClusterAccess) -> Servers:
    """The pods of a model's servers that are there now."""
    try:
        return server_pods(smoke_request(plan, model), access)
    except KitError:
        return None


@dataclass(frozen=True)
class Outcome:
    """What came out for one model, ready to be shown; `failed` are the checks that it did not pass, and `excuses` why
    that may not be the deployment's fault.

    `report` is None where there was too little for one.
    """

    name: str
    failed: tuple[str, ...]
    summary: dict[str, object]
    table: RenderableType
    report: Path | None
    excuses: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.failed


def run_all(
    stack: str, plan: Plan, how: Circumstances, reports: Path, started: datetime, progress: Progress
) -> list[Outcome]:
    """Benchmarks the models of a deployed stack one after the other and stores their reports.

    Raises:
        KitError: a model is not there or does not answer.
    """
    access = ClusterAccess(plan.kubeconfig_context)
    outcomes: list[Outcome] = []
    for model in plan.models:
        progress.step(f"benchmarking {model.name}: {plan.smoke.requests} requests, {plan.smoke.concurrency} at a time")
        said = Ticker(progress)
        result = run_smoke(
            smoke_plan(stack, plan, model, access, how), lambda news, said=said: said.tell(str(news), news.phase)
        )
        stored = store_result(result, reports, stack, started, plan, model)
        outcomes.append(outcome(model, result, stored))
    return outcomes


def store_result(
    result: SmokeResult, reports: Path, stack: str, started: datetime | None, plan: Plan, model: ModelPlan
) -> Stored:
    """Stores the result of a model's benchmark, and its evaluation beside those of `llmd-oke eval`."""
    if evaluation := evals.of_benchmark(result, model):
        evals.keep(evaluation, reports, stack, model.name)
    return store(result, reports, stack, started=started, part=part(plan, model))


def part(plan: Plan, model: ModelPlan) -> str | None:
    """The folder of a model's report within those of its stack; None where the stack has one model."""
    return model.name if len(plan.models) > 1 else None


def outcome(model: ModelPlan, result: SmokeResult, stored: Stored) -> Outcome:
    """What to show of a stored result."""
    failed = tuple(check.name for check in result.verdict.failed)
    return Outcome(model.name, failed, summarize_result(result), render(result), stored.report, result.excuses)
