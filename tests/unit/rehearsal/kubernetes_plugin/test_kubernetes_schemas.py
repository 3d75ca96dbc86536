from typing import Any

import pytest
from llmd_oke.rehearsal.kubernetes_plugin.errors import Unreachable
from llmd_oke.rehearsal.kubernetes_plugin.schemas import Schemas

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


class Server:
    def get_path(self, path: str) -> Any:
        if path != "/openapi/v3/apis/g/v1":
            raise Unreachable("https://a", "no")
        return {"components": {"schemas": DOCUMENT}}


def spec_of(spec: dict[str, Any], api_version: str = "g/v1") -> Any:
    return Schemas(Server()).normalized({"apiVersion": api_version, "kind": "Thing", "spec": spec})["spec"]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        pytest.param(
            {"bogus": 1, "parts": [{"name": "a", "bogus": 1}]}, {"parts": [{"name": "a"}]}, id="unknown fields"
        ),
        pytest.param({"on": None, "labels": {}, "parts": []}, {}, id="nothing at all"),
        pytest.param({"selector": {}, "needed": []}, {"selector": {}, "needed": []}, id="empty but said"),
        pytest.param({"limits": {"cpu": 2, "m": "1024Mi"}}, {"limits": {"cpu": "2", "m": "1Gi"}}, id="quantities"),
    ],
)
def test_inputs_take_the_form_that_a_server_answers(asked, answered):
    assert spec_of(asked) == answered


@pytest.mark.parametrize("asked", [{"on": "yes", "bogus": 1}, {"limits": {"cpu": "lots"}}, {"on": 1}])
def test_what_does_not_fit_is_left_for_the_server_to_refuse(asked):
    assert spec_of(asked) == asked


def test_without_a_server_inputs_stay_as_they_are():
    assert spec_of({"bogus": 1}, api_version="other/v1") == {"bogus": 1}
