"""Who deploys the models of an experiment: the Pulumi CLI, or a rehearsal."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from llmd_oke import config, planning
from llmd_oke.errors import KitError
from llmd_oke.experiments.runs import stack_file
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.planning.releases import router_of
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import ending, making_room, rehearsal
from llmd_oke.rehearsal.inventory import IN_PODS
from llmd_oke.rehearsal.rehearsal import Prepared, Settings

"""What is not real in a rehearsal of a plan whose pods have these images without a program, each with its number."""


@dataclass(frozen=True)
class Deployed:
    """What the measurement must know of what was deployed.

    `router` is the release whose router runs, `simulated` lists what is not real, `ran` the versions of programs that
    run instead of the release's own.
    """

    router: str
    simulated: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict[str, str])


class Deployer(Protocol):
    """Has models up, and runs a program where they can be reached."""

    def deploy(self, models: Sequence[config.Model], progress: Progress) -> Deployed:
        """Brings these models up, and no others.

        Raises:
            KitError: they don't come up; says why.
        """
        ...

    def run(self, argv: Sequence[str]) -> int:
        """Runs a program that reaches the models, its output where the caller's goes; the answer is its exit code."""
        ...

    def teardown(self, progress: Progress) -> None:
        """Takes all models down.

        Raises:
            KitError: something stays; says what.
        """
        ...

    def close(self, progress: Progress) -> None:
        """Ends what was there for all deployments."""
        ...


class RehearsedDeployer:
    """Deploys in a rehearsal's world of its own, with simulated nodes."""

    def __init__(
        self,
        project: Path,
        stack: str,
        nodes: int,
        time_scale: float,
        environment: Mapping[str, str],
    ) -> None:
        self._project = project
        self._stack = stack
        self._nodes = nodes
        self._settings = Settings(time_scale=time_scale)
        self._environment = environment
        self._prepared: Prepared | None = None

    @property
    def _own(self) -> str:
        return stack_file.name_of(self._stack)

    def deploy(self, models: Sequence[config.Model], progress: Progress) -> Deployed:
        """Brings these models up with the real engine."""
        prepared = self._prepare(models, progress)
        making_room.make_room(prepared, progress)
        update = rehearsal.run_engine(prepared, "up", progress)
        programs = prepared.inventory.programs
        ran = {name: programs[name].version for name in IN_PODS}
        return Deployed(prepared.router, prepared.simulated(update["placeholders"]), ran)

    def _prepare(self, models: Sequence[config.Model], progress: Progress) -> Prepared:
        base = config.load(self._project, self._stack)
        value = stack_file.derive_rehearsed(base, self._stack, models, self._nodes)
        stack_file.write(self._project, self._stack, value)
        self._prepared = rehearsal.prepare(self._project, self._own, self._settings, progress)
        return self._prepared

    def run(self, argv: Sequence[str]) -> int:
        """Runs a program inside the world."""
        return rehearsal.run_command(self._project, self._own, argv, env=self._environment)

    def teardown(self, progress: Progress) -> None:
        """Destroys with the real engine; the world stays for the next deployment."""
        if self._prepared is not None:
            rehearsal.run_engine(self._prepared, "destroy", progress)

    def close(self, progress: Progress) -> None:
        """Ends the world."""
        progress.step("ending the rehearsal")
        rehearsal.down(self._project, self._own)
        stack_file.remove(self._project, self._stack)


class PulumiDeployer:
    """Deploys for real: a stack of its own in the cluster of the user's stack, by the Pulumi CLI."""

    def __init__(self, project: Path, stack: str, environment: Mapping[str, str]) -> None:
        self._project = project
        self._stack = stack
        self._environment = environment
        self._pulumi = pulumi_cli(project, stack_file.name_of(stack))

    def deploy(self, models: Sequence[config.Model], progress: Progress) -> Deployed:
        """Brings these models up; the update ends when all servers are ready."""
        base = config.load(self._project, self._stack)
        stack_file.write(self._project, self._stack, stack_file.derive(base, self._stack, models))
        plan = planning.plan_stack_file(self._project, self._pulumi.stack)
        self._of_stack("select", "--create")
        if updates.update(self._pulumi, plan, progress, lambda _: True, yes=True, allow_replace=False):
            raise KitError("The update failed.", "The Pulumi CLI said why.")
        return Deployed(router_of(plan.config))

    def run(self, argv: Sequence[str]) -> int:
        """Runs a program on this machine; it ends with the block, in a session of its own that Ctrl-C doesn't reach."""
        with subprocess.Popen(
            list(argv),
            cwd=self._project,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        ) as child:
            try:
                return child.wait()
            finally:
                ending.end_group(child)

    def teardown(self, progress: Progress) -> None:
        """Destroys what was deployed."""
        progress.step(f"destroying what {self._pulumi.stack} has")
        if updates.destroy(self._pulumi, progress, yes=True, unprotect=False):
            raise KitError(
                f"The stack {self._pulumi.stack} could not be destroyed, and holds GPUs.",
                f"See why and destroy it: llmd-oke destroy --stack {self._pulumi.stack}",
            )

    def close(self, progress: Progress) -> None:
        """Removes the stack, which is empty by now."""
        progress.step(f"removing the stack {self._pulumi.stack}")
        self._of_stack("rm", "--yes")
        stack_file.remove(self._project, self._stack)

    def _of_stack(self, *words: str) -> None:
        own = ["--stack", self._pulumi.stack, "--cwd", str(self._project)]
        ended = self._pulumi.run([self._pulumi.program, "stack", *words, *own], True)
        if ended.status:
            raise KitError(f"`pulumi stack {words[0]}` failed:\n{(ended.errors or ended.output).strip()}")
