"""Chooses what runs for a container: a program, the simulator, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from lightkube.models.core_v1 import Container as ContainerModel

from llmd_oke.rehearsal.pods.containers import Container, StartError
from llmd_oke.rehearsal.pods.expansion import resolve_argv
from llmd_oke.rehearsal.pods.images import ImageEntry, ImageTable
from llmd_oke.rehearsal.pods.placeholder_containers import PlaceholderContainer
from llmd_oke.rehearsal.pods.process_containers import ProcessContainer, ProcessSpec
from llmd_oke.rehearsal.pods.sandboxes import Mount, Sandbox
from llmd_oke.rehearsal.pods.simulator_containers import SimulatorContainer, SimulatorSpec


@dataclass(frozen=True)
class Setting:
    """What a container finds around it when it starts."""

    network: Path
    host_name: str
    mounts: Sequence[Mount]
    environment: Mapping[str, str]
    log: Path
    completes: bool
    """Whether it's expected to end by itself, if nothing runs for it."""


class ContainerFactory:
    """Makes containers by the image table; `programs` are paths by name."""

    def __init__(self, images: ImageTable, programs: Mapping[str, Path], simulator: httpx2.AsyncClient | None) -> None:
        self._images = images
        self._programs = programs
        self._simulator = simulator

    def is_simulated(self, model: ContainerModel) -> bool:
        """Say whether nothing runs for this container."""
        entry = self._images.find(model.image or "")
        if entry is None:
            return True
        return entry.simulator is not None and (self._simulator is None or not _starts_vllm(model, entry))

    def make(self, model: ContainerModel, setting: Setting) -> Container:
        """Make one run of a container; StartError when its image's program isn't on this machine."""
        entry = self._images.find(model.image or "")
        if entry is None or self.is_simulated(model):
            return PlaceholderContainer(completes=setting.completes)
        environment = setting.environment
        argv = resolve_argv(model.command, model.args, entry.entrypoint, entry.arguments, environment)
        if self._simulator is not None and entry.simulator is not None:
            spec = SimulatorSpec(setting.network, argv, environment, model.image or "", setting.log)
            return SimulatorContainer(spec, self._simulator)
        return self._process(model, entry, argv, setting)

    def _process(self, model: ContainerModel, entry: ImageEntry, argv: list[str], setting: Setting) -> ProcessContainer:
        program = self._programs.get(entry.program or "")
        if program is None or not program.exists():
            raise StartError("ErrImageNeverPull", f'the rehearsal has no program "{entry.program}" for {model.image}')
        mounts = [Mount(program, entry.path or "", read_only=True), *setting.mounts]
        sandbox = Sandbox(setting.network, setting.host_name, mounts, model.workingDir or "/")
        return ProcessContainer(ProcessSpec(sandbox, argv, setting.environment, setting.log))


def _starts_vllm(model: ContainerModel, entry: ImageEntry) -> bool:
    words = model.command or entry.entrypoint
    return any("vllm" in word for word in (*words, *(model.args or [])))
