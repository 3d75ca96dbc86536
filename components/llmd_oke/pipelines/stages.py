"""File of a project's stages, `stacks/pipeline.yaml`: the order in which a merge is deployed to stacks, and the
conditions that stop it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from llmd_base.errors import KitError, Problem
from llmd_bench.comparison import parse_gates
from pydantic import Field

from llmd_oke.config import stacks
from llmd_oke.config.base import ConfigPart, Items
from llmd_oke.policies.organisation import read_choices

STAGES_FILE = "stacks/pipeline.yaml"
"""Path in a project of the file with its stages."""

MAX_STAGES = 4
"""Maximum number of stages, as GitHub's workflow file has a job for each."""


class Stage(ConfigPart):
    """Stage of a pipeline: a stack that a merge is deployed to."""

    stack: str
    """Name of the stage's stack, and of its environment in GitHub or GitLab."""

    approval: bool = False
    """Whether a person must approve each deployment to the stage."""


class StagesFile(ConfigPart):
    """Stages of a project in order, each deployed once the one before it has passed, and regression gates."""

    stages: Annotated[Items[Stage], Field(min_length=1, max_length=MAX_STAGES)]
    """Stages in the order of their deployment."""

    gates: Items[str] = ()
    """Conditions that fail a stage, such as `ttft_ms.p95>+10%`: its new benchmark against its last good one."""


def read_stages(project: Path) -> StagesFile:
    """Read the project's stages.

    Raises:
        KitError: the project has no such file, or it is not YAML.
        InvalidStack: the file is wrong; contains all problems, with lines.
    """
    path = project / STAGES_FILE
    if not path.is_file():
        raise KitError(f"There is no {STAGES_FILE}.", "It lists the stacks that a merge is deployed to, first to last.")
    return read_choices(
        project, STAGES_FILE, StagesFile, "the stages can't be deployed", lambda file: _problems(file, project)
    )


def _problems(file: StagesFile, project: Path) -> Iterator[Problem]:
    known, seen = stacks(project), set[str]()
    for index, stage in enumerate(file.stages):
        path = f"stages[{index}].stack"
        if stage.stack not in known:
            yield Problem(path, stage.stack, f"one of {', '.join(known) or 'none'}", "no stack file has this name")
        if stage.stack in seen:
            yield Problem(path, stage.stack, "each stack once", "it is a stage already")
        seen.add(stage.stack)
    for index, gate in enumerate(file.gates):
        try:
            parse_gates([gate])
        except KitError as error:
            yield Problem(f"gates[{index}]", gate, str(error.remedy), error.message)


def unprotected_stages(stages: StagesFile, environments: Path) -> list[str]:
    """Return the stages with `approval` whose environment in GitHub requires no reviewers, so that nobody would be
    asked.

    Args:
        stages: the project's stages.
        environments: folder with GitHub's answer for each environment that exists (`STACK.json`, of `GET
            /repos/OWNER/REPOSITORY/environments/STACK`).
    """
    return [
        stage.stack
        for stage in stages.stages
        if stage.approval and "required_reviewers" not in _rules(environments / f"{stage.stack}.json")
    ]


def _rules(file: Path) -> set[str]:
    """Return the types of an environment's protection rules; none if the file is missing or not GitHub's answer."""
    try:
        document: Mapping[str, Any] = json.loads(file.read_bytes())
        return {str(rule["type"]) for rule in document["protection_rules"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
