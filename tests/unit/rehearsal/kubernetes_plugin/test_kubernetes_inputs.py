import pytest
from llmd_oke.rehearsal.kubernetes_plugin.inputs import Naming, adopt_name, give_name, normalized
from llmd_oke.rehearsal.kubernetes_plugin.objects import AUTONAMED
from llmd_oke.rehearsal.kubernetes_plugin.ownership import leave_to_others, must_force, taken_over
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN

AUTO = {"metadata": {"name": "cm-1234", "annotations": {AUTONAMED: "true"}}}


def test_string_data_of_a_secret_becomes_data():
    secret = {"apiVersion": "v1", "kind": "Secret", "stringData": {"k": "v"}, "data": {"k": "eA==", "l": "eQ=="}}

    assert normalized(secret, None) == {"apiVersion": "v1", "kind": "Secret", "data": {"k": "dg==", "l": "eQ=="}}


def test_inputs_lose_what_only_a_server_sets():
    obj = {"apiVersion": "x.example/v1", "kind": "X", "metadata": {"name": "n", "creationTimestamp": None, "uid": "u"}}

    assert normalized(obj, None)["metadata"] == {"name": "n"}


def test_a_nameless_object_gets_a_name_that_the_seed_decides():
    one, other = (give_name({}, Naming("cm", b"seed")) for _ in range(2))

    assert one == other
    assert one["metadata"]["name"].startswith("cm-")
    assert one["metadata"]["annotations"] == {AUTONAMED: "true"}


@pytest.mark.parametrize("name", ["own", UNKNOWN])
def test_a_name_of_the_programs_own_stays(name):
    obj = {"metadata": {"name": name}}

    assert give_name(obj, Naming("cm", b"")) == obj
    assert adopt_name(obj, AUTO) == obj


def test_an_update_keeps_the_name_that_was_given():
    assert adopt_name({"data": {}}, AUTO)["metadata"] == AUTO["metadata"]


def test_names_can_be_left_to_the_program():
    with pytest.raises(Refusal, match="autonaming is disabled"):
        give_name({}, Naming("cm", b"", allowed=False))


def test_the_engine_may_propose_a_name():
    assert give_name({}, Naming("cm", b"", proposed="p"))["metadata"]["name"] == "p"


def entry(manager, operation="Update", **fields):
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def live(*entries, **fields):
    return {"metadata": {"managedFields": list(entries)}, **fields}


def test_the_first_update_takes_the_creates_fields_over():
    created = entry("pulumi-kubernetes", **{"f:data": {"f:k": {}}})
    other = entry("someone", **{"f:status": {}})

    assert taken_over(live(created, other), "m") == [other, entry("m", "Apply", **{"f:data": {"f:k": {}}})]


def test_taken_fields_are_joined_with_those_that_the_manager_has():
    own = entry("m", "Apply", **{"f:data": {"f:k": {}}})
    edited = entry("kubectl-edit", **{"f:data": {"f:l": {}}})

    assert taken_over(live(own, edited), "m") == [entry("m", "Apply", **{"f:data": {"f:k": {}, "f:l": {}}})]


def test_fields_of_others_and_of_subresources_are_not_taken():
    scaled = {**entry("kubectl", **{"f:spec": {"f:replicas": {}}}), "subresource": "scale"}

    assert taken_over(live(scaled, entry("someone")), "m") is None


def test_a_preview_overrules_others_as_long_as_nothing_was_taken_over():
    created = live(entry("pulumi-kubernetes"), entry("other"))

    assert must_force(created, preview=True)
    assert not must_force(created, preview=False)
    assert not must_force(live(entry("m", "Apply")), preview=True)


def test_an_ignored_field_stays_with_the_manager_that_owns_it():
    obj = {"spec": {"replicas": 1, "x": 1}}
    scaler = entry("hpa", **{"f:spec": {"f:replicas": {}}})
    own = entry("m", "Apply", **{"f:spec": {"f:replicas": {}}})

    assert leave_to_others(obj, live(scaler, spec={"replicas": 5}), "m", ["spec.replicas"]) == {"spec": {"x": 1}}
    assert leave_to_others(obj, live(own, spec={"replicas": 5}), "m", ["spec.replicas"])["spec"]["replicas"] == 5
