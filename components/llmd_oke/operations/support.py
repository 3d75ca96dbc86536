"""Support archive of a stack: status, objects, logs, versions, reports and plan, without secrets.

The archive's manifest lists the files, and the parts that couldn't be read with the reason. Size and duration are
bounded.
"""

import io
import json
import os
import platform
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata as packages
from itertools import starmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlencode

import httpx2
import yaml
from lightkube.resources.core_v1 import Pod
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_bench.deployment import MetricSample, Snapshot
from llmd_bench.history import stack_folder
from llmd_bench.reports import LATEST
from pydantic import JsonValue

from llmd_oke.operations.objects import metadata, plain
from llmd_oke.operations.status.reading import (
    ClusterReading,
    Unread,
    condition,
    container_statuses,
    ended,
    get,
    name_of,
    reason,
)
from llmd_oke.operations.text_redaction import redact, redact_text
from llmd_oke.planning import Plan

MAX_BYTES = 64 * 2**20
"""Maximum size in bytes of all files of an archive before compression."""

MAX_FILE_BYTES = 2**20
MAX_LOG_BYTES = 256 * 2**10
LOG_LINES = 2000
LOGS_LIMIT_S = 120.0
AT_ONCE = 8

_PROGRAM_LIMIT_S = 10.0
_REPORT_FILES = (".json", ".md", ".yaml", ".yml")
_PACKAGES = ("llmd-oke", "pulumi", "pulumi-kubernetes", "pulumi-oci", "lightkube", "httpx2", "pydantic")


@dataclass
class Archive:
    """Content of a support archive: redacted files by path, the paths of truncated files (`cut`), and the reason for
    each path that couldn't be read (`missing`).
    """

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    cut: set[str] = field(default_factory=set[str])
    missing: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, path: str, text: str, most_bytes: int = MAX_FILE_BYTES) -> None:
        """Add a text to the archive as file, after redaction of secrets; of a text over `most_bytes` only the end."""
        content = redact_text(text).encode()
        if len(content) > most_bytes:
            content = content[-most_bytes:]
            self.cut.add(path)
        if sum(map(len, self.files.values())) + len(content) > MAX_BYTES:
            self.missing[path] = f"the archive has its {MAX_BYTES // 2**20} MiB"
        else:
            self.files[path] = content

    def add_document(self, path: str, document: object) -> None:
        """Add a document to the archive as JSON file, after redaction of secrets."""
        as_json: JsonValue = json.loads(json.dumps(document, default=str))
        self.add(path, json.dumps(redact(as_json), indent=1), MAX_BYTES)

    def try_to_add(self, path: str, read: Callable[[], object]) -> None:
        """Add the document that `read` returns to the archive, or, if `read` raises an error, the reason to
        `missing`.
        """
        try:
            self.add_document(path, read())
        except (KitError, OSError, ValueError, subprocess.SubprocessError) as error:
            self.missing[path] = error.message if isinstance(error, KitError) else reason(error)

    def write(self, file: Path, stack: str) -> None:
        """Write the archive with its manifest as tar.gz of mode 0600, atomically."""
        manifest = {
            "stack": stack,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": [
                {"path": path, "bytes": len(content), "cut": path in self.cut}
                for path, content in sorted(self.files.items())
            ],
            "missing": [{"path": path, "why": redact_text(why)} for path, why in sorted(self.missing.items())],
        }
        everything = {"manifest.json": json.dumps(manifest, indent=1).encode(), **self.files}
        with NamedTemporaryFile(dir=file.parent, prefix=".llmd-oke-", delete=False) as target:
            part = Path(target.name)
        try:
            with tarfile.open(part, "w:gz") as archive:
                for path, content in everything.items():
                    entry = tarfile.TarInfo(f"{file.name.partition('.')[0]}/{path}")
                    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(content))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def add_cluster(archive: Archive, reading: ClusterReading) -> None:
    """Add the objects of a cluster reading to the archive: nodes, pods, servers, Jobs and warnings, never Secrets or
    ConfigMaps.
    """
    for name, part in document("nodes pods deployments leader_worker_sets jobs warnings", reading).items():
        path = f"cluster/{name}.json"
        if isinstance(part, Unread):
            archive.missing[path] = part.why
        else:
            for item in part:  # most of an object's size
                metadata(item).managedFields = None
            archive.add_document(path, [plain(item) for item in part])


@dataclass(frozen=True)
class _Log:
    path: str
    address: str


def add_metrics(archive: Archive, counters: Snapshot | Unread) -> None:
    """Add the metrics of each server and router at the last scrape, in the Prometheus text format."""
    if isinstance(counters, Unread):
        archive.missing["metrics"] = counters.why
        return
    for reading in counters.readings:
        path = f"metrics/{reading.endpoint.pod}.prom"
        if reading.error is not None:
            archive.missing[path] = reading.error
        else:
            archive.add(path, "".join(starmap(_series_text, reading.series.items())), MAX_BYTES)


def _series_text(name: str, samples: Iterable[MetricSample]) -> str:
    lines: list[str] = []
    for sample in samples:
        labels = ",".join(
            f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in sorted(sample.labels.items())
        )
        lines.append(f"{name}{{{labels}}} {sample.value!r}\n")
    return "".join(lines)


def logged_pods(plan: Plan, pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the pods whose logs go into a stack's archive: those of its namespace, and those of other namespaces that
    are not Ready.
    """
    return tuple(
        pod
        for pod in pods
        if metadata(pod).namespace == plan.namespace or not (condition(pod, "Ready")[0] or ended(pod))
    )


def add_logs(archive: Archive, way: HttpEndpoint, namespace: str, pods: Iterable[Pod]) -> None:
    """Add the end of the log of each container, and of its previous run if it restarted, to the archive. Logs are read
    from the API server, whose endpoint is `way`; paths of logs outside `namespace` contain the pod's namespace.
    """
    until_s = time.monotonic() + LOGS_LIMIT_S

    def read(log: _Log) -> str | Unread:
        if time.monotonic() > until_s:
            return Unread(f"no time was left after {LOGS_LIMIT_S:.0f} s")
        try:
            return get(way, log.address).decode(errors="replace")
        except KitError as error:
            return Unread(error.message)
        except (httpx2.HTTPError, OSError) as error:
            return Unread(reason(error))

    logs = [log for pod in pods for log in _logs(pod, namespace)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for log, text in zip(logs, pool.map(read, logs), strict=True):
            if isinstance(text, Unread):
                archive.missing[log.path] = text.why
            else:
                archive.add(log.path, text, MAX_LOG_BYTES)


def _logs(pod: Pod, own: str) -> Iterator[_Log]:
    namespace, name = metadata(pod).namespace, name_of(pod)
    folder = f"logs/{name}" if namespace == own else f"logs/pods/{namespace}/{name}"
    for status in container_statuses(pod):
        runs: Sequence[tuple[str, dict[str, str]]] = [("", {})]
        if status.restartCount:
            runs = [*runs, (".previous", {"previous": "true"})]
        for suffix, more in runs:
            query = urlencode({"container": status.name, "tailLines": str(LOG_LINES), **more})
            address = f"/api/v1/namespaces/{namespace}/pods/{name}/log?{query}"
            yield _Log(f"{folder}/{status.name}{suffix}.log", address)


def add_log_files(archive: Archive, folder: Path) -> None:
    """Add the end of each log file of a rehearsal to the archive: those of its programs and of its pods' containers."""
    for file in sorted(folder.rglob("*.log")):
        path = f"logs/{file.relative_to(folder)}"
        try:
            archive.add(path, file.read_text(encoding="utf-8", errors="replace"), MAX_LOG_BYTES)
        except OSError as error:
            archive.missing[path] = reason(error)


def add_reports(archive: Archive, reports: Path, stack: str) -> None:
    """Add the files of the stack's newest report, with passports but without the records of single requests."""
    folder = reports / stack_folder(stack) / LATEST
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix in _REPORT_FILES]
    if not files:
        archive.missing["reports"] = f"there is none in {folder}"
    for file in files:
        path = f"reports/{file.relative_to(folder)}"
        try:
            archive.add(path, file.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            archive.missing[path] = reason(error)


def stack_document(file: Path) -> object:
    """Read a stack file as plain data. Encrypted values are redacted when the document is added to the archive.

    Raises:
        OSError: the file can't be read.
        ValueError: the file isn't YAML.
    """
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError("it is no YAML") from error


def versions() -> dict[str, object]:
    """Return the versions of this machine's operating system, Python, Python packages and Pulumi CLI."""
    known: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(packages.PackageNotFoundError):
            known[name] = packages.version(name)
    return {"system": platform.platform(), "python": platform.python_version(), "packages": known, "pulumi": _pulumi()}


def _pulumi() -> str:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(
            ["pulumi", "version"],
            env={**environment, "PULUMI_SKIP_UPDATE_CHECK": "true"},
            capture_output=True,
            text=True,
            timeout=_PROGRAM_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"not known: {reason(error)}"
    return done.stdout.strip() or "not known"
