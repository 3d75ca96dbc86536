"""What render tests look at, and where they find things."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue.artifacts import chart_folder
from llmd_oke.catalogue.cache import cache_folder
from llmd_oke.rehearsal.programs import locate
from llmd_oke.testing import Rendered

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT.parent / "shared" / "data"

STACKS = ["rehearsal", "guide", "guide-baseline", "small"]


def find_program(name: str) -> str | None:
    """A program as the rehearsal finds it: in `$LLMD_OKE_PROGRAMS`, in the cache or on PATH."""
    found = locate(name)
    return str(found.path) if found else None


def need_chart(release_name: str) -> Path:
    """The folder of the router's chart of a release; skips where that is not on the machine."""
    release = catalogue.release(release_name)
    folder = chart_folder(release.chart) if release else None
    if folder is None:
        pytest.skip(f"the router's chart of {release_name} is not in {cache_folder() / 'modules'}")
    return folder


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
