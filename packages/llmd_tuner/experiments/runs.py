"""The folder of one run: everything that was asked, done and found, written so that it may be killed at any moment.

recipe.json                 the recipe as it is run
run.json                    settings, and how far each deployment is
rows.jsonl                  one line for each measurement, in the order of the recipe
<deployment>/<stage>/       row.json, both reports, requests.jsonl: there when the measurement is whole
report.md report.html       the comparison
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from llmd_base.errors import KitError
from llmd_base.row import Row
from llmd_bench.files import point, write_rows, write_whole
from llmd_bench.history import stack_folder
from llmd_oke import config
from pydantic import BaseModel, ConfigDict, Field

from llmd_tuner.experiments.deployer import name_of
from llmd_tuner.experiments.recipes import Recipe, RecipeStage, Subject, stages

FAILURE_FILE = "failure.json"
"""Name of the file, beside a deployment's assignment, that says why nothing could be measured."""

LATEST = "latest"

Phase = Literal["waiting", "failed", "done"]


class RunSettings(BaseModel):
    """Settings of a run of an experiment. Results with another value of any setting belong to another run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stack: str
    gpus: int
    rehearsed: bool
    time_scale: float = 1.0
    most_requests: int | None = None
    only: tuple[str, ...] = ()


class DeploymentState(BaseModel):
    """Progress of one deployment in a run: waiting, failed or done; `cause` says why it failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Phase = "waiting"
    cause: str | None = None


class RunState(BaseModel):
    """Progress of a run of an experiment. `seconds` has the longest measured durations of the steps `deploy` and
    `teardown`, in seconds of wall time.
    """

    model_config = ConfigDict(extra="forbid")

    digest: str
    settings: RunSettings
    started: str
    ended: str | None = None
    deployments: dict[str, DeploymentState]
    seconds: dict[str, float] = Field(default_factory=dict[str, float])
    simulated: tuple[str, ...] = ()
    ran: dict[str, str] = Field(default_factory=dict[str, str])


class RunFolder:
    """Folder with the files of one run of an experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rows_file(self) -> Path:
        """Path of the file with the rows of all measurements."""
        return self.path / "rows.jsonl"

    @property
    def recipe(self) -> Recipe:
        """Recipe of the run, as it was when the run began."""
        return Recipe.model_validate_json((self.path / "recipe.json").read_text(encoding="utf-8"))

    @property
    def state(self) -> RunState:
        """Progress of the run, as it was last saved."""
        return RunState.model_validate_json((self.path / "run.json").read_text(encoding="utf-8"))

    def save(self, state: RunState) -> None:
        """Write the progress of the run to its folder, atomically."""
        write_whole(self.path / "run.json", state.model_dump_json(indent=2) + "\n")

    def stage(self, deployment: str, stage: str) -> Path:
        """Return the folder with the results of one deployment under one stage of load; it exists once the measurement
        is complete.
        """
        return self.path / deployment / stage

    def deployments(self) -> dict[str, tuple[RecipeStage, ...]]:
        """Return the planned measurements of the run by deployment, in the order of the recipe."""
        recipe, state = self.recipe, self.state
        return {
            deployment.object_name: stages(recipe, deployment, state.settings.most_requests)
            for deployment in recipe.deployments
            if deployment.object_name in state.deployments
        }

    def left(self, deployment: str) -> list[RecipeStage]:
        """Return the measurements (stages of load) of a deployment that have no results in the folder yet."""
        return [stage for stage in self.deployments()[deployment] if not self.stage(deployment, stage.name).exists()]

    def gather(self) -> list[Row]:
        """Return the rows of all complete measurements in the order of the recipe, and rewrite rows.jsonl with them.

        Raises:
            KitError: a row is damaged, or measured nothing.
        """
        files = (
            self.stage(deployment, stage.name) / "row.json"
            for deployment, wanted in self.deployments().items()
            for stage in wanted
        )
        rows = [_row(file) for file in files if file.is_file()]
        write_rows(rows, self.rows_file)
        return rows

    @contextmanager
    def making(self, deployment: str, stage: str) -> Generator[Path]:
        """Yield a temporary folder, which becomes the folder of the measurement if the block ends without an error."""
        final = self.stage(deployment, stage)
        unfinished = final.with_name(f".{final.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(final)


def _row(file: Path) -> Row:
    again = f"Remove {file.parent} and run the same command again: it is measured anew."
    try:
        row = Row.model_validate_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KitError(f"{file} is no row: {error}", again) from error
    if why := row.nothing_measured:
        raise KitError(f"{file} measured nothing: {why}.", again)
    return row


def runs_of(project: Path, stack: str, recipe: str) -> list[RunFolder]:
    """Return all runs of a recipe, ordered by age with the newest last."""
    root = root_of(project, stack, recipe)
    return [RunFolder(file.parent) for file in sorted(root.glob("*/run.json")) if file.parent.name != LATEST]


def root_of(project: Path, stack: str, recipe: str) -> Path:
    """Return the folder that contains all runs of a recipe."""
    return project / "reports" / name_of(stack_folder(stack)) / Path(recipe).stem


def latest(project: Path, stack: str, recipe: str) -> RunFolder:
    """Return the newest run of a recipe.

    Raises:
        KitError: there is none.
    """
    folders = runs_of(project, stack, recipe)
    if not folders:
        raise KitError(
            f"The recipe {recipe} has not been run for the stack {stack}.",
            f"Run it: llmd-oke experiment run {recipe} --stack {stack}",
        )
    return folders[-1]


def digest_of(recipe: Recipe, settings: RunSettings) -> str:
    """Return a digest of a recipe and the settings of a run; only a run with an equal digest is continued."""
    text = json.dumps([recipe.model_dump(mode="json"), settings.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unfinished_run(project: Path, name: str, recipe: Recipe, settings: RunSettings) -> RunFolder | None:
    """Return the newest run if it is unfinished and has the same recipe and settings, so that it can be continued; else
    None.
    """
    for found in runs_of(project, settings.stack, name)[-1:]:
        if found.state.digest == digest_of(recipe, settings) and found.state.ended is None:
            return found
    return None


def new_run(project: Path, name: str, recipe: Recipe, settings: RunSettings, deployments: Sequence[str]) -> RunFolder:
    """Create the folder of a new run, in which nothing is measured yet."""
    started = datetime.now(UTC)
    folder = RunFolder(root_of(project, settings.stack, name) / started.strftime("%Y%m%dT%H%M%SZ"))
    folder.path.mkdir(parents=True)
    write_whole(folder.path / "recipe.json", recipe.model_dump_json(indent=2) + "\n")
    waiting = {deployment: DeploymentState() for deployment in deployments}
    digest = digest_of(recipe, settings)
    folder.save(RunState(digest=digest, settings=settings, started=started.isoformat(), deployments=waiting))
    point(folder.path.parent / LATEST, folder.path.name)
    return folder


class DeploymentRun(BaseModel):
    """Assignment for the program that measures one deployment of a run.

    `stack` is the name of the stack that was derived from the user's, `deployment` the name of a model in it.
    `time_scale` is wall seconds for each simulated second, 1 without a rehearsal; `limits_s` is the time limit of each
    stage in wall seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: Path
    stack: str
    folder: Path
    """Path of the run's folder."""
    recipe: str
    deployment: str
    subject: Subject
    limits_s: dict[str, float]
    router: str
    time_scale: float = 1.0
    simulated: tuple[str, ...] = ()
    ran: dict[str, str] = {}
    slo: config.Slo = config.Slo()
    max_num_seqs: int | None = None
    price_usd_per_hour: float | None = None

    @property
    def file(self) -> Path:
        """Path of the file from which the measuring program reads its assignment."""
        return self.folder / self.deployment / "assignment.json"

    def write(self) -> Path:
        """Write the assignment's file, remove the record of an earlier failure, and return the path."""
        self.file.parent.mkdir(exist_ok=True)
        self.file.with_name(FAILURE_FILE).unlink(missing_ok=True)
        write_whole(self.file, self.model_dump_json(indent=2))
        return self.file

    def failure(self, status: int) -> str:
        """Return why the measurement failed: the reason that the measuring program stored, or else its exit code."""
        failure = self.file.with_name(FAILURE_FILE)
        if failure.is_file():
            return str(json.loads(failure.read_text(encoding="utf-8"))["cause"])
        return f"the measurement ended with exit code {status}"


def measure_command(file: Path) -> list[str]:
    """Return the command line that measures the deployment of an assignment file."""
    return [sys.executable, "-m", "llmd_oke", "experiment", "measure", str(file)]
