"""Run of an experiment: deploy, wait, benchmark and tear down, round by round. It can be interrupted and continued."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.operations.locks import file_lock

from llmd_tuner.experiments import deployer
from llmd_tuner.experiments.deployer import Deployed, Deployer
from llmd_tuner.experiments.preparation import Experiment, server_latencies
from llmd_tuner.experiments.recipes import RecipeDeployment
from llmd_tuner.experiments.runs import DeploymentRun, DeploymentState, RunFolder, RunState, measure_command

BUSY_TIMEOUT_S = 5.0
"""Seconds to wait for another program that runs the same experiment."""

MIN_LIMIT_S = 600.0
LIMIT_FACTOR = 4.0
"""Time limit of a stage as a multiple of its forecast duration, beside a fixed part (`MIN_LIMIT_S`)."""

UNKNOWN_LIMIT_S = 2 * 3600.0


def unfinished(state: RunState) -> list[str]:
    """Return the names of the deployments of a run that are still to be measured, including those whose measurement
    failed.
    """
    return [name for name, standing in state.deployments.items() if standing.phase != "done"]


class Runner:
    """One run of an experiment: deploys each round, measures its deployments and records the results."""

    def __init__(self, experiment: Experiment, folder: RunFolder, deployer: Deployer, progress: Progress) -> None:
        self._experiment = experiment
        self._folder = folder
        self._deployer = deployer
        self._progress = progress

    def run(self) -> RunState:
        """Deploy and measure all deployments of the run that have no results yet, and return the final state of the
        run.

        Raises:
            KitError: a deployment can't be removed, or another process runs the same experiment.
        """
        lock = self._folder.path / "run.lock"
        with file_lock(lock, "run this experiment", self._progress, BUSY_TIMEOUT_S):
            for group in self._experiment.rounds(unfinished(self._folder.state)):
                self._round(group)
            self._deployer.close(self._progress)
            if not unfinished(self._folder.state):
                self._save(ended=datetime.now(UTC).isoformat())
        return self._folder.state

    def _round(self, group: Sequence[RecipeDeployment]) -> None:
        names = [deployment.object_name for deployment in group]
        self._progress.step(f"deploying {', '.join(names)}")
        try:
            with self._timed("deploy"):
                models = [self._experiment.recipe.model_of(deployment) for deployment in group]
                deployed = self._deployer.deploy(models, self._progress)
        except KitError as error:
            self._failed_to_deploy(group, error)
            return
        self._save(simulated=deployed.simulated, ran=dict(deployed.ran))
        for deployment in group:
            self._measure(deployment, deployed)
        self._teardown()

    def _failed_to_deploy(self, group: Sequence[RecipeDeployment], error: KitError) -> None:
        """Try each deployment of a group alone, since one may be at fault; a single one counts as failed."""
        self._progress.step(f"not deployed: {error.message}")
        self._teardown()
        if len(group) > 1:
            for deployment in group:
                self._round([deployment])
        else:
            self._stand(group[0].object_name, DeploymentState(phase="failed", cause=f"not deployed: {error}"))

    def _teardown(self) -> None:
        self._progress.step("tearing down")
        with self._timed("teardown"):
            self._deployer.teardown(self._progress)

    def _measure(self, deployment: RecipeDeployment, deployed: Deployed) -> None:
        name = deployment.object_name
        assignment = self._assignment(deployment, deployed)
        file = assignment.write()
        self._progress.step(f"measuring {name}")
        status = self._deployer.run(measure_command(file))
        self._folder.gather()
        if status == 0 and not self._folder.left(name):
            self._stand(name, DeploymentState(phase="done"))
            return
        cause = assignment.failure(status)
        self._progress.step(f"{name} failed: {cause}")
        self._stand(name, DeploymentState(phase="failed", cause=cause))

    def _assignment(self, deployment: RecipeDeployment, deployed: Deployed) -> DeploymentRun:
        experiment = self._experiment
        settings = experiment.settings
        return DeploymentRun(
            project=experiment.project,
            stack=deployer.name_of(settings.stack),
            folder=self._folder.path.resolve(),
            recipe=experiment.name,
            deployment=deployment.object_name,
            subject=deployment.subject,
            limits_s=self._limits_s(deployment),
            router=deployed.router,
            time_scale=settings.time_scale,
            simulated=deployed.simulated,
            ran=dict(deployed.ran),
            slo=experiment.recipe.slo,
            max_num_seqs=deployment.engine.max_num_seqs,
            price_usd_per_hour=deployment.gpus * experiment.price_usd_per_gpu_hour,
        )

    def _limits_s(self, deployment: RecipeDeployment) -> dict[str, float]:
        """Return the limit of each stage, in wall time."""
        latencies = server_latencies(deployment.model or self._experiment.recipe.model, self._experiment.shape)
        scale = max(1.0, self._experiment.settings.time_scale)
        return {
            stage.name: scale
            * (MIN_LIMIT_S + LIMIT_FACTOR * latencies.stage_s(deployment, stage) if latencies else UNKNOWN_LIMIT_S)
            for stage in self._folder.deployments()[deployment.object_name]
        }

    @contextmanager
    def _timed(self, what: str) -> Generator[None]:
        """Keep the longest time that something of this kind took, once it has ended well."""
        started_s = time.monotonic()
        yield
        seconds = self._folder.state.seconds
        longest_s = max(time.monotonic() - started_s, seconds.get(what, 0.0))
        self._save(seconds={**seconds, what: longest_s})

    def _stand(self, name: str, standing: DeploymentState) -> None:
        self._save(deployments={**self._folder.state.deployments, name: standing})

    def _save(self, **changes: object) -> None:
        self._folder.save(self._folder.state.model_copy(update=changes))
