"""Entries of a project's own `values/`, made from the kit's with what a test wants to be different."""

from pathlib import Path
from typing import Any

import yaml
from llmd_oke.values import open_project, read_yaml, values_folder


def kit_entry(path: str, **changes: object) -> dict[str, Any]:
    """The kit's entry at a path below `values/`, without `.yaml`, with changes."""
    return {**read_yaml(values_folder() / f"{path}.yaml"), **changes}


def model_entry(name: str, /, **changes: object) -> dict[str, Any]:
    """A model that the kit doesn't know."""
    own = {"name": name, "repository": f"acme/{name}", "revision": None, "quantized_from": None}
    return kit_entry("models/llama-3.3-70b-instruct-fp8-dynamic", **{**own, **changes})


def write_entry(project: Path, path: str, content: object) -> Path:
    """Write a file below the project's `values/`, by its path without `.yaml`; the project is open then."""
    file = project / "values" / f"{path}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    open_project(project)
    return file
