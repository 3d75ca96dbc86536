"""Manifests declared as resources, and the router's."""

import pulumi
import pytest
import yaml
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.objects import when_declared
from llmd_oke.serving import picker_config, router
from llmd_oke.serving.front_door import ModelEndpoint
from llmd_oke.serving.manifests import declare
from llmd_oke.testing import declared

NO_OPTIONS = pulumi.ResourceOptions()
ROUTER = {"release": "llm-d-0.6.0", "namespace": "n", "model": "m", "unit": "u", "disaggregated": True}


def config_map(name, text):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"file": text}}


def test_a_kubernetes_object_is_declared_field_by_field():
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "s"}],
    }
    assert declared(lambda: declare("r", role, NO_OPTIONS)).kubernetes("RoleBinding", "r") == role


def test_an_object_of_a_crd_is_declared_as_a_custom_resource_without_status():
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "p"},
        "spec": {"targetPorts": [{"number": 8000}]},
        "status": {},
    }
    matches = declared(lambda: declare("p", pool, NO_OPTIONS)).kubernetes("InferencePool", "p")
    assert matches == {key: value for key, value in pool.items() if key != "status"}


def test_declaring_an_object_of_an_unsupported_kind_is_refused_with_the_kind():
    with pytest.raises(KitError, match="batch/v1 CronJob"):
        declare("j", {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}}, NO_OPTIONS)


def test_an_object_that_uses_a_when_declared_value_depends_on_that_values_object():
    def program():
        first = declare("first", config_map("first", "x"), NO_OPTIONS)
        second = {**config_map("second", "x"), "data": {"name": when_declared(first, "first")}}
        declare("second", second, NO_OPTIONS)

    matches = declared(program)
    second = matches.kubernetes_resource("ConfigMap", "second")
    assert second.inputs["data"] == {"name": "first"}
    assert second.depends_on == (matches.kubernetes_resource("ConfigMap", "first").urn,)


@pytest.mark.parametrize("part", ["picker", "envoy"])
def test_changed_picker_or_envoy_config_changes_the_router_pods_template(monkeypatch, part):
    def hashed(config):
        manifests = router.manifests(catalogue.release("llm-d-0.6.0"), ROUTER, config)
        (matches,) = [item for item in manifests if item["kind"] == "Deployment"]
        return matches["spec"]["template"]["metadata"]["annotations"][router.CONFIG_ANNOTATION]

    before = hashed("a: 1")
    if part == "envoy":
        monkeypatch.setattr(router.envoy, "bootstrap", lambda *_args, **_settings: "b: 1")
    assert hashed("a: 2" if part == "picker" else "a: 1") != before


@pytest.mark.parametrize("release", catalogue.release_names())
@pytest.mark.parametrize("disaggregated", [True, False])
def test_every_plugin_that_a_picker_profile_refers_to_is_listed_once(release, disaggregated):
    facts = catalogue.release(release)
    args = {"release": release, "namespace": "n", "model": "m", "unit": "u", "disaggregated": disaggregated}
    config = yaml.safe_load(picker_config.endpoint_picker_config(facts, args))
    listed = [plugin.get("name", plugin["type"]) for plugin in config["plugins"]]
    referred = {ref["pluginRef"] for profile in config["schedulingProfiles"] for ref in profile["plugins"]}
    assert len(listed) == len(set(listed))
    assert referred <= set(listed)


@pytest.mark.parametrize(("release", "has_port"), [("llm-d-0.6.0", False), ("llm-d-0.10.0", True)])
def test_a_picker_gets_a_port_of_kv_events_only_if_servers_publish_them(release, has_port):
    own = "plugins: [{type: precise-prefix-cache-producer, parameters: {port: '{events_port}'}}]"
    args = {**ROUTER, "release": release, "config": own, "reported": {"model": "m", "block_size": 64}}
    config = picker_config.endpoint_picker_config(catalogue.release(release), args)
    assert ("5556" in config) is has_port


def test_objects_of_routers_with_long_similar_names_have_different_names():
    both = [router.router_manifests({**ROUTER, "unit": unit}) for unit in ("m" * 45, "m" * 45 + "-1")]
    first, second = ({(item["kind"], item["metadata"]["name"]) for item in manifests} for manifests in both)
    assert not first & second


def test_a_model_endpoint_accepts_a_namespace_that_is_unknown_at_preview():
    def program():
        name = pulumi.Output.from_input("late")
        endpoint = ModelEndpoint("e", {"namespace": name, "model": "m"})
        pulumi.export("url", endpoint.url)

    assert declared(program).outputs == {"url": "http://m.late.svc.cluster.local"}


@pytest.mark.parametrize(("given", "limit"), [({"ready_timeout_s": 4200}, "4200s"), ({}, "600s")])
def test_a_model_endpoint_is_waited_for_until_its_limit_or_ten_minutes(given, limit):
    made = declared(lambda: ModelEndpoint("e", {"namespace": "n", "model": "m", **given}))
    assert made.kubernetes_resource("Service", "m").timeouts["create"] == limit
