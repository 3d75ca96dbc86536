"""The smoke benchmark of a deployed stack from this machine: where its parts are, and what comes of it."""

import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rich.console import RenderableType

from llmd_oke.bench import smoke as bench_smoke
from llmd_oke.bench.circumstances import Circumstances
from llmd_oke.bench.smoke import SmokePlan, SmokeResult, run_smoke
from llmd_oke.bench.smoke_request import resolve
from llmd_oke.bench.store import Stored, store
from llmd_oke.bench.summary import summarize_result
from llmd_oke.bench.tables import render
from llmd_oke.experiments.cluster_access import ClusterAccess
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.progress import Progress
from llmd_oke.stack.smoke import facts, smoke_request


def smoke_plan(stack: str, plan: Plan, model: ModelPlan, access: ClusterAccess, how: Circumstances) -> SmokePlan:
    """What the benchmark of one model needs.

    Raises:
        KitError: the model is not there, or the cluster does not answer.
    """
    return resolve(replace(smoke_request(plan, model), facts=facts(stack, plan, model)), access, how)


@dataclass(frozen=True)
class Outcome:
    """What came out for one model, ready to be shown; `failed` are the checks that it did not pass.

    `report` is None where there was too little for one.
    """

    name: str
    failed: tuple[str, ...]
    summary: dict[str, object]
    table: RenderableType
    report: Path | None

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
        result = run_smoke(smoke_plan(stack, plan, model, access, how), _Teller(progress))
        stored = store(result, reports, stack, started=started, part=part(plan, model))
        outcomes.append(outcome(model, result, stored))
    return outcomes


def part(plan: Plan, model: ModelPlan) -> str | None:
    """The folder of a model's report within those of its stack; None where the stack has one model."""
    return model.name if len(plan.models) > 1 else None


def outcome(model: ModelPlan, result: SmokeResult, stored: Stored) -> Outcome:
    """What to show of a stored result."""
    failed = tuple(check.name for check in result.verdict.failed)
    return Outcome(model.name, failed, summarize_result(result), render(result), stored.report)


class _Teller:
    """Says how far a benchmark is, not more often than every two seconds."""

    INTERVAL_S = 2.0

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said = time.monotonic()
        self._phase = ""

    def __call__(self, news: bench_smoke.Progress) -> None:
        now = time.monotonic()
        if news.phase == self._phase and now - self._said < self.INTERVAL_S:
            return
        self._phase, self._said = news.phase, now
        self._progress.detail(f"{news.phase} {news.done}/{news.total}" if news.total else news.phase)
