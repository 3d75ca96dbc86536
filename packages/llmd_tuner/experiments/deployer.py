"""Deployers of an experiment's models: the Pulumi CLI, or a rehearsal if that package is installed.

Experiments are deployed with a stack derived from the user's, which serves the experiment's models. It has the same
cluster, release and nodes, a namespace of its own, and is removed when the experiment is over.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import config, planning
from llmd_oke.cli.loading import load_only
from llmd_oke.config import CONFIG_KEY, CreateCluster, StackConfig
from llmd_oke.config.yaml_files import read, text_of
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import end_group, pulumi_cli

ENTRY_POINTS = "llmd_oke.deployers"
"""Group of entry points through which installed packages offer further ways to deploy an experiment's models."""

SUFFIX = "-experiment"
_HEADER = "# Made by `llmd-oke experiment run`, which removes it when the experiment is over.\n"


def name_of(stack: str) -> str:
    """Return the name of the derived stack that the experiments of a stack are deployed with."""
    return f"{stack}{SUFFIX}"


def derive(base: StackConfig, stack: str, models: Sequence[config.ModelConfig]) -> dict[str, Any]:
    """Return the content of a stack file that serves `models` in the cluster of the stack `stack`, whose configuration
    is `base`.
    """
    if isinstance(base.cluster, CreateCluster):
        # The file and object stores of states call every organization so; elsewhere the stack's full name is given.
        cluster = {"clusterStack": stack if stack.count("/") == 2 else f"organization/llmd-oke/{stack}"}
    else:
        cluster = _dump(base, "cluster" if base.cluster else "cluster_stack")
    return {
        "layer": "serving",
        **cluster,
        "gpuPools": [pool.model_dump(include={"name", "shape", "size"}) for pool in base.gpu_pools],
        **_common(base, models),
        **_dump(base, "storage"),
    }


def derive_rehearsed(base: StackConfig, stack: str, models: Sequence[config.ModelConfig], nodes: int) -> dict[str, Any]:
    """Return the content of a stack file for a rehearsal: `models` in a local cluster with `nodes` nodes of the shape
    of `base`.
    """
    pool = base.gpu_pools[0].model_dump(include={"name", "shape"})
    return {
        "layer": "all",
        "cluster": {"mode": "existing", "identifier": name_of(stack)},
        "gpuPools": [{**pool, "size": nodes}],
        **_common(base, models),
        **({} if isinstance(base.cluster, CreateCluster) else _dump(base, "storage")),
    }


def _common(base: StackConfig, models: Sequence[config.ModelConfig]) -> dict[str, Any]:
    return {
        **base.model_dump(include={"rdma", "release"}),
        **base.model_dump(include={"override"}, by_alias=True, exclude_none=True),
        "namespace": f"{base.namespace[: 36 - len(SUFFIX)]}{SUFFIX}",
        "models": [{**_dump(model), "topology": str(model.topology)} for model in models],
        "smoke": {"where": "client"},  # the program that measures evaluates what changes answers
    }


def _dump(part: config.ConfigPart, *names: str) -> dict[str, Any]:
    """Return what is set of a part of a stack file, or of these of its fields, as the file has it."""
    include = set(names) or None
    return part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True, include=include)


def write(project: Path, stack: str, value: dict[str, Any]) -> Path:
    """Write the stack file of an experiment's derived stack, and return its path. The user's stack file provides all
    other keys and the secrets.
    """
    document: dict[str, Any] = read(config.stack_file(project, stack)).value
    text = text_of({**document, "config": {**document["config"], CONFIG_KEY: value}})
    path = config.stack_file(project, name_of(stack))
    new = path.with_suffix(".new")
    new.write_text(_HEADER + text, encoding="utf-8")
    new.replace(path)
    return path


def remove(project: Path, stack: str) -> None:
    """Remove the stack file of the stack that was derived for an experiment."""
    config.stack_file(project, name_of(stack)).unlink(missing_ok=True)


@dataclass(frozen=True)
class Deployed:
    """Facts about deployed models that their measurement needs. `router` is the release of the running router,
    `simulated` names the simulated parts, and `ran` has the versions of programs that differ from the release's.
    """

    router: str
    simulated: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict[str, str])


class Deployer(Protocol):
    """Platform on which an experiment's models are deployed, and on which a program can run that reaches them."""

    def deploy(self, models: Sequence[config.ModelConfig], progress: Progress) -> Deployed:
        """Deploy these models and remove all others; returns when they are ready.

        Raises:
            KitError: the models don't become ready; says why.
        """
        ...

    def run(self, argv: Sequence[str]) -> int:
        """Run a program in a place from which it can reach the models, with this process's standard output, and return
        its exit code.
        """
        ...

    def teardown(self, progress: Progress) -> None:
        """Remove all models of the experiment from the cluster.

        Raises:
            KitError: something could not be removed; says what.
        """
        ...

    def close(self, progress: Progress) -> None:
        """Remove what was created for the experiment as a whole, such as its stack or its local cluster."""
        ...


class RehearsalRunner(Protocol):
    """Interface through which experiments use rehearsals, which a package above this one implements (see
    `rehearsal`).
    """

    def deployer(
        self, project: Path, stack: str, nodes: int, time_scale: float, environment: Mapping[str, str]
    ) -> Deployer:
        """Return a deployer that deploys models in a new rehearsal, whose cluster has `nodes` nodes of the stack's
        shape.
        """
        ...

    def time_scale(self, pickers: int, servers: int, tokens_per_s: float) -> float:
        """Return the time scale (wall seconds for each simulated second) at which this machine keeps up with the given
        numbers of endpoint pickers and simulated servers, and of output tokens per simulated second.
        """
        ...

    def running(self, project: Path, stack: str, progress: Progress) -> tuple[Deployed, float]:
        """Return the models that run in the rehearsal of a stack, and the rehearsal's time scale (wall seconds for each
        simulated second).

        Raises:
            KitError: no rehearsal runs, or its models differ from those of the stack file.
        """
        ...

    def run(self, project: Path, stack: str, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a program inside the local cluster of a stack's rehearsal, and return its exit code."""
        ...


def rehearsal() -> RehearsalRunner:
    """Return the installed implementation of rehearsals: the only entry point of the group `llmd_oke.deployers`.

    Raises:
        KitError: none is installed.
    """
    missing = KitError("Rehearsals are not installed.", "Install llmd-oke[rehearsal].")
    runner: RehearsalRunner = load_only(ENTRY_POINTS, "An experiment in a rehearsal", missing)
    return runner


class PulumiDeployer:
    """Deployer that uses the Pulumi CLI: a stack of its own in the cluster of the user's stack."""

    def __init__(self, project: Path, stack: str, environment: Mapping[str, str]) -> None:
        self._project = project
        self._stack = stack
        self._environment = environment
        self._pulumi = pulumi_cli(project, name_of(stack))

    def deploy(self, models: Sequence[config.ModelConfig], progress: Progress) -> Deployed:
        """Deploy these models and remove all others; returns when all servers are ready."""
        base = config.load(self._project, self._stack)
        write(self._project, self._stack, derive(base, self._stack, models))
        plan = planning.plan_stack_file(self._project, self._pulumi.stack)
        self._of_stack("select", "--create")
        if updates.update(self._pulumi, plan, progress, lambda _: True, yes=True, allow_replace=False):
            raise KitError("The update failed.", "The Pulumi CLI said why.")
        return Deployed(plan.router_release)

    def run(self, argv: Sequence[str]) -> int:
        """Run a program on this machine, in a session that Ctrl-C doesn't reach, and return its exit code."""
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
                end_group(child)

    def teardown(self, progress: Progress) -> None:
        """Destroy the resources of the experiment's stack, which was derived from the user's."""
        progress.step(f"destroying what {self._pulumi.stack} has")
        if updates.destroy(self._pulumi, progress, yes=True, unprotect=False):
            raise KitError(
                f"The stack {self._pulumi.stack} could not be destroyed, and holds GPUs.",
                f"See why and destroy it: llmd-oke destroy --stack {self._pulumi.stack}",
            )

    def close(self, progress: Progress) -> None:
        """Remove the experiment's stack, which has no resources any more."""
        progress.step(f"removing the stack {self._pulumi.stack}")
        self._of_stack("rm", "--yes")
        remove(self._project, self._stack)

    def _of_stack(self, *words: str) -> None:
        own = ["--stack", self._pulumi.stack, "--cwd", str(self._project)]
        ended = self._pulumi.run([self._pulumi.program, "stack", *words, *own], True)
        if ended.status:
            raise KitError(f"`pulumi stack {words[0]}` failed:\n{(ended.errors or ended.output).strip()}")
