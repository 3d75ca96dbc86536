"""The results of the smoke benchmarks that ran as Jobs in the cluster, brought to this machine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkube.resources.batch_v1 import Job
from rich.text import Text

from llmd_oke.bench.in_cluster.smoke_labels import JOB_ANNOTATION, LABEL
from llmd_oke.bench.in_cluster.smoke_result import RESULT_KEY, unpack
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.experiments.deployed.jobs import JobReader, ended, name_of, why_failed
from llmd_oke.experiments.deployed.smoke import Outcome, outcome, store_result
from llmd_oke.planning import ModelPlan, Plan


def fetch(stack: str, plan: Plan, reports: Path) -> list[Outcome]:
    """The result of each model's newest Job, stored as a report as if it had been measured from here.

    Where a Job left no result, its last words are shown instead, and nothing is stored.

    Raises:
        KitError: a model has no Job, or its Job has not ended.
    """
    reader = JobReader(ClusterAccess(plan.kubeconfig_context).client, plan.namespace)
    jobs = {model.name: _job(reader, model) for model in plan.models}
    results = {name: _result(reader, name, name_of(job)) for name, job in jobs.items()}
    started = min((result.started for result in results.values() if result), default=None)
    outcomes: list[Outcome] = []
    for model in plan.models:
        result, job = results[model.name], jobs[model.name]
        if result is None:
            outcomes.append(_from_words(reader, model, job))
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
    """None where the Job left no result; one of an earlier Job says nothing of this one."""
    found = reader.config_map(f"smoke-{model}")
    if found is None or found.annotations.get(JOB_ANNOTATION) != job or RESULT_KEY not in found.data:
        return None
    return unpack(found.data[RESULT_KEY])


def _from_words(reader: JobReader, model: ModelPlan, job: Job) -> Outcome:
    words = _parsed(reader.last_words(name_of(job)) or why_failed(job) or "")
    passed = ended(job) and words.get("passed") is True
    failed: tuple[str, ...] = () if passed else tuple(words.get("failed") or ["no measurement"])
    text = Text(str(words["message"]) or f"{name_of(job)} left no result and no last words", style="bold")
    return Outcome(model.name, failed, {**words, "model": model.model.repository}, text, None)


def _parsed(words: str) -> Mapping[str, Any]:
    """Last words are JSON, unless something else ended the container."""
    try:
        return {"message": "", **json.loads(words)}
    except (ValueError, TypeError):
        return {"message": words}
