"""The closed list of resources."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from llmd_oke.rehearsal.oci_plugin.answers import Birth, first_state
from llmd_oke.rehearsal.oci_plugin.differences import compare
from llmd_oke.rehearsal.oci_plugin.inputs import Naming, check
from llmd_oke.rehearsal.oci_plugin.records import Records
from llmd_oke.rehearsal.oci_plugin.schemas import Property, Resource, resource_of, resources
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal

ALL = sorted(resources().values(), key=lambda resource: resource.token)
InputsOf: TypeAlias = Callable[[Resource], dict[str, object]]
SPECIAL = {"cidrBlock": "10.0.0.0/24", "kubernetesVersion": "v1.34.2"}


SCALARS = {"integer": 2, "number": 2, "boolean": True, "map": {"key": "value"}, "string": "ocid1.example.oc1..a"}


def _example(name: str, wanted: Property) -> object:
    if name in SPECIAL:
        return SPECIAL[name]
    if wanted.item is not None:
        return [_example(name, wanted.item)]
    if wanted.kind == "object":
        return {key: _example(key, part) for key, part in wanted.fields.items() if part.required}
    return SCALARS[wanted.kind]


ANSWERED_OTHERWISE = {"DomainsDynamicResourceGroup": frozenset({"schemas"})}
"""What OCI answers in other words than it was told."""


def _least(resource: Resource) -> dict[str, object]:
    wanted = {name: each for name, each in resource.inputs.items() if each.required or name in SPECIAL}
    return {name: _example(name, each) for name, each in wanted.items()}


def _most(resource: Resource) -> dict[str, object]:
    return {name: _example(name, each) for name, each in resource.inputs.items()}


@pytest.mark.parametrize("resource", ALL, ids=lambda resource: resource.name)
@pytest.mark.parametrize("inputs_of", [_least, _most])
def test_the_same_inputs_change_nothing_of_what_was_made_of_them(
    resource: Resource, inputs_of: Callable[[Resource], dict[str, object]]
):
    checked = check(resource, {}, inputs_of(resource), Naming("it"))
    assert checked.failures == []
    given = {key: value for key, value in checked.inputs.items() if key != "__defaults"}
    state = first_state(Birth(resource, "ocid1.it.oc1..a", {}, Records(), "us-ashburn-1"), given)
    assert compare(resource, state, checked.inputs, ANSWERED_OTHERWISE.get(resource.name, frozenset())).found == ()


def test_a_resource_that_is_not_served_is_named_with_those_that_are():
    with pytest.raises(Refusal, match=r"oci:Database/db:Db is not in this rehearsal; .* serves Addon, Alarm, Bastion"):
        resource_of("oci:Database/db:Db")


def test_every_resource_has_outputs_and_what_is_required_is_no_output_alone():
    assert all(resource.inputs.keys().isdisjoint(resource.outputs) for resource in ALL)
    assert len(ALL) == 47
