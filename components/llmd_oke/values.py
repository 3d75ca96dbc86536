"""Where the kit's data lies: the files of `values/`, how one is read, and the folder of downloads."""

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Entry(BaseModel):
    """A record in `values/`: no unknown keys, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


EntryType = TypeVar("EntryType", bound=Entry)


@cache
def values_folder() -> Path:
    """The folder of the data: inside the installed package, or beside the sources of a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_values"
    return installed if installed.is_dir() else package.parent.parent / "values"


def read_yaml(path: Path) -> Any:
    """The content of one YAML file."""
    return yaml.load(path.read_text(), _Loader)  # noqa: S506 - a safe loader, the C one where there is one


def yaml_documents(text: str) -> list[Any]:
    """The documents of a YAML text, without empty ones."""
    return [document for document in yaml.load_all(text, _Loader) if document]


def names(kind: str) -> list[str]:
    """The entries of a kind (`models`, `shapes`, `releases`), sorted."""
    return sorted(path.name[: -len(".yaml")] for path in (values_folder() / kind).glob("*.yaml"))


def entry(kind: str, name: str, type_: type[EntryType]) -> EntryType | None:
    """The entry of that name, or None where there is no such entry."""
    if name not in names(kind):
        return None
    return required_entry(kind, name, type_)


def required_entry(kind: str, name: str, type_: type[EntryType]) -> EntryType:
    """The entry of that name, which is part of the kit."""
    return type_.model_validate(read_yaml(values_folder() / kind / f"{name}.yaml"))


def cache_folder() -> Path:
    """`$LLMD_OKE_CACHE`, or `llmd-oke` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`)."""
    if own := os.environ.get("LLMD_OKE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmd-oke"


def module_folder(module: str, version: str) -> Path:
    """Where the charts and CRDs of a Go module are kept once they are on this machine."""
    return cache_folder() / "modules" / f"{module}@{version}"
