"""Child pipelines of GitLab: one job for each stack or stage, as a pipeline file can't list what a job finds out.

What a job does stands in the repository, as a hidden job of `.gitlab/stack-jobs.yml`; a child pipeline only names
stacks.
"""

from collections.abc import Sequence
from typing import Any

import yaml

from llmd_oke.pipelines.stages import StagesFile

JOBS_FILE = ".gitlab/stack-jobs.yml"
"""Path of the hidden jobs in the repository."""


def promotion_pipeline(stages: StagesFile) -> str:
    """Return the child pipeline of a merge: a job for each stage, each after the one before it. A stage with approval
    is a manual job of its environment, which GitLab protects.
    """
    jobs = {
        f"promote {stage.stack}": {
            **_job(".promote", stage.stack),
            "stage": f"stage {number}",
            "environment": {"name": stage.stack},
            **({"when": "manual", "allow_failure": False} if stage.approval else {}),
        }
        for number, stage in enumerate(stages.stages, 1)
    }
    return _document({"stages": [f"stage {number}" for number in range(1, len(stages.stages) + 1)]}, jobs)


def stacks_pipeline(kinds: Sequence[str], stacks: Sequence[str]) -> str:
    """Return the child pipeline with a job of each kind (`preview`, `rehearse`, `drift`, `verify`) for each stack; with
    a job that says so if there is no stack, as GitLab refuses an empty pipeline.
    """
    jobs = {f"{kind} {stack}": _job(f".{kind}", stack) for kind in kinds for stack in stacks}
    return _document({}, jobs or {"no stack": {"script": ["echo 'no stack is touched'"]}})


def _job(template: str, stack: str) -> dict[str, Any]:
    return {"extends": template, "variables": {"STACK": stack}}


def _document(head: dict[str, Any], jobs: dict[str, Any]) -> str:
    return yaml.safe_dump({"include": [{"local": f"/{JOBS_FILE}"}], **head, **jobs}, sort_keys=False)
