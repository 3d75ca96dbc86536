"""What has to go before something else can come.

The engine creates first and deletes last, which is right wherever there is room for both. On full nodes the new servers
would wait for GPUs that the old ones hold, until the update fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_oke.operations.previews import Change, Preview

DEPLOYMENT = "kubernetes:apps/v1:Deployment"
GPU = "amd.com/gpu"


@dataclass(frozen=True)
class Displacement:
    """Servers that must be deleted before the update: the GPUs that new ones want, and those that are free."""

    first: Sequence[Change]
    wanted_gpus: int
    free_gpus: int

    def __str__(self) -> str:
        names = ", ".join(change.name for change in self.first)
        return (
            f"new servers want {self.wanted_gpus} GPUs and {self.free_gpus} are free, so {names} must go before they"
            " come: the model is not served meanwhile"
        )


def displacement(preview: Preview, gpus: int, resource: str = GPU) -> Displacement | None:
    """The servers that have to go first on nodes with that many GPUs; None where there is room for all at once."""
    deployments = [change for change in preview.changes if change.type == DEPLOYMENT]
    created = sum(gpus_of(change.new, resource) for change in deployments if change.operation == "create")
    held = sum(_held(change, resource) for change in deployments if change.operation != "create")
    leaving = [change for change in deployments if change.operation == "delete" and gpus_of(change.old, resource)]
    free = max(0, gpus - held)
    return Displacement(leaving, created, free) if created > free and leaving else None


def gpus_of(deployment: Mapping[str, Any], resource: str = GPU) -> int:
    """The GPUs of all pods of a Deployment."""
    spec = _inside(deployment, "spec")
    containers: list[Mapping[str, Any]] = _inside(spec, "template", "spec").get("containers") or []
    limits = [_inside(container, "resources", "limits") for container in containers]
    return int(spec.get("replicas", 1)) * sum(int(each.get(resource, 0)) for each in limits)


def _held(change: Change, resource: str) -> int:
    """What a Deployment that stays needs at most while it changes; one that is replaced goes before it comes anew."""
    return max(gpus_of(change.old, resource), gpus_of(change.new, resource))


def _inside(value: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = value.get(key) or {}
    return value
