"""Rendered stacks of tests, their objects and recorded files."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llmd_oke import catalogue
from llmd_oke.testing import Declared, Rendered, without_hash
from llmd_oke.values import module_folder, read_yaml
from llmd_rehearsal.plugin_values import is_list, is_map
from llmd_rehearsal.programs import locate

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT.parent / "shared" / "data"

STACKS = ["rehearsal", "guide", "guide-baseline", "small"]


def find_program(name: str) -> str | None:
    """A program as the rehearsal finds it: in `$LLMD_OKE_PROGRAMS`, in the cache or on PATH."""
    matches = locate(name)
    return str(matches.path) if matches else None


def need_definitions(release_name: str) -> None:
    """Skip where the definitions of a release are not on the machine."""
    release = catalogue.release(release_name)
    if release is None:
        return
    folder = module_folder(release.crds.module, release.crds.version) / release.crds.folder
    if not folder.is_dir():
        pytest.skip(f"the definitions of {release_name} are not in {folder}")


def pod(rendered: Rendered, deployment: str) -> dict[str, Any]:
    """The pod template of a Deployment."""
    return rendered.kubernetes("Deployment", deployment)["spec"]["template"]


def vllm(rendered: Rendered, deployment: str) -> dict[str, Any]:
    """The container `vllm` of a Deployment."""
    (container,) = pod(rendered, deployment)["spec"]["containers"]
    return container


def env(container: Mapping[str, Any]) -> dict[str, str]:
    """The plain environment of a container."""
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Tell whether a selector matches labels."""
    return selector.items() <= labels.items()


def recorded(path: Path, text: str, variable: str) -> str:
    """Return what a recorded file has; the text, from now on, where the environment variable is set."""
    if os.environ.get(variable):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return path.read_text()


def by_urn(rendered: Rendered) -> dict[tuple[str, str], Declared]:
    """The resources by what their URNs have beside project and stack: the types of their parents and their own, joined
    by `$`, and their name, here without hashes of content.
    """
    known = {resource.urn: resource for resource in rendered.resources}

    def types(resource: Declared) -> str:
        parent = known.get(resource.parent)
        return f"{types(parent)}${resource.type}" if parent else resource.type

    return {(types(resource), without_hash(resource.name)): resource for resource in rendered.resources}


def validate_by_definition(manifest: Mapping[str, Any], file: Path) -> None:
    """Raise where an object isn't valid by the custom resource definition in a file, or has a field that it lacks; skip
    where the file is absent.
    """
    if not file.is_file():
        pytest.skip(f"{file} is absent")
    _validator(file, manifest["apiVersion"].rpartition("/")[2]).validate(manifest)


@cache
def _validator(file: Path, version: str) -> Any:
    """Return the validator of a definition. The schema itself isn't checked: a pattern of one is none of Python's."""
    (served,) = [item for item in read_yaml(file)["spec"]["versions"] if item["name"] == version]
    closed = without_unknown_fields(served["schema"]["openAPIV3Schema"])
    return jsonschema.Draft202012Validator({**closed, "additionalProperties": True})


def without_unknown_fields(schema: Any) -> Any:
    """The schema with unknown fields refused; the API server would drop them without a word."""
    if is_list(schema):
        return [without_unknown_fields(part) for part in schema]
    if not is_map(schema):
        return schema
    closed = {key: without_unknown_fields(part) for key, part in schema.items()}
    if is_map(closed.get("properties")) and closed["properties"] and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed
