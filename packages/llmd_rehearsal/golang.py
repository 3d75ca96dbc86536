"""The Go tool chain for programs and modules of a rehearsal: finding, building and downloading, Go's version rules, and
the build information in Go programs.

Build information lists a program's modules with their versions, in the format of Go 1.18 and later (Go's package
debug/buildinfo): a header of 32 bytes that begins with a magic word, then the Go version and the list of modules, each
with its length in bytes before it.
"""

import json
import mmap
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmd_base.errors import KitError

DOWNLOAD_TIMEOUT_S = 300.0
_TIMEOUT_S = 60
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")
_RELEASE_STAMP = re.compile(r"BuildRef=(v\d+\.\d+\.\d+\S*?)[\"'\s]")
_MAGIC = b"\xff Go buildinf:"
_ALIGNMENT = 16
_HEADER = 32
_FLAGS = 15
_STRINGS_FOLLOW = 0x2
_SENTINEL = 16


def find_go(module: Path, packaged: Path | None, install: str) -> Path:
    """Return the path of a `go` that can build the module in this folder: the first on PATH, or else the `packaged`
    one.

    Raises:
        KitError: no `go` can build the module; the message has each one's reason, and the command that installs Go.
    """
    # The Python package's script `go` on PATH starts the packaged Go, which is only tried last.
    scripts = Path(sysconfig.get_path("scripts")).resolve()
    folders = [folder for folder in os.get_exec_path() if Path(folder).resolve() != scripts]
    on_path = shutil.which("go", path=os.pathsep.join(folders))
    refusals: list[str] = []
    for go in filter(None, (Path(on_path) if on_path else None, packaged)):
        refusal = _refusal(go, module)
        if refusal is None:
            return go
        refusals.append(f"{go} says: {refusal}")
    # The newest version that any module in `tools/` requires, so that one installation of Go suffices.
    versions = [_required_version(path.parent) for path in module.parent.glob("*/go.mod")]
    newest = max(versions, key=lambda version: [int(part) for part in version.split(".")])
    raise KitError(
        f"Go {newest} or later is needed to build programs; {'; '.join(refusals) or 'there is none'}",
        f"install it: {install}",
    )


def _refusal(go: Path, module: Path) -> str | None:
    """Return the reason why this `go` can't build the module, in the words of `go`; None if this `go` can build the
    module.
    """
    try:
        process = subprocess.run(
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
    if process.returncode != 0:
        return process.stderr.strip()
    # Go before 1.21 ignores the version that go.mod requires, and fails only during the build.
    version = process.stdout.strip().removeprefix("go")
    return None if version_satisfies(version, _required_version(module), "later") else f"it is Go {version}"


def _required_version(module: Path) -> str:
    lines = (module / "go.mod").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("go "))


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of the user with `settings` and with those for building stand-alone Go modules
    for this machine.

    GOROOT is removed, so that each `go` uses its own, and no `go` may download another version of itself.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in {"GOOS", "GOARCH", "GOROOT"}}
    return {"HOME": str(Path.home()), **inherited, "GOWORK": "off", "GOTOOLCHAIN": "local", **(settings or {})}


def build_arguments(
    variables: Mapping[str, str], tags: Sequence[str], packages: Sequence[str], output: Path
) -> list[str]:
    """Return the arguments of `go build` with pinned modules and without debug symbols. `output` is a file for one
    package, and a folder for several.
    """
    linked = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in variables.items())])
    flags = [
        *(["-tags", ",".join(tags)] if tags else []),
        "-mod=readonly",
        "-buildvcs=false",
        "-gcflags=all=-dwarf=false",
        "-ldflags",
        linked,
    ]
    return ["build", "-v", *flags, "-o", str(output), *packages]


def download(
    go: Path, module: str, version: str, folder: Path, timeout_s: float = DOWNLOAD_TIMEOUT_S
) -> tuple[Path, str]:
    """Download a Go module into Go's module cache, with the tool `go` run in `folder`; return the module's folder in
    the cache and its checksum.

    Raises:
        KitError: the download failed, or took longer than `timeout_s` seconds.
    """
    try:
        process = subprocess.run(
            [go, "mod", "download", "-json", f"{module}@{version}"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KitError(f"downloading {module} {version} took longer than {timeout_s:.0f} s") from error
    answer: dict[str, str] = json.loads(process.stdout or "{}")
    if process.returncode != 0 or "Error" in answer:
        raise KitError(f"downloading {module} {version} failed: {answer.get('Error', process.stderr.strip())}")
    return Path(answer["Dir"]), answer["Sum"]


def is_refusal(error: KitError) -> bool:
    """Tell whether a module's download failed by an answer of the Go module proxy, and not for lack of a network."""
    return re.search(r"\b(403 Forbidden|404 Not Found|410 Gone)\b", error.message) is not None


def version_satisfies(version: str, required: str, accepts: str) -> bool:
    """Tell whether `version` may be used where `required` is asked for.

    `accepts` is `exact`, `patch` (same minor version, not older), `minor` (same major version, not older) or `later`
    (not older).
    """
    numbers, minimum = _numbers(version), _numbers(required)
    if accepts == "exact" or numbers is None or minimum is None:
        return normal_version(version) == normal_version(required)
    same = {"patch": 2, "minor": 1, "later": 0}[accepts]
    is_prerelease = "-" in version
    return numbers[:same] == minimum[:same] and numbers >= minimum and not is_prerelease


def normal_version(version: str) -> str:
    """Return the version with a leading `v`, the form in which Go writes versions."""
    return version if version.startswith("v") else f"v{version}"


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return major, minor and patch number of a version; None if the text doesn't begin with numbers."""
    match = _NUMBERS.match(version)
    return tuple([*map(int, match[1].split(".")), 0, 0, 0][:3]) if match else None


def module_version(program: Path, names: Sequence[str]) -> str | None:
    """Return the version of a Go module inside a program; `names` are the module's possible paths. None if the program
    doesn't contain the module or isn't a Go program.

    A program built from the module's own checkout has no version there; then the release that its publisher linked into
    the program (`BuildRef`) is returned, or None without one.
    """
    text = build_info(program) or ""
    for line in text.splitlines():
        kind, *fields = line.split("\t")
        if kind in {"mod", "dep"} and fields[0] in names:
            if fields[1] != "(devel)":
                return fields[1]
            stamp = _RELEASE_STAMP.search(text)
            return stamp[1] if stamp else None
    return None


def build_info(program: Path) -> str | None:
    """Return a Go program's list of modules and build settings, one on each line; None if the file has no build
    information.
    """
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(_MAGIC)
            while at >= 0:
                if at % _ALIGNMENT == 0 and content[at + _FLAGS] & _STRINGS_FOLLOW:
                    _, after = _string(content, at + _HEADER)
                    modules, _ = _string(content, after)
                    return modules[_SENTINEL:-_SENTINEL].decode(errors="replace")
                at = content.find(_MAGIC, at + 1)
    except (OSError, ValueError):
        pass
    return None


def _string(content: mmap.mmap, at: int) -> tuple[bytes, int]:
    """Return the string at an offset, which its length precedes as a varint, and the offset after the string."""
    length = shift = 0
    while True:
        byte = content[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return content[at : at + length], at + length


def copy_files(source: Path, target: Path) -> None:
    """Copy a folder's files without their modes, as all files of Go's module cache are read-only."""
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
