"""Go modules that are read as data: the charts and CRDs of a release, checked against a pinned checksum."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from llmd_oke.catalogue import cache as files
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress, SilentProgress
from llmd_oke.rehearsal.programs import cache, golang
from llmd_oke.rehearsal.programs.definitions import modules, tools_folder

_TIMEOUT_S = 300.0
_ANY_MODULE = "llm-d"
"""Downloading has no module of its own; the version of Go that this one needs will do."""


def module_folder(module: str, version: str, progress: Progress | None = None) -> Path:
    """The folder with what is kept of a module, downloaded once with Go and cached.

    Raises KitError for a module or version that isn't pinned, when Go or the network is missing, and when the checksum
    is not the pinned one.
    """
    checksum = _pinned(module, version)
    place = files.module_folder(module, version).resolve()
    if place.is_dir():
        return place
    listener = progress or SilentProgress()
    with cache.locked(f"{module.replace('/', '-')}-{version}", listener, _TIMEOUT_S):
        if not place.is_dir():
            listener.step(f"downloading {module} {version}")
            _fetch(module, version, checksum, place)
    return place


def _pinned(module: str, version: str) -> str:
    definition = modules().get(module)
    if definition is None or version not in definition.versions:
        raise KitError(f"{module} {version} is not one of the pinned modules in values/rehearsal/modules.yaml")
    return definition.versions[version]


def _fetch(module: str, version: str, checksum: str, place: Path) -> None:
    with cache.workbench() as bench:
        answer = _download(module, version, bench)
        if answer["Sum"] != checksum:
            raise KitError(f"{module} {version} has the checksum {answer['Sum']}, pinned is {checksum}: it was changed")
        kept = bench / "kept"
        for folder in modules()[module].folders:
            _copy(Path(answer["Dir"]) / folder, kept / folder)
        cache.publish(kept, place)


def _download(module: str, version: str, folder: Path) -> dict[str, Any]:
    go = golang.find_go(tools_folder() / _ANY_MODULE)
    try:
        done = subprocess.run(
            [go, "mod", "download", "-json", f"{module}@{version}"],
            cwd=folder,
            env=golang.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KitError(f"downloading {module} {version} took longer than {_TIMEOUT_S:.0f} s") from error
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    if done.returncode != 0 or "Error" in answer:
        raise KitError(f"downloading {module} {version} failed: {answer.get('Error', done.stderr.strip())}")
    return answer


def _copy(source: Path, target: Path) -> None:
    """Copy files without the modes of the module cache, where everything is read-only."""
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
