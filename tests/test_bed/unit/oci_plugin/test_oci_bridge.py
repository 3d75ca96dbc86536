"""Check, Diff and the answers of all types of resources, before any rule of OCI."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from llmd_rehearsal.oci_plugin.bridge import check, compare
from llmd_rehearsal.oci_plugin.facts import Property, ResourceType, resource_of, resources
from llmd_rehearsal.oci_plugin.operations import NewResource, first_state
from llmd_rehearsal.oci_plugin.region import Records
from llmd_rehearsal.plugin_values import UNKNOWN, Naming, OperationRefusal

ALL = sorted(resources().values(), key=lambda resource: resource.token)
InputsOf: TypeAlias = Callable[[ResourceType], dict[str, object]]
SPECIAL = {"cidrBlock": "10.0.0.0/24", "kubernetesVersion": "v1.34.2"}
SCALARS = {"integer": 2, "number": 2, "boolean": True, "map": {"key": "value"}, "string": "ocid1.example.oc1..a"}


def _example(name: str, known: Property) -> object:
    if name in SPECIAL:
        return SPECIAL[name]
    if known.item is not None:
        return [_example(name, known.item)]
    if known.kind == "object":
        return {key: _example(key, part) for key, part in known.fields.items() if part.required}
    return SCALARS[known.kind]


ANSWERED_OTHERWISE = {"DomainsDynamicResourceGroup": frozenset({"schemas"})}
"""What OCI answers in other words than it was told."""


def _least(resource: ResourceType) -> dict[str, object]:
    known = {name: item for name, item in resource.inputs.items() if item.required or name in SPECIAL}
    return {name: _example(name, item) for name, item in known.items()}


def _most(resource: ResourceType) -> dict[str, object]:
    return {name: _example(name, item) for name, item in resource.inputs.items()}


@pytest.mark.parametrize("resource", ALL, ids=lambda resource: resource.name)
@pytest.mark.parametrize("inputs_of", [_least, _most])
def test_diffing_unchanged_inputs_reports_no_change(resource: ResourceType, inputs_of: InputsOf):
    checked = check(resource, {}, inputs_of(resource), Naming("it"))
    assert checked.failures == []
    given = {key: value for key, value in checked.inputs.items() if key != "__defaults"}
    state = first_state(NewResource(resource, "ocid1.it.oc1..a", {}, Records(), "us-ashburn-1"), given)
    otherwise = ANSWERED_OTHERWISE.get(resource.name, frozenset())
    assert compare(resource, state, checked.inputs, otherwise).differences == ()


def test_the_error_for_an_unsupported_oci_resource_type_lists_the_supported_types():
    served = r"oci:Database/db:Db is not in this rehearsal; .* serves Addon, Alarm, Bastion"
    with pytest.raises(OperationRefusal, match=served):
        resource_of("oci:Database/db:Db")


def test_the_inputs_and_outputs_of_each_oci_resource_type_are_disjoint():
    assert all(resource.inputs.keys().isdisjoint(resource.outputs) for resource in ALL)
    assert len(ALL) == 50


POOL = resource_of("oci:ContainerEngine/nodePool:NodePool")
GATEWAY = resource_of("oci:Core/internetGateway:InternetGateway")
LEAST = {"clusterId": "c", "compartmentId": "p", "nodeShape": "s"}


def test_updates_of_an_oci_resource_keep_its_generated_name():
    first = check(POOL, {}, LEAST, Naming("gpu", seed=b"1")).inputs
    again = check(POOL, first, LEAST, Naming("gpu", seed=b"2")).inputs
    assert first["name"].startswith("gpu-")
    assert first["__defaults"] == ["name"]
    assert again["name"] == first["name"]


def test_pulumi_may_propose_an_oci_resources_name_or_disable_automatic_ones():
    assert check(POOL, {}, LEAST, Naming("gpu", proposed="gpu-of-mine")).inputs["name"] == "gpu-of-mine"
    with pytest.raises(OperationRefusal, match="automatic naming is disabled"):
        check(POOL, {}, LEAST, Naming("gpu", allowed=False))


def test_inputs_of_oci_resources_are_converted_to_their_schemas_types():
    news = {"compartmentId": 5, "vcnId": UNKNOWN, "enabled": "false"}
    inputs = check(GATEWAY, {}, news, Naming("g")).inputs
    assert inputs == {"__defaults": [], "compartmentId": "5", "vcnId": UNKNOWN, "enabled": False}


@pytest.mark.parametrize(
    ("news", "words"),
    [
        ({"enabled": "maybe"}, 'enabled: strconv.ParseBool: parsing "maybe": invalid syntax'),
        ({"vcnId": ["a"]}, "vcn_id: expected type 'string', got unconvertible type 'list'"),
        ({"freeformTags": "a"}, "freeform_tags: expected type 'map', got unconvertible type 'str'"),
    ],
)
def test_an_oci_input_that_cannot_be_converted_to_its_type_is_refused(news: dict[str, object], words: str):
    with pytest.raises(OperationRefusal, match=words):
        check(GATEWAY, {}, {"compartmentId": "p", **news}, Naming("g"))


def test_all_invalid_inputs_of_an_oci_resource_are_reported_at_once():
    failures = check(GATEWAY, {}, {"bogus": 1, "odd": 2}, Naming("g")).failures
    reasons = [failure.partition(".")[0] for failure in failures]
    assert reasons == ["Invalid or unknown key"] * 2 + ["Missing required argument"] * 2
