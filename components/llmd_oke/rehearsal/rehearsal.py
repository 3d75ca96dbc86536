"""A rehearsal from the stack file to the running stack, seen from the host."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from llmd_oke import catalogue, config, planning
from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.errors import KitError
from llmd_oke.planning import Plan
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.inventory import Inventory, fetch_manifests, take_inventory
from llmd_oke.rehearsal.project_copy import copy_project
from llmd_oke.rehearsal.world import World
from llmd_oke.rehearsal.world_plan import KUBERNETES_PLUGIN_PORT, world_spec

ENGINE_END_TIMEOUT_S = 30.0
FOLDER = ".rehearsal"

_GONE_WITH_A_WORLD = ("etcd", "backend", "pods", "nodes", "volumes")
"""What the control plane, the engine and the agent know of a world; the next world starts without it."""


@dataclass(frozen=True)
class Settings:
    """How to rehearse. `time_scale` is wall seconds for a second of model time, `probe_time_scale` that of probes."""

    time_scale: float = 1.0
    probe_time_scale: float = 0.1


@dataclass(frozen=True)
class Prepared:
    """A rehearsal whose world runs: its plan, with the release that it is rehearsed with, and what is real in it."""

    project: Path
    stack: str
    world: World
    plan: Plan
    inventory: Inventory
    settings: Settings

    @property
    def state(self) -> Path:
        """The world's folder."""
        return self.world.folder.path


def rehearsal_folder(project: Path, stack: str) -> Path:
    """Where a stack's rehearsal keeps its files."""
    return project / FOLDER / stack


def rehearsed_stacks(project: Path) -> list[str]:
    """The stacks whose world is up, or has failed and not been taken down."""
    return sorted(path.parent.name for path in (project / FOLDER).glob("*/world.json"))


def phase(project: Path, stack: str) -> str:
    """How a stack's world is: `ready`, `starting`, `stopping`, `failed`, or `gone` when it ended without a word."""
    record = World(rehearsal_folder(project, stack)).status()
    return record.phase if record else "gone"


def prepare(project: Path, stack: str, settings: Settings, progress: Progress) -> Prepared:
    """Plans the stack, has its programs at hand and its world up. A world that fits is left as it is.

    Raises:
        Refused: the stack file can't be deployed.
        KitError: a program can't be had, or the world doesn't get ready; says why.
    """
    asked = planning.plan_stack_file(project, stack)
    inventory = take_inventory(asked.release, progress)
    used = config.load(project, stack).model_copy(update={"release": inventory.release.used.name})
    prepared = Prepared(
        project=project,
        stack=stack,
        world=World(rehearsal_folder(project, stack)),
        plan=planning.plan(used),
        inventory=inventory,
        settings=settings,
    )
    _start(prepared, progress)
    return prepared


def running_settings(project: Path, stack: str) -> Settings:
    """The settings that a stack's world runs with; the defaults where there is none."""
    record = World(rehearsal_folder(project, stack)).status()
    if record is None:
        return Settings()
    names = ("time_scale", "probe_time_scale")
    return Settings(**{name: float(record.facts[name]) for name in names if name in record.facts})


def _start(prepared: Prepared, progress: Progress) -> None:
    """Starts the world unless it runs from the same spec already."""
    state, settings = prepared.state, prepared.settings
    state.mkdir(parents=True, exist_ok=True)
    paths = prepared.inventory.paths()
    spec = world_spec(state, prepared.plan, paths, settings.time_scale, settings.probe_time_scale)
    prepared.world.start(spec, progress, discard=[state / name for name in _GONE_WITH_A_WORLD])


def run_engine(prepared: Prepared, operation: str, progress: Progress) -> dict[str, Any]:
    """Runs an operation of the real engine in the world: `up`, `preview`, `refresh` or `destroy`.

    Raises:
        KitError: the operation failed; says why in the engine's words.
    """
    copy = copy_project(prepared.project, prepared.stack, prepared.state, prepared.plan.release.name)
    result_file = prepared.state / "engine.json"
    result_file.unlink(missing_ok=True)
    own = ["--project", str(copy.folder), "--stack", prepared.stack, "--result", str(result_file), operation]
    argv = [sys.executable, "-m", "llmd_oke.rehearsal.engine", *own]
    environment = {**copy.variables(), **_engine_environment(prepared)}
    log = prepared.world.folder.log_file("engine")
    with (
        log.open("w") as errors,
        prepared.world.process_inside(
            argv, env=environment, folder=copy.folder, output=subprocess.PIPE, errors=errors
        ) as process,
    ):
        for line in process.stdout or ():
            progress.detail(line.rstrip())
        process.wait(ENGINE_END_TIMEOUT_S)
    return _engine_result(result_file, log)


def _engine_result(result_file: Path, log: Path) -> dict[str, Any]:
    if not result_file.exists():
        raise KitError("The engine ended without a result.", f"Its log is {log}.")
    result: dict[str, Any] = json.loads(result_file.read_text())
    if "error" in result:
        raise KitError(result["error"], result["remedy"])
    return result


def _engine_environment(prepared: Prepared) -> Mapping[str, str]:
    """What the program and the engine are told of the world: kubeconfig, stand-ins, and where their programs are."""
    programs = prepared.inventory.link_engine(prepared.state / "bin")
    return {
        **_inside_environment(prepared.state),
        "PATH": f"{programs}:{prepared.world.environment()['PATH']}",
        "PULUMI_DEBUG_PROVIDERS": f"kubernetes:{KUBERNETES_PLUGIN_PORT}",
    }


def _inside_environment(state: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(state / "kubeconfig.yaml"), "LLMD_OKE_CACHE": str(cache_folder())}


def run_command(
    project: Path,
    stack: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: TextIO | None = None,
) -> int:
    """Runs a command inside a stack's world, its output where the caller's goes, and gives its exit code.

    Raises:
        KitError: the stack's world isn't up.
    """
    world = World(rehearsal_folder(project, stack))
    environment = {**_inside_environment(world.folder.path), **(env or {})}
    with world.process_inside(argv, env=environment, folder=project, output=output) as process:
        return process.wait()


def down(project: Path, stack: str) -> None:
    """Ends a stack's world and removes its files, logs excepted. Nothing happens where there is none."""
    world = World(rehearsal_folder(project, stack))
    if not world.folder.path.is_dir():
        return
    world.stop()
    for path in world.folder.path.iterdir():
        if path == world.folder.logs:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def have_programs(progress: Progress) -> Inventory:
    """Everything that rehearsals need, whichever release they ask for: programs, and all releases' charts and CRDs.

    Raises:
        KitError: something can't be had; names all of it, each with the command that installs it.
    """
    releases = [found for name in catalogue.release_names() if (found := catalogue.release(name))]
    for release in releases:
        fetch_manifests(release, progress)
    return take_inventory(releases[-1], progress)
