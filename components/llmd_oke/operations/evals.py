"""Accuracy of a deployed stack's models: evaluations by the kit's own questions or by a package, and stored results."""

import asyncio
import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress, Ticker
from llmd_base.records import document
from llmd_base.row import Basis
from llmd_bench.evals import BuiltinResult, EvalResult, read_result, write_result
from llmd_bench.history import stack_folder
from llmd_bench.load.generator import CompletionsTarget, wait_for_answer
from llmd_bench.queries import ask_builtin_set
from llmd_bench.rows import split_copies
from llmd_bench.smoke import SmokeResult

from llmd_oke.catalogue.benchmarks import BUILTIN, bench_jobs, builtin_set, evals, requirements
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.jobs import ClusterJobs, JobReader, place_of
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.serving.jobs import STARTING_S, Evaluation, JobSettings, evaluation_job, evaluation_objects

FOLDER = "evals"


@dataclass(frozen=True)
class EvalOptions:
    """Options of an evaluation: number of concurrent questions, limit in seconds of wall time, and the simulated parts,
    if any.
    """

    concurrency: int = 16
    timeout_s: float = 900.0
    simulated: tuple[str, ...] = ()


def evaluate_builtin(plan: Plan, model: ModelPlan, how: EvalOptions, progress: Progress) -> EvalResult:
    """Evaluate one model by the kit's own question set, through the model's router.

    Raises:
        KitError: the model isn't deployed, or answers no request.
    """
    way = ClusterAccess(plan.kubeconfig_context).service(plan.namespace, model.name)
    target = CompletionsTarget(way.url, model.model.repository, way.headers, way.verify, "chat")
    ticker = Ticker(progress)

    async def run() -> BuiltinResult:
        await wait_for_answer(target, limit_s=min(how.timeout_s, 120.0))
        return await ask_builtin_set(
            target,
            builtin_set(),
            concurrency=how.concurrency,
            limit_s=how.timeout_s,
            on_answer=lambda done, of: ticker.tell(f"answered {done}/{of}"),
        )

    examined = asyncio.run(run())
    result = evaluated(plan, model, how, (BUILTIN, examined.question_set), examined.started, examined.answers)
    return result.model_copy(update=document("unanswered examples", examined))


def evaluated(
    plan: Plan, model: ModelPlan, how: EvalOptions, names: tuple[str, str], started: datetime, answers: str
) -> EvalResult:
    """Return the result of an evaluation that has just ended; `names` are those of the evaluation and of its question
    set, `answers` has a character for each question, 1 if the answer was right, 0 if wrong.
    """
    evaluation, question_set = names
    return EvalResult(
        evaluation=evaluation,
        question_set=question_set,
        model=model.model.name,
        image=plan.release.vllm.image.reference,
        topology=str(model.topology),
        config_hash=plan.config_hash,
        basis=known_figures(model.model, plan.pools[0].shape.gpu).basis if how.simulated else Basis.MEASURED,
        simulated=how.simulated,
        started=started.isoformat(timespec="seconds"),
        wall_s=(datetime.now(UTC) - started).total_seconds(),
        answers=answers,
    )


def of_benchmark(result: SmokeResult, model: ModelPlan) -> EvalResult | None:
    """Return the accuracy evaluation that was part of a smoke benchmark, as a result like that of `llmd-oke eval`; None
    if the benchmark had none.
    """
    plan, examined = result.plan, result.examined
    if examined is None:
        return None
    return EvalResult(
        evaluation=BUILTIN,
        question_set=examined.question_set,
        model=model.model.name,
        image=plan.topology.servers[0].image,
        topology=split_copies(plan.topology.name)[1],
        config_hash=str(plan.facts["config_hash"]),
        basis=plan.basis,
        simulated=plan.simulated,
        started=examined.started.isoformat(timespec="seconds"),
        wall_s=examined.wall_s,
        answers=examined.answers,
        unanswered=examined.unanswered,
        examples=examined.examples,
    )


def results_folder(reports: Path, stack: str, model: str) -> Path:
    """Return the directory of one model's evaluations, in which each run has a directory named by its start time."""
    return reports / stack_folder(stack) / FOLDER / model


def store_result(result: EvalResult, reports: Path, stack: str, model: str) -> Path:
    """Write a result into the model's directory of evaluations; return the path of the file."""
    moment = datetime.fromisoformat(result.started).strftime("%Y%m%dT%H%M%SZ")
    return write_result(result, results_folder(reports, stack, model) / moment)


def latest(reports: Path, stack: str, model: str, evaluation: str, config_hash: str | None = None) -> EvalResult | None:
    """Return the newest stored result of an evaluation of a model, of the configuration `config_hash` if given; None if
    there is none.
    """
    files = sorted(results_folder(reports, stack, model).glob(f"*/eval-{evaluation}.json"), reverse=True)
    results = (read_result(path) for path in files)
    return next((result for result in results if config_hash in {None, result.config_hash}), None)


def baseline(reports: Path, stack: str, model: str, evaluation: str) -> EvalResult:
    """Return the newest stored result of an evaluation of a model, for use as the baseline of a comparison.

    Raises:
        KitError: the stack has no such result; the remedy names the command that makes one.
    """
    result = latest(reports, stack, model, evaluation)
    if result is None:
        raise KitError(
            f"The stack {stack} has no result of {evaluation} for {model} to compare with.",
            f"Evaluate it first: llmd-oke eval --stack {stack} --set {evaluation}",
        )
    return result


def evaluate_package(name: str, plan: Plan, model: ModelPlan, how: EvalOptions, progress: Progress) -> EvalResult:
    """Evaluate one model by a published package, which runs as a Job in the cluster.

    Raises:
        KitError: the cluster doesn't answer, or the Job fails, takes too long or leaves no result.
    """
    started = datetime.now(UTC)
    evaluation = Evaluation(
        name=name,
        package=evals().packages[name],
        url=f"http://{model.name}.{plan.namespace}.svc.cluster.local",
        model=model.model.repository,
        concurrency=how.concurrency,
    )
    place = evaluation_place(plan, f"eval-{name}-{secrets.token_hex(3)}")
    jobs = ClusterJobs(ClusterAccess(plan.kubeconfig_context).client, progress)
    manifest = evaluation_job(place, evaluation, bench_jobs(), how.timeout_s)
    with jobs.running(manifest, lambda uid: evaluation_objects(place, evaluation, uid)):
        jobs.await_end(place, how.timeout_s + STARTING_S)
        words = JobReader(jobs.client, place.namespace).last_words(place.job)
    # Results are comparable where package, requirements and arguments are equal.
    called = [word for word in evaluation.package.program if "{" not in word]
    text = json.dumps([name, called, requirements(evaluation.package)])
    questions = hashlib.sha256(text.encode()).hexdigest()[:16]
    return evaluated(plan, model, how, (name, questions), started, _answers(place, evaluation, words))


def evaluation_place(plan: Plan, job: str) -> JobSettings:
    """Return the settings of the Job of a published evaluation; its image has Python alone."""
    return replace(place_of(plan, job), image=job_images().python)


def _answers(place: JobSettings, evaluation: Evaluation, words: str | None) -> str:
    try:
        answers = str(json.loads(words or "")["answers"])
    except (ValueError, LookupError, TypeError) as error:
        raise KitError(f"Job {place.job} left no result: {words or 'it says nothing'}") from error
    questions = evaluation.package.questions
    if len(answers) < questions:
        raise KitError(
            f"Job {place.job} judged {len(answers)} of the {questions} answers of {evaluation.name}.",
            "A part of an evaluation can't be compared. Its log says why; run it again.",
        )
    return answers
