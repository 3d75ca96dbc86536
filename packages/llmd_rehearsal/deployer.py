"""Experiments in rehearsals: implementation of the entry point `rehearsal` in the group `llmd_oke.deployers`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import config
from llmd_tuner.experiments import deployer
from llmd_tuner.experiments.deployer import Deployed, RehearsalRunner

from llmd_rehearsal import rehearsal
from llmd_rehearsal.cluster_plan import programs_in_pods
from llmd_rehearsal.engine_operations import pre_scale_down, run_engine
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.rehearsal_settings import RehearsalSettings, running_settings
from llmd_rehearsal.running_rehearsals import down, phase, run_command
from llmd_rehearsal.time_scale import ProcessorDemand, choose_time_scale, processors


class RehearsedDeployer:
    """Deployer of an experiment's models in a local cluster of its own, with `nodes` simulated nodes."""

    def __init__(
        self, project: Path, stack: str, nodes: int, time_scale: float, environment: Mapping[str, str]
    ) -> None:
        self._project = project
        self._stack = stack
        self._derived = deployer.name_of(stack)
        self._nodes = nodes
        self._settings = RehearsalSettings(time_scale=time_scale)
        self._environment = environment
        self._prepared: Prepared | None = None

    def deploy(self, models: Sequence[config.ModelConfig], progress: Progress) -> Deployed:
        """Deploy the models with the real engine and return the release of the running router, the names of the
        simulated parts, and the versions of programs that differ from the release's.
        """
        base = config.load(self._project, self._stack)
        value = deployer.derive_rehearsed(base, self._stack, models, self._nodes)
        deployer.write(self._project, self._stack, value)
        self._prepared = rehearsal.prepare(self._project, self._derived, self._settings, progress)
        pre_scale_down(self._prepared, progress)
        return _deployed(self._prepared, run_engine(self._prepared, "up", progress))

    def run(self, argv: Sequence[str]) -> int:
        """Run a program inside the local cluster and return its exit code."""
        return run_command(self._project, self._derived, argv, env=self._environment)

    def teardown(self, progress: Progress) -> None:
        """Destroy the deployed models with the real engine; keep the local cluster for the next deployment."""
        if self._prepared is not None:
            run_engine(self._prepared, "destroy", progress)

    def close(self, progress: Progress) -> None:
        """Stop the local cluster and delete the stack file that was derived for the experiment."""
        progress.step("ending the rehearsal")
        down(self._project, self._derived)
        deployer.remove(self._project, self._stack)


class RehearsalBackend:
    """Rehearsals as a backend of experiments and of the tuner, in place of real clusters."""

    def deployer(
        self, project: Path, stack: str, nodes: int, time_scale: float, environment: Mapping[str, str]
    ) -> RehearsedDeployer:
        """Return a deployer of models in a new rehearsal whose cluster has `nodes` nodes of the stack's shape."""
        return RehearsedDeployer(project, stack, nodes, time_scale, environment)

    def time_scale(self, pickers: int, servers: int, tokens_per_s: float) -> float:
        """Return the time scale at which this machine's processors keep up with `pickers` endpoint pickers and
        `servers` simulated servers: wall seconds for one second on real hardware, in which the servers together
        generate `tokens_per_s` tokens.
        """
        return choose_time_scale(ProcessorDemand(pickers, servers, tokens_per_s), processors()).scale

    def running(self, project: Path, stack: str, progress: Progress) -> tuple[Deployed, float]:
        """Return the deployment and the time scale of a stack's running rehearsal.

        Raises:
            KitError: no rehearsal of the stack is up, or the stack file has changes that aren't deployed.
        """
        remedy = f"Rehearse it: llmd-oke rehearse --stack {stack}"
        if phase(project, stack) != "ready":
            raise KitError(f"The stack {stack} is not up in a rehearsal.", remedy)
        prepared = rehearsal.prepare(project, stack, running_settings(project, stack), progress)
        progress.step("looking whether what is up is what the stack file has")
        preview = run_engine(prepared, "preview", progress)
        if set(preview["changes"]) - {"same", "read"}:
            raise KitError("The stack file has changes that are not deployed.", remedy)
        return _deployed(prepared, preview), prepared.time_scale.scale

    def run(self, project: Path, stack: str, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a program inside a stack's rehearsal and return its exit code."""
        return run_command(project, stack, argv, env=environment)


def _deployed(prepared: Prepared, result: Mapping[str, Any]) -> Deployed:
    """Return the router, simulated parts and program versions of a rehearsal after the engine operation with this
    `result`.
    """
    programs = prepared.inventory.programs
    versions = {name: programs[name].version for name in programs_in_pods(prepared.plan)}
    return Deployed(prepared.router, prepared.simulated(result["placeholders"]), versions)


backend: RehearsalRunner = RehearsalBackend()
