"""Runs an experiment: deploy, wait, bench, tear down, round by round. It may be stopped at any moment and run again."""

import json
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from llmd_oke import catalogue
from llmd_oke.errors import KitError
from llmd_oke.experiments.recipes.recipe import Deployment
from llmd_oke.experiments.runs import stack_file
from llmd_oke.experiments.runs.assignment import FAILURE_FILE, Assignment
from llmd_oke.experiments.runs.deployer import Deployed, Deployer
from llmd_oke.experiments.runs.folders import RunFolder, Standing, State
from llmd_oke.experiments.runs.forecast import stage_s
from llmd_oke.experiments.runs.preparing import Experiment
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.exclusive import exclusive
from llmd_oke.results.files import write_whole
from llmd_oke.tuning.servers.figures import latency_model

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another program that runs the same experiment."""

LEAST_LIMIT_S = 600.0
LIMIT_FACTOR = 4.0
"""A stage may take so many times as long as was worked out, and no less than ten minutes, in model time."""

UNKNOWN_LIMIT_S = 2 * 3600.0


def unfinished(state: State) -> list[str]:
    """The deployments that are still to be measured; those that failed are tried again."""
    return [name for name, standing in state.deployments.items() if standing.phase != "done"]


class Runner:
    """One run of an experiment."""

    def __init__(self, experiment: Experiment, folder: RunFolder, deployer: Deployer, progress: Progress) -> None:
        self._experiment = experiment
        self._folder = folder
        self._deployer = deployer
        self._progress = progress

    def run(self) -> State:
        """Does what is left of the run and says how it stands then.

        Raises:
            KitError: something that was deployed can't be taken down, or another program runs the same experiment.
        """
        lock = self._folder.path / "run.lock"
        with exclusive(lock, "run this experiment", self._progress, BUSY_TIMEOUT_S):
            for group in self._experiment.rounds(unfinished(self._folder.state)):
                self._round(group)
            self._deployer.close(self._progress)
            if not unfinished(self._folder.state):
                self._save(ended=datetime.now(UTC).isoformat())
        return self._folder.state

    def _round(self, group: Sequence[Deployment]) -> None:
        names = [each.object_name for each in group]
        self._progress.step(f"deploying {', '.join(names)}")
        try:
            with self._timed("deploy"):
                deployed = self._deploy(group)
        except KitError as error:
            self._failed_to_deploy(group, error)
            return
        self._save(simulated=deployed.simulated, ran=dict(deployed.ran))
        for each in group:
            self._measure(each, deployed)
        self._teardown()

    def _deploy(self, group: Sequence[Deployment]) -> Deployed:
        models = [self._experiment.recipe.model_of(each) for each in group]
        return self._deployer.deploy(models, self._progress)

    def _failed_to_deploy(self, group: Sequence[Deployment], error: KitError) -> None:
        """One of several may be at fault, so that each is tried alone before it counts as failed."""
        self._progress.step(f"not deployed: {error.message}")
        self._teardown()
        if len(group) > 1:
            for each in group:
                self._round([each])
        else:
            self._stand(group[0].object_name, Standing(phase="failed", cause=f"not deployed: {error}"))

    def _teardown(self) -> None:
        self._progress.step("tearing down")
        with self._timed("teardown"):
            self._deployer.teardown(self._progress)

    def _measure(self, deployment: Deployment, deployed: Deployed) -> None:
        name = deployment.object_name
        file = self._folder.path / name / "assignment.json"
        file.parent.mkdir(exist_ok=True)
        file.with_name(FAILURE_FILE).unlink(missing_ok=True)
        write_whole(file, self._assignment(deployment, deployed).model_dump_json(indent=2))
        self._progress.step(f"measuring {name}")
        status = self._deployer.run([sys.executable, "-m", "llmd_oke", "experiment", "measure", str(file)])
        self._folder.gather()
        if status == 0 and not self._folder.left(name):
            self._stand(name, Standing(phase="done"))
            return
        cause = self._cause(name, status)
        self._progress.step(f"{name} failed: {cause}")
        self._stand(name, Standing(phase="failed", cause=cause))

    def _cause(self, name: str, status: int) -> str:
        told = self._folder.path / name / FAILURE_FILE
        if told.is_file():
            return str(json.loads(told.read_text(encoding="utf-8"))["cause"])
        return f"the measurement ended with exit code {status}"

    def _assignment(self, deployment: Deployment, deployed: Deployed) -> Assignment:
        experiment = self._experiment
        settings = experiment.settings
        return Assignment(
            project=experiment.project,
            stack=stack_file.name_of(settings.stack),
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

    def _limits_s(self, deployment: Deployment) -> dict[str, float]:
        """A limit in wall time for each stage."""
        facts = catalogue.model(deployment.model or self._experiment.recipe.model)
        model = latency_model(facts, self._experiment.shape) if facts else None
        scale = max(1.0, self._experiment.settings.time_scale)
        return {
            stage.name: scale
            * (LEAST_LIMIT_S + LIMIT_FACTOR * stage_s(model, deployment, stage) if model else UNKNOWN_LIMIT_S)
            for stage in self._folder.deployments()[deployment.object_name]
        }

    @contextmanager
    def _timed(self, what: str) -> Generator[None]:
        """Keeps the longest time that something of this kind took, once it has ended well."""
        began_s = time.monotonic()
        yield
        seconds = self._folder.state.seconds
        longest_s = max(time.monotonic() - began_s, seconds.get(what, 0.0))
        self._save(seconds={**seconds, what: longest_s})

    def _stand(self, name: str, standing: Standing) -> None:
        self._save(deployments={**self._folder.state.deployments, name: standing})

    def _save(self, **changes: object) -> None:
        self._folder.save(self._folder.state.model_copy(update=changes))
