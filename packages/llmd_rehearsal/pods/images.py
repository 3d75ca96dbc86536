"""Programs that run for container images, by the table `values/rehearsal/images.yaml`: a program, Python, the
simulator, or none.
"""

import shutil
import sys
import sysconfig
import venv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

import httpx2
import yaml
from lightkube.models.core_v1 import Container as ContainerModel
from llmd_base.errors import KitError
from llmd_oke.values import read_yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmd_rehearsal.pods import containers
from llmd_rehearsal.pods.containers import (
    Container,
    Mount,
    PlaceholderContainer,
    ProcessContainer,
    ProcessContainerSpec,
    Sandbox,
    SimulatorContainer,
    SimulatorSpec,
    StartError,
)
from llmd_rehearsal.pods.environment import resolve_argv
from llmd_rehearsal.real_vllm.servers import RealServers

FOLDER = "/opt/python"
EXECUTABLE = f"{FOLDER}/bin/python"
_BOUND_ALREADY = "/usr"
_AUTHORITY = "authority.pem"
_CERTIFICATE_FOLDER = "/etc/llmd-oke-rehearsal"


class ImageEntry(BaseModel):
    """Row of the table of images: image names, and the program, interpreter or simulator that runs for these images."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repositories: tuple[str, ...]
    """Image names without tag or digest; `*` matches any text. `docker.io/` and `library/` may be left out."""
    program: str | None = None
    """Name, as in the node agent's configuration, of the program that runs for the image."""
    path: str | None = None
    """Path of the program in the container's file system."""
    python: Literal["bare", "packages"] | None = None
    """Packages with which the container's command is run by this machine's Python: `bare` for the standard library
    alone, `packages` for the kit's packages too.
    """
    simulator: Literal["vllm"] | None = None
    """Name of the simulator whose process serves the container in place of a program."""
    idle: bool = False
    """True if the container's program does nothing until it is stopped, so that no process is started."""
    entrypoint: tuple[str, ...] = ()
    """The image's entry point, used if the container has no command."""
    arguments: tuple[str, ...] = ()
    """The image's arguments, used if the container has neither command nor arguments."""
    commands: tuple[str, ...] = ()
    """Names of programs to which the row is limited: the first word of the container's command, without folders, must
    match one of them; `*` matches any text. Empty: no limit.
    """
    words: tuple[str, ...] = ()
    """Words of which the container's command must have at least one for the row to apply. Empty: no limit."""
    unless: tuple[str, ...] = ()
    """Words for which the row doesn't apply if the container's command has one of them; `*` matches any text."""

    model_time: dict[str, float] = {}
    """Flags of the program for durations of the simulated servers' work, with the flags' defaults in seconds, which are
    multiplied by the time scale.
    """

    flags: dict[str, str] = {}
    """Flags of the program whose values in a manifest are replaced by these, because the program shares the machine
    with many instances.
    """

    adds: dict[str, str] = {}
    """Flags, with values, that the container's program gets if the manifest doesn't set them."""

    certificate_flag: str = ""
    """Flag of the program for a folder with `tls.crt` and `tls.key`, so that the program doesn't generate a certificate
    itself.
    """

    environment: dict[str, str] = {}
    """Environment variables that make the program use less of the shared machine; the container's own variables
    override them.
    """

    niceness: int = Field(default=0, ge=0, le=19)
    """Niceness (0 to 19) with which the program yields processors to the simulated servers."""

    def with_flags(self, argv: Sequence[str]) -> list[str]:
        """Return the program's arguments with replaced values of `flags` (in the form `--flag value`) and with the
        flags of `adds`.
        """
        before = ("", *argv)
        renamed = [self.flags.get(flag, word) for flag, word in zip(before, argv, strict=False)]
        return [*renamed, *(part for flag in _absent(self.adds, argv) for part in (flag, self.adds[flag]))]

    def in_model_time(self, argv: Sequence[str], time_scale: float) -> list[str]:
        """Return the program's flags of `model_time`, except flags that the manifest sets, with values multiplied by
        `time_scale`, because the simulated servers take so much longer than real ones; empty if `time_scale` is at most
        1.
        """
        if time_scale <= 1:
            return []
        return [f"{flag}={self.model_time[flag] * time_scale:g}s" for flag in _absent(self.model_time, argv)]

    @model_validator(mode="after")
    def _one_stand_in(self) -> "ImageEntry":
        if [self.program, self.python, self.simulator, self.idle or None].count(None) != 3:
            raise ValueError("give one of program (with path), python, simulator and idle")
        if self.program is not None and self.path is None:
            raise ValueError("program needs path, where it lies in the container")
        return self


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    images: tuple[ImageEntry, ...]


@dataclass(frozen=True)
class ImageTable:
    """Table of the programs that run for container images; the first matching row applies."""

    entries: Sequence[ImageEntry]

    def find(
        self, image: str, command: Sequence[str] | None = None, arguments: Sequence[str] | None = None
    ) -> ImageEntry | None:
        """Return the row for an image reference such as `ghcr.io/llm-d/x:v1` and the container's command and arguments;
        None if no row matches.
        """
        name = repository(image)
        for entry in self.entries:
            patterns = [repository(pattern) for pattern in entry.repositories]
            private_copies = [f"*/{pattern}" for pattern in patterns]  # the same images in a private registry
            has_image = any(fnmatchcase(name, pattern) for pattern in (*patterns, *private_copies))
            if has_image and _is_for(entry, command, arguments):
                return entry
        return None


def load(path: Path) -> ImageTable:
    """Return the table of images in a file.

    Raises:
        KitError: the file can't be read or is invalid.
    """
    try:
        return ImageTable(_Table.model_validate(read_yaml(path)).images)
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise KitError(f"image table {path}: {error}") from error


def repository(image: str) -> str:
    """Return the image's full repository name: `docker.io/envoyproxy/envoy` for `envoyproxy/envoy:v1@sha256:…`."""
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    name = f"{folder}{slash}{last.partition(':')[0]}"
    host = name.partition("/")[0]
    if "/" not in name:
        return f"docker.io/library/{name}"
    if "." not in host and ":" not in host and host != "localhost":
        return f"docker.io/{name}"
    return name


def _absent(flags: Iterable[str], argv: Sequence[str]) -> list[str]:
    """Return the flags that a command line doesn't set, neither as `--flag value` nor as `--flag=value`."""
    present = {word.partition("=")[0] for word in argv}
    return [flag for flag in flags if flag not in present]


def _is_for(entry: ImageEntry, command: Sequence[str] | None, arguments: Sequence[str] | None) -> bool:
    if not entry.commands:
        return True
    if not (command or entry.entrypoint or entry.arguments):
        return False
    command_line = resolve_argv(command, arguments, entry.entrypoint, entry.arguments, {})
    program = PurePosixPath(command_line[0]).name
    is_named = any(fnmatchcase(program, pattern) for pattern in entry.commands)
    has_word = not entry.words or not set(entry.words).isdisjoint(command_line)
    return (
        is_named
        and has_word
        and not any(fnmatchcase(word, pattern) for word in command_line for pattern in entry.unless)
    )


@dataclass(frozen=True)
class Python:
    """Python interpreter that runs programs in pods. `environment` has the variables of all programs that the
    interpreter runs.
    """

    folder: Path
    environment: Mapping[str, str]

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return a container's command line with this interpreter in place of the container's own."""
        return [EXECUTABLE, *command[1:]]

    def variables(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a program in a pod: the interpreter's, overridden by the container's own,
        with the interpreter's folder first on PATH.
        """
        merged = {**self.environment, **values}
        return {**merged, "PATH": f"{FOLDER}/bin:{merged.get('PATH', '')}"}

    def mounts(self, *, packages: bool) -> list[Mount]:
        """Return the mounts of the interpreter in a container, with the kit's packages if `packages` is set."""
        mounts = [Mount(self.folder, FOLDER, read_only=True)]
        if sys.base_prefix != _BOUND_ALREADY:
            mounts.append(Mount(Path(sys.base_prefix), sys.base_prefix, read_only=True))
        if packages:
            within = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
            mounts.append(Mount(Path(sysconfig.get_path("purelib")), f"{FOLDER}/{within}", read_only=True))
        return mounts


def prepare(state_folder: Path, authority: Path | None, environment: Mapping[str, str] | None = None) -> Python:
    """Create the folder of the Python interpreter for pods, without packages, and return the interpreter.

    Programs trust the certificate authority in the PEM file `authority`, and get the variables in `environment`.

    Raises:
        OSError: the folder can't be written.
    """
    folder = state_folder / "python"
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(folder)
    if authority is None:
        return Python(folder, dict(environment or {}))
    shutil.copyfile(authority, folder / _AUTHORITY)
    return Python(folder, {"SSL_CERT_FILE": f"{FOLDER}/{_AUTHORITY}", **(environment or {})})


@dataclass(frozen=True)
class ContainerContext:
    """Pod network, files and environment variables with which a container starts."""

    network: Path
    host_name: str
    mounts: Sequence[Mount]
    environment: Mapping[str, str]
    log: Path
    termination_log: Path
    """File on this machine for the termination message of the container's run."""
    completes: bool
    """True if a container for whose image no program runs is expected to end by itself, as a Job's is."""


class ContainerFactory:
    """Factory of containers by the table of images.

    `programs` are the paths of programs on this machine by name, `certificate` those of the certificate and key that
    programs in pods get. With a `time_scale` above 1, programs get longer durations for the simulated servers' work.
    With `real_vllm`, servers run vLLM itself instead of being simulated.
    """

    def __init__(
        self,
        images: ImageTable,
        programs: Mapping[str, Path],
        python: Python,
        simulator: httpx2.AsyncClient | None,
        time_scale: float = 1.0,
        certificate: tuple[Path, Path] | None = None,
        real_vllm: RealServers | None = None,
    ) -> None:
        self._images = images
        self._programs = programs
        self._python = python
        self._simulator = simulator
        self._time_scale = time_scale
        self._certificate = certificate
        self._real_vllm = real_vllm

    def is_simulated(self, model: ContainerModel) -> bool:
        """Tell whether no program runs for this container in the rehearsal, although its image would do something on a
        real node.
        """
        entry = self._entry(model)
        if entry is None:
            return True
        argv = (*(model.command or entry.entrypoint), *(model.args or []))
        starts_vllm = any("vllm" in word for word in argv)
        has_servers = self._simulator is not None or self._real_vllm is not None
        return entry.simulator is not None and not (has_servers and starts_vllm)

    def needs_process(self, model: ContainerModel) -> bool:
        """Tell whether a process or a simulated server runs for this container."""
        entry = self._entry(model)
        return entry is not None and not entry.idle and not self.is_simulated(model)

    def runs_python(self, model: ContainerModel) -> bool:
        """Tell whether the container is a Python program in an image of vLLM, which also has ROCm's tools and
        libraries.
        """
        entry = self._entry(model)
        return entry is not None and entry.python == "packages"

    def make(self, model: ContainerModel, context: ContainerContext) -> Container:
        """Return a new run of a container, not started yet.

        Raises:
            StartError: the image's program isn't on this machine.
        """
        entry = self._entry(model)
        if entry is None or not self.needs_process(model):
            return PlaceholderContainer(completes=context.completes)
        environment = context.environment
        argv = resolve_argv(model.command, model.args, entry.entrypoint, entry.arguments, environment)
        if self._real_vllm is not None and entry.simulator is not None:
            servers = self._real_vllm
            mounts = [Mount(source, target, read_only=True) for target, source in servers.mounts.items()]
            variables = servers.variables(environment)
            return _process(model, context, mounts, servers.argv(argv), variables, has_devices=True)
        if self._simulator is not None and entry.simulator is not None:
            image = model.image or ""
            scale = self._time_scale
            spec = SimulatorSpec(context.network, argv, environment, image, context.log, context.mounts, scale)
            return SimulatorContainer(spec, self._simulator)
        if entry.python is not None:
            mounts = self._python.mounts(packages=entry.python == "packages")
            return _process(model, context, mounts, self._python.argv(argv), self._python.variables(environment))
        if argv and "/" not in argv[0] and entry.path:  # a bare name, which the image would find on its PATH
            argv = [entry.path, *argv[1:]]
        argv = [*entry.with_flags(argv), *entry.in_model_time(argv, self._time_scale)]
        shared = {**entry.environment, **environment}
        program = self._programs.get(entry.program or "")
        if program is None or not program.exists():
            raise StartError("ErrImageNeverPull", f'the rehearsal has no program "{entry.program}" for {model.image}')
        mounts = [Mount(program, entry.path or "", read_only=True)]
        if self._certificate is not None and entry.certificate_flag and _absent((entry.certificate_flag,), argv):
            argv += [entry.certificate_flag, _CERTIFICATE_FOLDER]
            paths = (f"{_CERTIFICATE_FOLDER}/tls.crt", f"{_CERTIFICATE_FOLDER}/tls.key")
            mounts += [Mount(*pair, read_only=True) for pair in zip(self._certificate, paths, strict=True)]
        return _process(model, context, mounts, argv, shared, entry.niceness)

    def _entry(self, model: ContainerModel) -> ImageEntry | None:
        return self._images.find(model.image or "", model.command, model.args)


def _process(
    model: ContainerModel,
    context: ContainerContext,
    image_mounts: Sequence[Mount],
    argv: list[str],
    environment: Mapping[str, str],
    niceness: int = 0,
    *,
    has_devices: bool = False,
) -> ProcessContainer:
    mounts = [*image_mounts, *context.mounts, containers.mount(model, containers.empty_file(context.termination_log))]
    sandbox = Sandbox(context.network, context.host_name, mounts, model.workingDir or "/", has_devices=has_devices)
    return ProcessContainer(ProcessContainerSpec(sandbox, argv, environment, context.log, niceness))
