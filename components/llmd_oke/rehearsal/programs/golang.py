"""The Go tool: found in a version that a module accepts, and run."""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.programs.definitions import definitions

_TIMEOUT_S = 600
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def find_go(module: Path) -> Path:
    """The `go` that can build this module.

    Raises KitError with the command that installs it when it is missing, or too old and not allowed to renew itself.
    """
    found = shutil.which("go")
    if found is None:
        raise KitError(f"Go {needed_version(module)} or later is needed to build programs, and is not on PATH", hint())
    done = subprocess.run(
        [found, "env", "GOVERSION"],
        cwd=module,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        what = f"Go {needed_version(module)} or later is needed to build programs; {found} says: {done.stderr.strip()}"
        raise KitError(what, hint())
    return Path(found)


def needed_version(module: Path) -> str:
    """The newest version of Go that this module, or one beside it, asks for: whoever installs it does so once."""
    files = [path.read_text().splitlines() for path in module.parent.glob("*/go.mod")]
    asked = [line.split()[1] for lines in files for line in lines if line.startswith("go ")]
    return max(asked, key=lambda version: [int(part) for part in version.split(".")])


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's own environment, for modules that stand alone and programs for this machine."""
    own = {name: value for name, value in os.environ.items() if name not in {"GOOS", "GOARCH"}}
    return {**own, "GOWORK": "off", **(settings or {})}


def build_arguments(variables: Mapping[str, str], packages: Sequence[str], output: Path) -> list[str]:
    """The arguments of a `go build` of pinned modules; one package goes to a file, several go into a folder."""
    linked = " ".join(f"-X {name}={value}" for name, value in variables.items())
    flags = ["-mod=readonly", "-buildvcs=false", *(["-ldflags", linked] if linked else [])]
    return ["build", "-v", *flags, "-o", str(output), *packages]


def hint() -> str:
    """How Go is installed on this machine."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    return "install it: " + definitions().go.install.format(architecture=architecture)
