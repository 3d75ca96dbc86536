"""Published evaluations, each by its own package in a Job of the cluster."""

import hashlib
import json
import secrets
from datetime import UTC, datetime

from llmd_oke.bench.evals.result import EvalResult
from llmd_oke.catalogue.bench_jobs import bench_jobs
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.evals import evals, requirements
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.experiments.deployed.cluster_jobs import ClusterJobs
from llmd_oke.experiments.deployed.evals import Asking, evaluated
from llmd_oke.experiments.deployed.jobs import JobReader
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.progress import Progress
from llmd_oke.serving.evaluation_job import Evaluation, evaluation_job, evaluation_objects
from llmd_oke.serving.operation_jobs import STARTING_S, Place
from llmd_oke.stack.taints import node_taints


def evaluate_package(name: str, plan: Plan, model: ModelPlan, how: Asking, progress: Progress) -> EvalResult:
    """Has a package evaluate one model from inside the cluster.

    Raises:
        KitError: the cluster does not answer, or the Job fails, takes too long or leaves no result.
    """
    started = datetime.now(UTC)
    evaluation = Evaluation(
        name=name,
        package=evals().packages[name],
        url=f"http://{model.name}.{plan.namespace}.svc.cluster.local",
        model=model.model.repository,
        concurrency=how.concurrency,
    )
    job, taints = f"eval-{name}-{secrets.token_hex(3)}", tuple(node_taints(plan))
    place = Place(plan.namespace, job, job_images().python, plan.pools[0].shape, taints)
    jobs = ClusterJobs(ClusterAccess(plan.kubeconfig_context).client, progress)
    manifest = evaluation_job(place, evaluation, bench_jobs(), how.timeout_s)
    with jobs.running(manifest, lambda uid: evaluation_objects(place, evaluation, uid)):
        jobs.await_end(place, how.timeout_s + STARTING_S)
        words = JobReader(jobs.client, place.namespace).last_words(place.job)
    return evaluated(plan, model, how, (name, _question_set(evaluation)), started, _answers(place, evaluation, words))


def _answers(place: Place, evaluation: Evaluation, words: str | None) -> str:
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


def _question_set(evaluation: Evaluation) -> str:
    """Results can be compared where the package, all that it needs and how it is called are the same."""
    called = [word for word in evaluation.package.program if "{" not in word]
    said = json.dumps([evaluation.name, called, requirements(evaluation.package)])
    return hashlib.sha256(said.encode()).hexdigest()[:16]
