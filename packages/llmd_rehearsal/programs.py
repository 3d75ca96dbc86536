"""Programs of rehearsals: found on this machine, downloaded as published, or built from `tools/` into the user's cache.

`ensure` finds or provides programs, `locate` only searches, `module_folder` returns files of a Go module.
`program_definitions` has the definitions of programs and modules.

The cache has `programs/<name>/<version>-<hash>/<name>`, `modules/<module>@<version>/` and `logs/`. The hash is the
digest of a program's build inputs, or the pinned digest of a download. Files are moved into the cache atomically.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress, SilentProgress
from llmd_oke import values as user_cache
from llmd_oke.operations.locks import intervals

from llmd_rehearsal import golang
from llmd_rehearsal.cluster_spec import end_of_log
from llmd_rehearsal.downloads import ProgramDownload, UnreachableError
from llmd_rehearsal.golang import normal_version
from llmd_rehearsal.namespaces import PATH as SYSTEM_PATH
from llmd_rehearsal.program_definitions import (
    Build,
    ModuleDefinition,
    ModuleFile,
    ProgramDefinition,
    PythonSource,
    definitions,
    pinned_modules,
    program_definition,
    tools_folder,
)

OVERRIDE = "LLMD_OKE_PROGRAMS"
"""Environment variable with a folder whose programs are used before all others, in whatever version they have unless
one is requested.
"""

_VERSION_TIMEOUT_S = 20
_LOCK_PAUSE_S = 0.5
_REMINDER_S = 10.0
_BUILD_TIMEOUT_S = 3600.0
ASKING_TIMEOUT_S = 30.0
_REFUSAL_HOLDS_S = 24 * 3600.0
_BUILDS_AT_ONCE = 2
_POLL_S = 0.5
_HEARTBEAT_S = 10.0
_GRACE_S = 10.0
_OS_RELEASE = Path("/etc/os-release")
_ANY_GO_MODULE = "llm-d"
"""Folder of the Go module whose required Go version is used for downloads, which have no module of their own."""


@dataclass(frozen=True)
class LocalProgram:
    """Executable program on this machine; `origin` describes, for messages, where it was found."""

    name: str
    path: Path
    version: str
    origin: str


def ensure(
    names: Iterable[str], progress: Progress, versions: Mapping[str, str] | None = None
) -> dict[str, LocalProgram]:
    """Return programs by name: found on this machine, or else downloaded or built. `versions` are required versions
    that differ from those of `programs.yaml`.

    Raises:
        KitError: programs aren't available; the message, before any build, names all, with commands that install them.
    """
    required = {name: (versions or {}).get(name) for name in names}
    programs = {name: program for name, version in required.items() if (program := locate(name, version))}
    missing = [name for name in required if name not in programs]
    remedies = {name: remedy for name in missing if (remedy := _remedy(name, required[name]))}
    if remedies:
        what = f"{', '.join(remedies)} can't be found in a version that will do"
        raise KitError(what, "\n".join(dict.fromkeys(remedies.values())))
    resolved = {name: version or program_definition(name).version for name, version in required.items()}
    _download_programs({name: resolved[name] for name in missing}, progress)
    unpublished = [name for name in missing if locate(name, required[name]) is None]
    found = (program_definition(name).build_of(resolved[name]) for name in unpublished)
    _build_all({build: definitions().builds[build] for _, build in filter(None, found)}, progress)
    for name in unpublished:
        if source := program_definition(name).source.module:
            module_folder(source.module, program_definition(name).version, progress)
            _module_file(name, source).chmod(0o755)
    for name in missing:
        program = locate(name, required[name])
        if program is None:
            raise KitError(f"{name} was downloaded or built, yet it is not in the cache")
        programs[name] = program
    return {name: programs[name] for name in required}


def _download_programs(required: Mapping[str, str], progress: Progress) -> None:
    """Download the published ones of these programs, until a host can't be reached: the others are built."""
    for name, wanted in required.items():
        found = program_definition(name).download_of(wanted)
        if found is None or not found[1].is_wanted:
            continue
        version, download = found
        file = _downloaded_file(name, version, download)
        try:
            with _locked(f"{name}-{version}", progress, _BUILD_TIMEOUT_S):
                if not file.is_file():
                    progress.step(f"downloading {name} {version} from {download.origin}")
                    with _temporary_folder() as folder:
                        download.fetch(folder / name, progress)
                        file.parent.mkdir(parents=True, exist_ok=True)
                        (folder / name).replace(file)
        except UnreachableError as error:
            progress.detail(f"{error.message}: what is missing is built here instead")
            return
        except KitError as error:
            progress.detail(f"{error.message}: it is built here instead")


def why_unavailable(name: str, version: str) -> str | None:
    """Return the reason why this version of a program can neither be downloaded nor built here; None if it can be.

    Registries are asked for images, and module proxies for a Go module that not all of them have. A refusal is
    remembered for a day.
    """
    definition = program_definition(name)
    if downloaded := definition.download_of(version):
        of_version, download = downloaded
        if _downloaded_file(name, of_version, download).is_file():
            return None
        key = f"{name}-{of_version}-{download.digest[:12]}"
        if download.is_wanted and refusal(key, download.ask, _is_answer) is None:
            return None
    found = definition.build_of(version)
    if found is None:
        return f"nothing builds {name} {version}"
    built, build_name = found
    build = definitions().builds[build_name]
    if (module := build.asks_for) is None or program_file(name, built, build).is_file():
        return None

    def ask() -> None:
        with _temporary_folder() as folder:
            path, _, version = module.partition("@")
            golang.download(_find_go(build.module), path, version or built, folder, ASKING_TIMEOUT_S)

    return refusal(f"{build_name}-{fingerprint(build, os.environ.get('GOPROXY', ''))}", ask, golang.is_refusal)


def _is_answer(error: KitError) -> bool:
    return not isinstance(error, UnreachableError)


def refusal(key: str, ask: Callable[[], None], is_final: Callable[[KitError], bool]) -> str | None:
    """Return the reason why the request `ask` to a registry or module proxy failed; None if it succeeded. If
    `is_final`, the reason is remembered for a day under `key`.
    """
    file = cache_folder() / "refusals" / key
    if file.is_file() and time.time() - file.stat().st_mtime < _REFUSAL_HOLDS_S:
        return file.read_text()
    try:
        ask()
    except KitError as error:
        reason = " ".join(error.message.split())
        if is_final(error):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(reason)
        return reason
    return None


def _remedy(name: str, version: str | None) -> str | None:
    """Return the remedy for a program that can't be downloaded or built here; None for a program that can."""
    definition = program_definition(name)
    source, required = definition.source, version or definition.version
    if source.python is not None:
        return f"{name} {required}: {source.python.install}"
    if source.package is not None:
        return f"{name} {required} or later: {install_command(source.package)}"
    if definition.build_of(required) is None and source.module is None:
        return f"{name} {required}: put it on PATH; what can be built here is {' or '.join(definition.builds)}"
    return None


def install_command(packages: Mapping[str, str], os_release: Path = _OS_RELEASE) -> str:
    """Return the command that installs a package of the operating system; `packages` has its name by family."""
    installers = definitions().installers
    try:
        fields = dict(line.split("=", 1) for line in os_release.read_text().splitlines() if "=" in line)
    except FileNotFoundError:
        fields = {}
    # The distribution itself, then the distributions that it is derived from, the nearest first.
    families = [family for key in ("ID", "ID_LIKE") for family in fields.get(key, "").strip('"').split()]
    family = next((name for name in families if name in installers), "")
    package = packages.get(family, packages["default"])
    return installers[family].format(package=package) if family else f"install the package {package}"


def locate(name: str, version: str | None = None) -> LocalProgram | None:
    """Return a program found on this machine; None if there is none in a suitable version.

    `version` replaces the version of `programs.yaml`, because a release may require another. Searched are, in this
    order, the folder in `LLMD_OKE_PROGRAMS`, the cache, installed Python distributions, and PATH, where distributions
    install scripts that start the program.
    """
    definition = program_definition(name)
    required = version or definition.version
    return (
        _in_override(name, definition, version)
        or _in_cache(name, definition, required)
        or _in_distribution(name, definition, required)
        or _on_path(name, definition, required)
    )


def _in_override(name: str, definition: ProgramDefinition, required: str | None) -> LocalProgram | None:
    folder = os.environ.get(OVERRIDE)
    path = None if not folder else shutil.which(name, path=str(Path(folder).resolve()))
    if path is None:
        return None
    built = _in_cache(name, definition, definition.version)  # its version is known without running it
    version = definition.version if built and built.path.samefile(path) else program_version(Path(path), definition)
    if required is not None and not (version and definition.satisfies(version, required)):
        return None
    return LocalProgram(name, Path(path), version or definition.version, f"the folder in {OVERRIDE}")


def _in_cache(name: str, definition: ProgramDefinition, required: str) -> LocalProgram | None:
    if downloaded := definition.download_of(required):
        version, download = downloaded
        path = _downloaded_file(name, version, download)
        if path.is_file():
            return LocalProgram(name, path, version, f"downloaded from {download.origin}")
    if found := definition.build_of(required):
        version, build = found
        path = program_file(name, version, definitions().builds[build])
        if path.is_file():
            return LocalProgram(name, path, version, "built from tools/")
    if source := definition.source.module:
        path = _module_file(name, source)
        if os.access(path, os.X_OK) and definition.satisfies(definition.version, required):
            return LocalProgram(name, path, definition.version, f"the Go module {source.module}")
    return None


def _module_file(name: str, source: ModuleFile) -> Path:
    return user_cache.module_folder(source.module, program_definition(name).version) / source.file


def _in_distribution(name: str, definition: ProgramDefinition, required: str) -> LocalProgram | None:
    source = definition.source.python
    path = None if source is None else packaged_file(source)
    if source is None or path is None:
        return None
    version = normal_version(metadata.version(source.distribution))
    if not definition.satisfies(version, required):
        return None
    return LocalProgram(name, path, version, f"the Python package {source.distribution}")


def packaged_file(source: PythonSource) -> Path | None:
    """Return the path of a program's file in an installed Python distribution; None if the distribution isn't
    installed.
    """
    spec = importlib.util.find_spec(source.package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / source.file
    return path if path.is_file() else None


def _on_path(name: str, definition: ProgramDefinition, required: str) -> LocalProgram | None:
    command = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if command is None:
        return None
    path = Path(command)
    version = program_version(path, definition)
    if version is None or not definition.satisfies(version, required):
        return None
    # The local cluster hides /run, so that links there are resolved; other links may select a program by their name.
    return LocalProgram(name, path.resolve() if path.is_relative_to("/run") else path, version, "PATH")


def program_version(path: Path, definition: ProgramDefinition) -> str | None:
    """Return the version of an executable program; None if it can't be determined."""
    query = definition.ask
    if query.go_modules:
        version = golang.module_version(path, query.go_modules)
        return version and normal_version(version)
    try:
        process = subprocess.run(
            [path, *query.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(query.answer, process.stdout + process.stderr)
    return normal_version(match[1]) if match else None


def _build_all(builds: Mapping[str, Build], progress: Progress) -> None:
    """Run these builds, several at a time, as one can compile while another links. A failed build stops the others."""
    longest_first = sorted(builds, key=lambda name: -builds[name].minutes)
    stop = threading.Event()
    with ThreadPoolExecutor(_BUILDS_AT_ONCE) as threads:
        started = [threads.submit(build_programs, name, builds[name], progress, stop) for name in longest_first]
        try:
            for build in as_completed(started):
                build.result()
        except BaseException:
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise


def build_programs(name: str, build: Build, progress: Progress, stop: threading.Event | None = None) -> None:
    """Build the programs of one `go build` into the cache, unless another process has built them meanwhile; `stop`
    cancels the build.

    Raises:
        KitError: Go is missing, or the build failed; the message has the end of its log.
    """
    go = _find_go(build.module)
    files: dict[str, Path] = {}
    for program in build.packages:
        definition = program_definition(program)
        others = definition.source.other_builds.items()
        version = next((version for version, other in others if other == name), definition.version)
        files[program] = program_file(program, version, build)
    with _locked(name, progress, _BUILD_TIMEOUT_S, stop):
        if all(file.is_file() for file in files.values()):
            return
        duration = f"about {build.minutes} minute{'s' if build.minutes > 1 else ''}"
        progress.step(f"building {', '.join(files)} ({duration} the first time)")
        with _temporary_folder() as folder:
            _compile(go, name, build, folder, progress, stop or threading.Event())
            for program, file in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                package = re.sub(r"/v\d+$", "", build.packages[program])  # Go names no program by a major version
                (folder / (package.rpartition("/")[2] if len(build.packages) > 1 else program)).replace(file)


def _find_go(module: str) -> Path:
    packaged = definitions().go.python
    return golang.find_go(tools_folder() / module, packaged_file(packaged), packaged.install)


def _compile(go: Path, name: str, build: Build, folder: Path, progress: Progress, stop: threading.Event) -> None:
    """Run one `go build` into `folder`; several programs get the names of their packages, a single one its own name.
    The build and its compilers are ended if an exception is raised.
    """
    log = cache_folder() / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    output = folder if len(build.packages) > 1 else folder / next(iter(build.packages))
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [str(go), *golang.build_arguments(build.variables, build.tags, tuple(build.packages.values()), output)],
            cwd=tools_folder() / build.module,
            env=golang.environment({"CGO_ENABLED": "0"}),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(name, process, log, progress, stop)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_GRACE_S)
    if process.returncode != 0:
        raise KitError(f"building {name} failed; the end of {log}:\n{end_of_log(log, lines=20)}")


def _wait(name: str, process: subprocess.Popen[bytes], log: Path, progress: Progress, stop: threading.Event) -> None:
    start_s = told_s = time.monotonic()
    while (now_s := time.monotonic()) - start_s < _BUILD_TIMEOUT_S and not stop.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_POLL_S)
            return
        if now_s - told_s >= _HEARTBEAT_S:
            told_s = now_s
            lines = log.read_text(errors="replace").splitlines()
            progress.detail(f"{name}: {len(lines)} packages, now {lines[-1] if lines else 'starting'}")
    raise KitError(f"the build of {name} took longer than {_BUILD_TIMEOUT_S / 60:.0f} minutes, or was ended ({log})")


def module_folder(module: str, version: str, progress: Progress | None = None) -> Path:
    """Return the cached folder with the used files of a Go module (charts or CustomResourceDefinitions), which is
    downloaded with Go the first time and verified with a pinned checksum.

    Raises:
        KitError: the module or version isn't pinned, Go or the network is missing, or the checksum differs.
    """
    definition = pinned_modules().get(module)
    if definition is None or version not in definition.versions:
        raise KitError(f"{module} {version} is not one of the pinned modules in values/rehearsal/modules.yaml")
    folder = user_cache.module_folder(module, version).resolve()
    if not _missing_parts(folder, definition):
        return folder
    listener = progress or SilentProgress()
    with _locked(f"{module.replace('/', '-')}-{version}", listener, golang.DOWNLOAD_TIMEOUT_S):
        if not (missing := _missing_parts(folder, definition)):
            return folder
        listener.step(f"downloading {module} {version}")
        with _temporary_folder() as temporary:
            source, checksum = golang.download(_find_go(_ANY_GO_MODULE), module, version, temporary)
            pinned = definition.versions[version]
            if checksum != pinned:
                raise KitError(f"{module} {version} has the checksum {checksum}, pinned is {pinned}: it was changed")
            for part in missing:
                golang.copy_files(source / part, temporary / "copy" / part)
                (folder / part).parent.mkdir(parents=True, exist_ok=True)
                (temporary / "copy" / part).replace(folder / part)
    return folder


def _missing_parts(folder: Path, definition: ModuleDefinition) -> list[str]:
    """Return the parts of a module that aren't kept yet; an earlier version of the kit may have needed fewer."""
    return [part for part in definition.folders if not (folder / part).is_dir()]


def cache_folder() -> Path:
    """Return the path of the user's folder for downloaded and built programs; absolute, because compilers run in other
    folders.
    """
    return user_cache.cache_folder().resolve()


def program_file(name: str, version: str, build: Build) -> Path:
    """Return the path that a program built by this build has in the user's cache; the file may not exist."""
    return cache_folder() / "programs" / name / f"{version}-{fingerprint(build)}" / name


def _downloaded_file(name: str, version: str, download: ProgramDownload) -> Path:
    return cache_folder() / "programs" / name / f"{version}-{download.digest[:12]}" / name


def fingerprint(build: Build, more: str = "") -> str:
    """Return a digest of all inputs of a program's build: the files of its Go module, its settings, and `more`."""
    settings = build.model_dump_json(exclude={"minutes", "asks_for"} if build.tags else {"minutes", "asks_for", "tags"})
    digest = hashlib.sha256(settings.encode() + more.encode())
    module = tools_folder() / build.module
    for file in sorted(path for path in module.rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(module)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def _temporary_folder() -> Generator[Path]:
    """Yield a new temporary folder inside the cache; complete files are moved out of it."""
    root = cache_folder() / "unfinished"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _locked(name: str, progress: Progress, timeout_s: float, stop: threading.Event | None = None) -> Generator[None]:
    """Hold a lock against other processes that make the same program.

    Raises:
        KitError: another process held the lock for longer than `timeout_s` seconds, or `stop` ended the wait.
    """
    path = cache_folder() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    reminder_s = 0.0
    with path.open("w") as lock:
        for waited_s in intervals(timeout_s, _LOCK_PAUSE_S):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if stop is not None and stop.is_set():
                raise KitError(f"the wait for another program that is making {name} was ended")
            if waited_s >= reminder_s:
                progress.detail(f"another program is making {name}, waiting for it, {waited_s:.0f} s")
                reminder_s = waited_s + _REMINDER_S
        else:
            raise KitError(f"another program has been making {name} for {timeout_s:.0f} s ({path})")
        yield
