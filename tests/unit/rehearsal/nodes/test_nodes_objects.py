"""Node objects, leases and addresses."""

from datetime import UTC, datetime
from ipaddress import IPv4Interface

import pytest
from llmd_oke.errors import KitError
from llmd_oke.rehearsal.nodes import objects
from llmd_oke.rehearsal.nodes.config import NodeConfig, Taint, node_address
from llmd_oke.rehearsal.pods.networks import AddressPool

NOW = datetime(2026, 11, 21, 6, 1, 2, 345678, tzinfo=UTC)
BRIDGE = IPv4Interface("10.244.0.1/16")
CONFIG = NodeConfig(
    name="gpu-0",
    capacity={"amd.com/gpu": "8", "nvidia.com/sriov-rdma-vf": "8", "cpu": "112"},
    labels={"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"},
    taints=(Taint(key="amd.com/gpu", value="present", effect="NoSchedule"), Taint(key="x", effect="NoExecute")),
)


def test_a_node_has_the_shapes_resources_labels_and_taints() -> None:
    node = objects.node(CONFIG, "10.244.0.10", NOW)
    assert node["status"]["allocatable"] == CONFIG.capacity
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "BM.GPU.MI300X.8"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu-0"
    assert node["spec"]["taints"] == [
        {"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "x", "effect": "NoExecute"},
    ]


def test_a_node_is_ready_and_has_its_address() -> None:
    status = objects.status(CONFIG, "10.244.0.10", NOW)
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    assert {"type": "InternalIP", "address": "10.244.0.10"} in status["addresses"]


def test_a_lease_goes_with_its_node_and_is_renewed_to_the_microsecond() -> None:
    lease = objects.lease("gpu-0", "uid-1", NOW)
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert lease["spec"]["renewTime"] == "2026-11-21T06:01:02.345678Z"


def test_nodes_and_pods_have_addresses_of_their_own() -> None:
    pool = AddressPool(BRIDGE)
    assert [node_address(BRIDGE, index) for index in (0, 8)] == ["10.244.0.10", "10.244.0.18"]
    assert [pool.take(0), pool.take(0), pool.take(8)] == ["10.244.4.1", "10.244.4.2", "10.244.8.1"]


def test_an_address_is_kept_if_it_is_free_and_reused_after_it_was_given_back() -> None:
    pool = AddressPool(BRIDGE)
    assert pool.take(0, wanted="10.244.4.9") == "10.244.4.9"
    assert pool.take(0, wanted="10.244.4.9") == "10.244.4.1"
    pool.give_back("10.244.4.1")
    assert pool.take(0) == "10.244.4.1"


def test_a_node_that_is_full_says_so() -> None:
    pool = AddressPool(BRIDGE)
    for _ in range(126):
        pool.take(0)
    with pytest.raises(KitError, match="no free pod address"):
        pool.take(0)
