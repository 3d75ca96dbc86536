"""The nodes of pools, cluster networks and instances."""

import base64
import gzip
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any

import pytest
from llmd_oke.cluster.instance_metadata import Boot, user_data
from llmd_rehearsal.agent_config import NodeTaint
from llmd_rehearsal.oci_plugin.nodes import read_boot
from llmd_rehearsal.plugin_values import InitFailed
from oci_region import COMPARTMENT, DOMAIN, FLEXIBLE, RDMA_SHAPE, Parts, Region, pool

SCRIPT = "oke bootstrap --kubelet-extra-args '--register-with-taints=a=b:NoSchedule,c:NoExecute --node-labels=l=1,m=2'"
ALONE = """oke bootstrap --apiserver-host 10.0.0.5 --ca "$authority" --kubelet-extra-args --node-labels=l=1
echo 10.0.0.5 >/etc/oke/oke-apiserver
base64 --decode <<<"$authority" >/etc/kubernetes/ca.crt
"""


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


JOINS_ALONE = {
    "user_data": encoded(ALONE),
    "apiserver_host": "10.0.0.5",
    "cluster_ca_cert": encoded("-----BEGIN CERTIFICATE-----\nMII\n"),
}


def archive(text: str) -> str:
    message = MIMEMultipart()
    message.attach(MIMEText(text, "x-shellscript"))
    return base64.b64encode(gzip.compress(message.as_bytes())).decode()


@pytest.mark.parametrize("form", [encoded, archive])
def test_kubelet_arguments_are_extracted_from_user_data(form: Any):
    boot = read_boot({"user_data": form(SCRIPT)})
    assert boot.labels == {"l": "1", "m": "2"}
    assert boot.taints == (NodeTaint(key="a", value="b", effect="NoSchedule"), NodeTaint(key="c", effect="NoExecute"))
    assert boot.joins


def test_a_boot_script_inside_a_cloud_config_file_is_found():
    config = f"#cloud-config\nwrite_files:\n  - {{encoding: b64, path: /x, content: {encoded(SCRIPT)}}}\n"
    assert read_boot({"user_data": encoded(config)}).labels == {"l": "1", "m": "2"}


def test_a_boot_script_that_does_not_join_the_cluster_is_recognized():
    assert not read_boot({"user_data": encoded("#!/bin/sh\necho hello\n")}).joins
    assert read_boot({}).joins
    assert read_boot({"oke-initial-node-labels": "x=y"}).labels == {"x": "y"}


def test_a_self_managed_node_joins_if_its_user_data_has_everything_it_needs():
    assert read_boot(JOINS_ALONE, self_managed=True).joins


@pytest.mark.parametrize(
    "change",
    [
        {"user_data": encoded(SCRIPT)},
        {"user_data": encoded(ALONE.replace("--apiserver-host 10.0.0.5 ", ""))},
        {"user_data": encoded(ALONE.replace('--ca "$authority" ', ""))},
        {"user_data": encoded(ALONE.replace("/etc/oke/oke-apiserver", "/tmp/x"))},
        {"user_data": encoded(ALONE.replace("/etc/kubernetes/ca.crt", "/tmp/x"))},
        {"apiserver_host": "10.0.0.5:6443"},
        {"apiserver_host": ""},
        {"cluster_ca_cert": "-----BEGIN CERTIFICATE-----"},
        {"cluster_ca_cert": ""},
    ],
)
def test_a_self_managed_node_does_not_join_if_its_user_data_lacks_anything(change: dict[str, str]):
    assert not read_boot({**JOINS_ALONE, **change}, self_managed=True).joins


@pytest.mark.parametrize("self_managed", [True, False])
def test_the_kits_boot_scripts_make_nodes_join(self_managed: bool):
    boot = Boot("gpu", "v1.34.2", ["a=b:NoSchedule"], self_managed=self_managed)
    metadata = {**JOINS_ALONE, "user_data": encoded(user_data(boot))}
    assert read_boot(metadata, self_managed=self_managed).joins


def test_a_node_pool_of_size_nine_registers_nine_nodes(region: Region, parts: Parts):
    labels = [{"key": "oke.oraclecloud.com/pool.name", "value": "gpu"}]
    details = {"computeClusterId": region.compute_cluster()["id"]}
    inputs = pool(*parts, details=details, initialNodeLabels=labels, nodeMetadata={"user_data": encoded(SCRIPT)})
    state = region.create("NodePool", **inputs)
    assert sorted(region.nodes.there) == [f"gpu-{index}" for index in range(9)]
    node = region.nodes.there["gpu-1"]
    assert node.capacity["cpu"] == "224"
    assert node.devices["amd.com/gpu"] == "8"
    assert len(node.devices) == 2
    expected = {
        "node.kubernetes.io/instance-type": RDMA_SHAPE,
        "oke.oraclecloud.com/pool.name": "gpu",
        "topology.kubernetes.io/zone": "US-ASHBURN-AD-1",
        "oci.oraclecloud.com/fault-domain": "FAULT-DOMAIN-2",
        "l": "1",
    }
    assert expected.items() <= node.labels.items()
    assert NodeTaint(key="a", value="b", effect="NoSchedule") in node.taints
    assert {item["state"] for item in state["nodes"]} == {"ACTIVE"}


def test_a_pool_without_a_compute_cluster_has_no_rdma(region: Region, parts: Parts):
    region.create("NodePool", **pool(*parts, size=1))
    assert region.nodes.there["gpu-0"].devices == {"amd.com/gpu": "8"}


def test_nodes_of_flexible_shapes_have_the_requested_size(region: Region, parts: Parts):
    region.create("NodePool", **pool(*parts, size=1, name="system", **FLEXIBLE))
    own = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    assert region.nodes.there["system-0"].capacity == own


def test_nodes_are_added_and_removed_with_the_pools_size(region: Region, parts: Parts):
    state = region.create("NodePool", **pool(*parts, size=3))
    state = region.update("NodePool", state, **pool(*parts, size=1))
    assert sorted(region.nodes.there) == ["gpu-0"]
    state = region.update("NodePool", state, **pool(*parts, size=2))
    assert sorted(region.nodes.there) == ["gpu-0", "gpu-1"]
    region.delete(state)
    assert region.nodes.there == {}


def test_changed_metadata_replaces_nodes_if_cycling_is_enabled(region: Region, parts: Parts):
    cycling = {"nodePoolCyclingDetails": {"isNodeCyclingEnabled": True}}
    state = region.create("NodePool", **pool(*parts, size=2, **cycling))
    metadata = {"nodeMetadata": {"user_data": encoded(SCRIPT)}}
    region.update("NodePool", state, **pool(*parts, size=2, **cycling, **metadata))
    assert {node.labels.get("l") for node in region.nodes.there.values()} == {"1"}


def test_cycling_nodes_by_boot_volume_replacement_keeps_their_instances(region: Region, parts: Parts):
    cycling = {"nodePoolCyclingDetails": {"isNodeCyclingEnabled": True, "cycleModes": ["BOOT_VOLUME_REPLACE"]}}
    state = region.create("NodePool", **pool(*parts, size=2, **cycling))
    before = {name: node.provider_id for name, node in region.nodes.there.items()}
    metadata = {"nodeMetadata": {"user_data": encoded(SCRIPT)}}
    state = region.update("NodePool", state, **pool(*parts, size=2, **cycling, **metadata))
    assert {name: node.provider_id for name, node in region.nodes.there.items()} == before
    assert {node.labels.get("l") for node in region.nodes.there.values()} == {"1"}
    labels = {"initialNodeLabels": [{"key": "team", "value": "a"}]}
    with pytest.raises(InitFailed, match="boot volume replacement cannot update initialNodeLabels"):
        region.update("NodePool", state, **pool(*parts, size=2, **cycling, **metadata, **labels))


def test_without_cycling_changed_metadata_replaces_no_node_of_a_pool(region: Region, parts: Parts):
    state = region.create("NodePool", **pool(*parts, size=2))
    region.update("NodePool", state, **pool(*parts, size=2, nodeMetadata={"user_data": encoded(SCRIPT)}))
    assert {node.labels.get("l") for node in region.nodes.there.values()} == {None}


def test_pools_of_equal_names_do_not_share_nodes(region: Region, parts: Parts):
    region.create("NodePool", **pool(*parts, size=1))
    second = region.create("NodePool", **pool(*parts, size=1))
    assert len(region.nodes.there) == 2
    region.delete(second)
    assert sorted(region.nodes.there) == ["gpu-0"]


def test_creating_a_node_pool_fails_if_its_boot_script_does_not_join_the_cluster(region: Region, parts: Parts):
    metadata = {"user_data": encoded("#!/bin/sh\necho hello\n")}
    with pytest.raises(InitFailed, match=r"9 node\(s\) register timeout"):
        region.create("NodePool", **pool(*parts, nodeMetadata=metadata))
    assert region.nodes.there == {}


def test_deleting_a_cluster_deletes_its_nodes(region: Region, parts: Parts):
    region.create("NodePool", **pool(*parts, size=2))
    region.delete(parts[0])
    assert region.nodes.there == {}
    assert region.records.all_of("NodePool") == []


def test_instances_of_a_cluster_network_join_by_their_own_boot_script(region: Region):
    metadata = {**JOINS_ALONE, "oke-initial-node-labels": "pool=gpu", "oke-max-pods": "60"}
    region.cluster_network(shape=RDMA_SHAPE, metadata=metadata)
    node = region.nodes.there["gpu-1"]
    assert (node.labels["pool"], node.labels["l"], node.capacity["pods"]) == ("gpu", "1", "60")
    assert len(node.devices) == 2


def test_an_instance_with_user_data_of_the_kit_becomes_a_node(region: Region):
    inputs = {"compartmentId": COMPARTMENT, "availabilityDomain": DOMAIN, "shape": RDMA_SHAPE}
    region.create("Instance", **inputs, displayName="gpu-a", metadata=JOINS_ALONE)
    region.create("Instance", **inputs, displayName="bastion")
    assert sorted(region.nodes.there) == ["gpu-a"]
