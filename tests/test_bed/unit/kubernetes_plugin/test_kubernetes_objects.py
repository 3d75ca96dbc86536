import pytest
from llmd_rehearsal.kubernetes_plugin.objects import kind_of, mark_secrets, prune
from llmd_rehearsal.plugin_protocol import SECRET_SIGNATURE, SIGNATURE_KEY, UNKNOWN_TEXT, decode, encode
from llmd_rehearsal.plugin_values import UNKNOWN, OperationRefusal, Secret, has_unknowns, without_secrets


def test_a_listed_kind_is_known_by_its_type_token():
    kind = kind_of("kubernetes:rbac.authorization.k8s.io/v1:ClusterRole")
    assert (kind.id, kind.plural, kind.namespaced) == (
        "rbac.authorization.k8s.io/v1/ClusterRole",
        "clusterroles",
        False,
    )


def test_a_kind_outside_of_the_built_in_groups_is_a_custom_resource():
    assert not kind_of("kubernetes:inference.networking.k8s.io/v1:InferencePool").built_in


def test_a_built_in_kind_that_is_not_listed_is_refused_with_the_list():
    with pytest.raises(
        OperationRefusal, match=r"kubernetes:networking.k8s.io/v1:Ingress is not in this rehearsal.*ConfigMap.*Service"
    ):
        kind_of("kubernetes:networking.k8s.io/v1:Ingress")


def test_helm_charts_are_refused_by_name():
    with pytest.raises(OperationRefusal, match=r"helm.sh/v3:Chart is not in this rehearsal.*Helm's Release"):
        kind_of("kubernetes:helm.sh/v3:Chart")


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


def test_a_tree_survives_the_engines_encoding():
    assert decode(encode(TREE)) == TREE


def test_secrets_and_unknowns_are_encoded_by_the_protocols_constants():
    encoded = encode({"s": Secret("v"), "u": UNKNOWN})
    assert encoded["s"] == {SIGNATURE_KEY: SECRET_SIGNATURE, "value": "v"}
    assert encoded["u"] == UNKNOWN_TEXT


def test_whole_numbers_become_ints_so_that_kubernetes_takes_them():
    decoded = decode(encode({"a": 2, "b": 2.5}))
    assert {key: type(value) for key, value in decoded.items()} == {"a": int, "b": float}


def test_unknowns_are_found_inside_of_secrets():
    assert has_unknowns({"a": [Secret({"b": UNKNOWN})]})
    assert not has_unknowns(without_secrets({"a": [Secret({"b": 1})]}))


def test_outputs_are_secret_where_inputs_are():
    inputs = {"data": {"a": Secret("x"), "b": "y"}, "list": [{"p": Secret("x")}, {"q": 1}]}
    outputs = {"data": {"a": "x", "b": "y", "c": "z"}, "list": [{"p": "x"}], "status": {}}
    assert mark_secrets(outputs, inputs) == {
        "data": {"a": Secret("x"), "b": "y", "c": "z"},
        "list": Secret([{"p": "x"}]),
        "status": {},
    }


def test_data_of_a_secret_is_secret_whatever_the_inputs_say():
    assert mark_secrets({"kind": "Secret", "data": {"k": "v"}}, {}) == {"kind": "Secret", "data": Secret({"k": "v"})}


def test_pruning_keeps_live_values_of_what_the_program_had():
    live = {"spec": {"replicas": 3, "paused": True, "containers": [{"name": "c", "image": "i", "tty": True}]}}
    shape = {"spec": {"replicas": 2, "containers": [{"name": "c", "image": "old"}]}}
    assert prune(live, shape) == {"spec": {"replicas": 3, "containers": [{"name": "c", "image": "i"}]}}


def test_pruning_takes_zeros_that_no_server_answers_for_there():
    shape = {"hostNetwork": False, "value": "", "count": 0, "gone": "x"}
    assert prune({}, shape) == {"hostNetwork": False, "value": "", "count": 0}
