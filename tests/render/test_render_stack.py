"""The stack as a whole: what units share, what waits for what, what is exported."""

import json

import pytest
import yaml
from llmd_base.errors import InvalidStack
from llmd_oke import catalogue
from llmd_oke.catalogue.releases import crd_manifests
from llmd_oke.config import load
from llmd_oke.program import program
from llmd_oke.testing import declared
from render_support import PROJECT, pod, selects

SECONDS = {"kubernetes:apps/v1:Deployment", "kubernetes:core/v1:Service", "kubernetes:core/v1:Namespace"}


def test_stack_outputs_have_the_address_and_topology_of_each_model(rehearsal):
    assert rehearsal.outputs == {
        "namespace": "llm-d",
        "endpoints": {"gpt-oss-120b": "http://gpt-oss-120b.llm-d.svc.cluster.local"},
        "topologies": {"gpt-oss-120b": "8p-tp1-4d-tp2"},
    }


def deployments_behind(stack, service):
    """The names of the Deployments whose pods a Service selects."""
    chosen = stack.kubernetes("Service", service)["spec"]["selector"]
    return [
        m["metadata"]["name"]
        for m in stack.manifests()
        if m["kind"] == "Deployment" and selects(chosen, m["spec"]["template"]["metadata"]["labels"])
    ]


def test_the_service_of_a_routed_model_selects_only_its_routers_envoys(rehearsal):
    (door,) = deployments_behind(rehearsal, "gpt-oss-120b")
    assert door.startswith("gpt-oss-120b-front-door-")
    spec = rehearsal.kubernetes("Service", "gpt-oss-120b")["spec"]
    assert (spec["ports"][0]["port"], spec["ports"][0]["targetPort"]) == (80, 8081)


def test_the_service_of_an_aggregated_model_without_router_selects_its_servers(baseline):
    spec = baseline.kubernetes("Service", "gpt-oss-120b")["spec"]
    assert selects(spec["selector"], pod(baseline, "gpt-oss-120b-aggregated")["metadata"]["labels"])
    assert spec["ports"][0]["targetPort"] == 8000
    assert not [m for m in baseline.manifests() if m["kind"] == "InferencePool"]


def test_copies_of_a_model_share_one_front_door_before_the_router_of_each_copy(varied):
    two = varied(copies=2)
    (door,) = deployments_behind(two, "gpt-oss-120b")
    (volume,) = pod(two, door)["spec"]["volumes"]
    bootstrap = json.loads(two.kubernetes("ConfigMap", volume["configMap"]["name"])["data"]["envoy.yaml"])
    (units, *_) = bootstrap["static_resources"]["clusters"]
    matches = [endpoint["endpoint"] for endpoint in units["load_assignment"]["endpoints"][0]["lb_endpoints"]]
    hosts = [endpoint["address"]["socket_address"]["address"] for endpoint in matches]
    services = [m["metadata"]["name"] for m in two.manifests() if m["kind"] == "Service"]
    routers = [name for name in services if name.endswith("-epp")]
    assert hosts == [f"{name}.llm-d.svc.cluster.local" for name in routers]
    assert len(hosts) == 2


def test_no_two_kubernetes_objects_of_a_stack_have_the_same_kind_and_name(varied):
    seen = [(m["kind"], m["metadata"]["name"]) for m in varied(copies=3, topology="2p-tp1-1d-tp2").manifests()]
    assert len(seen) == len(set(seen))


def test_larger_servers_have_a_higher_scheduling_priority_than_smaller_ones(rehearsal):
    classes = {m["metadata"]["name"]: m["value"] for m in rehearsal.manifests() if m["kind"] == "PriorityClass"}

    def priority(name):
        return classes[pod(rehearsal, name)["spec"]["priorityClassName"]]

    assert priority("gpt-oss-120b-decode") > priority("gpt-oss-120b-prefill") > 0


def test_every_priority_class_that_a_pod_refers_to_is_declared(stack):
    declared = {m["metadata"]["name"] for m in stack.manifests() if m["kind"] == "PriorityClass"}
    named = {
        m["spec"]["template"]["spec"].get("priorityClassName") for m in stack.manifests() if m["kind"] == "Deployment"
    }
    assert named - {None} == declared


def test_every_resource_that_pulumi_waits_for_has_its_own_timeouts(stack):
    for resource in stack.resources:
        if resource.type in SECONDS:
            assert set(resource.timeouts) == {"create", "update", "delete"}, resource.name


def test_timeouts_of_deployments_exceed_the_servers_start_up_budget(stack):
    """The plug-in and Kubernetes wait ten minutes each where no time is given."""
    for resource in stack.of_type("kubernetes:apps/v1:Deployment"):
        container = resource.inputs["spec"]["template"]["spec"]["containers"][0]
        if startup := container.get("startupProbe"):
            budget = startup["periodSeconds"] * startup["failureThreshold"]
            assert int(resource.timeouts.get("create", "600s").removesuffix("s")) > budget
            assert resource.inputs["spec"].get("progressDeadlineSeconds", 600) > budget


def test_a_rolling_updates_timeout_has_a_start_up_budget_for_each_wave_of_servers(guide):
    update = guide.kubernetes_resource("Deployment", "gpt-oss-120b-prefill").timeouts["update"]
    assert int(update.removesuffix("s")) >= 8 * 1800


def test_servers_wait_for_the_namespace_but_prefill_and_decode_not_for_each_other(rehearsal):
    (namespace,) = rehearsal.of_type("llmd-oke:index:ServingNamespace")
    (unit,) = rehearsal.of_type("llmd-oke:index:PrefillDecodeUnit")
    children = {r.urn for r in rehearsal.resources if r.parent == namespace.urn}
    assert children <= set(unit.depends_on)
    for name in ("gpt-oss-120b-prefill", "gpt-oss-120b-decode"):
        needed = rehearsal.kubernetes_resource("Deployment", name).depends_on
        assert not [urn for urn in needed if "Deployment" in urn]


def test_routers_are_created_after_the_crds(rehearsal):
    (router,) = rehearsal.of_type("llmd-oke:index:Router")
    definitions = {r.urn for r in rehearsal.of_type("kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition")}
    assert definitions
    assert definitions <= set(router.depends_on)


def test_a_models_service_waits_for_its_envoys_and_these_for_router_and_servers(rehearsal):
    """The engine deletes what leaves a stack in the opposite order of what was waited for."""
    (name,) = deployments_behind(rehearsal, "gpt-oss-120b")
    door = rehearsal.kubernetes_resource("Deployment", name)
    units = {
        rehearsal.kubernetes_resource("Deployment", m["metadata"]["name"]).urn
        for m in rehearsal.manifests()
        if m["kind"] == "Deployment" and m["metadata"]["name"] != name
    }
    assert len(units) == 3
    assert units <= set(door.depends_on)
    assert door.urn in rehearsal.kubernetes_resource("Service", "gpt-oss-120b").depends_on


def test_a_model_service_without_router_does_not_wait_for_server_deployments(baseline):
    (endpoint,) = baseline.of_type("llmd-oke:index:ModelEndpoint")
    assert not [urn for urn in endpoint.depends_on if "Deployment" in urn]


def test_crds_are_retained_on_destroy_and_adopted_if_they_exist(rehearsal):
    definitions = rehearsal.of_type("kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition")
    provider = rehearsal.resource("pulumi:providers:kubernetes", "definitions")
    for definition in definitions:
        assert definition.retain_on_delete
        assert definition.provider.startswith(provider.urn)
        assert definition.inputs["metadata"]["annotations"]["pulumi.com/patchForce"] == "true"
    assert provider.inputs["upsertExistingObjects"] == "true"


def test_a_stacks_crds_are_those_of_its_llm_d_release_unchanged(rehearsal):
    release = catalogue.release("llm-d-0.9.0")
    assert release is not None
    for manifest in crd_manifests(release.crds):
        declared = rehearsal.kubernetes("CustomResourceDefinition", manifest["metadata"]["name"])
        assert declared["spec"] == manifest["spec"]


def test_only_crds_may_adopt_existing_objects(rehearsal):
    cluster = rehearsal.resource("pulumi:providers:kubernetes", "cluster")
    assert "upsertExistingObjects" not in cluster.inputs
    assert cluster.inputs["enablePatchForce"] == "true"
    for resource in rehearsal.resources:
        if resource.type.startswith("kubernetes:") and "CustomResourceDefinition" not in resource.type:
            assert resource.provider.startswith(cluster.urn), resource.name


def test_the_kubernetes_provider_is_identified_by_cluster_and_not_by_kubeconfig(stack):
    for provider in stack.of_type("pulumi:providers:kubernetes"):
        assert provider.inputs["clusterIdentifier"]
        assert "kubeconfig" not in provider.inputs


def test_the_hugging_face_token_is_in_a_secret_and_nowhere_else(rendered):
    stack = rendered("rehearsal", huggingFaceToken="hf_not_to_be_seen")
    resource = stack.kubernetes_resource("Secret", "huggingface-token")
    assert resource.inputs["stringData"] == {"token": "hf_not_to_be_seen"}
    assert resource.secret_inputs == {"stringData"}
    others = [r.inputs for r in stack.resources if r is not resource]
    assert "hf_not_to_be_seen" not in yaml.safe_dump(others)
    assert "hf_not_to_be_seen" not in str(stack.outputs)


def test_without_a_hugging_face_token_no_secret_is_declared(stack):
    assert not [m for m in stack.manifests() if m["kind"] == "Secret"]


def test_every_image_has_a_tag(stack):
    for deployment in [m for m in stack.manifests() if m["kind"] == "Deployment"]:
        spec = deployment["spec"]["template"]["spec"]
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            _, tag = container["image"].rsplit(":", 1)
            assert any(digit.isdigit() for digit in tag), container["image"]
            assert container["imagePullPolicy"] == "IfNotPresent"


def test_every_kubernetes_object_except_crds_has_the_kits_label(stack):
    for manifest in stack.manifests():
        if manifest["kind"] != "CustomResourceDefinition":
            assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "llmd-oke", manifest["kind"]


def test_the_namespace_of_servers_enforces_the_privileged_pod_security_standard(rehearsal):
    labels = rehearsal.kubernetes("Namespace", "llm-d")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


def test_every_resource_name_begins_with_its_parents_name(stack):
    by_urn = {resource.urn: resource for resource in stack.resources}
    for resource in stack.resources:
        if resource.parent in by_urn:
            assert resource.name.startswith(by_urn[resource.parent].name)


def test_an_update_with_images_that_nodes_cannot_pull_is_always_refused():
    stack = load(PROJECT, "guide").model_dump(mode="json", by_alias=True, exclude_unset=True)
    config = {"llmd-oke:stack": json.dumps({**stack, "override": {"router": "llm-d-0.6.0"}})}
    with pytest.raises(InvalidStack, match=r"override.router.*nodes can't pull .*llm-d-inference-scheduler:v0.7.1"):
        declared(program, config=config)
