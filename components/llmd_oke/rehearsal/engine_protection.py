"""Protection of resources in a rehearsed stack's state, taken away only where that is asked for."""

from typing import Any

from pulumi import automation

from llmd_oke.operations import guards
from llmd_oke.progress import Progress


def release(stack: automation.Stack, progress: Progress, *, allowed: bool) -> None:
    """Takes the protection of all resources away.

    Raises:
        KitError: something is protected and that isn't allowed.
    """
    state = stack.export_stack()
    resources: list[dict[str, Any]] = (state.deployment or {}).get("resources") or []
    protected = [resource for resource in resources if resource.get("protect")]
    urns = [str(resource["urn"]) for resource in protected]
    guards.refuse_protected(urns, allowed=allowed)
    if not protected:
        return
    for resource in protected:
        resource["protect"] = False
    progress.detail("no longer protected: " + ", ".join(urn.rsplit("::", 1)[-1] for urn in urns))
    stack.import_stack(state)
