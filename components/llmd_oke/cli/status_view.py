"""The status of a stack as text for a terminal of 80 columns, and as plain data."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from llmd_base.records import document
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from llmd_oke.cli.tables import FittingTable, plain_cells
from llmd_oke.operations.doctor.diagnosis import known_fault
from llmd_oke.operations.observations import ITL, REMOTE_PREFILL, TTFT, Figure
from llmd_oke.operations.status.credentials import Credential
from llmd_oke.operations.status.load import ModelLoad
from llmd_oke.operations.status.reading import Unread, age_text
from llmd_oke.operations.status.servers import FRONT_DOOR, DeploymentPods
from llmd_oke.operations.status.status import StackStatus
from llmd_oke.operations.status.symptoms import Severity, Symptom, grouped

MAX_SYMPTOMS = 8

Part = TypeVar("Part")

_STYLES = {Severity.OUTAGE: "bold red", Severity.DEGRADED: "red", Severity.RISK: "magenta"}
_ROLES = ("prefill", "decode", "aggregated", "router")
_NONE = "-"


def screen(status: StackStatus) -> RenderableType:
    """Return a stack's status as Rich renderable for a terminal of 80 columns; symptoms come first."""
    reading = status.reading
    kubernetes = "" if isinstance(reading.kubernetes, Unread) else f"  Kubernetes {reading.kubernetes}"
    taken = f"{reading.taken:%Y-%m-%d %H:%M:%S} UTC"
    if reading.silent:
        verdict = Text(f"the cluster does not answer: {reading.silent}", style="bold red")
    elif count := len(status.symptoms):
        verdict = Text(f"{count} {'thing is' if count == 1 else 'things are'} wrong", style="bold red")
    elif status.seen:
        verdict = Text("healthy", style="bold green")
    else:
        verdict = Text("not all could be seen", style="bold magenta")
    parts: list[RenderableType] = [
        Text.assemble((status.stack, "bold"), f"  {status.cluster}{kubernetes}  {status.release}  {taken}"),
        verdict,
    ]
    if status.symptoms:
        parts += ["", _symptoms(status.symptoms, status.stack)]
    if status.reading.silent is None:
        parts += ["", *_nodes(status), "", *_units(status), "", *_loads(status), ""]
        parts += [_facts(status)]
    return Lines(*parts)


def _symptoms(symptoms: Sequence[Symptom], stack: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for symptom in symptoms[:MAX_SYMPTOMS]:
        table.add_row(Text(symptom.severity.word, style=_STYLES[symptom.severity]), Text(symptom.what))
        table.add_row("", Text(symptom.remedy, style="dim"))
        if title := known_fault(symptom.what):
            table.add_row("", Text(f"known fault: {title}", style="dim"))
    if (more := len(symptoms) - MAX_SYMPTOMS) > 0:
        table.add_row("", f"and {more} more, which --json has")
    table.add_row("", Text(f"llmd-oke doctor --stack {stack} searches logs, events and metrics for known faults"))
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _nodes(status: StackStatus) -> Iterator[RenderableType]:
    if isinstance(status.nodes, Unread):
        yield _unread("nodes", status.nodes)
        return
    table = _table("nodes", "ready", "GPUs used", "free")
    for pool in status.nodes:
        planned = max(pool.nodes, pool.planned or 0)
        gpus = (str(pool.used_gpus), str(pool.free_gpus)) if pool.planned is not None else (_NONE, _NONE)
        table.add_row(*plain_cells(pool.name, f"{pool.ready} of {planned}", *gpus))
    yield FittingTable(table)
    if status.reading.own_pods_only:
        yield Text("GPUs of this stack's pods alone: this user may not list those of others", style="dim")


def _units(status: StackStatus) -> Iterator[RenderableType]:
    if isinstance(status.groups, Unread):
        yield _unread("servers", status.groups)
        return
    units = grouped((group.unit, group) for group in status.groups if group.unit is not None)
    if not units:
        yield Text("no model servers are deployed")
        return
    roles = [role for role in _ROLES if any(group.role == role for group in status.groups)]
    table = _table("units", *roles, "waiting", "running", "KV cache")
    for name, groups in units.items():
        counts = [_ready(group for group in groups if group.role == role) for role in roles]
        cells = [_NONE, _NONE, _NONE]
        if gauges := status.gauges.get(name or ""):
            usage = _NONE if gauges.kv_cache_usage is None else f"{gauges.kv_cache_usage:.0%}"
            cells = [_number(gauges.waiting), _number(gauges.running), usage]
        table.add_row(*plain_cells(name or "", *counts, *cells))
    yield FittingTable(table)


def _ready(groups: Iterable[DeploymentPods]) -> Text:
    members = list(groups)
    if not members:
        return Text(_NONE)
    ready, desired = sum(group.ready for group in members), sum(group.desired for group in members)
    return Text(f"{ready} of {desired}", style="red" if ready < desired else "")


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.4g}"


def _loads(status: StackStatus) -> Iterator[RenderableType]:
    if isinstance(status.loads, Unread):
        yield _unread("load", status.loads)
        return
    doors = () if isinstance(status.groups, Unread) else [item for item in status.groups if item.role == FRONT_DOOR]
    table = _table("models", "front door", "requests/s", "remote prefill", "TTFT, ms", "ITL, ms")
    for load in status.loads:
        seen = load.observation
        table.add_row(
            *plain_cells(
                load.model,
                _ready(group for group in doors if group.model in {load.model, None}),
                _number(seen.requests_per_s),
                _held(load, REMOTE_PREFILL),
                _held(load, TTFT),
                _held(load, ITL),
            )
        )
    yield FittingTable(table)
    figures = f"figures are {status.basis}: {status.load_source}; limits after the stroke"
    yield Text(figures, style="dim")


def _held(load: ModelLoad, figure: Figure) -> Text:
    """Return a figure with its limit, such as `211 / 2000`."""
    judged = next((item for item in load.judgements if item.assumption.figure is figure), None)
    value = figure.of(load.observation)
    shown = _NONE if value is None else figure.text(value)
    if judged is None:
        return Text(shown)
    limit = figure.text(judged.assumption.value)
    return Text(f"{shown} / {limit}", style="red" if judged.off else "")


def _facts(status: StackStatus) -> Table:
    """Return the table of running versions, last changes and firing alerts."""
    table = Table.grid(padding=(0, 2, 0, 0))
    if isinstance(status.alerts, Unread):
        alerts = f"not known: {status.alerts.why}"
    else:
        alerts = f"{len(status.alerts)} firing" if status.alerts else "none fires"
    rows = [
        *(("versions" if place == 0 else "", text) for place, text in enumerate(_versions(status))),
        *(("changed" if place == 0 else "", text) for place, text in enumerate(_changes(status))),
        ("alerts", alerts),
        *(("secrets" if place == 0 else "", text) for place, text in enumerate(_credentials(status))),
    ]
    for name, text in rows:
        table.add_row(Text(name, style="dim"), Text(text))
    return table


def _versions(status: StackStatus) -> Iterator[str]:
    if isinstance(status.images, Unread):
        yield f"not known: {status.images.why}"
        return
    tags = grouped((place.rpartition("/")[2], image.tag) for place, image in status.images.items())
    running: list[str] = []
    for name, same in tags.items():
        tag, version = "/".join(dict.fromkeys(same)), status.ran.get(name)  # that of a program in place of the image
        running.append(f"{name} {tag}" if version is None or version in tag else f"{name} {version} (not {tag})")
    yield ", ".join(running) or "nothing runs"


def _changes(status: StackStatus) -> Iterator[str]:
    for change in status.changes:
        by = f", by {change.by}" if change.by else ""
        yield f"{age_text(change.when, status.reading.taken)} ago ({change.when:%m-%d %H:%M}): {change.what}{by}"


def _credentials(status: StackStatus) -> Iterator[str]:
    if isinstance(status.credentials, Unread):
        yield f"not known: {status.credentials.why}"
        return
    for item in status.credentials:
        ends = f", ends {item.ends:%Y-%m-%d}" if item.ends else ""
        yield f"{item.secret} ({item.what}) changed {age_text(item.changed, status.reading.taken)} ago{ends}"


def _credential_document(item: Credential) -> dict[str, Any]:
    changed, ends = (moment.isoformat() if moment else None for moment in (item.changed, item.ends))
    return document("secret what changed ends", item, changed=changed, ends=ends)


def _unread(name: str, part: Unread) -> Text:
    return Text.assemble((name, "dim"), f"  not known: {part.why}")


def status_document(status: StackStatus) -> dict[str, Any]:
    """Return a stack's status as plain data for JSON. A part that could not be read is `{"unread": REASON}`."""
    reading = status.reading
    return document(
        "stack cluster namespace release taken kubernetes healthy symptoms nodes servers units models load_source basis"
        " images ran changes prometheus alerts credentials",
        status,
        taken=reading.taken.isoformat(timespec="seconds"),
        kubernetes=_known(reading.kubernetes, str),
        healthy=not status.symptoms and status.seen,
        symptoms=[
            document(
                "severity what remedy known_fault",
                symptom,
                severity=symptom.severity.word,
                known_fault=known_fault(symptom.what),
            )
            for symptom in status.symptoms
        ],
        nodes=_known(status.nodes, lambda pools: [asdict(pool) for pool in pools]),
        servers=_known(status.groups, lambda groups: [asdict(group) for group in groups]),
        units={name: asdict(gauges) for name, gauges in status.gauges.items()},
        models=_known(status.loads, lambda loads: [_load_document(load) for load in loads]),
        basis=status.basis.value,
        images=_known(status.images, lambda images: {name: item.model_dump() for name, item in images.items()}),
        changes=[document("when what by", change, when=change.when.isoformat()) for change in status.changes],
        alerts=_known(
            status.alerts,
            lambda alerts: [
                {**asdict(item), "since": item.since.isoformat() if item.since else None} for item in alerts
            ],
        ),
        credentials=_known(status.credentials, lambda known: [_credential_document(item) for item in known]),
    )


def _known(part: Part | Unread, document: Callable[[Part], object]) -> object:
    return {"unread": part.why} if isinstance(part, Unread) else document(part)


def _load_document(load: ModelLoad) -> dict[str, Any]:
    return document(
        "model basis duration_s answered requests_per_s input_tokens output_tokens ttft_ms itl_ms most_running waiting"
        " kv_cache_usage preemptions remote_prefill_share limits unread",
        load,
        load.observation,
        basis=load.observation.basis.value,
        limits=[
            document(
                "name side limit seen verdict",
                item.assumption.figure,
                item.assumption,
                limit=item.assumption.value,
                seen=item.value,
                verdict=item.verdict.value,
            )
            for item in load.judgements
        ],
    )
