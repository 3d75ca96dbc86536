"""One owner for GPUs, one for RDMA, and what each takes."""

import json

import pytest
from llmd_oke.config import validate
from llmd_oke.errors import Refused
from llmd_oke.planning import plan
from llmd_oke.planning.gpu_stack import chosen, gpu_stack, gpu_stack_problems
from stacks_for_tests import model
from stacks_for_tests import stack as stack_file

CREATED = {
    "mode": "create",
    "name": "prod",
    "region": "us-ashburn-1",
    "compartmentId": "ocid1.compartment.oc1..x",
    "tenancyId": "ocid1.tenancy.oc1..x",
    "kubernetesVersion": "v1.34.2",
}


def stack(*, created=True, **changes):
    return validate(stack_file(model(), **{**({"cluster": CREATED} if created else {}), **changes}))


def test_a_created_cluster_gets_the_operator_and_an_existing_one_is_left_alone():
    assert chosen(stack()) == "helm-operator"
    assert chosen(stack(created=False)) == "present"
    assert gpu_stack(stack(created=False)).add_ons == ()
    assert gpu_stack(stack(created=False)).components == ()


def test_without_rdma_the_operator_brings_its_own_discovery():
    plan = gpu_stack(stack(rdma="none"))

    assert plan.components == ("cert-manager", "node-feature-discovery", "amd-gpu-operator")
    assert plan.add_ons == ()
    assert dict(plan.gpu_selector) == {"feature.node.kubernetes.io/amd-gpu": "true"}


def test_with_rdma_discovery_is_okes_add_on_and_nodes_are_selected_by_shape():
    plan = gpu_stack(stack())

    assert [add_on.name for add_on in plan.add_ons] == ["NodeFeatureDiscovery", "NvidiaNetworkOperator"]
    assert plan.components == ("cert-manager", "amd-gpu-operator", "rdma-network")
    assert dict(plan.gpu_selector) == {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"}


def test_nodes_of_several_shapes_are_selected_by_what_all_of_them_have():
    pools = [{"name": shape.lower(), "shape": f"BM.GPU.{shape}.8", "size": 1} for shape in ("MI300X", "MI355X-v1")]
    plan = gpu_stack(stack(gpuPools=pools))

    assert dict(plan.gpu_selector) == {"amd.com/gpu": "true"}


def test_okes_own_plug_in_is_kept_from_nodes_of_the_operator():
    assert dict(gpu_stack(stack()).node_labels) == {"oci.oraclecloud.com/disable-gpu-device-plugin": "true"}
    assert dict(gpu_stack(stack(gpuStack="oke-plugin")).node_labels) == {}


def test_okes_plug_in_is_an_add_on_and_nothing_else():
    plan = gpu_stack(stack(gpuStack="oke-plugin", rdma="none"))

    assert [add_on.name for add_on in plan.add_ons] == ["AmdGpuPlugin"]
    assert plan.components == ()


def test_okes_operator_comes_after_its_add_ons():
    plan = gpu_stack(stack(gpuStack="oke-operator-addon"))

    names = [add_on.name for add_on in plan.add_ons]
    assert names == ["CertManager", "NodeFeatureDiscovery", "AmdGpuOperator", "NvidiaNetworkOperator"]
    assert plan.components == ("rdma-network",)


@pytest.mark.parametrize("kind", ["helm-operator", "oke-plugin", "oke-operator-addon"])
@pytest.mark.parametrize("rdma", ["sriov-vf", "none"])
def test_there_is_one_owner_of_gpus(kind, rdma):
    plan = gpu_stack(stack(gpuStack=kind, rdma=rdma))

    owners = [name for name in plan.components if name == "amd-gpu-operator"]
    owners += [add_on.name for add_on in plan.add_ons if add_on.name in {"AmdGpuPlugin", "AmdGpuOperator"}]
    assert len(owners) == 1


def test_what_add_ons_run_on_gpu_nodes_tolerates_their_taints():
    taint = {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    discovery, network = gpu_stack(stack()).add_ons

    assert json.loads(discovery.configurations["worker.tolerations"]) == [taint]
    assert json.loads(network.configurations["nicClusterPolicy.tolerations"]) == [taint]
    assert network.configurations["sriovNetworkOperator.enabled"] == "true"


def test_a_created_cluster_needs_an_owner_of_gpus():
    (problem,) = gpu_stack_problems(stack(gpuStack="present"))

    assert (problem.path, problem.value) == ("gpuStack", "present")
    assert "helm-operator" in problem.accepted


def test_an_existing_cluster_is_not_changed():
    (problem,) = gpu_stack_problems(stack(created=False, gpuStack="helm-operator"))

    assert (problem.path, problem.value) == ("gpuStack", "helm-operator")
    assert problem.accepted.startswith("present")


@pytest.mark.parametrize("kind", ["helm-operator", "oke-plugin", "oke-operator-addon"])
def test_every_kind_is_fine_for_a_created_cluster(kind):
    assert list(gpu_stack_problems(stack(gpuStack=kind))) == []


def test_functions_of_another_maker_have_its_names_in_the_plan():
    cluster = {"mode": "existing", "identifier": "here", "virtualFunctions": "oci-hpc-oke"}
    (pool,) = plan(validate(stack_file(model(), cluster=cluster))).pools

    assert pool.shape.rdma.resource == "nvidia.com/rdma-vf"


def test_names_of_functions_need_functions():
    cluster = {"mode": "existing", "identifier": "here", "virtualFunctions": "oci-hpc-oke"}
    (problem,) = gpu_stack_problems(validate(stack_file(model(), cluster=cluster, rdma="none")))

    assert (problem.path, problem.value) == ("cluster.virtualFunctions", "oci-hpc-oke")


def test_a_created_cluster_has_the_kits_own_names():
    with pytest.raises(Refused, match="virtualFunctions"):
        stack(cluster={**CREATED, "virtualFunctions": "oci-hpc-oke"})


@pytest.mark.parametrize("created", [True, False])
def test_adapters_that_pods_get_no_functions_of_are_refused(created):
    pools = [{"name": "mi355x", "shape": "BM.GPU.MI355X.8", "size": 2}]
    (problem,) = gpu_stack_problems(stack(created=created, gpuPools=pools))

    assert (problem.path, problem.value) == ("rdma", "sriov-vf")
    assert list(gpu_stack_problems(stack(created=created, gpuPools=pools, rdma="none"))) == []


def test_mi355x_with_adapters_of_mellanox_has_a_function_for_each_gpu():
    pools = [{"name": "mi355x", "shape": "BM.GPU.MI355X-v1.8", "size": 2}]
    assert list(gpu_stack_problems(stack(gpuPools=pools))) == []


def test_a_cluster_that_the_operators_chart_refuses_is_told_before_it_is_made():
    config = stack(cluster={**CREATED, "kubernetesVersion": "v1.28.2"})

    (found,) = gpu_stack_problems(config)

    assert (found.path, found.accepted) == ("cluster.kubernetesVersion", "v1.29 or newer")


def test_okes_plug_in_asks_for_no_version():
    config = stack(cluster={**CREATED, "kubernetesVersion": "v1.28.2"}, gpuStack="oke-plugin")
    assert list(gpu_stack_problems(config)) == []


def test_a_shape_without_virtual_functions_is_one_problem():
    with pytest.raises(Refused) as refused:
        plan(stack(created=False, gpuPools=[{"name": "a", "shape": "BM.GPU.MI355X.8", "size": 9}]))
    assert [problem.path for problem in refused.value.problems] == ["rdma"]


def test_too_few_gpus_are_told_beside_virtual_functions_that_a_shape_lacks():
    with pytest.raises(Refused) as refused:
        plan(stack(created=False, gpuPools=[{"name": "a", "shape": "BM.GPU.MI355X.8", "size": 1}]))
    assert [problem.path for problem in refused.value.problems] == ["rdma", "gpuPools[0].size"]
