"""Names of rendered fields."""

import pytest
from llmd_base.errors import KitError
from llmd_oke.explain.fields import object_field

POD = {
    "replicas": 4,
    "template": {
        "containers": [{"name": "vllm", "args": ["--port=8000", "--quiet"]}, {"name": "sidecar", "args": ["--port=1"]}]
    },
    "labels": {"example.com/role": "decode"},
}
OBJECTS = {("Deployment", "model-decode"): {"spec": POD}, ("Deployment", "model"): {"spec": {"replicas": 1}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Deployment/model-decode.spec.replicas", 4),
        ("deployment/model-decode.replicas", 4),
        ("Deployment/model.replicas", 1),
        ("Deployment/model-decode.spec.template.containers[0].args[1]", "--quiet"),
        ("Deployment/model-decode.containers[vllm].args[--port]", "--port=8000"),
        ("Deployment/model-decode.containers[vllm].args[port]", "--port=8000"),
        ("Deployment/model-decode.labels[example.com/role]", "decode"),
    ],
)
def test_explain_finds_an_objects_field_by_keys_item_names_and_prefixes(text: str, value: object):
    assert object_field(text, OBJECTS).of(OBJECTS) == value


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("Deployment/mode-decode", "Deployment/model-decode"),
        ("Deployment/model-decode.spec.nothing", "replicas"),
        ("Deployment/model-decode.args", "spec.template.containers.vllm.args"),
    ],
)
def test_explain_answers_a_missing_or_ambiguous_field_with_existing_fields(text: str, remedy: str):
    with pytest.raises(KitError) as refused:
        object_field(text, OBJECTS)
    assert remedy in (refused.value.remedy or "")


def test_explain_compares_a_renamed_object_with_the_most_similar_new_object():
    field = object_field("Deployment/model-decode.replicas", OBJECTS)
    other = {("Deployment", "other-prefill"): {"spec": {"replicas": 8}}, ("Deployment", "other-decode"): {"spec": POD}}
    assert field.in_other(other, OBJECTS) == 4
