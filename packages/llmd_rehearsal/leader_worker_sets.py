"""The controller of LeaderWorkerSets in a rehearsal, for stacks whose servers span nodes."""

from functools import cache
from typing import Any

from llmd_oke.planning import Plan
from llmd_oke.values import Entry, required_entry


class LeaderWorkerSetParts(Entry):
    """`values/rehearsal/leader-worker-set.yaml`: objects that a rehearsal puts into its cluster."""

    objects: tuple[dict[str, Any], ...]


@cache
def _parts() -> LeaderWorkerSetParts:
    return required_entry("rehearsal", "leader-worker-set", LeaderWorkerSetParts)


def preinstalled_controller(plan: Plan) -> tuple[dict[str, Any], ...]:
    """Objects that a cluster has before a stack with servers that span nodes: the controller, and its webhooks."""
    return _parts().objects if plan.over_nodes else ()
