import pytest
from llmd_rehearsal.kubernetes_plugin.objects import kind_of, mark_secrets, prune
from llmd_rehearsal.plugin_protocol import SECRET_SIGNATURE, SIGNATURE_KEY, UNKNOWN_TEXT, decode, encode
from llmd_rehearsal.plugin_values import UNKNOWN, OperationRefusal, Secret, has_unknowns, without_secrets


def test_a_kubernetes_kind_is_found_by_its_pulumi_type_token():
    kind = kind_of("kubernetes:rbac.authorization.k8s.io/v1:ClusterRole")
    assert kind.id == "rbac.authorization.k8s.io/v1/ClusterRole"
    assert (kind.plural, kind.namespaced) == ("clusterroles", False)


def test_a_pulumi_type_outside_of_kubernetes_built_in_groups_is_a_custom_resource():
    assert not kind_of("kubernetes:inference.networking.k8s.io/v1:InferencePool").built_in


INGRESS, CHART = "networking.k8s.io/v1:Ingress", "helm.sh/v3:Chart"


@pytest.mark.parametrize(("kind", "instead"), [(INGRESS, "ConfigMap.*Service"), (CHART, "Helm's Release")])
def test_an_unlisted_kind_is_refused_with_the_listed_ones_or_that_to_use_instead(kind: str, instead: str):
    with pytest.raises(OperationRefusal, match=f"kubernetes:{kind} is not in this rehearsal.*{instead}"):
        kind_of(f"kubernetes:{kind}")


TREE = {
    "text": "t",
    "whole": 3,
    "part": 1.5,
    "yes": True,
    "none": None,
    "list": [{"a": 1}, [], "x"],
    "hidden": Secret({"k": "v"}),
    "later": UNKNOWN,
    "empty": {},
}


def test_properties_are_the_same_after_encoding_and_decoding_for_pulumis_protocol():
    assert decode(encode(TREE)) == TREE


def test_secrets_and_unknowns_are_encoded_with_the_signatures_of_pulumis_protocol():
    encoded = encode({"s": Secret("v"), "u": UNKNOWN})
    assert encoded["s"] == {SIGNATURE_KEY: SECRET_SIGNATURE, "value": "v"}
    assert encoded["u"] == UNKNOWN_TEXT


def test_whole_numbers_of_pulumis_protocol_become_integers_for_kubernetes():
    decoded = decode(encode({"a": 2, "b": 2.5}))
    assert {key: type(value) for key, value in decoded.items()} == {"a": int, "b": float}


def test_values_unknown_at_preview_are_found_inside_of_secrets():
    assert has_unknowns({"a": [Secret({"b": UNKNOWN})]})
    assert not has_unknowns(without_secrets({"a": [Secret({"b": 1})]}))


def test_outputs_of_a_kubernetes_object_are_secret_where_its_inputs_are():
    inputs = {"data": {"a": Secret("x"), "b": "y"}, "list": [{"p": Secret("x")}, {"q": 1}]}
    outputs = {"data": {"a": "x", "b": "y", "c": "z"}, "list": [{"p": "x"}], "status": {}}
    data = {"a": Secret("x"), "b": "y", "c": "z"}
    assert mark_secrets(outputs, inputs) == {"data": data, "list": Secret([{"p": "x"}]), "status": {}}


def test_data_of_a_kubernetes_secret_is_always_a_secret_output():
    assert mark_secrets({"kind": "Secret", "data": {"k": "v"}}, {}) == {"kind": "Secret", "data": Secret({"k": "v"})}


def test_a_live_object_is_pruned_to_fields_of_the_program_with_omitted_zero_values():
    live = {"spec": {"replicas": 3, "paused": True, "containers": [{"name": "c", "image": "i", "tty": True}]}}
    shape = {"spec": {"replicas": 2, "containers": [{"name": "c", "image": "old"}]}}
    assert prune(live, shape) == {"spec": {"replicas": 3, "containers": [{"name": "c", "image": "i"}]}}
    shape = {"hostNetwork": False, "value": "", "count": 0, "gone": "x"}
    assert prune({}, shape) == {"hostNetwork": False, "value": "", "count": 0}
