"""One owner for GPUs, one for RDMA, and what each takes."""

import json
from typing import Any

import pytest
import stack_files
from created_stacks import refusals, validated
from llmd_base.errors import InvalidStack
from llmd_oke.config import CreateCluster, validate
from llmd_oke.planning import plan
from llmd_oke.planning.gpu_stack import add_ons, gpu_stack, gpu_stack_kind, gpu_stack_problems
from stack_files import created_cluster, created_pool, existing_cluster, existing_pool

SEVERAL_SHAPES = [existing_pool(name=name.lower(), shape=f"BM.GPU.{name}.8") for name in ("MI300X", "MI355X-v1")]


def stack(*, created=True, **changes):
    return validate(stack_files.stack(**{**({"cluster": created_cluster()} if created else {}), **changes}))


def test_only_a_created_cluster_gets_the_amd_gpu_operator_by_default():
    assert gpu_stack_kind(stack()) == "helm-operator"
    assert gpu_stack_kind(stack(created=False)) == "present"
    assert gpu_stack(stack(created=False)).add_ons == ()
    assert gpu_stack(stack(created=False)).components == ()


@pytest.mark.parametrize(
    ("changes", "add_ons", "components"),
    [
        ({"rdma": "none"}, [], ("cert-manager", "node-feature-discovery", "amd-gpu-operator")),
        ({}, ["NodeFeatureDiscovery", "NvidiaNetworkOperator"], ("cert-manager", "amd-gpu-operator", "rdma-network")),
        ({"gpuStack": "oke-plugin", "rdma": "none"}, ["AmdGpuPlugin"], ()),
        (
            {"gpuStack": "oke-operator-addon"},
            ["CertManager", "NodeFeatureDiscovery", "AmdGpuOperator", "NvidiaNetworkOperator"],
            ("rdma-network",),
        ),
    ],
    ids=["no RDMA", "RDMA", "OKE's device plug-in without RDMA", "OKE's operator"],
)
def test_a_gpu_stack_has_components_of_the_kit_and_add_ons_of_oke_in_order(changes, add_ons, components):
    plan = gpu_stack(stack(**changes))
    assert [add_on.name for add_on in plan.add_ons] == add_ons
    assert plan.components == components


@pytest.mark.parametrize(
    ("changes", "selector"),
    [
        ({"rdma": "none"}, {"feature.node.kubernetes.io/amd-gpu": "true"}),
        ({}, {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"}),
        ({"gpuPools": SEVERAL_SHAPES}, {"amd.com/gpu": "true"}),
    ],
    ids=["node feature discovery", "one shape", "several shapes"],
)
def test_the_gpu_operator_selects_nodes_by_what_they_have_in_common(changes, selector):
    assert dict(gpu_stack(stack(**changes)).gpu_selector) == selector


def test_okes_gpu_device_plug_in_is_disabled_on_nodes_of_the_gpu_operator():
    assert dict(gpu_stack(stack()).node_labels) == {"oci.oraclecloud.com/disable-gpu-device-plugin": "true"}
    assert dict(gpu_stack(stack(gpuStack="oke-plugin")).node_labels) == {}


@pytest.mark.parametrize("kind", ["helm-operator", "oke-plugin", "oke-operator-addon"])
@pytest.mark.parametrize("rdma", ["sriov-vf", "none"])
def test_each_gpu_stack_is_accepted_and_has_one_gpu_device_plug_in(kind, rdma):
    config = stack(gpuStack=kind, rdma=rdma)
    assert list(gpu_stack_problems(config)) == []
    plan = gpu_stack(config)
    owners = [name for name in plan.components if name == "amd-gpu-operator"]
    owners += [add_on.name for add_on in plan.add_ons if add_on.name in {"AmdGpuPlugin", "AmdGpuOperator"}]
    assert len(owners) == 1


def test_pods_of_add_ons_tolerate_gpu_nodes_taints():
    taint = {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    discovery, network = gpu_stack(stack()).add_ons
    assert json.loads(discovery.configurations["worker.tolerations"]) == [taint]
    assert json.loads(network.configurations["nicClusterPolicy.tolerations"]) == [taint]
    assert network.configurations["sriovNetworkOperator.enabled"] == "true"


@pytest.mark.parametrize(("created", "kind"), [(True, "present"), (False, "helm-operator")])
def test_a_created_cluster_requires_a_gpu_stack_and_an_existing_one_refuses_it(created, kind):
    (problem,) = gpu_stack_problems(stack(created=created, gpuStack=kind))
    assert (problem.path, problem.value) == ("gpuStack", kind)


def test_a_naming_scheme_of_virtual_functions_sets_resource_names_and_needs_rdma():
    cluster = existing_cluster(virtualFunctions="oci-hpc-oke")
    (pool,) = plan(validate(stack_files.stack(cluster=cluster))).pools
    assert pool.shape.rdma.resource == "nvidia.com/rdma-vf"
    (problem,) = gpu_stack_problems(validate(stack_files.stack(cluster=cluster, rdma="none")))
    assert (problem.path, problem.value) == ("cluster.virtualFunctions", "oci-hpc-oke")


def test_virtual_function_names_cannot_be_set_for_a_created_cluster():
    with pytest.raises(InvalidStack, match="virtualFunctions"):
        stack(cluster=created_cluster(virtualFunctions="oci-hpc-oke"))


@pytest.mark.parametrize("created", [True, False])
def test_network_adapters_without_virtual_functions_are_refused(created):
    pools = [existing_pool(shape="BM.GPU.MI355X.8")]
    (problem,) = gpu_stack_problems(stack(created=created, gpuPools=pools))
    assert (problem.path, problem.value) == ("rdma", "sriov-vf")
    assert list(gpu_stack_problems(stack(created=created, gpuPools=pools, rdma="none"))) == []
    mellanox = [existing_pool(shape="BM.GPU.MI355X-v1.8")]
    assert list(gpu_stack_problems(stack(created=created, gpuPools=mellanox))) == []


def test_adapters_whose_ports_the_catalogue_lacks_are_refused_in_created_clusters(monkeypatch):
    shape = stack_files.known_shape()
    unknown = shape.model_copy(update={"rdma": shape.rdma.model_copy(update={"sriov": None})})
    monkeypatch.setattr("llmd_oke.planning.gpu_stack.operators.with_function_names", lambda *_: unknown)
    (problem,) = gpu_stack_problems(stack())
    assert (problem.path, problem.value) == ("rdma", "sriov-vf")
    assert list(gpu_stack_problems(stack(created=False))) == []


def test_a_kubernetes_version_that_the_gpu_operators_chart_refuses_is_refused():
    def found(version, **changes):
        config = stack(cluster=created_cluster(kubernetesVersion=version), **changes)
        return [(problem.path, problem.accepted) for problem in gpu_stack_problems(config)]

    assert found("v1.28.2") == [("cluster.kubernetesVersion", "v1.29 or newer")]
    assert found("v1.29.10") == found("v1.28.2", gpuStack="oke-plugin") == []


@pytest.mark.parametrize(("nodes", "paths"), [(9, ["rdma"]), (1, ["rdma", "gpuPools[0].size"])])
def test_a_shape_without_virtual_functions_is_reported_once_and_beside_too_few_gpus(nodes, paths):
    assert stack_files.paths(gpuPools=[existing_pool(shape="BM.GPU.MI355X.8", size=nodes)]) == paths


def of_add_ons(*names: str, **stack_changes: Any) -> dict[str, str]:
    return refusals(stack_changes=stack_changes, addOns=[{"name": name} for name in names])


def add_ons_with(*written: dict[str, Any]):
    config = validated(addOns=list(written))
    assert isinstance(config.cluster, CreateCluster)
    return {add_on.name: add_on for add_on in add_ons(config, config.cluster)}


@pytest.mark.parametrize(
    ("name", "stack"),
    [("AmdGpuPlugin", "helm-operator"), ("AmdGpuOperator", "helm-operator"), ("AmdGpuOperator", "oke-plugin")],
)
def test_an_add_on_that_is_a_second_gpu_device_plug_in_is_refused(name: str, stack: str):
    assert f"gpuStack is {stack}" in of_add_ons(name, gpuStack=stack)["cluster.addOns[0].name"]


@pytest.mark.parametrize(
    ("stack", "names", "refused"),
    [
        ("helm-operator", ["NodeProblemDetector"], []),
        ("oke-plugin", ["CertManager"], []),
        ("oke-plugin", ["AmdGpuPlugin"], []),
        ("helm-operator", ["CertManager"], [0]),
        ("helm-operator", ["NodeProblemDetector", "NodeProblemDetector"], [1]),
    ],
    ids=["another", "one that the kit has no use for", "the gpuStack's own", "one that the kit installs", "one twice"],
)
def test_add_ons_are_accepted_once_and_if_the_kit_does_not_install_them(
    stack: str, names: list[str], refused: list[int]
):
    assert list(of_add_ons(*names, gpuStack=stack)) == [f"cluster.addOns[{i}].name" for i in refused]


def test_a_pinned_add_on_keeps_the_settings_that_the_gpu_stack_needs_and_its_place():
    before = add_ons_with()["NvidiaNetworkOperator"]
    pinned = {"name": "NvidiaNetworkOperator", "version": "v26.1.0", "configurations": {"more": "1"}}
    result = add_ons_with({"name": "NodeProblemDetector"}, pinned)
    network = result["NvidiaNetworkOperator"]
    assert (network.version, network.configurations) == ("v26.1.0", {**before.configurations, "more": "1"})
    assert list(result) == ["NodeFeatureDiscovery", "NvidiaNetworkOperator", "NodeProblemDetector"]


TEAM = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("oci.oraclecloud.com/disable-gpu-device-plugin", "false"),
        ("amd.com/gpu", "false"),
        ("node.kubernetes.io/instance-type", "other"),
        ("oke.oraclecloud.com/pool.name", "other"),
    ],
)
def test_overriding_a_node_label_that_the_kit_sets_is_refused(label: str, value: str):
    assert f"gpuPools[0].labels.{label}" in refusals(created_pool(labels={label: value}))
    assert refusals(created_pool(labels={"amd.com/gpu": "true"})) == {}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"systemPool": {"labels": {"oke.oraclecloud.com/pool.name": "other"}}}, "systemPool"),
        ({"cpuPools": [{"name": "more", "labels": {"oke.oraclecloud.com/pool.name": "other"}}]}, "cpuPools[0]"),
    ],
)
def test_cpu_pools_cannot_override_their_pool_label(changes: dict[str, Any], path: str):
    assert f"{path}.labels.oke.oraclecloud.com/pool.name" in refusals(stack_changes=changes)


def test_a_taint_like_the_shapes_own_or_like_another_of_the_pool_is_refused():
    assert "gpuPools[0].taints[0]" in refusals(created_pool(taints=[{"key": "amd.com/gpu", "value": "mine"}]))
    taints = [TEAM, {**TEAM, "effect": "NoExecute"}, {**TEAM, "value": "b"}]
    result = refusals(stack_changes={"cpuPools": [{"name": "more", "taints": taints}]})
    assert [path for path in result if "taints" in path] == ["cpuPools[0].taints[2]"]


def test_operators_tolerate_the_taints_of_all_gpu_pools():
    config = validated(created_pool(taints=[TEAM]), created_pool(name="other"))
    taints = [(taint.key, taint.value) for taint in gpu_stack(config).tolerations]
    assert taints == [("amd.com/gpu", "present"), ("example.com/team", "a")]


@pytest.mark.parametrize("changes", [{}, {"layer": "cluster", "models": []}])
def test_a_pool_may_have_its_own_taints(changes: dict[str, Any]):
    result = refusals(created_pool(taints=[TEAM]), stack_changes=changes)
    assert [path for path in result if "taints" in path] == []
