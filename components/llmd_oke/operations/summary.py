"""A preview as Markdown, ready to be a comment on a pull request."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmd_oke.operations import guards
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.order import displacement
from llmd_oke.operations.previews import Change, Preview
from llmd_oke.planning import Plan
from llmd_oke.plots.comparison_texts import plain

MARK = "<!-- llmd-oke preview of {stack} -->"
"""The first line of a comment, by which the next run finds it."""

MOST_ROWS = 60
_ORDER = ("delete", "replace", "create", "update")
_WITHOUT_EXISTENCE = ("llmd-oke:index:", "pulumi:")


@dataclass(frozen=True)
class Judged:
    """A preview and what speaks against it."""

    markdown: str
    refusals: Sequence[str]


def summarise(
    stack: str, plan: Plan, preview: Preview, *, by_hand: Sequence[Drift] = (), allow_replace: bool = False
) -> Judged:
    """The comment, with what was changed by hand, and the reasons for which an update is refused."""
    lost = [] if allow_replace else [guards.describe(change) for change in guards.losses(preview)]
    refusals = [*preview.errors, *lost]
    first = displacement(preview, plan.gpus)
    parts = [
        MARK.format(stack=stack),
        f"### `{stack}`: {headline(_counts(preview))}",
        *_listed("The update is refused", map(plain, refusals)),
        *_listed("Changed by hand", [plain(str(drift)) for drift in by_hand]),
        *_listed("Before the update", [str(first)] if first else []),
        *_table(preview.effective),
        *_listed("Advice", [f"`{advice.path}`: {advice.text}" for advice in plan.advice]),
        f"{_nodes(plan)}, {plan.used_gpus} of {plan.gpus} GPUs used, "
        f"{plan.price_usd_per_hour:.2f} $/hour at list price.",
    ]
    return Judged("\n\n".join(parts) + "\n", refusals)


def drifted(stack: str, by_hand: Sequence[Drift]) -> str:
    """What was changed by hand in a stack, as Markdown."""
    told = "nothing was changed by hand" if not by_hand else f"changed by hand: {len(by_hand)}"
    return "\n\n".join([f"### `{stack}`: {told}", *_listed("Changes", [plain(str(each)) for each in by_hand])]) + "\n"


def _nodes(plan: Plan) -> str:
    """`9 GPU nodes`, or `2 GPU nodes (2 to 9)` where the cluster autoscaler changes their number."""
    least = sum(pool.limits.least for pool in plan.pools)
    most = sum(pool.limits.most for pool in plan.pools)
    later = "" if least == most else f" ({least} to {most})"
    return f"{len(plan.nodes_at_first)} GPU nodes{later}"


def headline(counts: Mapping[str, int]) -> str:
    """`2 to create, 1 to replace, 5 unchanged`. The parts of a replacement count as one."""
    known = [f"{counts[kind]} to {kind}" for kind in _ORDER if counts.get(kind)]
    return ", ".join([*known, f"{counts.get('same', 0)} unchanged"]) if known else "no changes"


def _counts(preview: Preview) -> dict[str, int]:
    return Preview(tuple(change for change in preview.changes if _exists(change))).counts


def _exists(change: Change) -> bool:
    """Components, providers and the stack itself have no existence of their own."""
    return not change.type.startswith(_WITHOUT_EXISTENCE)


def _table(changes: Iterable[Change]) -> list[str]:
    rows = sorted(
        (change for change in changes if change.operation in _ORDER and _exists(change)),
        key=lambda change: (_ORDER.index(change.operation), change.type, change.name),
    )
    if not rows:
        return []
    lines = ["| | resource | changes |", "|---|---|---|", *(_row(change) for change in rows[:MOST_ROWS])]
    more = [f"\nand {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []
    return ["\n".join([*lines, *more])]


def _row(change: Change) -> str:
    paths = [*(f"**{plain(path)}**" for path in change.replaced_by)]
    paths += [plain(path) for path in change.changed if path not in change.replaced_by]
    told = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    return f"| {change.operation} | {plain(change.short_name)} | {told} |"


def _listed(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {item}" for item in items]
    return ["\n".join([f"**{title}**", "", *lines])] if lines else []
