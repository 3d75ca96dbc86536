"""Before an update: servers that have to go first, because the nodes have no room for old and new ones at once."""

import re
from pathlib import Path
from typing import Any

from llmd_oke.operations.order import DEPLOYMENT, Displacement, displacement, gpus_of
from llmd_oke.operations.previews import of_document
from llmd_oke.planning import Plan
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import rehearsal
from llmd_oke.rehearsal.rehearsal import Prepared
from llmd_oke.rehearsal.state_files import checkpoint_file, latest


def make_room(prepared: Prepared, progress: Progress) -> Displacement | None:
    """Deletes servers that have to go before others can come, and says so; None where there are none.

    Without servers that leave the stack this costs nothing: only then is there a preview.

    Raises:
        KitError: the preview or the deletion failed; says why.
    """
    if not leaving(state_file(prepared), prepared.plan):
        return None
    progress.step("previewing, because servers leave the stack")
    preview = of_document(rehearsal.run_engine(prepared, "preview", progress))
    found = displacement(preview, prepared.plan.gpus)
    if found is not None:
        progress.step(str(found))
        rehearsal.run_engine(prepared, "destroy", progress, targets=[change.urn for change in found.first])
    return found


def state_file(prepared: Prepared) -> Path:
    """Where the engine keeps what it knows of the stack."""
    return checkpoint_file(prepared.state, prepared.stack)


def leaving(file: Path, plan: Plan) -> list[str]:
    """The names of the model servers in an engine's state that a plan no longer has.

    Another version of a unit that comes beside the old one has room by its plan.
    """
    resources: list[dict[str, Any]] = latest(file).get("resources") or []
    there = [
        resource["inputs"]["metadata"]["name"]
        for resource in resources
        if resource["type"] == DEPLOYMENT and gpus_of(resource.get("inputs") or {})
    ]
    wanted = [
        f"{unit.name}{'-[0-9a-f]+' if model.update_way == 'beside' else ''}-{role.role}"
        for model in plan.models
        for unit in model.units
        for role in unit.roles
    ]
    return [name for name in there if not any(re.fullmatch(pattern, name) for pattern in wanted)]
