"""Manifests declared as resources, and the parts of the router that need no chart."""

import pulumi
import pytest
import yaml
from llmd_oke import catalogue
from llmd_oke.errors import KitError
from llmd_oke.objects import when_declared
from llmd_oke.serving import router, router_pod
from llmd_oke.serving.endpoint import ModelEndpoint
from llmd_oke.serving.manifests import declare
from llmd_oke.testing import declared

NO_OPTIONS = pulumi.ResourceOptions()


def config_map(name, text):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"file": text}}


def deployment():
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "epp", "image": "i:1"}]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": pod}}


def test_an_object_is_declared_field_by_field():
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "s"}],
    }
    assert declared(lambda: declare("r", role, NO_OPTIONS)).kubernetes("RoleBinding", "r") == role


def test_a_custom_object_is_declared_as_one():
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "p"},
        "spec": {"targetPorts": [{"number": 8000}]},
        "status": {},
    }
    found = declared(lambda: declare("p", pool, NO_OPTIONS)).kubernetes("InferencePool", "p")
    assert found == {key: value for key, value in pool.items() if key != "status"}


def test_a_kind_that_serving_does_not_know_is_refused_by_name():
    with pytest.raises(KitError, match="batch/v1 CronJob"):
        declare("j", {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}}, NO_OPTIONS)


def test_a_value_known_beforehand_depends_on_its_object():
    def program():
        first = declare("first", config_map("first", "x"), NO_OPTIONS)
        second = {**config_map("second", "x"), "data": {"name": when_declared(first, "first")}}
        declare("second", second, NO_OPTIONS)

    found = declared(program)
    second = found.kubernetes_resource("ConfigMap", "second")
    assert second.inputs["data"] == {"name": "first"}
    assert second.depends_on == (found.kubernetes_resource("ConfigMap", "first").urn,)


def test_router_pods_follow_every_config_map():
    before = router_pod.completed([config_map("a", "1"), config_map("b", "1"), deployment()], {})
    after = router_pod.completed([config_map("a", "1"), config_map("b", "2"), deployment()], {})
    templates = [found[-1]["spec"]["template"]["metadata"]["annotations"] for found in (before, after)]
    assert templates[0] != templates[1]


def test_router_pods_keep_the_charts_labels_beside_the_kits():
    found = router_pod.completed([deployment()], {"llmd-oke/router": "true"})
    assert found[0]["spec"]["template"]["metadata"]["labels"] == {"a": "b", "llmd-oke/router": "true"}


def test_the_charts_manifests_are_not_changed_in_place():
    original = deployment()
    router_pod.completed([original], {"llmd-oke/router": "true"})
    assert original == deployment()


@pytest.mark.parametrize("release", catalogue.release_names())
@pytest.mark.parametrize("disaggregated", [True, False])
def test_every_plugin_that_a_profile_refers_to_is_listed_once(release, disaggregated):
    facts = catalogue.release(release)
    args = {"release": release, "namespace": "n", "model": "m", "unit": "u", "disaggregated": disaggregated}
    config = yaml.safe_load(router.endpoint_picker_config(facts, args))
    listed = [plugin.get("name", plugin["type"]) for plugin in config["plugins"]]
    referred = {ref["pluginRef"] for profile in config["schedulingProfiles"] for ref in profile["plugins"]}
    assert len(listed) == len(set(listed))
    assert referred <= set(listed)


@pytest.mark.parametrize(("unit", "service"), [("u", "u-epp"), ("u" * 45, "u" * 40 + "-epp")])
def test_the_routers_service_is_named_as_the_chart_names_it(unit, service):
    assert router.service_name(unit) == service


def test_an_endpoint_takes_a_namespace_that_is_not_known_yet():
    def program():
        name = pulumi.Output.from_input("late")
        endpoint = ModelEndpoint("e", {"namespace": name, "model": "m", "routed": False})
        pulumi.export("url", endpoint.url)

    assert declared(program).outputs == {"url": "http://m.late.svc.cluster.local"}
