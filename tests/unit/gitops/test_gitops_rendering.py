from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.gitops.rendering import rendering_of
from llmd_oke.testing import Declared


def declared(name: str, kind: str = "ConfigMap", **options: Any) -> Declared:
    inputs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "llm-d"}}
    inputs |= options.pop("inputs", {})
    return Declared(f"kubernetes:core/v1:{kind}", name, f"urn:{name}", inputs, **options)


def component(name: str, **options: Any) -> Declared:
    return Declared("llmd-oke:index:Router", name, f"urn:{name}", {}, **options)


def test_a_wave_is_the_longest_way_of_objects_that_are_waited_for():
    resources = [
        declared("last", depends_on=("urn:first", "urn:middle")),
        declared("middle", depends_on=("urn:first",)),
        declared("first"),
    ]
    assert [(item.name, item.wave) for item in rendering_of("prod", resources).objects] == [
        ("first", 0),
        ("middle", 1),
        ("last", 2),
    ]


def test_a_child_waits_for_what_its_component_waits_for():
    resources = [declared("first"), component("router", depends_on=("urn:first",)), declared("a", parent="urn:router")]
    assert {item.name: item.wave for item in rendering_of("prod", resources).objects} == {"first": 0, "a": 1}


def test_a_secret_outside_of_secrets_is_refused():
    with pytest.raises(KitError, match="ConfigMap a would show a secret"):
        rendering_of("prod", [declared("a", secret_inputs=frozenset({"data.token"}))])


def test_fields_that_are_left_to_others_are_left_out():
    servers = declared("a", "Deployment", inputs={"spec": {"replicas": 2, "paused": False}})
    scaled = declared("b", "Deployment", inputs=servers.inputs, ignore_changes=("spec.replicas",))
    specs = [item.manifest["spec"] for item in rendering_of("prod", [servers, scaled]).objects]
    assert specs == [{"replicas": 2, "paused": False}, {"paused": False}]


def test_another_spec_is_another_job_and_the_same_one_the_same():
    def name(seconds: int, **metadata: str) -> str:
        job = declared("smoke", "Job", inputs={"metadata": metadata, "spec": {"activeDeadlineSeconds": seconds}})
        (item,) = rendering_of("prod", [job]).objects
        return item.name

    assert name(1) == name(1) != name(2)
    assert name(1).startswith("smoke-")
    assert name(1, name="prewarm").startswith("prewarm-")
