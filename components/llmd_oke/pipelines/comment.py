"""Comment on a pull request: checks, policies, prices, previews, rehearsals and diagrams of the stacks that
it changes.

All texts come from the pull request. They are escaped here, where code of the main branch runs: no markup, link,
mention or HTML of theirs is left, and no line begins with one, as GitLab runs lines that begin with a slash.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmd_bench.texts import code, number, plain

from llmd_oke.pipelines.preview_report import OPERATIONS
from llmd_oke.pipelines.records import (
    PassportExcerpt,
    PreviewReport,
    ProjectChanges,
    RehearsalReport,
    SnapshotModel,
    StackSnapshot,
    TouchedStack,
)

MARK = "<!-- llmd-oke pipeline -->"
"""First line of the comment on a pull request, by which the pipeline's next run finds it."""

LIMITS: Mapping[str, int] = {"github": 65_536, "gitlab": 1_000_000}
"""Maximum length of a comment by platform: GitHub's API refuses longer bodies with `body is too long (maximum is 65536
characters)`, GitLab's notes have at most 1,000,000 characters (docs.gitlab.com, "Instance limits"). Both are applied to
bytes of UTF-8, of which a text has at least as many.
"""

MAX_ROWS = 60
"""Maximum number of a preview's resources, and of stacks in the overview, that a comment shows; the others
are counted.
"""

MAX_LISTED = 20
"""Maximum number of items of a list that a comment shows; the others are counted."""

_FULL, _SHORT, _OVERVIEW = 2, 1, 0
"""Levels of detail: all, without diagrams and tables of resources, the overview alone."""

_REFERENCES = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)

_LABEL = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "'", "\\": "/", "%": "#37;"})


@dataclass(frozen=True)
class Reports:
    """Results of the jobs of a pull request, by stack for those that run once per stack. `artifacts` is the URL of the
    run's files; empty if there is none.
    """

    changes: ProjectChanges | None
    previews: Mapping[str, PreviewReport]
    rehearsals: Mapping[str, RehearsalReport]
    missing: Sequence[str] = ()
    artifacts: str = ""


def comment(reports: Reports, limit: int) -> str:
    """Return the comment on a pull request as Markdown, at most `limit` bytes long: the least important details are
    left out first, which the comment says.
    """
    for detail in (_FULL, _SHORT, _OVERVIEW):
        parts = [MARK, *_parts(reports, detail)]
        if detail != _FULL:
            parts.append(f"The rest would be longer than a comment may be{_where(reports.artifacts)}.")
        text = "\n\n".join(parts) + "\n"
        if len(text.encode()) <= limit:
            return text
    note = "\n\ncut here\n"
    return text.encode()[: limit - len(note)].decode(errors="ignore").rpartition("\n")[0] + note


def _parts(reports: Reports, detail: int) -> Iterator[str]:
    changes = reports.changes
    if changes is None:
        yield "## Stacks: not compared"
        yield "The job that compares stacks left no result; its log says why."
    else:
        count = len(changes.changes)
        touched = f"{count} of {count + len(changes.untouched)} touched" if count else "none is touched"
        yield f"## Stacks: {touched}"
        if changes.changes:
            yield _overview(changes, reports)
        if changes.untouched:
            names = ", ".join(map(code, changes.untouched[:MAX_LISTED]))
            yield f"Not touched: {names}{_more(changes.untouched, MAX_LISTED)}."
        yield f"Compared with {code(changes.base[:12])}, at {code(changes.head[:12])}."
    yield from _listed("What this can't tell", map(sentence, [*(changes.notes if changes else ()), *reports.missing]))
    if changes is not None and detail != _OVERVIEW:
        for change in changes.changes:
            yield from _stack(change, reports, detail)


def _overview(changes: ProjectChanges, reports: Reports) -> str:
    rows = ["| stack | check | policies | $/hour | preview | rehearsal |", "|---|---|---|---:|---|---|"]
    for change in changes.changes[:MAX_ROWS]:
        name, check = change.stack, "-"
        if change.after is not None:
            problems = len(change.after.problems)
            check = f"**{_counted(problems, 'problem')}**" if problems else "passed"
        cells = (
            code(name) + {"new": " (new)", "removed": " (removed)", "changed": ""}[change.kind],
            check,
            _policies(change.after),
            _prices(change),
            _previewed(change, reports.previews.get(name)),
            _rehearsed(change, reports.rehearsals.get(name)),
        )
        rows.append(f"| {' | '.join(cells)} |")
    rows += [f"\nand {len(changes.changes) - MAX_ROWS} more"] * (len(changes.changes) > MAX_ROWS)
    return "\n".join(rows)


def _policies(after: StackSnapshot | None) -> str:
    if after is None or after.problems:
        return "-"
    if after.breaches is None:
        return "none here"
    mandatory = sum(breach.level == "mandatory" for breach in after.breaches)
    advisory = len(after.breaches) - mandatory
    told = [*([f"**{mandatory} refuse it**"] * bool(mandatory)), *([f"{advisory} advisory"] * bool(advisory))]
    return ", ".join(told) or "passed"


def _prices(change: TouchedStack) -> str:
    before, after = (
        side.usd_per_hour if side and not side.problems else None for side in (change.before, change.after)
    )
    if before is None:
        return "-" if after is None else f"{after:,.2f}"
    if after is None:
        return f"{before:,.2f} → {'0' if change.kind == 'removed' else 'unknown'}"
    if abs(after - before) < 0.005:
        return f"{after:,.2f}"
    return f"{before:,.2f} → {after:,.2f} (**{after - before:+,.2f}**)"


def _previewed(change: TouchedStack, report: PreviewReport | None) -> str:
    if change.kind == "removed":
        return "stays until `llmd-oke destroy`"
    if report is None or report.missing:
        return "none"
    return f"**refused**, {headline(report.counts)}" if report.refusals else headline(report.counts)


def _rehearsed(change: TouchedStack, report: RehearsalReport | None) -> str:
    if change.kind == "removed" or report is None:
        return "none" if change.kind != "removed" else "-"
    took = f"{report.seconds:.0f} s" if report.seconds < 100 else f"{report.seconds / 60:.0f} min"
    return f"{'passed' if report.passed else '**failed**'} ({took})"


def _stack(change: TouchedStack, reports: Reports, detail: int) -> Iterator[str]:
    after, preview = change.after, reports.previews.get(change.stack)
    yield f"### {code(change.stack)}"
    if after is None:
        return
    yield from _listed("It can't be deployed", map(sentence, after.problems))
    breaches = after.breaches or ()
    for level, title in (("mandatory", "Policies refuse it"), ("advisory", "Policies advise against")):
        yield from _listed(
            title, [f"{code(breach.policy)}: {sentence(breach.text)}" for breach in breaches if breach.level == level]
        )
    yield from _price_table(change)
    yield from _declared(change)
    if preview is not None:
        yield from _preview_parts(preview, detail)
    yield from _rehearsal_parts(reports.rehearsals.get(change.stack), detail)
    if not after.problems and detail == _FULL:
        yield _folded(f"Diagram{_where(reports.artifacts)}", f"```mermaid\n{diagram(after)}\n```")


def _price_table(change: TouchedStack) -> Iterator[str]:
    """Yield the table of the parts whose price differs; nothing if one side can't be deployed, and so has no prices."""
    before, after = change.before, change.after
    if before is None or after is None or before.problems or after.problems:
        return
    old, new = ({part.part: part.usd_per_hour for part in side.costs} for side in (before, after))
    rows = [
        f"| {sentence(part)} | {_price(old, part)} | {_price(new, part)} |"
        for part in dict.fromkeys([*old, *new])
        if old.get(part, _ABSENT) != new.get(part, _ABSENT)
    ]
    if rows:
        yield "\n".join(["| list price, $/hour | before | after |", "|---|---:|---:|", *rows])


_ABSENT = object()


def _price(side: Mapping[str, float | None], part: str) -> str:
    if part not in side:
        return "-"
    price = side[part]
    return "unknown" if price is None else f"{price:,.2f}"


def _declared(change: TouchedStack) -> Iterator[str]:
    """Yield what the program declares otherwise, as a preview needs a deployed stack and this doesn't."""
    parts = {"new": change.created, "changed": change.changed, "gone": change.deleted}
    if change.before is None or not any(parts.values()):
        return
    counts = ", ".join(f"{len(names)} {how}" for how, names in parts.items() if names)
    names = [f"{how}: {code(name)}" for how, names in parts.items() for name in names]
    yield _folded(f"Declared: {counts}", "\n".join(_items(names)))


def preview_markdown(report: PreviewReport) -> str:
    """Return the report of a preview as Markdown, for the summary of its job."""
    return "\n\n".join([f"### {code(report.stack)}: {headline(report.counts)}", *_preview_parts(report, _FULL)]) + "\n"


def _preview_parts(report: PreviewReport, detail: int) -> Iterator[str]:
    if report.missing:
        yield f"No preview: {sentence(report.missing)}"
        return
    yield from _listed("The update is refused", map(sentence, report.refusals))
    yield from _listed("Changed by hand", map(sentence, report.by_hand))
    yield from _listed("Before the update", map(sentence, [report.first] if report.first else []))
    if report.resources and detail == _FULL:
        rows = ["| | resource | changes |", "|---|---|---|"]
        for item in report.resources[:MAX_ROWS]:
            paths = [*(f"**{sentence(path)}**" for path in item.replaced_by), *map(sentence, item.changed)]
            changes = f"{', '.join(paths[:5])}{_more(paths, 5)}"
            rows.append(f"| {item.operation} | {sentence(item.resource)} | {changes} |")
        yield "\n".join(rows) + (
            f"\n\nand {len(report.resources) - MAX_ROWS} more" if len(report.resources) > MAX_ROWS else ""
        )
    yield from _listed("Advice", map(sentence, report.advice))
    yield sentence(report.size)
    if report.not_compared:
        yield f"Secrets of {report.not_compared} resources are not known here, nor what was changed by hand."


def rehearsal_markdown(report: RehearsalReport) -> str:
    """Return the report of a rehearsal as Markdown, for the output of its job."""
    return "\n\n".join([f"### {code(report.stack)}", *_rehearsal_parts(report, _FULL)]) + "\n"


def _rehearsal_parts(report: RehearsalReport | None, detail: int) -> Iterator[str]:
    if report is None:
        return
    what = f"the update from {code(report.base[:12])}" if report.base else "a new deployment"
    verdict = "passed" if report.passed else "**failed**"
    changed = f": {sentence(report.changes)}" if report.changes else ""
    yield f"Rehearsal of {what} {verdict}{changed}. Its servers are simulated; it says nothing about OCI."
    yield from _listed("It failed", map(sentence, [report.error] if report.error else []))
    if report.passports and detail == _FULL:
        yield _folded("Passport of the rehearsal", _passports(report.passports))


def _passports(passports: Sequence[PassportExcerpt]) -> str:
    head = "| model | smoke | figures | TTFT p95, ms | ITL p95, ms | output tokens/s | remote prefill | accuracy |"
    rows = [f"{head} $/1M tokens |", "|---|---|---|---:|---:|---:|---:|---|---:|"]
    for item in passports[:MAX_LISTED]:
        smoke = "passed" if item.smoke_passed else f"**failed**: {', '.join(map(sentence, item.failed_checks))}"
        share = "-" if item.remote_prefill_share is None else f"{item.remote_prefill_share:.1%}"
        cells = (
            f"{code(item.model)} {code(item.topology)}",
            smoke,
            sentence(item.basis),
            *map(_figure, (item.ttft_p95_ms, item.itl_p95_ms, item.output_tokens_per_s)),
            share,
            sentence(item.accuracy) or "-",
            _figure(item.usd_per_million_output_tokens),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _figure(value: float | None) -> str:
    return "-" if value is None else number(value)


def headline(counts: Mapping[str, int]) -> str:
    """Return the counts of a preview, by operation, as text: `2 to create, 1 to replace, 5 unchanged`. The steps of a
    replacement count as one.
    """
    known = [f"{counts[kind]} to {kind}" for kind in OPERATIONS if counts.get(kind)]
    return ", ".join([*known, f"{counts.get('same', 0)} unchanged"]) if known else "no changes"


def changed_text(counts: Mapping[str, int]) -> str:
    """Return the counts of an update, by operation, as text: `2 created, 5 unchanged`."""
    known = [f"{count} {sentence(kind)}d" for kind, count in counts.items() if kind not in _QUIET and count]
    return ", ".join([*known, f"{counts.get('same', 0)} unchanged"])


_QUIET = ("same", "read")


def diagram(stack: StackSnapshot) -> str:
    """Return a stack as a Mermaid flow chart, which comments of GitHub and GitLab draw: clients, routers, servers by
    role, and pools with their nodes.
    """
    lines = ["flowchart LR"]
    if stack.entry:
        lines.append(f"  clients([clients]) --> entry[{_label(stack.entry)}]")
    for index, model in enumerate(stack.models[:MAX_LISTED]):
        lines += _model_lines(f"m{index}", model)
    for index, pool in enumerate(stack.pools[:MAX_LISTED]):
        lines.append(f"  pool{index}[({_label(f'{pool.name}: {pool.nodes} x {pool.shape}')})]")
        lines += [f"  m{model} -.-> pool{index}" for model in range(min(len(stack.models), MAX_LISTED))]
    return "\n".join(lines)


def _model_lines(name: str, model: SnapshotModel) -> Iterator[str]:
    """Yield the lines of a model: its servers by role, and the routers before those that take requests."""
    servers = {role.role: f"{name}{''.join(filter(str.isalnum, role.role))}" for role in model.roles}
    first = servers.get("decode") or next(iter(servers.values()), name)
    yield f"  subgraph {name} [{_label(f'{model.name}, {model.copies} x {model.topology}, {model.gpus} GPUs')}]"
    for role in model.roles:
        size = f"{role.gpus_each} GPU{'s' * (role.gpus_each != 1)} each"
        yield f"    {servers[role.role]}[{_label(f'{role.servers} {role.role}, {size}')}]"
    if model.routed:
        yield f"    {name}r{{{{{_label(_counted(model.copies, 'router'))}}}}} --> {first}"
    if {"prefill", "decode"} <= servers.keys():
        yield f"    {servers['prefill']} -- KV cache --> {servers['decode']}"
    yield "  end"
    yield f"  entry --> {f'{name}r' if model.routed else first}"


def _label(text: str) -> str:
    """Return a text as a label of Mermaid, in quotes, with its own characters as entities."""
    return f'"{" ".join(text.split()).translate(_LABEL)}"'


def sentence(text: str) -> str:
    """Return an untrusted text as Markdown that shows it literally: one line without markup, HTML, links, mentions and
    references to issues.
    """
    return _REFERENCES.sub("<!-- -->", plain(text))


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _listed(title: str, items: Iterable[str]) -> list[str]:
    lines = _items(list(items))
    return ["\n".join([f"**{title}**", "", *lines])] if lines else []


def _items(items: Sequence[str]) -> list[str]:
    return [
        *(f"- {item}" for item in items[:MAX_LISTED]),
        *([f"- and {len(items) - MAX_LISTED} more"] if len(items) > MAX_LISTED else []),
    ]


def _more(items: Sequence[str], shown: int) -> str:
    return f" and {len(items) - shown} more" if len(items) > shown else ""


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _where(artifacts: str) -> str:
    return f': <a href="{artifacts}">files of the run</a>' if artifacts else ""
