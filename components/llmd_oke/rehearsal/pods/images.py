"""Which program stands for which container image: the table in `values/rehearsal/images.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from llmd_oke.errors import KitError


class ImageEntry(BaseModel):
    """One row: images and what runs instead of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repositories: tuple[str, ...]
    """Image names without tag or digest; `*` matches any text. `docker.io/` and `library/` may be left out."""
    program: str | None = None
    """Name of the program in the agent's configuration."""
    path: str | None = None
    """Where the program lies in the container."""
    simulator: Literal["vllm"] | None = None
    """Simulated by a process of the rehearsal instead of a program of its own."""
    entrypoint: tuple[str, ...] = ()
    """The image's own entry point, used when the container has no command."""
    arguments: tuple[str, ...] = ()
    """The image's own arguments, used when the container has neither command nor arguments."""

    @model_validator(mode="after")
    def _one_stand_in(self) -> "ImageEntry":
        if (self.program is None) == (self.simulator is None):
            raise ValueError("give either program (with path) or simulator")
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

    def find(self, image: str) -> ImageEntry | None:
        """Give the row for an image reference such as `ghcr.io/llm-d/x:v1`, None for an image without a program."""
        name = repository(image)
        return next((entry for entry in self.entries if _matches(entry, name)), None)


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
