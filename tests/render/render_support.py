"""What render tests look at, and where they find things."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.testing import Rendered

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT.parent / "shared" / "data"

STACKS = ["rehearsal", "guide", "guide-baseline"]


def find_program(name: str) -> str | None:
    """A program from `$LLMD_OKE_PROGRAMS`, PATH or the cache, in this order."""
    given = os.environ.get("LLMD_OKE_PROGRAMS")
    found = shutil.which(name, path=given) if given else None
    cached = (path for path in (cache_folder() / "programs").rglob(name) if os.access(path, os.X_OK) and path.is_file())
    return found or shutil.which(name) or next((str(path) for path in cached), None)


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
    """Whether a selector matches labels."""
    return selector.items() <= labels.items()
