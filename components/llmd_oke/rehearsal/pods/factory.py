"""Chooses what runs for a container: a program, Python, the simulator, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from lightkube.models.core_v1 import Container as ContainerModel

from llmd_oke.rehearsal.pods import last_words
from llmd_oke.rehearsal.pods.containers import Container, StartError
from llmd_oke.rehearsal.pods.expansion import resolve_argv
from llmd_oke.rehearsal.pods.images import ImageEntry, ImageTable
from llmd_oke.rehearsal.pods.placeholder_containers import PlaceholderContainer
from llmd_oke.rehearsal.pods.process_containers import ProcessContainer, ProcessSpec
from llmd_oke.rehearsal.pods.pythons import Python
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
    last_words: Path
    """The file that the container's run may write its termination message to."""
    completes: bool
    """Whether it's expected to end by itself, if nothing runs for it."""


class ContainerFactory:
    """Makes containers by the image table; `programs` are paths by name.

    With a `time_scale` above 1, programs whose intervals are the simulated servers' are told longer ones.
    """

    def __init__(
        self,
        images: ImageTable,
        programs: Mapping[str, Path],
        python: Python,
        simulator: httpx2.AsyncClient | None,
        time_scale: float = 1.0,
    ) -> None:
        self._images = images
        self._programs = programs
        self._python = python
        self._simulator = simulator
        self._time_scale = time_scale

    def is_simulated(self, model: ContainerModel) -> bool:
        """Say whether nothing runs for this container."""
        entry = self._entry(model)
        if entry is None:
            return True
        return entry.simulator is not None and (self._simulator is None or not _starts_vllm(model, entry))

    def make(self, model: ContainerModel, setting: Setting) -> Container:
        """Make one run of a container; StartError when its image's program isn't on this machine."""
        entry = self._entry(model)
        if entry is None or self.is_simulated(model):
            return PlaceholderContainer(completes=setting.completes)
        environment = setting.environment
        argv = resolve_argv(model.command, model.args, entry.entrypoint, entry.arguments, environment)
        if self._simulator is not None and entry.simulator is not None:
            image = model.image or ""
            spec = SimulatorSpec(setting.network, argv, environment, image, setting.log, setting.mounts)
            return SimulatorContainer(spec, self._simulator)
        if entry.python is not None:
            mounts = self._python.mounts(packages=entry.python == "packages")
            return _process(model, setting, mounts, self._python.argv(argv), self._python.variables(environment))
        argv += entry.in_model_time(argv, self._time_scale)
        shared = {**entry.environment, **environment}
        return _process(model, setting, [self._program(model, entry)], argv, shared, entry.niceness)

    def _entry(self, model: ContainerModel) -> ImageEntry | None:
        return self._images.find(model.image or "", model.command, model.args)

    def _program(self, model: ContainerModel, entry: ImageEntry) -> Mount:
        program = self._programs.get(entry.program or "")
        if program is None or not program.exists():
            raise StartError("ErrImageNeverPull", f'the rehearsal has no program "{entry.program}" for {model.image}')
        return Mount(program, entry.path or "", read_only=True)


def _process(
    model: ContainerModel,
    setting: Setting,
    own: Sequence[Mount],
    argv: list[str],
    environment: Mapping[str, str],
    niceness: int = 0,
) -> ProcessContainer:
    mounts = [*own, *setting.mounts, last_words.mount(model, last_words.empty_file(setting.last_words))]
    sandbox = Sandbox(setting.network, setting.host_name, mounts, model.workingDir or "/")
    return ProcessContainer(ProcessSpec(sandbox, argv, environment, setting.log, niceness))


def _starts_vllm(model: ContainerModel, entry: ImageEntry) -> bool:
    words = model.command or entry.entrypoint
    return any("vllm" in word for word in (*words, *(model.args or [])))
