"""Verification of a forecast: its errors for the deployed model, measured under the load that it was made for."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.row import Basis, Row
from llmd_bench.comparison import ForecastError, forecast_errors
from llmd_bench.smoke import SmokePlan
from llmd_oke import config
from llmd_oke.planning.releases import router_of
from llmd_oke.values import Entry, entry_reader

from llmd_tuner.experiments import runs
from llmd_tuner.experiments.deployer import Deployed, rehearsal
from llmd_tuner.experiments.recipes import Recipe, RecipeDeployment, RecipeLoad
from llmd_tuner.experiments.records import Applied, mismatch
from llmd_tuner.experiments.runs import DeploymentRun, RunFolder, RunSettings, measure_command

NAME = "verify"
"""Name under which runs that verify forecasts are stored."""

MIN_LIMIT_S = 600.0

LIMIT_FACTOR = 4.0
"""Time limit of a run as a multiple of the time for sending its requests, beside a fixed part (`MIN_LIMIT_S`)."""

FIGURES = ("ttft_ms.mean", "itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "output_tokens_per_s", "tpsg")


def compare(forecast: Row, seen: Row) -> Iterator[ForecastError]:
    """Yield the relative error of the forecast for each latency and rate that both rows have."""
    return forecast_errors(FIGURES, forecast, seen)


def beyond(figures: Sequence[ForecastError], forecast: Row, tolerance: float) -> list[ForecastError]:
    """Return the latencies and rates whose relative error exceeds `tolerance` (0.1 is 10 %); none if the forecast is
    only a bound by the hardware's limits, which forecasts nothing.
    """
    return [] if forecast.basis is Basis.BOUND else [figure for figure in figures if abs(figure.error) > tolerance]


class Verifying(Entry):
    """Content of `values/tuning/verification.yaml`: tolerated relative error of a forecast (0.25 is 25 %), and duration
    in seconds and number of requests of the load that checks it.
    """

    tolerance: float
    duration_s: float
    requests: int
    rehearsal_requests: int


verifying = entry_reader("tuning", "verification", Verifying)
"""Return the settings with which `tune verify` checks a forecast, from `values/tuning/verification.yaml`: tolerated
relative error, duration of the load in seconds, and numbers of requests.
"""


@dataclass(frozen=True)
class AppliedModel:
    """Model of a stack file together with the forecast that `tune apply` stored for its deployment."""

    project: Path
    stack: str
    model: config.ModelConfig
    applied: Applied

    @property
    def name(self) -> str:
        """Name of the model's objects in the cluster."""
        return self.model.object_name

    @property
    def recipe(self) -> Recipe:
        """Recipe that sends the forecast's load to the deployed model, with the random arrivals that the forecast
        assumes.
        """
        forecast, model = self.applied.forecast, self.model
        load = RecipeLoad(
            name="forecast",
            arrival="poisson",
            requests_per_s=(round(forecast.offered_requests_per_s or 0.0, 3),),
            duration_s=verifying().duration_s,
            requests=verifying().requests,
            steady_state=True,
            input_tokens=round(forecast.input_tokens),
            output_tokens=round(forecast.output_tokens),
        )
        deployment = RecipeDeployment(
            name=self.name, topology=model.topology, copies=model.copies, router=model.router, engine=model.engine
        )
        return Recipe(
            description=f"What {self.name} does under the load that its forecast was made for.",
            model=model.model,
            deployments=(deployment,),
            loads=(load,),
        )


def subject(project: Path, stack: str, model: config.ModelConfig, applied: Applied) -> AppliedModel:
    """Return a model of a stack together with its applied forecast, after checking that a benchmark can verify the
    forecast.

    Raises:
        KitError: the stack file has another deployment than the forecast, or the forecast's load can't be sent.
    """
    if why := mismatch(model, applied):
        raise KitError(f"{why[0].upper()}{why[1:]}.", f"Apply again: llmd-oke tune apply --stack {stack}")
    if hits := applied.forecast.prefix_cache_hit_share:
        message = (
            f"The forecast counts on prefix cache hits for {hits:.0%} of prompt tokens; prompts of a check share none."
        )
        raise KitError(message, f"Hold it against the real load: llmd-oke tune watch --stack {stack}")
    return AppliedModel(project, stack, model, applied)


def measure_deployed(subject: AppliedModel, most_requests: int | None, progress: Progress) -> tuple[Row, RunFolder]:
    """Measure the model in its cluster under the forecast's load, which is sent from this machine.

    Raises:
        KitError: the cluster's servers differ from the stack file's, or the model does not answer.
    """
    from llmd_tuner.experiments import measurement  # noqa: PLC0415 - slow to import

    settings = _settings(subject, most_requests, rehearsed=False)
    router = router_of(config.load(subject.project, subject.stack))
    folder, assignment = _begin(subject, settings, Deployed(router))
    assignment.write()
    require_deployed(measurement.base_plan(assignment), subject.stack)
    measurement.measure(assignment, progress)
    return _only_row(folder), folder


def measure_rehearsed(
    subject: AppliedModel,
    most_requests: int | None,
    environment: Mapping[str, str],
    progress: Progress,
) -> tuple[Row, RunFolder]:
    """Measure the model in the running rehearsal of its stack, which must be up to date with the stack file.

    Raises:
        KitError: the rehearsal isn't running or up to date, or the model does not answer.
    """
    deployed, time_scale = rehearsal().running(subject.project, subject.stack, progress)
    most = most_requests or verifying().rehearsal_requests
    settings = _settings(subject, most, rehearsed=True, time_scale=time_scale)
    folder, assignment = _begin(subject, settings, deployed)
    progress.step(f"loading {subject.name} with what it was applied for")
    argv = measure_command(assignment.write())
    if status := rehearsal().run(subject.project, subject.stack, argv, environment):
        cause = assignment.failure(status)
        raise KitError(cause[0].upper() + cause[1:])
    return _only_row(folder), folder


def _settings(
    subject: AppliedModel, most_requests: int | None, *, rehearsed: bool, time_scale: float = 1.0
) -> RunSettings:
    gpus = subject.applied.forecast.gpus_counted
    return RunSettings(
        stack=subject.stack, gpus=gpus, rehearsed=rehearsed, time_scale=time_scale, most_requests=most_requests
    )


def require_deployed(plan: SmokePlan, stack: str) -> None:
    """Check that the cluster has as many servers of each role as the stack file.

    Raises:
        KitError: the numbers differ.
    """
    replicas = Counter(endpoint.role for endpoint in plan.metrics)
    for servers in plan.topology.servers:
        if replicas[servers.role] != servers.replicas:
            message = (
                f"The cluster has {replicas[servers.role]} {servers.role} servers, the stack file {servers.replicas}."
            )
            raise KitError(message, f"Deploy it: llmd-oke up --stack {stack}")


def _begin(subject: AppliedModel, settings: RunSettings, deployed: Deployed) -> tuple[RunFolder, DeploymentRun]:
    """Begin a run: its folder, and the assignment of the program that measures."""
    recipe = subject.recipe
    folder = runs.new_run(subject.project, NAME, recipe, settings, [subject.name])
    (stage,) = folder.deployments()[subject.name]
    forecast = subject.applied.forecast
    limit_s = max(1.0, settings.time_scale) * (MIN_LIMIT_S + LIMIT_FACTOR * stage.requests / stage.level)
    slo = subject.model.slo or config.Slo()
    assignment = DeploymentRun(
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
    return folder, assignment


def _only_row(folder: RunFolder) -> Row:
    (row,) = folder.gather()
    if not row.e2e_ms.mean:
        raise KitError(f"No request was answered: {row.failures} failed.", f"See {folder.path}.")
    return row
