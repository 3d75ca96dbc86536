"""Diagnosis of a stack: the signatures that fire on the files of a support archive, each with its evidence.

A stack that runs is diagnosed from the archive that `llmd-oke support` would write of it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import PurePosixPath

from llmd_base.records import document
from llmd_bench.deployment import Counter, MetricsEndpoint, Reading
from llmd_bench.queries import parse
from pydantic import JsonValue

from llmd_oke.catalogue.signatures import (
    MetricSignature,
    Severity,
    Signature,
    TextSignature,
    components,
    metric_signatures,
    text_signatures,
)
from llmd_oke.operations.doctor.log_search import LogSearch
from llmd_oke.operations.doctor.sources import Content, SourceFile
from llmd_oke.operations.doctor.statements import EvidencePlace, Objects, Statement
from llmd_oke.operations.text_redaction import redact_text

MAX_DOCUMENT_BYTES = 32 * 2**20
MAX_SHOWN_CHARACTERS = 300
_SAMPLE_BYTES = 8192

_SEVERITIES: tuple[Severity, ...] = ("outage", "degraded", "risk")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,252}")
_PLACEHOLDER = re.compile(r"\{(stack|namespace|pod|container|node)\}")
_METRICS_SUFFIX = ".prom"


@dataclass(frozen=True)
class Evidence:
    """Evidence of a known fault: the place, the number of lines, the last line, and the times of the first and the last
    as written, None if unknown. `more` tells whether there may be further lines that weren't counted.
    """

    place: EvidencePlace
    count: int
    line: str
    first: str | None = None
    last: str | None = None
    more: bool = False


@dataclass(frozen=True)
class DiagnosedFault:
    """Known fault whose signature was found, with its identifier, component and evidence; `command` is that of the
    signature with the names of the first evidence.
    """

    name: str
    component: str
    signature: Signature
    evidence: tuple[Evidence, ...]
    command: str


@dataclass(frozen=True)
class Diagnosis:
    """Known faults that were found, the worst first, and the extent of the search: the number of logs and their bytes,
    of statements about objects, and of programs with metrics. `missing` are parts that the archive lacks, and logs that
    aren't text, with the reason.
    """

    stack: str | None
    taken: datetime | None
    findings: tuple[DiagnosedFault, ...]
    logs: int
    log_bytes: int
    statements: int
    programs: int
    missing: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def seen(self) -> bool:
        """True if the archive had any line of a log, object or metrics to search."""
        return bool(self.log_bytes or self.statements or self.programs)


def diagnose(files: Iterable[SourceFile], stack: str | None = None, taken: datetime | None = None) -> Diagnosis:
    """Search the files of a support archive, or a folder of logs, for the signatures of all known faults; return the
    diagnosis.

    `stack` and `taken` are the stack's name and the time of the objects; the archive's manifest has them if left out.
    Files that are no logs, objects of the cluster or metrics are ignored, and so are damaged ones.
    """
    texts = text_signatures()
    search = LogSearch({name: signature for name, signature in texts.items() if signature.evidence == "log"})
    found: dict[str, list[Evidence]] = {}
    documents: dict[str, JsonValue] = {}
    readings: dict[EvidencePlace, Reading] = {}
    logs, log_bytes, not_text = 0, 0, dict[str, str]()
    for path, content in files:
        if path.startswith("cluster/") or path == "manifest.json":
            documents[PurePosixPath(path).stem] = _document(content)
        elif path.endswith(_METRICS_SUFFIX):
            readings[EvidencePlace(path, pod=PurePosixPath(path).stem)] = _reading(content)
        elif _is_log(path) and not _is_text(content):
            not_text[path[:MAX_SHOWN_CHARACTERS]] = "it isn't text in UTF-8"
        elif _is_log(path):
            logs, log_bytes = logs + 1, log_bytes + len(content)
            place = log_place(path)
            for name, hits in search(content, place.container or "").items():
                evidence = Evidence(place, hits.count, hits.line, hits.first, hits.last, hits.more)
                found.setdefault(name, []).append(evidence)
    manifest, objects = _Manifest.of(documents.pop("manifest", None)), Objects(documents)
    taken = taken or manifest.made
    statements = tuple(objects.statements(taken or datetime.now(UTC)))
    for name, evidence in _told(statements, texts):
        found.setdefault(name, []).append(evidence)
    for name, evidence in _measured(readings):
        found.setdefault(name, []).append(evidence)
    signatures = {**texts, **metric_signatures()}
    context = _Context(stack or manifest.stack, objects.nodes_of_pods, _namespace(objects))
    findings = [context.finding(name, signatures[name], tuple(evidence)) for name, evidence in found.items()]
    return Diagnosis(
        stack=stack or manifest.stack,
        taken=taken,
        findings=tuple(sorted(findings, key=lambda item: (_SEVERITIES.index(item.signature.severity), item.component))),
        logs=logs,
        log_bytes=log_bytes,
        statements=len(statements),
        programs=sum(bool(reading.series) for reading in readings.values()),
        missing={**manifest.missing, **not_text},
    )


def known_fault(line: str) -> str | None:
    """Return the title of the known fault whose signature an event or object state, as one line, matches; None if none
    does.
    """
    fitting = (item for item in text_signatures().values() if item.evidence != "log" and item.matches(line))
    return next((item.title for item in fitting), None)


def log_place(path: str) -> EvidencePlace:
    """Return where a log comes from, by its path: `logs/POD/CONTAINER.log`, in a rehearsal
    `logs/pods/NAMESPACE/POD/CONTAINER.log`, or that of a program outside pods. `.previous` before the suffix marks the
    log of a container's run before.
    """
    path = path[:MAX_SHOWN_CHARACTERS]
    parts = PurePosixPath(path).parts
    container = parts[-1].partition(".log")[0].removesuffix(".previous").removesuffix(".txt") if parts else ""
    folders = parts[1:-1] if parts and parts[0] == "logs" else parts[:-1]
    namespace = folders[-2] if len(folders) > 1 and folders[0] == "pods" else None
    return EvidencePlace(path, namespace, folders[-1] if folders else None, container)


def _is_log(path: str) -> bool:
    name = PurePosixPath(path).name
    return path.startswith("logs/") or ".log" in name or (name.endswith(".txt") and path != "status.txt")


def _is_text(content: Content) -> bool:
    """Tell whether a log's beginning or end is text: of its characters at most a tenth are control characters or no
    UTF-8, our choice. Logs that were cut while they were written begin or end with zeros.
    """
    for part in (content[:_SAMPLE_BYTES], content[-_SAMPLE_BYTES:]):
        text = part.decode(errors="replace")
        strange = sum(
            character == "\ufffd" or (character < " " and character not in "\t\n\r\x1b") for character in text
        )
        if strange <= len(text) / 10:
            return True
    return False


def _told(statements: Iterable[Statement], texts: Mapping[str, TextSignature]) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence of statements. Those of a container may have the end of its log, so that signatures of logs
    count too.
    """
    for said in statements:
        container = said.place.container
        for name, signature in texts.items():
            of_log = signature.evidence == "log"
            if of_log and (container is None or container not in (signature.containers or (container,))):
                continue
            if said.count >= signature.least and signature.matches(said.line):
                yield name, Evidence(said.place, said.count, said.line, last=said.time)


def _measured(readings: Mapping[EvidencePlace, Reading]) -> Iterator[tuple[str, Evidence]]:
    for name, signature in metric_signatures().items():
        for place, reading in readings.items():
            if (line := _fault(signature, reading)) is not None:
                container = "vllm" if signature.metrics[0].startswith("vllm:") else None
                yield name, Evidence(replace(place, container=container), 1, line)


def _fault(signature: MetricSignature, reading: Reading) -> str | None:
    """Return what a program's metrics say against a signature; None if they don't."""
    value = reading.total(Counter(signature.metrics, signature.labels))
    divisor = reading.total(Counter(signature.per)) if signature.per else None
    judged = divisor if signature.per else value
    if value is None or judged is None or judged < signature.least or (signature.per and not divisor):
        return None
    figure = value / divisor if divisor else value
    if not isfinite(figure):
        return None
    limit, side = (signature.below, "below") if signature.above is None else (signature.above, "above")
    if limit is None or (figure <= limit if side == "above" else figure >= limit):
        return None
    per = f" for each of {signature.per[0]}" if signature.per else ""
    return f"{signature.metrics[0]}{per}: {figure:.4g}, {side} {limit:.4g}"


@dataclass(frozen=True)
class _Context:
    """Names that commands are completed with."""

    stack: str | None
    nodes: Mapping[str, str]
    namespace: str | None

    def finding(self, name: str, signature: Signature, evidence: tuple[Evidence, ...]) -> DiagnosedFault:
        whole = tuple(map(self._shown, sorted(evidence, key=lambda item: -item.count)))
        place = whole[0].place
        names = document("stack namespace pod container node", self, place, namespace=place.namespace or self.namespace)

        def text(match: re.Match[str]) -> str:
            value = names[match[1]] or ""
            return value if _NAME.fullmatch(value) else match[1].upper()

        command = _PLACEHOLDER.sub(text, signature.command)
        component = next(item.component for item in components() if name in item.signatures)
        return DiagnosedFault(name, component, signature, whole, command)

    def _shown(self, evidence: Evidence) -> Evidence:
        """Return evidence with the node of its pod, and a line that is short and without secrets."""
        place = evidence.place
        node = place.node or self.nodes.get(place.pod or "")
        line = redact_text(evidence.line)
        short = line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}…"
        return replace(evidence, place=replace(place, node=node), line=short)


@dataclass(frozen=True)
class _Manifest:
    stack: str | None = None
    made: datetime | None = None
    missing: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, document: JsonValue) -> "_Manifest":
        """Read what an archive's manifest says of it; nothing of what it lacks or has otherwise."""
        if not isinstance(document, dict):
            return cls()
        stack, made, missing = document.get("stack"), document.get("made"), document.get("missing")
        try:
            when = datetime.fromisoformat(str(made))
        except ValueError:
            when = None
        listed = [item for item in missing if isinstance(item, dict)] if isinstance(missing, list) else []
        return cls(
            stack if isinstance(stack, str) else None,
            when if when and when.tzinfo else None,
            {str(item.get("path")): str(item.get("why")) for item in listed},
        )


def _namespace(objects: Objects) -> str | None:
    """Return the namespace of the stack's Jobs or warnings, which are those of its namespace alone."""
    for name in ("deployments", "jobs"):
        items = objects.documents.get(name)
        for item in items if isinstance(items, list) else ():
            metadata = item.get("metadata") if isinstance(item, dict) else None
            namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
            if isinstance(namespace, str):
                return namespace
    return None


def _document(content: Content) -> JsonValue:
    if len(content) > MAX_DOCUMENT_BYTES:
        return None
    try:
        return json.loads(bytes(content))
    except (ValueError, RecursionError):
        return None


def _reading(content: Content) -> Reading:
    endpoint = MetricsEndpoint("decode", "", "")
    if len(content) > MAX_DOCUMENT_BYTES:
        return Reading(endpoint, error="too large")
    try:
        return Reading(endpoint, parse(bytes(content).decode(errors="replace")))
    except ValueError as error:
        return Reading(endpoint, error=str(error))
