from typing import Any

import pytest
from llmd_rehearsal.kubernetes_plugin.client import Unreachable
from llmd_rehearsal.kubernetes_plugin.inputs import NotAQuantity, Schemas, adopt_name, canonical, give_name, normalized
from llmd_rehearsal.kubernetes_plugin.objects import AUTONAMED
from llmd_rehearsal.plugin_values import UNKNOWN, Naming, OperationRefusal

AUTO = {"metadata": {"name": "cm-1234", "annotations": {AUTONAMED: "true"}}}


def test_stringdata_of_a_secret_is_converted_to_data():
    secret = {"apiVersion": "v1", "kind": "Secret", "stringData": {"k": "v"}, "data": {"k": "eA==", "l": "eQ=="}}
    assert normalized(secret, None) == {"apiVersion": "v1", "kind": "Secret", "data": {"k": "dg==", "l": "eQ=="}}


def test_normalized_inputs_of_an_object_lack_fields_that_only_the_api_server_sets():
    obj = {"apiVersion": "x.example/v1", "kind": "X", "metadata": {"name": "n", "creationTimestamp": None, "uid": "u"}}
    assert normalized(obj, None)["metadata"] == {"name": "n"}


def test_a_kubernetes_object_without_a_name_gets_one_from_pulumis_random_seed():
    one, other = (give_name({}, Naming("cm", b"seed")) for _ in range(2))
    assert one == other
    assert one["metadata"]["name"].startswith("cm-")
    assert one["metadata"]["annotations"] == {AUTONAMED: "true"}


@pytest.mark.parametrize("name", ["own", UNKNOWN])
def test_a_kubernetes_objects_name_that_the_pulumi_program_sets_is_kept(name):
    obj = {"metadata": {"name": name}}
    assert give_name(obj, Naming("cm", b"")) == obj
    assert adopt_name(obj, AUTO) == obj


def test_an_update_keeps_an_automatically_generated_name():
    assert adopt_name({"data": {}}, AUTO)["metadata"] == AUTO["metadata"]


def test_pulumi_may_propose_a_kubernetes_objects_name_or_disable_automatic_ones():
    assert give_name({}, Naming("cm", b"", proposed="p"))["metadata"]["name"] == "p"
    with pytest.raises(OperationRefusal, match="autonaming is disabled"):
        give_name({}, Naming("cm", b"", allowed=False))


QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
DOCUMENT = {
    "Thing": {
        "type": "object",
        "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Thing"}],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "spec": {"default": {}, "allOf": [{"$ref": "#/components/schemas/Spec"}]},
        },
    },
    "Spec": {
        "type": "object",
        "required": ["needed"],
        "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "limits": {"type": "object", "additionalProperties": {"$ref": f"#/components/schemas/{QUANTITY}"}},
            "selector": {"$ref": "#/components/schemas/Selector"},
            "needed": {"type": "array", "items": {"type": "string"}},
            "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Selector"}},
            "on": {"type": "boolean"},
        },
    },
    "Selector": {"type": "object", "properties": {"name": {"type": "string"}}},
    QUANTITY: {"oneOf": [{"type": "string"}, {"type": "number"}]},
}


class StubServer:
    def get_path(self, path: str) -> Any:
        if path != "/openapi/v3/apis/g/v1":
            raise Unreachable("https://a", "no")
        return {"components": {"schemas": DOCUMENT}}


def spec_of(spec: dict[str, Any], api_version: str = "g/v1") -> Any:
    return Schemas(StubServer()).normalized({"apiVersion": api_version, "kind": "Thing", "spec": spec})["spec"]


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        pytest.param(
            {"bogus": 1, "parts": [{"name": "a", "bogus": 1}]}, {"parts": [{"name": "a"}]}, id="unknown fields"
        ),
        pytest.param({"on": None, "labels": {}, "parts": []}, {}, id="nothing at all"),
        pytest.param({"selector": {}, "needed": []}, {"selector": {}, "needed": []}, id="empty but said"),
        pytest.param({"limits": {"cpu": 2, "m": "1024Mi"}}, {"limits": {"cpu": "2", "m": "1Gi"}}, id="quantities"),
    ],
)
def test_inputs_are_normalized_to_the_form_that_the_api_server_returns(given, answered):
    assert spec_of(given) == answered


@pytest.mark.parametrize("given", [{"on": "yes", "bogus": 1}, {"limits": {"cpu": "lots"}}, {"on": 1}])
def test_inputs_of_a_wrong_type_are_left_for_the_api_server_to_refuse(given):
    assert spec_of(given) == given


def test_without_a_cluster_inputs_of_kubernetes_objects_are_not_normalized():
    assert spec_of({"bogus": 1}, api_version="other/v1") == {"bogus": 1}


@pytest.mark.parametrize(
    ("written", "answered"),
    [
        *(("1000m", "1"), ("0.5", "500m"), ("1.5", "1500m"), ("2000", "2k"), ("1024Mi", "1Gi")),
        *(("1.5Gi", "1536Mi"), ("0.5Ki", "512")),
        *((text, text) for text in ("1", "2048", "0", "512Ki", "1e3", "12e6", "-1", "100M")),
    ],
)
def test_a_kubernetes_quantity_is_normalized_as_the_api_server_does(written: str, answered: str):
    assert canonical(written) == answered


@pytest.mark.parametrize("text", ["lots", "", "1..2", "1 Gi", "Gi"])
def test_texts_that_are_no_kubernetes_quantities_are_not_normalized(text: str):
    with pytest.raises(NotAQuantity):
        canonical(text)
