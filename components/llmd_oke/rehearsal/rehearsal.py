"""A rehearsal from the stack file to the stored report, seen from the host."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_oke import config, planning
from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.errors import KitError
from llmd_oke.planning import Plan
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.inventory import Inventory, take_inventory
from llmd_oke.rehearsal.project_copy import copy_project
from llmd_oke.rehearsal.world import World
from llmd_oke.rehearsal.world_plan import KUBERNETES_PLUGIN_PORT, world_spec

ENGINE_TIMEOUT_S = 3600.0
FOLDER = ".rehearsal"


@dataclass(frozen=True)
class Settings:
    """How to rehearse. `time_scale` is wall seconds for a second of model time, `probe_time_scale` the same for probes."""

    time_scale: float = 0.5
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


def rehearsal_folder(project: Path, stack: str) -> Path:
    """Where a stack's rehearsal keeps its files."""
    return project / FOLDER / stack


def rehearsed_stacks(project: Path) -> list[str]:
    """The stacks that have been rehearsed and not taken down."""
    return sorted(path.name for path in (project / FOLDER).glob("*") if path.is_dir())


def prepare(project: Path, stack: str, settings: Settings, progress: Progress) -> Prepared:
    """Plans the stack, has its programs at hand and its world up. A world that fits is left as it is.

    Raises:
        Refused: the stack file can't be deployed.
        KitError: a program can't be had, or the world doesn't get ready; says why.
    """
    found = config.load(project, stack)
    asked = planning.plan(found)
    inventory = take_inventory(asked.release, progress)
    plan = planning.plan(found.model_copy(update={"release": inventory.release.used.name}))
    world = World(rehearsal_folder(project, stack))
    _start(world, plan, inventory, settings, progress)
    return Prepared(project, stack, world, plan, inventory, settings)


def _start(world: World, plan: Plan, inventory: Inventory, settings: Settings, progress: Progress) -> None:
    """Starts the world unless it runs from the same spec. What the engine knows goes with the old world."""
    state = world.folder.path
    spec = world_spec(state, plan, inventory, settings.time_scale, settings.probe_time_scale)
    running = world.status()
    if running is not None and running.phase == "ready" and running.spec_digest == spec.digest():
        return
    world.stop()
    for name in ("etcd", "backend", "pods"):
        shutil.rmtree(state / name, ignore_errors=True)
    record = world.start(spec, progress)
    slowest = max(record.processes.values(), key=lambda process: process.ready_after_s or 0, default=None)
    if slowest:
        progress.detail(f"{len(record.processes)} processes, {len(plan.nodes)} simulated GPU nodes")


def run_engine(prepared: Prepared, operation: str, progress: Progress) -> dict[str, Any]:
    """Runs an operation of the real engine in the world: `up`, `preview`, `refresh` or `destroy`.

    Raises:
        KitError: the operation failed; says why in the engine's words.
    """
    state = prepared.world.folder.path
    copy = copy_project(prepared.project, prepared.stack, state, prepared.plan.release.name)
    result_file = state / "engine.json"
    result_file.unlink(missing_ok=True)
    own = ["--project", str(copy.folder), "--stack", prepared.stack, "--result", str(result_file), operation]
    argv = [sys.executable, "-m", "llmd_oke.rehearsal.engine", *own]
    environment = {**copy.variables(), **engine_environment(prepared)}
    with prepared.world.process_inside(argv, env=environment, folder=copy.folder, capture=True) as process:
        for line in process.stdout or ():
            progress.detail(line.rstrip())
        errors = process.stderr.read() if process.stderr else ""
        process.wait(ENGINE_TIMEOUT_S)
    if not result_file.exists():
        raise KitError(f"The engine ended with exit code {process.returncode} and no result:\n{errors.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(result_file.read_text())
    if "error" in result:
        raise KitError(result["error"], result["remedy"])
    return result


def engine_environment(prepared: Prepared) -> Mapping[str, str]:
    """What the program and the engine are told of the world: kubeconfig, stand-ins, and where `pulumi` and `helm` are."""
    state = prepared.world.folder.path
    return {
        **inside_environment(state),
        "PATH": f"{prepared.inventory.link_programs(state / 'bin')}:{prepared.world.environment()['PATH']}",
        "PULUMI_DEBUG_PROVIDERS": f"kubernetes:{KUBERNETES_PLUGIN_PORT}",
    }


def inside_environment(state: Path) -> dict[str, str]:
    """What every command inside a world needs to know."""
    return {"KUBECONFIG": str(state / "kubeconfig.yaml"), "LLMD_OKE_CACHE": str(cache_folder())}


def down(project: Path, stack: str) -> None:
    """Ends a stack's world and removes its files, logs excepted. Nothing happens where there is none."""
    world = World(rehearsal_folder(project, stack))
    if not world.folder.path.is_dir():
        return
    world.stop()
    for path in world.folder.path.iterdir():
        if path != world.folder.logs:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
