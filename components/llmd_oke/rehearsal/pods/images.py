"""Which program stands for which container image: the table in `values/rehearsal/images.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.pods.expansion import resolve_argv


class ImageEntry(BaseModel):
    """One row: images and what runs instead of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repositories: tuple[str, ...]
    """Image names without tag or digest; `*` matches any text. `docker.io/` and `library/` may be left out."""
    program: str | None = None
    """Name of the program in the agent's configuration."""
    path: str | None = None
    """Where the program lies in the container."""
    python: Literal["bare", "packages"] | None = None
    """Run by the machine's Python: with the standard library alone, or with the packages that the kit runs with."""
    simulator: Literal["vllm"] | None = None
    """Simulated by a process of the rehearsal instead of a program of its own."""
    entrypoint: tuple[str, ...] = ()
    """The image's own entry point, used when the container has no command."""
    arguments: tuple[str, ...] = ()
    """The image's own arguments, used when the container has neither command nor arguments."""
    commands: tuple[str, ...] = ()
    """The row is for these commands alone: base names of the first word, `*` matches any text."""
    unless: tuple[str, ...] = ()
    """The row isn't for commands with one of these words, `*` matches any text."""

    model_time: dict[str, float] = {}
    """Flags of the program for times of its servers' work, with their defaults in seconds: they go with model time."""

    environment: dict[str, str] = {}
    """Variables that make the program take less of a machine that it shares; a container's own come before them."""

    niceness: int = Field(default=0, ge=0, le=19)
    """How far the program stands back for what simulates servers."""

    def in_model_time(self, argv: Sequence[str], time_scale: float) -> list[str]:
        """These flags as the program needs them where its servers are slower than in real time; what a manifest gives
        stays as it is.
        """
        if time_scale <= 1:
            return []
        given = {word.partition("=")[0] for word in argv}
        return [f"{flag}={seconds * time_scale:g}s" for flag, seconds in self.model_time.items() if flag not in given]

    @model_validator(mode="after")
    def _one_stand_in(self) -> "ImageEntry":
        if [self.program, self.python, self.simulator].count(None) != 2:
            raise ValueError("give one of program (with path), python and simulator")
        if self.program is not None and self.path is None:
            raise ValueError("program needs path, where it lies in the container")
        return self


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    images: tuple[ImageEntry, ...]


@dataclass(frozen=True)
class ImageTable:
    """The rows, the first that matches wins."""

    entries: Sequence[ImageEntry]

    def find(
        self, image: str, command: Sequence[str] | None = None, arguments: Sequence[str] | None = None
    ) -> ImageEntry | None:
        """Give the row for an image reference such as `ghcr.io/llm-d/x:v1` and what the container wants it to run.

        None when no program stands for that.
        """
        name = repository(image)
        named = (entry for entry in self.entries if _matches(entry, name))
        return next((entry for entry in named if _is_for(entry, command, arguments)), None)


def load(path: Path) -> ImageTable:
    """Read a table; KitError when it can't be read or has the wrong shape."""
    try:
        return ImageTable(_Table.model_validate(yaml.safe_load(path.read_text())).images)
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise KitError(f"image table {path}: {error}") from error


def repository(image: str) -> str:
    """Give the image's full repository name: `envoyproxy/envoy:v1@sha256:…` is `docker.io/envoyproxy/envoy`."""
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    name = f"{folder}{slash}{last.partition(':')[0]}"
    host = name.partition("/")[0]
    if "/" not in name:
        return f"docker.io/library/{name}"
    if "." not in host and ":" not in host and host != "localhost":
        return f"docker.io/{name}"
    return name


def _matches(entry: ImageEntry, name: str) -> bool:
    return any(fnmatchcase(name, repository(pattern)) for pattern in entry.repositories)


def _is_for(entry: ImageEntry, command: Sequence[str] | None, arguments: Sequence[str] | None) -> bool:
    if not entry.commands:
        return True
    if not (command or entry.entrypoint or entry.arguments):
        return False
    words = resolve_argv(command, arguments, entry.entrypoint, entry.arguments, {})
    program = PurePosixPath(words[0]).name
    is_named = any(fnmatchcase(program, pattern) for pattern in entry.commands)
    return is_named and not any(fnmatchcase(word, pattern) for word in words for pattern in entry.unless)
