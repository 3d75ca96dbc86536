"""DisaggregatedSets in stack files: where they are refused, and in which steps their roles are replaced."""

from types import SimpleNamespace
from typing import Any, cast

import pulumi
import pytest
from llmd_oke.catalogue.releases import AwaitedDefinitions
from llmd_oke.config import validate
from llmd_oke.planning import Plan
from llmd_oke.program.models import groups_namespace
from stack_files import model, plan, problems, stack

SCALING = {"prefill": {"minReplicas": 1, "maxReplicas": 8, "requests": 10}}
RELEASE = {"release": "llm-d-0.10.0"}


def asked(topology: str = "8p-tp1-4d-tp2", **changes: object) -> dict[str, object]:
    return model(topology, disaggregatedSet=True, **changes)


def found(*models: dict[str, object], nodes: int = 9, release: str = "llm-d-0.10.0") -> dict[str, str]:
    """Reasons of the problems of a stack, by path."""
    return {problem.path: problem.why for problem in problems(*models, nodes=nodes, release=release)}


def rollouts(topology: str, nodes: int = 2) -> dict[str, tuple[int, int]]:
    (unit,) = made(topology, nodes).models[0].units
    return {role.role: (role.rollout.max_surge, role.rollout.max_unavailable) for role in unit.roles}


def made(topology: str = "8p-tp1-4d-tp2", nodes: int = 9) -> Plan:
    return plan(asked(topology), nodes=nodes, **RELEASE)


def test_a_release_without_disaggregatedsets_refuses_them_and_names_those_with():
    (problem,) = problems(asked(), nodes=9, release="llm-d-0.9.0")
    assert (problem.path, problem.value) == ("models[0].disaggregatedSet", True)


def test_aggregated_servers_are_no_roles_of_a_disaggregatedset():
    assert "aggregated" in found(asked("agg-tp1-8r"))["models[0].disaggregatedSet"]


def test_all_problems_of_a_disaggregatedset_are_reported_at_once():
    wrong = asked(scaling=SCALING, name="a-name-with-27-characters-x")
    assert set(found(wrong, release="llm-d-0.9.0")) == {
        f"models[0].{key}" for key in ("disaggregatedSet", "scaling", "name")
    }


@pytest.mark.parametrize(
    ("longest", "changes"),
    [(26, {}), (24, {"copies": 2}), (24, {"topology": "1p-tp1dp16ep-1d-tp1dp16ep", "model": "qwen3-235b-a22b-fp8"})],
    ids=["one copy", "two copies", "servers over nodes, which have numbers"],
)
def test_names_too_long_for_pods_of_a_disaggregatedset_are_refused(longest: int, changes: dict[str, Any]):
    """<name>-<copy>-<version>-<revision>-prefill has at most 52 characters."""
    given = {"topology": "1p-tp1-1d-tp1", **changes}
    assert plan(asked(**given, name="n" * longest), nodes=4, **RELEASE).models[0].disaggregated_set
    assert "1 character too long" in found(asked(**given, name="n" * (longest + 1)), nodes=4)["models[0].name"]


def test_roles_without_room_are_replaced_in_equally_many_steps_and_others_at_once():
    """A role that is replaced in more steps than the other has servers would wait for room that it gets at the end."""
    assert rollouts("8p-tp1-4d-tp2") == {"prefill": (0, 2), "decode": (0, 1)}
    assert rollouts("8p-tp1-1d-tp8") == {"prefill": (0, 8), "decode": (0, 1)}
    surges = rollouts("2p-tp1-1d-tp1", nodes=9)
    assert all(surge and not unavailable for surge, unavailable in surges.values())


def test_stacks_with_a_disaggregatedset_need_its_controller_and_are_told_its_limits():
    assert made().needs_group_controller
    assert "models[0].disaggregatedSet" in [item.path for item in made().advice]
    assert not plan(model(), **RELEASE).needs_group_controller


def awaited(made: Plan) -> tuple[str, ...]:
    """Definitions that an update of a stack waits for before its servers."""
    asked: list[AwaitedDefinitions] = []
    access: Any = SimpleNamespace(name_once_served=lambda name, definitions, after: asked.append(definitions))
    groups_namespace(made, access, cast("pulumi.Resource", None))
    return asked[0].names if asked else ()


def test_updates_with_a_disaggregatedset_wait_for_its_definition():
    sets = "leaderworkersets.leaderworkerset.x-k8s.io"
    assert awaited(made()) == (sets, "disaggregatedsets.disaggregatedset.x-k8s.io")
    assert awaited(plan(model("1p-tp1dp16ep-1d-tp1dp16ep"), nodes=4, **RELEASE)) == (sets,)
    assert awaited(plan(model(), **RELEASE)) == ()


def test_a_stack_file_without_disaggregatedset_has_no_such_key():
    (own,) = validate(stack(model())).model_dump(by_alias=True)["models"]
    assert "disaggregatedSet" not in own
