"""Child pipelines of GitLab: one job for each stack or stage, since a pipeline file can't list stacks that only a job
determines.

What a job does stands in the repository, as a hidden job of `.gitlab/stack-jobs.yml`; a child pipeline only names
stacks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from llmd_oke.pipelines.stages import StagesFile

JOBS_FILE = ".gitlab/stack-jobs.yml"
"""Path in the repository of the file with the hidden jobs that child pipelines extend."""

MAX_NEEDS = 49
"""Maximum number of jobs that the job for the comment may wait for, besides the parent's (docs.gitlab.com, CI/CD YAML,
`needs`: 50).
"""


def promotion_pipeline(stages: StagesFile, minutes: Mapping[str, int]) -> str:
    """Return the child pipeline of a merge as YAML: a job for each stage, each after the one before it. A stage with
    approval is a manual job of its environment, which GitLab protects. `minutes` is the time limit by stack.
    """
    jobs = {
        f"promote {stage.stack}": {
            **_job("promote", stage.stack),
            "stage": f"stage {number}",
            "environment": {"name": stage.stack},
            "timeout": f"{minutes[stage.stack]} minutes",
            **({"when": "manual", "allow_failure": False} if stage.approval else {}),
        }
        for number, stage in enumerate(stages.stages, 1)
    }
    return _document({"stages": [f"stage {number}" for number in range(1, len(stages.stages) + 1)]}, jobs)


def stacks_pipeline(kinds: Sequence[str], stacks: Sequence[str], *, comments: bool) -> str:
    """Return a child pipeline as YAML with a job of each kind (`preview`, `rehearse`, `drift`, `verify`) for each
    stack. With `comments`, a further job reads the results of these jobs and of the parent's job `changes`, and
    comments on the merge request. If there are no jobs, a single job says so, as GitLab refuses an empty pipeline.
    """
    jobs: dict[str, Any] = {f"{kind} {stack}": _job(kind, stack) for kind in kinds for stack in stacks}
    if comments:
        of_parent = {"pipeline": "$PARENT_PIPELINE", "job": "changes"}
        of_stacks = [{"job": name, "artifacts": True, "optional": True} for name in jobs][:MAX_NEEDS]
        jobs["comment"] = {"extends": ".comment", "needs": [of_parent, *of_stacks]}
    return _document({}, jobs or {"no stack": {"script": ["echo 'there is no stack'"]}})


def _job(kind: str, stack: str) -> dict[str, Any]:
    return {"extends": f".{kind}", "variables": {"STACK": stack}}


def _document(head: dict[str, Any], jobs: dict[str, Any]) -> str:
    return yaml.safe_dump({"include": [{"local": f"/{JOBS_FILE}"}], **head, **jobs}, sort_keys=False)
