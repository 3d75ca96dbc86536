"""Loads a deployed model with what a forecast was made for."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llmd_oke import config
from llmd_oke.bench.smoke.smoke import SmokePlan
from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.errors import KitError
from llmd_oke.experiments.recipes.recipe import Deployment, Load, Recipe
from llmd_oke.experiments.runs import folders
from llmd_oke.experiments.runs.assignment import FAILURE_FILE, Assignment
from llmd_oke.experiments.runs.deployer import Deployed
from llmd_oke.experiments.runs.folders import RunFolder, Settings
from llmd_oke.experiments.tuner.applied import Applied, mismatch
from llmd_oke.planning.releases import router_of
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import rehearsal
from llmd_oke.rehearsal.inventory import IN_PODS
from llmd_oke.results.files import write_whole
from llmd_oke.results.row import Row

NAME = "verify"
"""What its runs are stored under."""

LEAST_LIMIT_S = 600.0
LIMIT_FACTOR = 4.0
"""A run may take so many times as long as its requests are sent, and ten minutes more, in model time."""


class Verifying(Entry):
    """`values/tuning/verification.yaml`."""

    tolerance: float
    duration_s: float
    requests: int
    rehearsal_requests: int


@cache
def verifying() -> Verifying:
    """How the kit verifies."""
    return required_entry("tuning", "verification", Verifying)


@dataclass(frozen=True)
class Subject:
    """A model of a stack file that is as its forecast has it."""

    project: Path
    stack: str
    model: config.Model
    applied: Applied

    @property
    def name(self) -> str:
        """The model's name in the cluster."""
        return self.model.object_name

    @property
    def recipe(self) -> Recipe:
        """The forecast's load on the model as it is deployed: random arrivals, which the forecast assumes."""
        forecast, model = self.applied.forecast, self.model
        load = Load(
            name="forecast",
            arrival="poisson",
            requests_per_s=(_rate(forecast),),
            duration_s=verifying().duration_s,
            requests=verifying().requests,
            steady_state=True,
            input_tokens=round(forecast.input_tokens),
            output_tokens=round(forecast.output_tokens),
        )
        deployment = Deployment(
            name=self.name, topology=model.topology, copies=model.copies, router=model.router, engine=model.engine
        )
        return Recipe(
            description=f"What {self.name} does under the load that its forecast was made for.",
            model=model.model,
            deployments=(deployment,),
            loads=(load,),
        )


def subject(project: Path, stack: str, model: config.Model, applied: Applied) -> Subject:
    """What is to be verified.

    Raises:
        KitError: the stack file has another deployment than the forecast, or its load can't be sent.
    """
    if why := mismatch(model, applied):
        raise KitError(f"{why[0].upper()}{why[1:]}.", f"Apply again: llmd-oke tune apply --stack {stack}")
    if hits := applied.forecast.prefix_cache_hit_share:
        message = (
            f"The forecast counts on prefix cache hits for {hits:.0%} of prompt tokens; prompts of a check share none."
        )
        raise KitError(message, f"Hold it against the real load: llmd-oke tune watch --stack {stack}")
    return Subject(project, stack, model, applied)


def measure_deployed(subject: Subject, most_requests: int | None, progress: Progress) -> tuple[Row, RunFolder]:
    """Loads the model in its cluster from this machine.

    Raises:
        KitError: other servers are there than the stack file has, or the model does not answer.
    """
    from llmd_oke.experiments.measurements import measuring  # noqa: PLC0415 - slow to import

    settings = _settings(subject, most_requests, rehearsed=False)
    router = router_of(config.load(subject.project, subject.stack))
    folder, file = _begin(subject, settings, Deployed(router))
    assignment = Assignment.model_validate_json(file.read_text(encoding="utf-8"))
    require_deployed(measuring.base_plan(assignment), subject.stack)
    measuring.measure(assignment, progress)
    return _only_row(folder), folder


def measure_rehearsed(
    subject: Subject,
    most_requests: int | None,
    environment: Mapping[str, str],
    progress: Progress,
) -> tuple[Row, RunFolder]:
    """Loads the model in the rehearsal of its stack, which must be up and as the stack file has it.

    Raises:
        KitError: it is not, or the model does not answer.
    """
    deployed, time_scale = _rehearsed(subject, progress)
    most = most_requests or verifying().rehearsal_requests
    settings = _settings(subject, most, rehearsed=True, time_scale=time_scale)
    folder, file = _begin(subject, settings, deployed)
    progress.step(f"loading {subject.name} with what it was applied for")
    argv = [sys.executable, "-m", "llmd_oke", "experiment", "measure", str(file)]
    status = rehearsal.run_command(subject.project, subject.stack, argv, env=environment)
    if status:
        raise KitError(_cause(file, status))
    return _only_row(folder), folder


def _rate(forecast: Row) -> float:
    """Requests per second that the forecast is for."""
    return round(forecast.offered_requests_per_s or 0.0, 3)


def _settings(subject: Subject, most_requests: int | None, *, rehearsed: bool, time_scale: float = 1.0) -> Settings:
    gpus = subject.applied.forecast.gpus_counted
    return Settings(
        stack=subject.stack, gpus=gpus, rehearsed=rehearsed, time_scale=time_scale, most_requests=most_requests
    )


def require_deployed(plan: SmokePlan, stack: str) -> None:
    """Sees to it that the cluster has as many servers of each role as the stack file.

    Raises:
        KitError: it has not.
    """
    found = Counter(endpoint.role for endpoint in plan.metrics)
    for servers in plan.topology.servers:
        if found[servers.role] != servers.replicas:
            message = (
                f"The cluster has {found[servers.role]} {servers.role} servers, the stack file {servers.replicas}."
            )
            raise KitError(message, f"Deploy it: llmd-oke up --stack {stack}")


def _rehearsed(subject: Subject, progress: Progress) -> tuple[Deployed, float]:
    """What is up in the rehearsal, and its time scale."""
    project, stack = subject.project, subject.stack
    remedy = f"Rehearse it: llmd-oke rehearse --stack {stack}"
    if rehearsal.phase(project, stack) != "ready":
        raise KitError(f"The stack {stack} is not up in a rehearsal.", remedy)
    settings = rehearsal.running_settings(project, stack)
    prepared = rehearsal.prepare(project, stack, settings, progress)
    progress.step("looking whether what is up is what the stack file has")
    preview = rehearsal.run_engine(prepared, "preview", progress)
    if set(preview["changes"]) - {"same", "read"}:
        raise KitError("The stack file has changes that are not deployed.", remedy)
    programs = prepared.inventory.programs
    ran = {name: programs[name].version for name in IN_PODS}
    told = prepared.simulated(preview["placeholders"])
    return Deployed(prepared.router, told, ran), prepared.time_scale.scale


def _begin(subject: Subject, settings: Settings, deployed: Deployed) -> tuple[RunFolder, Path]:
    """A run folder, and what the program that measures is told."""
    recipe = subject.recipe
    folder = folders.new_run(subject.project, NAME, recipe, settings, [subject.name])
    (stage,) = folder.deployments()[subject.name]
    forecast = subject.applied.forecast
    limit_s = max(1.0, settings.time_scale) * (LEAST_LIMIT_S + LIMIT_FACTOR * stage.requests / stage.level)
    slo = subject.model.slo or config.Slo()
    assignment = Assignment(
        project=subject.project,
        stack=subject.stack,
        folder=folder.path.resolve(),
        recipe=NAME,
        deployment=subject.name,
        subject="end-to-end",
        limits_s={stage.name: limit_s},
        router=deployed.router,
        time_scale=settings.time_scale,
        simulated=deployed.simulated,
        ran=dict(deployed.ran),
        slo=slo,
        max_num_seqs=forecast.max_num_seqs,
        price_usd_per_hour=forecast.price_usd_per_hour,
    )
    file = folder.path / subject.name / "assignment.json"
    file.parent.mkdir()
    write_whole(file, assignment.model_dump_json(indent=2))
    return folder, file


def _cause(file: Path, status: int) -> str:
    told = file.with_name(FAILURE_FILE)
    if told.is_file():
        return str(json.loads(told.read_text(encoding="utf-8"))["cause"])
    return f"The measurement ended with exit code {status}."


def _only_row(folder: RunFolder) -> Row:
    (row,) = folder.gather()
    if not row.e2e_ms.mean:
        raise KitError(f"No request was answered: {row.failures} failed.", f"See {folder.path}.")
    return row
