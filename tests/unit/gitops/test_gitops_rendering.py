from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.gitops.rendering import rendering_of
from llmd_oke.testing import Declared


def declared(name: str, kind: str = "ConfigMap", **options: Any) -> Declared:
    inputs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "llm-d"}}
    inputs |= options.pop("inputs", {})
    return Declared(f"kubernetes:core/v1:{kind}", name, f"urn:{name}", inputs, **options)


def test_the_sync_wave_of_an_object_is_its_longest_chain_of_dependencies():
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


def test_the_sync_wave_of_a_child_resource_follows_its_components_dependencies():
    router = Declared("llmd-oke:index:Router", "router", "urn:router", {}, depends_on=("urn:first",))
    resources = [declared("first"), router, declared("a", parent="urn:router")]
    assert {item.name: item.wave for item in rendering_of("prod", resources).objects} == {"first": 0, "a": 1}


def test_rendering_an_object_other_than_a_secret_with_a_secret_value_is_refused():
    with pytest.raises(KitError, match="ConfigMap a would show a secret"):
        rendering_of("prod", [declared("a", secret_inputs=frozenset({"data.token"}))])


def test_rendered_objects_omit_fields_that_pulumi_is_told_to_ignore():
    servers = declared("a", "Deployment", inputs={"spec": {"replicas": 2, "paused": False}})
    scaled = declared("b", "Deployment", inputs=servers.inputs, ignore_changes=("spec.replicas",))
    specs = [item.manifest["spec"] for item in rendering_of("prod", [servers, scaled]).objects]
    assert specs == [{"replicas": 2, "paused": False}, {"paused": False}]


def test_a_rendered_jobs_generated_name_changes_only_with_its_spec():
    def name(seconds: int, **metadata: str) -> str:
        job = declared("smoke", "Job", inputs={"metadata": metadata, "spec": {"activeDeadlineSeconds": seconds}})
        (item,) = rendering_of("prod", [job]).objects
        return item.name

    assert name(1) == name(1) != name(2)
    assert name(1).startswith("smoke-")
    assert name(1, name="prewarm").startswith("prewarm-")
