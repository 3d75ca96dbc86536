"""Report of a preview: the changes that an update would make, and the reasons why it would be refused."""

from collections.abc import Iterable, Iterator, Sequence

from llmd_oke.operations import guards
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.guards import displacement
from llmd_oke.operations.previews import Preview, ResourceChange
from llmd_oke.pipelines.records import Operation, PreviewedResource, PreviewReport
from llmd_oke.planning import Plan, advice_of_update

OPERATIONS: tuple[Operation, ...] = ("delete", "replace", "create", "update")
"""Operations of the engine that change a resource, in the order of their importance for a reviewer."""

_WITHOUT_EXISTENCE = ("llmd-oke:index:", "pulumi:")


def preview_report(
    stack: str,
    plan: Plan,
    preview: Preview,
    *,
    by_hand: Sequence[Drift] = (),
    allow_replace: bool = False,
    not_compared: int = 0,
) -> PreviewReport:
    """Return the report of a preview. `by_hand` are changes by hand to list, `not_compared` is the number of resources
    with secrets that the preview doesn't know.
    """
    lost = [] if allow_replace else [guards.describe(change) for change in guards.losses(preview)]
    first = displacement(preview, plan.gpus)
    existing = Preview(tuple(change for change in preview.changes if _exists(change)))
    least, most = sum(pool.limits.least for pool in plan.pools), sum(pool.limits.most for pool in plan.pools)
    scaled = "" if least == most else f" ({least} to {most})"  # by the cluster autoscaler
    return PreviewReport(
        stack=stack,
        counts=existing.counts,
        resources=tuple(_resources(preview.effective)),
        refusals=(*preview.errors, *lost),
        by_hand=tuple(map(str, by_hand)),
        first=str(first) if first else "",
        advice=tuple(f"{advice.path}: {advice.text}" for advice in advice_of_update(plan)),
        size=f"{len(plan.nodes_at_first)} GPU nodes{scaled}, {plan.used_gpus} of {plan.gpus} GPUs used, "
        f"{plan.price_usd_per_hour:.2f} $/hour at list price.",
        not_compared=not_compared,
    )


def _resources(changes: Iterable[ResourceChange]) -> Iterator[PreviewedResource]:
    """Yield the changed resources that exist outside the state, deletions first."""
    for operation in OPERATIONS:
        own = (change for change in changes if change.operation == operation and _exists(change))
        for change in sorted(own, key=lambda change: (change.type, change.name)):
            others = tuple(path for path in change.changed if path not in change.replaced_by)
            yield PreviewedResource(
                operation=operation, resource=change.short_name, replaced_by=change.replaced_by, changed=others
            )


def _exists(change: ResourceChange) -> bool:
    """Tell whether a resource exists outside the state, which components, providers and the stack itself don't."""
    return not change.type.startswith(_WITHOUT_EXISTENCE)
