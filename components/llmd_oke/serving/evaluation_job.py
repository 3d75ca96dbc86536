"""The Job of a published evaluation: installs its package from a hashed lock, runs it against the router, reports.

It needs a way out of the cluster, to the package index and to where the questions are published.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from llmd_oke.bench.evals.package_job import SPEC_VARIABLE
from llmd_oke.catalogue.bench_jobs import JobFacts
from llmd_oke.catalogue.evals import EvalPackage, requirements
from llmd_oke.serving import bench_program, vllm
from llmd_oke.serving.operation_jobs import Place, config_map, job

PROGRAM_FILE, REQUIREMENTS_FILE = "package_job.py", "requirements.lock"
FOLDER = "/opt/llmd-oke"
SCRATCH = "/tmp"  # noqa: S108 - a path in the container


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated: the router's address without `/v1`, the model as it is served, questions at a time."""

    name: str
    package: EvalPackage
    url: str
    model: str
    concurrency: int


def evaluation_job(place: Place, evaluation: Evaluation, how: JobFacts, limit_s: float) -> dict[str, Any]:
    """The Job, on `place.image`, a plain Python one."""
    container: dict[str, Any] = {
        "name": "evaluation",
        "image": place.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", f"{FOLDER}/{PROGRAM_FILE}"],
        "workingDir": SCRATCH,
        "env": [
            {"name": "HOME", "value": SCRATCH},
            {"name": "OPENAI_API_KEY", "value": "none"},
            {"name": SPEC_VARIABLE, "value": json.dumps(_spec(evaluation), sort_keys=True)},
            vllm.hugging_face_token(),
        ],
        "resources": how.evaluation.model_dump(exclude_none=True),
        "securityContext": bench_program.CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "program", "mountPath": FOLDER, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
        ],
    }
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": bench_program.pod_security(how),
        "tolerations": place.tolerations(),
        "containers": [container],
        "volumes": [
            {"name": "program", "configMap": {"name": f"{place.job}-program"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    return job(place, pod, limit_s, {})


def evaluation_objects(place: Place, evaluation: Evaluation, uid: str) -> list[dict[str, Any]]:
    """What its pod needs besides: the program, and the lock that its package is installed from."""
    program = resources.files("llmd_oke.bench.evals").joinpath(PROGRAM_FILE).read_text(encoding="utf-8")
    files = {PROGRAM_FILE: program, REQUIREMENTS_FILE: requirements(evaluation.package)}
    return [config_map(place, uid, "program", files, {})]


def _spec(evaluation: Evaluation) -> dict[str, Any]:
    package = evaluation.package
    filled = {"model": evaluation.model, "url": evaluation.url, "concurrency": evaluation.concurrency}
    return {
        "evaluation": evaluation.name,
        "reader": package.reader,
        "requirements": f"{FOLDER}/{REQUIREMENTS_FILE}",
        "program": [word.format(**filled) for word in package.program],
        "result_files": package.result_files,
    }
