"""Tags that OCI would refuse, and the rights that tags need."""

import json
from typing import Any

import pytest
from created_stacks import refusals, validated
from llmd_oke import planning
from llmd_oke.planning.iam import iam_needs
from stack_files import COMPARTMENT, created_pool, model, ocid, paths, plan


def refused(**tags: Any) -> dict[str, str]:
    return refusals(stack_changes={"tags": tags})


@pytest.mark.parametrize(
    ("tags", "path"),
    [
        ({"freeform": {"a b": "c"}}, "tags.freeform"),
        ({"freeform": {"a.b": "c"}}, "tags.freeform"),
        ({"freeform": {"": "c"}}, "tags.freeform"),
        ({"freeform": {"k" * 101: "c"}}, "tags.freeform"),
        ({"freeform": {"a": "c" * 257}}, "tags.freeform.a"),
        ({"freeform": {"a": 1}}, "tags.freeform.a"),
        ({"defined": {"CostCenter": "42"}}, "tags.defined.CostCenter"),
        ({"defined": {"a b": {"c": "d"}}}, "tags.defined"),
        ({"ignored": ["Oracle-Tags"]}, "tags.ignored[0]"),
        ({"namespaceCompartmentId": "root"}, "tags.namespaceCompartmentId"),
    ],
)
def test_an_invalid_tag_is_refused_with_its_path(tags: dict[str, Any], path: str):
    assert any(told.startswith(path) for told in paths(model(), tags=tags))


@pytest.mark.parametrize(
    ("tags", "path", "why"),
    [
        ({"freeform": {"llmd-oke/stack": "x"}}, "tags.freeform.llmd-oke/stack", "the kit sets this tag itself"),
        ({"defined": {"oracle-tags": {"CreatedBy": "x"}}}, "tags.defined.oracle-tags", "OCI sets the tags"),
        ({"defined": {"Orcl-Cloud": {"a": "x"}}}, "tags.defined.Orcl-Cloud", "OCI sets the tags"),
        ({"defined": {"Operations": {}}}, "tags.defined.Operations", "a namespace alone tags nothing"),
        ({"defined": {"A": {"b": "1"}, "a": {"c": "2"}}}, "tags.defined.A", "upper and lower case"),
        ({"defined": {"A": {"b": "1", "B": "2"}}}, "tags.defined.A.b", "upper and lower case"),
        ({"freeform": {f"k{i}": "v" for i in range(9)}}, "tags.freeform", "accepted: at most 8"),
        ({"defined": {"A": {f"k{i}": "v" for i in range(63)}}}, "tags.defined", "accepted: at most 62"),
        ({"defined": {"A": {f"k{i}": "v" * 256 for i in range(20)}}}, "tags", "at most 4400 bytes"),
        ({"defined": {"A": {"b": "1"}}, "ignored": ["a.B"]}, "tags.ignored[0]", "never write again"),
        ({"ignored": ["A.b"]}, "tags.ignored[0]", "without defined tags"),
    ],
)
def test_tags_that_oci_would_refuse_are_refused_before_any_change(tags: dict[str, Any], path: str, why: str):
    assert why in refused(**tags)[path]


@pytest.mark.parametrize(("further", "paths"), [(0, []), (1, ["tags"])])
def test_tags_of_exactly_the_maximum_number_and_number_of_bytes_are_accepted(further: int, paths: list[str]):
    defined = {"A": {f"k{i}": "v" for i in range(62)}}
    assert refused(freeform={f"k{i}": "v" * 256 for i in range(8)}, defined=defined, ignored=["Audit.Owner"]) == {}
    full = {f"k{i:02}": "v" * 256 for i in range(16)}
    rest = 4400 - len(json.dumps([{}, {"A": {**full, "last": ""}}]))
    assert list(refused(defined={"A": {**full, "last": "ü" + "v" * (rest - 2 + further)}})) == paths


@pytest.mark.parametrize(
    ("tags", "launch", "needed"),
    [
        ({"freeform": {"team": "a"}}, "cluster-network", set[str]()),
        ({"defined": {"A": {"b": "1"}}}, "managed-compute-cluster", {"defined-tags"}),
        ({"defined": {"A": {"b": "1"}}}, "cluster-network", {"defined-tags", "defined-tags-of-cluster-networks"}),
        ({"defined": {"A": {"b": "1"}}, "namespaceCompartmentId": COMPARTMENT}, "cluster-network", set[str]()),
    ],
)
def test_defined_tags_need_iam_permissions_unless_their_namespace_is_beside_them(
    tags: dict[str, Any], launch: str, needed: set[str]
):
    config = validated(created_pool(launch=launch), stack_changes={"tags": tags})
    needs = iam_needs(config, config.cluster)
    assert {need for need in (*needs.cluster, *needs.nodes) if "tags" in need} == needed
    assert (needs.resource_ids.get("tag_namespace") == ("A",)) is ("defined" in tags)


def test_check_advises_on_tags_unless_the_stack_creates_its_cluster():
    tags = {"freeform": {"team": "a"}}
    for made, told in ((plan(tags=tags), ["tags"]), (planning.plan(validated(stack_changes={"tags": tags})), [])):
        assert [item.path for item in made.advice if item.path == "tags"] == told
    balanced = plan(tags=tags, frontDoor={"exposure": "internal"}).advice
    assert ["load balancers alone" in item.text for item in balanced if item.path == "tags"] == [True]


def test_nodes_have_a_tag_whose_value_is_unique_to_the_stack():
    tagged = planning.plan(validated(iam={"nodeTag": "Operations.Cluster"}))
    name = tagged.created.tags.defined["Operations.Cluster"]
    assert name.startswith("prod-us-ashburn-1-")
    assert "defined-tags" in tagged.created.iam.nodes
    assert tagged.created.iam.resource_ids["tag_namespace"] == ("Operations",)


@pytest.mark.parametrize(
    ("tag", "tags", "path"),
    [
        ("Oracle-Tags.CreatedBy", {}, "cluster.iam.nodeTag"),
        ("Operations.Cluster", {"defined": {"Operations": {"Cluster": "x"}}}, "tags.defined.Operations.Cluster"),
        ("Operations", {}, "cluster.iam.nodeTag"),
    ],
)
def test_a_node_tag_that_is_reserved_incomplete_or_set_otherwise_is_refused(tag: str, tags: dict[str, Any], path: str):
    found = refusals(stack_changes={"tags": tags}, iam={"nodeTag": tag})
    assert list(found) == [path]


@pytest.mark.parametrize("rights", [{"create": False}, {"dynamicGroups": {"nodes": ocid("dynamicgroup")}}])
def test_check_warns_of_a_node_tag_that_no_dynamic_group_of_the_stack_uses(rights: dict[str, Any]):
    advice = planning.plan(validated(iam={"nodeTag": "Operations.Cluster", **rights})).advice
    assert ["restricts nothing" in item.text for item in advice if item.path == "cluster.iam.nodeTag"] == [True]


@pytest.mark.parametrize(
    ("launch", "tag", "told"),
    [
        ("cluster-network", None, True),
        ("compute-cluster-instances", None, True),
        ("managed-compute-cluster", None, False),
        ("cluster-network", "Operations.Cluster", False),
    ],
)
def test_check_warns_of_a_dynamic_group_that_admits_any_instance_of_the_compartment(
    launch: str, tag: str | None, told: bool
):
    iam = {} if tag is None else {"nodeTag": tag}
    advice = planning.plan(validated(created_pool(launch=launch), iam=iam)).advice
    assert ("cluster.iam.nodeTag" in {item.path for item in advice}) is told
