"""Accuracy of a deployed stack: asks its models, keeps the results, and finds earlier ones."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from llmd_oke.bench.evals.asking import examine
from llmd_oke.bench.evals.builtin import builtin_set
from llmd_oke.bench.evals.result import EvalResult, Examined, read_result, write_result
from llmd_oke.bench.load.load import Target
from llmd_oke.bench.load.waiting import wait_for_answer
from llmd_oke.bench.reporting.rows import split_copies
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.catalogue.evals import BUILTIN
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.progress import Progress, Ticker
from llmd_oke.results.history import stack_folder
from llmd_oke.results.row import Basis

FOLDER = "evals"


@dataclass(frozen=True)
class Asking:
    """How a deployment is asked: questions at a time, a limit in wall seconds, and what was not real."""

    concurrency: int = 16
    timeout_s: float = 900.0
    simulated: tuple[str, ...] = ()


def evaluate_builtin(plan: Plan, model: ModelPlan, how: Asking, progress: Progress) -> EvalResult:
    """Asks one model the questions of the kit's own set, through its router.

    Raises:
        KitError: the model is not there or does not answer at all.
    """
    way = ClusterAccess(plan.kubeconfig_context).service(plan.namespace, model.name)
    target = Target(way.url, model.model.repository, way.headers, way.verify, "chat")
    said = Ticker(progress)

    async def run() -> Examined:
        await wait_for_answer(target, limit_s=min(how.timeout_s, 120.0))
        return await examine(
            target,
            builtin_set(),
            concurrency=how.concurrency,
            limit_s=how.timeout_s,
            on_answer=lambda done, of: said.tell(f"answered {done}/{of}"),
        )

    found = asyncio.run(run())
    result = evaluated(plan, model, how, (BUILTIN, found.question_set), found.started, found.answers)
    return result.model_copy(update={"unanswered": found.unanswered, "examples": found.examples})


def evaluated(
    plan: Plan, model: ModelPlan, how: Asking, asked: tuple[str, str], started: datetime, answers: str
) -> EvalResult:
    """The result of an evaluation that has just ended; `asked` has its name and that of its questions."""
    evaluation, question_set = asked
    return EvalResult(
        evaluation=evaluation,
        question_set=question_set,
        model=model.model.name,
        image=plan.release.vllm.image.reference,
        topology=str(model.topology),
        config_hash=plan.config_hash,
        basis=Basis.CALIBRATED if how.simulated else Basis.MEASURED,
        simulated=how.simulated,
        started=started.isoformat(timespec="seconds"),
        wall_s=(datetime.now(UTC) - started).total_seconds(),
        answers=answers,
    )


def of_benchmark(result: SmokeResult, model: ModelPlan) -> EvalResult | None:
    """The evaluation that was part of a benchmark, of what that measured; None where it asked nothing."""
    plan, found = result.plan, result.examined
    if found is None:
        return None
    return EvalResult(
        evaluation=BUILTIN,
        question_set=found.question_set,
        model=model.model.name,
        image=plan.topology.servers[0].image,
        topology=split_copies(plan.topology.name)[1],
        config_hash=str(plan.facts["config_hash"]),
        basis=plan.basis,
        simulated=plan.simulated,
        started=found.started.isoformat(timespec="seconds"),
        wall_s=found.wall_s,
        answers=found.answers,
        unanswered=found.unanswered,
        examples=found.examples,
    )


def results_folder(reports: Path, stack: str, model: str) -> Path:
    """Where the results of one model's evaluations are kept, one folder for each run, named by its time."""
    return reports / stack_folder(stack) / FOLDER / model


def keep(result: EvalResult, reports: Path, stack: str, model: str) -> Path:
    """Writes a result where `latest` finds it."""
    moment = datetime.fromisoformat(result.started).strftime("%Y%m%dT%H%M%SZ")
    return write_result(result, results_folder(reports, stack, model) / moment)


def latest(reports: Path, stack: str, model: str, evaluation: str, config_hash: str | None = None) -> EvalResult | None:
    """The newest result of an evaluation of a model of a stack, of that configuration if one is named."""
    found = sorted(results_folder(reports, stack, model).glob(f"*/eval-{evaluation}.json"), reverse=True)
    results = (read_result(path) for path in found)
    return next((each for each in results if config_hash in {None, each.config_hash}), None)


def baseline(reports: Path, stack: str, model: str, evaluation: str) -> EvalResult:
    """The result to compare with.

    Raises:
        KitError: that stack has none; says how to get one.
    """
    found = latest(reports, stack, model, evaluation)
    if found is None:
        raise KitError(
            f"The stack {stack} has no result of {evaluation} for {model} to compare with.",
            f"Evaluate it first: llmd-oke eval --stack {stack} --set {evaluation}",
        )
    return found
