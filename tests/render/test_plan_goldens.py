"""Golden files of plans: `golden/plans/` has what planning decides for a stack, and what choices of the stack file
change in it, with its costs, its start-up, its images and how these are copied to a registry.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from golden_stacks import ADAPTED, CHOICES, CLUSTER, COMPONENTS, CREATED_CHOICES, varied_stack
from llmd_oke import config, planning
from llmd_oke.catalogue.conditions import Conditions
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.planning.conditions import planned_conditions
from llmd_oke.planning.container_images import copies, images_of, pull_namespaces
from llmd_oke.planning.copy_lists import CopyForm, copy_text
from llmd_oke.planning.estimates import bring_up, costs, server_start
from pydantic import BaseModel
from render_support import recorded
from stack_files import StackObject, created_stack, read
from test_render_goldens import ACCEPT, UPDATE, compact

GOLDEN = Path(__file__).parent / "golden" / "plans"
PREFIX = "iad.ocir.io/ai/mirror"
INPUTS = frozenset({"config", "model_config"})
"""Fields of plans with parts of the stack file."""


REHEARSAL = read("rehearsal")
CREATED = created_stack()
WHOLE: dict[str, StackObject] = {"rehearsal": REHEARSAL, "created": CREATED, "created-with-everything": CLUSTER}
CHANGED: dict[str, tuple[StackObject, StackObject]] = {
    "adapted": (REHEARSAL, ADAPTED),
    **{name: (varied_stack(change.base), varied_stack(change.choice)) for name, change in CHOICES.items()},
    **{name: (REHEARSAL, varied_stack(COMPONENTS[name])) for name in ("Canary", "ModelMonitoring", "ModelScaling")},
    **{name: (CREATED, changed) for name, (_, changed) in CREATED_CHOICES.items()},
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_plan_of_a_stack_is_that_of_its_golden_file(name: str):
    text = planned(WHOLE[name])
    assert recorded(GOLDEN / f"{name}.yaml", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("name", CHANGED)
def test_each_changed_stack_setting_changes_the_plan_as_its_golden_file_records(name: str):
    before, after = (planned(stack).splitlines() for stack in CHANGED[name])
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    text = "".join("@@\n" if line.startswith("@@") else f"{line}\n" for line in lines)
    assert recorded(GOLDEN / f"{name}.diff", text, UPDATE) == text, ACCEPT


def test_every_golden_file_of_plans_belongs_to_a_stack_or_a_stack_setting():
    assert {path.name for path in GOLDEN.iterdir()} == {*(f"{n}.yaml" for n in WHOLE), *(f"{n}.diff" for n in CHANGED)}


def planned(stack: StackObject) -> str:
    """Plan of a stack and what follows from it, as YAML."""
    plan = planning.plan(config.validate(stack))
    document = {
        "plan": plan,
        "costs": costs(plan),
        "bring_up": bring_up(plan),
        "server_start": server_start(plan),
        "conditions": {model.name: planned_conditions(plan, model) for model in plan.models},
        "pull_namespaces": pull_namespaces(plan),
        "images": images_of(plan),
        "copies": {form.value: copy_text(copies(plan, MirrorRegistry(PREFIX)), PREFIX, form) for form in CopyForm},
    }
    return compact(plain(document))


def plain(value: Any) -> Any:
    """A value of planning as YAML has it; entries of the catalogue and parts of the stack file by their names."""
    if isinstance(value, Conditions):
        value = value.model_dump(mode="json")
    elif isinstance(value, BaseModel):
        return getattr(value, "name", None) or getattr(value, "reference", None) or type(value).__name__
    elif dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value) if field.name not in INPUTS)
        value = {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple | list | frozenset):
        items = [plain(item) for item in cast("Sequence[Any]", value)]
        return sorted(items) if isinstance(value, frozenset) else items
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value if value is None or type(value) in {str, int, bool} else str(value)
