"""Support archive of a stack: status, objects, logs, versions, reports and plan, without secrets.

The archive's manifest lists the files, and the parts that couldn't be read with the reason. Size and duration are
bounded.
"""

import io
import json
import os
import platform
import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata as packages
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlencode

import httpx2
import yaml
from lightkube.resources.core_v1 import Pod
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_bench.history import stack_folder
from llmd_bench.reports import LATEST
from pydantic import JsonValue

from llmd_oke.operations.objects import metadata, plain
from llmd_oke.operations.status.reading import ClusterReading, Unread, container_statuses, get, name_of, reason

MAX_BYTES = 64 * 2**20
"""Largest total size of all files before compression."""

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
        """Add a redacted text as file; of a text over `most_bytes` only the end."""
        content = redact_text(text).encode()
        if len(content) > most_bytes:
            content = content[-most_bytes:]
            self.cut.add(path)
        if sum(map(len, self.files.values())) + len(content) > MAX_BYTES:
            self.missing[path] = f"the archive has its {MAX_BYTES // 2**20} MiB"
        else:
            self.files[path] = content

    def add_document(self, path: str, document: object) -> None:
        """Add a redacted document as JSON file."""
        as_json: JsonValue = json.loads(json.dumps(document, default=str))
        self.add(path, json.dumps(redact(as_json), indent=1), MAX_BYTES)

    def try_to_add(self, path: str, read: Callable[[], object]) -> None:
        """Add the document that `read` returns, or, if it raises an error, the reason to `missing`."""
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


def add_logs(archive: Archive, way: HttpEndpoint, pods: Iterable[Pod]) -> None:
    """Add the end of the log of each container, and that of its previous run if it restarted."""
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

    logs = [log for pod in pods for log in _logs(pod)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for log, text in zip(logs, pool.map(read, logs), strict=True):
            if isinstance(text, Unread):
                archive.missing[log.path] = text.why
            else:
                archive.add(log.path, text, MAX_LOG_BYTES)


def _logs(pod: Pod) -> Iterator[_Log]:
    namespace, name = metadata(pod).namespace, name_of(pod)
    for status in container_statuses(pod):
        runs: Sequence[tuple[str, dict[str, str]]] = [("", {})]
        if status.restartCount:
            runs = [*runs, (".previous", {"previous": "true"})]
        for suffix, more in runs:
            query = urlencode({"container": status.name, "tailLines": str(LOG_LINES), **more})
            address = f"/api/v1/namespaces/{namespace}/pods/{name}/log?{query}"
            yield _Log(f"logs/{name}/{status.name}{suffix}.log", address)


def add_log_files(archive: Archive, folder: Path) -> None:
    """Add the end of each log file of a rehearsal: those of its programs and of its pods' containers."""
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


# Redaction of texts and documents. Removed are values whose key or variable has the name of a secret (`HF_TOKEN=…`,
# `password: …`), and, whatever their name, tokens of known forms, signed and pre-authenticated URLs, and private keys.

HIDDEN = "[redacted]"

_NAMES = (
    r"token(?!s|iz)|secret|passw|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|cookie|"
    r"authorization|encryptionsalt|encryptedkey"
)
_SECRET_NAME = re.compile(rf"(?i){_NAMES}|^secure$")

_VALUE = r"(?!\d+(\.\d+)?\b|\[)[^\s\"',;&\\]{4,}"
"""Value behind a secret's name: not a number, and not redacted already."""

_FORMS = (  # all take linear time: logs may have lines of any length
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\b(hf_|pul-|ghp_|github_pat_|sk-)[\w-]{8,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),  # JSON Web Tokens
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)(://)[^/\s:@]{1,99}:[^/\s@]{1,999}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"/p/[\w-]{16,}(?=/n/)"), f"/p/{HIDDEN}"),  # pre-authenticated requests of Object Storage
    (re.compile(r"(?i)([?&](x-amz-signature|x-amz-credential|sig|signature)=)[^&\s\"']+"), rf"\1{HIDDEN}"),
    (
        re.compile(rf"(?i)(({_NAMES})[\w.-]{{0,40}}\\?[\"']?\s{{0,4}}[=:]\s{{0,4}}\\?[\"']?){_VALUE}"),
        rf"\1{HIDDEN}",
    ),
)


def redact_text(text: str) -> str:
    """Return a text in which everything that looks like a secret is replaced by `HIDDEN`."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def redact(value: JsonValue) -> JsonValue:
    """Return a document without secrets: values are replaced if the name of their key or environment variable is that
    of a secret, and texts are redacted by `redact_text`.
    """
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, list):
        return [redact(item) for item in value]
    if isinstance(value, dict):
        is_variable = _SECRET_NAME.search(str(value.get("name", ""))) is not None
        return {key: _redact_entry(key, item, is_variable=is_variable) for key, item in value.items()}
    return value


def _redact_entry(key: str, item: JsonValue, *, is_variable: bool) -> JsonValue:
    is_secret = _SECRET_NAME.search(key) is not None or (key == "value" and is_variable)
    return HIDDEN if isinstance(item, str) and is_secret else redact(item)
