"""Stack files that build on others: how they are merged, where each value stands, and what is refused."""

import copy
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_oke import config, planning
from llmd_oke.config.yaml_files import text_of
from llmd_oke.values import read_yaml
from stack_files import created_stack, model, stack

SHARED = stack(models=[model(name="chat", copies=1), model(name="code", engine={"maxNumSeqs": 64})])
ALIASES = "l0: &l0 {k: 1}\n" + "".join(
    f"l{i}: &l{i} {{{', '.join(f'k{n}: *l{i - 1}' for n in range(9))}}}\n" for i in range(1, 12)
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    return tmp_path


def write(project: Path, own: Any, **bases: Any) -> None:
    """Write the stack `mine` and files that it builds on."""
    (project / "stacks" / "Pulumi.mine.yaml").write_text(text_of({"config": {"llmd-oke:stack": own}}))
    for name, value in bases.items():
        (project / "stacks" / f"{name}.yaml").write_text(value if isinstance(value, str) else text_of(value))


def refused(project: Path, own: Any, **bases: Any) -> list[Problem]:
    write(project, own, **bases)
    with pytest.raises(InvalidStack) as caught:
        planning.plan_stack_file(project, "mine")
    return list(caught.value.problems)


def test_a_stack_file_is_merged_with_its_base_file_key_by_key_at_all_depths(project: Path):
    own = {"base": "shared.yaml", "smoke": {"thresholds": {"maxTtftP95Ms": 900.0}}, "namespace": "dev"}
    write(project, own, shared={**SHARED, "smoke": {"requests": 8, "thresholds": {"maxFailures": 2}}})
    assert config.read(project, "mine") == {
        **SHARED,
        "smoke": {"requests": 8, "thresholds": {"maxFailures": 2, "maxTtftP95Ms": 900}},
        "namespace": "dev",
    }


def test_null_in_a_stack_file_removes_the_key_that_its_base_file_sets(project: Path):
    write(project, {"base": "shared.yaml", "rdma": None}, shared={**SHARED, "rdma": "none"})
    assert "rdma" not in config.read(project, "mine")
    assert config.load(project, "mine").rdma == "sriov-vf"


def test_a_list_replaces_that_of_a_base_file_and_an_object_changes_its_items_by_name(project: Path):
    write(project, {"base": "shared.yaml", "models": [model()]}, shared=SHARED)
    assert config.read(project, "mine")["models"] == [model()]
    changes = {"models": {"chat": {"copies": 2}, "code": None}, "gpuPools": {"mi300x": {"size": 18}}}
    write(project, {"base": "shared.yaml", **changes}, shared=SHARED)
    read = config.read(project, "mine")
    assert read["models"] == [model(name="chat", copies=2)]
    assert [pool["size"] for pool in read["gpuPools"]] == [18]
    write(project, {"base": "shared.yaml", "models": {"gpt-oss-120b": {"copies": 2}}}, shared=stack())
    assert config.read(project, "mine")["models"] == [model(copies=2)]


def test_a_base_file_may_build_on_another_base_file(project: Path):
    write(
        project,
        {"base": "dev.yaml", "namespace": "mine"},
        dev={"base": "shared.yaml", "namespace": "dev", "smoke": {"requests": 8}},
        shared={**SHARED, "namespace": "shared"},
    )
    assert config.read(project, "mine") == {**SHARED, "namespace": "mine", "smoke": {"requests": 8}}


@pytest.mark.parametrize(
    ("own", "bases", "place", "told"),
    [
        ({"base": 5}, {}, (None, "base"), "it is a whole number"),
        ({"base": "../shared.yaml"}, {}, (None, "base"), "it has another form"),
        ({"base": "Pulumi.other.yaml"}, {}, (None, "base"), "is a stack's own file"),
        ({"base": "a.yaml"}, {"a": {"base": "b.yaml"}}, ("stacks/a.yaml", "base"), "there is no file stacks/b.yaml"),
        (
            {"base": "a.yaml"},
            {"a": {"base": "b.yaml"}, "b": {"base": "a.yaml"}},
            ("stacks/b.yaml", "base"),
            "it builds on itself: stacks/Pulumi.mine.yaml -> stacks/a.yaml -> stacks/b.yaml -> stacks/a.yaml",
        ),
        ({"base": "a.yaml"}, {"a": "- 1\n"}, ("stacks/a.yaml", ""), "it is a list"),
        ({"base": "a.yaml"}, {"a": "rdma: none\nrdma: none\n"}, ("stacks/a.yaml", "rdma"), "in line 1 already"),
        ({"base": "a.yaml", "models": {"chet": {}}}, {"a": SHARED}, (None, "models.chet"), "no item of this name"),
        ({"base": "a.yaml", "models": {"chat": {}}}, {"a": {"models": []}}, (None, "models.chat"), "there is none"),
    ],
)
def test_an_invalid_base_file_is_refused_with_file_and_path(
    project: Path, own: Any, bases: Mapping[str, Any], place: tuple[str | None, str], told: str
):
    (problem,) = refused(project, own, **bases)
    assert (problem.file, problem.path) == place
    assert told in problem.why


def test_a_missing_base_file_is_refused_with_the_existing_ones(project: Path):
    (problem,) = refused(project, {"base": "shred.yaml"}, shared=SHARED)
    assert (problem.accepted, problem.line) == ("one of shared.yaml", 3)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("a: [", r"stacks/shared\.yaml.* is not YAML"),
        (ALIASES, "it has more than 200,000 values, counting those of aliases"),
    ],
    ids=["no YAML", "nested aliases"],
)
def test_a_base_file_that_cannot_be_read_is_refused_with_the_reason(project: Path, base: str, words: str):
    write(project, {"base": "shared.yaml"}, shared=base)
    with pytest.raises(KitError, match=words):
        planning.plan_stack_file(project, "mine")


def test_each_problem_names_the_stack_file_or_base_file_that_has_the_value(project: Path):
    own = {"base": "shared.yaml", "models": {"code": {"copies": 0}}, "namespace": "A b"}
    broken = copy.deepcopy(SHARED)
    broken["gpuPools"][0]["size"] = 0
    del broken["models"][0]["workload"]
    problems = refused(project, own, shared=broken)
    assert [(problem.file, problem.path, problem.line) for problem in problems] == [
        ("stacks/shared.yaml", "gpuPools[0].size", 7),
        ("stacks/shared.yaml", "models[0].workload", 10),
        (None, "models.code.copies", 6),
        (None, "namespace", 7),
    ]


def test_problems_of_planning_name_the_base_file_and_line_of_the_value(project: Path):
    problems = refused(project, {"base": "shared.yaml", "gpuPools": {"mi300x": {"size": 1}}}, shared=SHARED)
    assert problems
    assert {problem.file for problem in problems} <= {None, "stacks/shared.yaml"}
    assert all(problem.line for problem in problems)


def test_config_that_pulumi_passes_is_merged_with_the_base_file_like_the_stack_file(project: Path):
    write(project, {"base": "shared.yaml", "namespace": "dev"}, shared=SHARED)
    made = config.effective_object({"base": "shared.yaml", "namespace": "dev"}, project)
    assert made.value == config.read(project, "mine")
    (problem,) = made.located([Problem("gpuPools[0].size", 1, "", "")])
    assert (problem.file, problem.line) == ("stacks/shared.yaml", 7)


@pytest.mark.parametrize("place", [{"line": 99}, {"file": "values/gpus/own.yaml"}])
def test_a_problem_that_has_a_line_or_a_file_already_keeps_its_place(project: Path, place: dict[str, Any]):
    write(project, {"base": "shared.yaml"}, shared=SHARED)
    placed = Problem("gpuPools[0].size", 1, "", "", **place)
    assert config.effective(project, "mine").located([placed]) == [placed]


# Laws, for any files: values, lists and objects with few keys, so that files meet in them.
KEYS = st.sampled_from(["a", "b", "c", "models"])
VALUES = st.recursive(
    st.one_of(st.integers(0, 3), st.booleans(), st.sampled_from(["x", "y"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)
LAWS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def merged(project: Path, own: Mapping[str, Any], base: Mapping[str, Any]) -> config.EffectiveStack:
    write(project, {"base": "shared.yaml", **own}, shared=dict(base))
    return config.effective(project, "mine")


def leaves(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*steps, key))
    else:
        yield steps, value


def at(value: Any, steps: tuple[str | int, ...]) -> Any:
    return reduce(lambda part, step: part[step], steps, value)


@LAWS
@given(own=OBJECTS, base=OBJECTS)
def test_merged_values_are_those_of_the_file_that_is_named_as_their_origin(
    project: Path, own: dict[str, Any], base: dict[str, Any]
):
    effective = merged(project, own, base)
    value = effective.value
    assert all(at(value, steps) == leaf for steps, leaf in leaves(own) if steps and leaf != {})
    assert {key: value[key] for key in base.keys() - own.keys()} == {key: base[key] for key in base.keys() - own.keys()}
    assert value.keys() == own.keys() | base.keys()
    files = {source.name: read_yaml(project / source.name) for source in effective.sources}
    for steps, leaf in leaves(value):
        origin = reduce(lambda place, step: place.part(step), steps, effective.origin)
        document = files[origin.source.name]
        said = document["config"]["llmd-oke:stack"] if origin.source.own else document
        assert not steps or at(said, origin.steps) == leaf


@settings(LAWS, max_examples=30)
@given(own=OBJECTS, base=OBJECTS)
def test_merging_with_an_empty_file_or_again_changes_nothing(project: Path, own: dict[str, Any], base: dict[str, Any]):
    assert merged(project, own, {}).value == own
    value = merged(project, own, base).value
    assert merged(project, own, value).value == value
    assert merged(project, {}, value).value == value


STACKS = st.sampled_from(
    [
        stack(model(slo={"ttftMs": 2000.0}), smoke={"requests": 8, "thresholds": {"maxFailures": 1}}),
        created_stack(tags={"freeform": {"team": "a", "cost": "b"}}),
    ]
)


@settings(LAWS, max_examples=20)
@given(whole=STACKS, data=st.data())
def test_a_plan_does_not_depend_on_how_keys_are_split_between_stack_and_base_file(
    project: Path, whole: dict[str, Any], data: st.DataObject
):
    """A value stands in the base, in the stack's own file, or in both, where the base then says something else."""
    own: dict[str, Any] = {}
    base: dict[str, Any] = {}
    for key, value in whole.items():
        place = data.draw(st.sampled_from(["own", "base", "both", "divided"]))
        if place == "divided" and isinstance(value, dict):
            inner = data.draw(st.sets(st.sampled_from(sorted(value))))
            own[key] = {name: value[name] for name in value if name in inner}
            base[key] = {name: value[name] if name not in inner else "else" for name in value}
            continue
        if place != "base":
            own[key] = value
        if place != "own":
            base[key] = value if place == "base" else "else"
    effective = merged(project, own, base)
    assert effective.value == whole
    flat = planning.plan_object(whole)
    assert planning.plan_stack_file(project, "mine") == flat
    write(project, effective.value)
    assert planning.plan_stack_file(project, "mine") == flat
