"""Virtual functions: one for each GPU, on the ports that the shape has, under the names that pods ask by."""

import ipaddress

import pytest
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.operators import rdma_network

SHAPES = [shape for name in catalogue.shape_names() if (shape := catalogue.shape(name)) and shape.rdma.sriov]
MI300X = catalogue.shape("BM.GPU.MI300X.8")
assert MI300X is not None


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_node_has_a_virtual_function_for_each_gpu_under_one_resource_name(shape):
    policy, network = rdma_network.policy(shape), rdma_network.network(shape)
    spec = policy["spec"]
    assert len(spec["nicSelector"]["rootDevices"]) * spec["numVfs"] == shape.rdma.virtual_functions == shape.gpus
    assert len(shape.rdma.adapters) == shape.gpus
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": shape.name}
    assert f"nvidia.com/{spec['resourceName']}" == shape.rdma.resource
    assert network["spec"]["resourceName"] == spec["resourceName"]
    assert network["metadata"]["name"] == shape.rdma.network_attachment.name
    assert network["spec"]["networkNamespace"] == shape.rdma.network_attachment.namespace


def test_the_rdma_address_pool_suffices_for_500_nodes_with_all_virtual_functions():
    pool = rdma_network.ip_pool()["spec"]
    subnet = ipaddress.ip_network(pool["subnet"])
    assert ipaddress.ip_address(pool["gateway"]) in subnet
    assert pool["perNodeBlockSize"] >= MI300X.rdma.virtual_functions
    assert subnet.num_addresses // pool["perNodeBlockSize"] >= 500


def test_ucx_and_rccl_use_the_same_gid_index_and_traffic_class():
    rdma = MI300X.rdma
    assert rdma.environment["UCX_IB_GID_INDEX"] == rdma.rccl["NCCL_IB_GID_INDEX"]
    assert rdma.environment["UCX_IB_TRAFFIC_CLASS"] == rdma.rccl["NCCL_IB_TC"]


def test_clusters_of_oci_hpc_oke_and_no_others_have_their_own_virtual_function_names():
    theirs = operators.with_function_names(MI300X, "oci-hpc-oke").rdma
    assert (theirs.resource, theirs.network_attachment.name) == ("nvidia.com/rdma-vf", "rdma-vf")
    assert theirs.environment == MI300X.rdma.environment
    assert operators.with_function_names(MI300X, None) is MI300X
    with pytest.raises(KitError, match="oci-hpc-oke"):
        operators.with_function_names(MI300X, "somebody")


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"resource": "example.com/vf"}, r"example.com/vf.*nvidia.com"), ({"sriov": None}, "no ports")],
    ids=["a resource that the device plug-in does not offer", "no known RDMA ports"],
)
def test_a_shape_whose_virtual_functions_cannot_be_offered_is_refused(changed, said):
    other = MI300X.model_copy(update={"rdma": MI300X.rdma.model_copy(update=changed)})
    with pytest.raises(KitError, match=said):
        rdma_network.policy(other)


def test_the_rdma_network_waits_for_the_crds_of_all_its_objects():
    of_shape = [rdma_network.policy(MI300X), rdma_network.network(MI300X)]
    objects = [*of_shape, rdma_network.pool_config([MI300X]), rdma_network.ip_pool()]
    groups = {manifest["apiVersion"].split("/")[0] for manifest in objects}
    assert {name.partition(".")[2] for name in operators.rdma().definitions} == groups
    assert len(operators.rdma().definitions) == len(objects)
