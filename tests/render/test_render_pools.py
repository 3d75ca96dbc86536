"""Pools as they are declared to OCI: each launch mode, every argument."""

import base64
import json
from typing import Any

import pulumi
import pytest
from llmd_base.errors import KitError
from llmd_oke.cluster.gpu_pool import GpuPool, Launch
from llmd_oke.cluster.network import Network
from llmd_oke.cluster.oke_cluster import OkeCluster
from llmd_oke.cluster.pools import CpuPool, CpuPoolArgs, NodeImage, SystemPool, SystemPoolArgs
from llmd_oke.objects import resolve_shape
from llmd_oke.testing import KUBECONFIG, Declared, Rendered, declared
from oci_contract import OciMocks, oci_resources, require_known_arguments

NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
COMPUTE_CLUSTER = "oci:Core/computeCluster:ComputeCluster"
CONFIGURATION = "oci:Core/instanceConfiguration:InstanceConfiguration"
NETWORK = "oci:Core/clusterNetwork:ClusterNetwork"
INSTANCE = "oci:Core/instance:Instance"
IMAGE = "oci:Core/image:Image"

NATIVE = {
    "worker_subnet_id": "workers",
    "worker_nsg_ids": ["workers-nsg"],
    "pod_subnet_id": "pods",
    "pod_nsg_ids": ["pods-nsg"],
}
FLANNEL = {"worker_subnet_id": "workers", "worker_nsg_ids": ["workers-nsg"]}

JOINED = {
    "cluster_id": "cluster",
    "compartment_id": "compartment",
    "api_server_host": "10.140.0.5",
    "ca_certificate": "Q0E=",
    "tenancy_id": "tenancy",
}

BASE: dict[str, Any] = {
    "pool_name": "mi300x",
    "launch": Launch.MANAGED_COMPUTE_CLUSTER,
    "shape": "BM.GPU.MI300X.8",
    "size": 3,
    "kubernetes_version": "v1.34.2",
    "cluster": JOINED,
    "availability_domain": "Uocm:US-ASHBURN-AD-1",
    "image_id": "image",
    "network": NATIVE,
}
MANAGED_OPTIONS = {
    "fault_domains": ["FAULT-DOMAIN-1"],
    "capacity_reservation_id": "reservation",
    "host_group_id": "host-group",
    "boot_volume_gib": 600,
    "boot_volume_kms_key_id": "key",
    "max_pods": 40,
    "labels": {"team": "a"},
    "taints": [{"key": "team", "value": "a", "effect": "NoExecute"}],
    "nvme": "raid-0",
    "huge_pages_gib": 64,
    "file_storage": True,
    "cycling": {"mode": "replace-boot-volume", "max_surge": "0", "max_unavailable": "25%"},
    "eviction_grace_minutes": 7,
    "ssh_public_key": "ssh-ed25519 A",
    "protect": True,
}
SELF_MANAGED_OPTIONS = {
    key: value
    for key, value in MANAGED_OPTIONS.items()
    if key not in {"fault_domains", "host_group_id", "cycling", "eviction_grace_minutes"}
}
SELF_MANAGED_OPTIONS |= {"boot_volume_vpus_per_gb": 20}
VARIANTS: list[dict[str, Any]] = [
    {},
    MANAGED_OPTIONS,
    {"network": FLANNEL},
    {"launch": Launch.PLAIN, **MANAGED_OPTIONS},
    {"launch": Launch.CLUSTER_NETWORK},
    {"launch": Launch.CLUSTER_NETWORK, **SELF_MANAGED_OPTIONS},
    {"launch": Launch.COMPUTE_CLUSTER_INSTANCES, "network": FLANNEL},
    {"launch": Launch.COMPUTE_CLUSTER_INSTANCES, **SELF_MANAGED_OPTIONS, "fault_domains": ["FAULT-DOMAIN-1"]},
]

KNOWN: dict[str, Rendered] = {}


def pool(**changes: Any) -> Rendered:
    """Return what is declared; equal pools are declared only once."""
    key = json.dumps(changes, sort_keys=True)
    if key not in KNOWN:
        KNOWN[key] = declared(lambda: GpuPool("mi300x", {**BASE, **changes}), cluster=OciMocks())
    return KNOWN[key]


def node_pool(**changes: Any) -> Declared:
    return pool(**changes).resource(NODE_POOL, "mi300x-node-pool")


def script(metadata: dict[str, str]) -> str:
    return base64.b64decode(metadata["user_data"]).decode()


def metadata_of(rendered: Rendered) -> dict[str, str]:
    for resource in oci_resources(rendered):
        if resource.type == NODE_POOL:
            return resource.inputs["nodeMetadata"]
        if resource.type == INSTANCE:
            return resource.inputs["metadata"]
        if resource.type == CONFIGURATION:
            return resource.inputs["instanceDetails"]["launchDetails"]["metadata"]
    raise LookupError


def labels_of(resource: Declared) -> dict[str, str]:
    return {label["key"]: label["value"] for label in resource.inputs["initialNodeLabels"]}


@pytest.mark.parametrize("changes", VARIANTS)
def test_both_supported_oci_plug_in_versions_know_every_argument_of_pools(changes: dict[str, Any]):
    require_known_arguments(oci_resources(pool(**changes)))


@pytest.mark.parametrize(
    ("launch", "types"),
    [
        (Launch.MANAGED_COMPUTE_CLUSTER, [NODE_POOL, COMPUTE_CLUSTER]),
        (Launch.CLUSTER_NETWORK, [NETWORK, CONFIGURATION]),
        (Launch.COMPUTE_CLUSTER_INSTANCES, [COMPUTE_CLUSTER, INSTANCE, INSTANCE, INSTANCE]),
        (Launch.PLAIN, [NODE_POOL]),
    ],
)
def test_each_launch_mode_of_a_pool_declares_its_own_kinds_of_oci_resources(launch: Launch, types: list[str]):
    assert [resource.type for resource in oci_resources(pool(launch=launch))] == types


def test_managed_nodes_are_in_the_pools_compute_cluster():
    assert node_pool().inputs["nodeConfigDetails"]["computeClusterId"] == "id-of-mi300x-compute-cluster"
    assert "computeClusterId" not in node_pool(launch=Launch.PLAIN).inputs["nodeConfigDetails"]


def test_an_existing_compute_cluster_is_used():
    rendered = pool(compute_cluster_id="there")
    assert rendered.of_type(COMPUTE_CLUSTER) == []
    assert node_pool(compute_cluster_id="there").inputs["nodeConfigDetails"]["computeClusterId"] == "there"


def test_an_existing_node_pool_is_used_without_changes():
    assert oci_resources(pool(pool_id="there")) == []


def settings(grace: str) -> dict[str, Any]:
    return {
        "evictionGraceDuration": grace,
        "isForceActionAfterGraceDuration": True,
        "isForceDeleteAfterGraceDuration": True,
    }


@pytest.mark.parametrize("component", [SystemPool, CpuPool])
def test_draining_of_nodes_without_gpus_is_limited_to_five_minutes(component: Any):
    made = cpu_pool(component, image_id="image")
    assert made.inputs["nodeEvictionNodePoolSettings"] == settings("PT5M")


def test_gpu_nodes_are_drained_for_at_most_five_minutes_or_one_hour_when_cycled():
    cycling = {"mode": "replace-node", "max_surge": "1", "max_unavailable": "0"}
    assert node_pool().inputs["nodeEvictionNodePoolSettings"] == settings("PT5M")
    assert node_pool(cycling=cycling).inputs["nodeEvictionNodePoolSettings"] == settings("PT1H")


@pytest.mark.parametrize(("minutes", "text"), [(0, "PT0S"), (7, "PT7M"), (60, "PT1H"), (90, "PT1H30M")])
def test_the_drain_time_is_declared_in_the_form_that_oci_returns(minutes: int, text: str):
    assert node_pool(eviction_grace_minutes=minutes).inputs["nodeEvictionNodePoolSettings"] == settings(text)


def test_a_pool_does_not_cycle_its_nodes_by_default():
    assert "nodePoolCyclingDetails" not in node_pool().inputs


def test_nodes_have_labels_of_their_pool_and_of_the_stack_file():
    assert labels_of(node_pool(**MANAGED_OPTIONS)) == {
        "amd.com/gpu": "true",
        "oke.oraclecloud.com/pool.name": "mi300x",
        "team": "a",
    }


@pytest.mark.parametrize("launch", list(Launch))
def test_nodes_of_every_launch_mode_register_with_their_taints(launch: Launch):
    made = pool(launch=launch, taints=[{"key": "team", "value": "a", "effect": "NoExecute"}])
    taints = "--register-with-taints=amd.com/gpu=present:NoSchedule,team=a:NoExecute"
    assert taints in script(metadata_of(made))


@pytest.mark.parametrize("launch", list(Launch))
def test_nodes_of_every_launch_mode_set_up_disks_and_huge_pages(launch: Launch):
    text = script(metadata_of(pool(launch=launch, nvme="raid-0", huge_pages_gib=2)))
    assert "level=0\n" in text
    assert "vm.nr_hugepages = %s\\n' 1024" in text


def test_metadata_of_managed_nodes_has_the_api_server_and_disables_legacy_imds():
    metadata = node_pool().inputs["nodeMetadata"]
    known = {key: value for key, value in metadata.items() if key not in {"user_data", "llmd-oke-cloud-init"}}
    assert known == {
        "apiserver_host": "10.140.0.5",
        "areLegacyImdsEndpointsDisabled": "true",
        "oke-kubeproxy-proxy-mode": "ipvs",
    }


@pytest.mark.parametrize("launch", list(Launch))
def test_only_self_managed_nodes_have_the_clusters_address_in_their_metadata(launch: Launch):
    self_managed = launch in {Launch.CLUSTER_NETWORK, Launch.COMPUTE_CLUSTER_INSTANCES}
    assert ("--apiserver-host" in script(metadata_of(pool(launch=launch)))) is self_managed


@pytest.mark.parametrize("launch", list(Launch))
def test_nodes_install_nfs_only_if_pods_mount_file_storage(launch: Launch):
    assert "nfs-common" in script(metadata_of(pool(launch=launch, file_storage=True)))
    assert "nfs-common" not in script(metadata_of(pool(launch=launch)))


@pytest.mark.parametrize("launch", list(Launch))
def test_with_an_overlay_network_nodes_reserve_no_pod_addresses(launch: Launch):
    made = pool(launch=launch, network=FLANNEL, max_pods=40)
    metadata = metadata_of(made)
    assert not {"oke-native-pod-networking", "pod-subnets"} & set(metadata)
    assert "--max-pods=40" in script(metadata)
    if launch in {Launch.PLAIN, Launch.MANAGED_COMPUTE_CLUSTER}:
        (managed,) = made.of_type(NODE_POOL)
        network = managed.inputs["nodeConfigDetails"]["nodePoolPodNetworkOptionDetails"]
        assert network == {"cniType": "FLANNEL_OVERLAY"}


def test_self_managed_instances_configure_their_rdma_network_at_boot():
    made = pool(launch=Launch.COMPUTE_CLUSTER_INSTANCES)
    configuration = pool(launch=Launch.CLUSTER_NETWORK).resource(CONFIGURATION, "mi300x-instance-configuration")
    of_network = configuration.inputs["instanceDetails"]["launchDetails"]["agentConfig"]
    of_instance = made.resource(INSTANCE, "mi300x-instance-0").inputs["agentConfig"]
    assert of_network == of_instance
    states = {plugin["name"]: plugin["desiredState"] for plugin in of_instance["pluginsConfigs"]}
    assert list(states) == sorted(states)
    assert states["Compute HPC RDMA Authentication"] == "ENABLED"
    assert states["Compute HPC RDMA Auto-Configuration"] == "ENABLED"
    assert states["OS Management Service Agent"] == "DISABLED"
    assert not of_instance["areAllPluginsDisabled"]


def test_instances_share_a_compute_cluster_and_alternate_between_fault_domains():
    domains = ["FAULT-DOMAIN-1", "FAULT-DOMAIN-3"]
    made = pool(launch=Launch.COMPUTE_CLUSTER_INSTANCES, fault_domains=domains)
    instances = [instance.inputs for instance in made.of_type(INSTANCE)]
    assert {instance["computeClusterId"] for instance in instances} == {"id-of-mi300x-compute-cluster"}
    assert [instance["faultDomain"] for instance in instances] == [*domains, domains[0]]
    assert {instance["createVnicDetails"]["assignPublicIp"] for instance in instances} == {"false"}


@pytest.mark.parametrize("launch", list(Launch))
def test_deletion_protection_covers_all_resources_of_a_pool(launch: Launch):
    for resource in oci_resources(pool(launch=launch, protect=True)):
        assert resource.protect is (resource.type != CONFIGURATION), resource.name
    assert not any(resource.protect for resource in oci_resources(pool(launch=launch)))


@pytest.mark.parametrize("launch", list(Launch))
def test_replaced_gpu_nodes_are_returned_before_new_ones_are_requested(launch: Launch):
    for resource in oci_resources(pool(launch=launch)):
        assert resource.delete_before_replace is (resource.type != CONFIGURATION), resource.name


def test_a_pool_with_an_unknown_shape_is_refused():
    with pytest.raises(KitError, match="no shape"):
        declared(lambda: GpuPool("x", {**BASE, "shape": "BM.GPU.NONE"}), cluster=OciMocks())


CPU: dict[str, Any] = {
    "pool_name": "system",
    "shape": "VM.Standard.E5.Flex",
    "size": 3,
    "kubernetes_version": "v1.34.2",
    "cluster": JOINED,
    "availability_domains": ["Uocm:US-ASHBURN-AD-1", "Uocm:US-ASHBURN-AD-2"],
    "network": NATIVE,
}
IMAGES = {
    "sources": [
        {"sourceName": name, "imageId": image, "sourceType": "IMAGE"}
        for name, image in [
            ("Oracle-Linux-8.10-2026.05.31-0-OKE-1.34.2-1301", "older"),
            ("Oracle-Linux-8.10-2026.07.31-0-OKE-1.34.2-1330", "newest"),
            ("Oracle-Linux-8.10-aarch64-2026.08.31-0-OKE-1.34.2-1340", "arm"),
            ("Oracle-Linux-8.10-Gen2-GPU-2026.08.31-0-OKE-1.34.2-1340", "gpu"),
            ("Oracle-Linux-8.10-2026.09.30-0-OKE-1.33.1-1350", "other version"),
        ]
    ]
}


class OciWithImages(OciMocks):
    def call(self, args: Any) -> dict[str, Any]:
        self.calls[args.token] = args.args
        return IMAGES


def cpu_pool_stack(component: Any, **changes: Any) -> Rendered:
    return declared(lambda: component("system", {**CPU, **changes}), cluster=OciWithImages())


def cpu_pool(component: Any, **changes: Any) -> Declared:
    (resource,) = oci_resources(cpu_pool_stack(component, **changes))
    require_known_arguments([resource])
    return resource


@pytest.mark.parametrize("component", [SystemPool, CpuPool])
def test_a_pool_without_gpus_has_a_flexible_shape_and_spans_all_availability_domains(component: Any):
    made = cpu_pool(component, ocpus=8, memory_gib=64, image_id="image", protect=True)
    assert made.inputs["nodeShapeConfig"] == {"ocpus": 8, "memoryInGbs": 64}
    placements = made.inputs["nodeConfigDetails"]["placementConfigs"]
    assert [place["availabilityDomain"] for place in placements] == CPU["availability_domains"]
    assert labels_of(made) == {"oke.oraclecloud.com/pool.name": "system"}
    assert made.protect
    assert made.timeouts["create"] == "60m"


@pytest.mark.parametrize("component", [SystemPool, CpuPool])
@pytest.mark.parametrize(("named", "label"), [({"pool_name": "builds"}, "builds"), ({"pool_name": None}, "routers")])
def test_a_pools_node_label_has_the_name_of_the_pool_or_else_the_resources(
    component: Any, named: dict[str, str | None], label: str
):
    def program() -> None:
        pulumi.export("label", component("routers", {**CPU, **named, "image_id": "image"}).node_label)

    made = declared(program, cluster=OciMocks())
    assert made.outputs == {"label": f"oke.oraclecloud.com/pool.name={label}"}


def test_a_pool_of_a_shape_that_is_not_flexible_has_no_configured_shape_size():
    assert "nodeShapeConfig" not in cpu_pool(CpuPool, shape="BM.Standard.E5.192", image_id="image").inputs


@pytest.mark.parametrize(("ocpus", "pods"), [(1, 31), (2, 31), (4, 93), (8, 110)])
def test_the_maximum_number_of_pods_follows_from_the_nodes_network_interfaces(ocpus: int, pods: int):
    details = cpu_pool(SystemPool, ocpus=ocpus, image_id="image").inputs["nodeConfigDetails"]
    assert details["nodePoolPodNetworkOptionDetails"]["maxPodsPerNode"] == pods


def test_without_an_image_in_the_stack_file_the_newest_oke_image_is_chosen_and_kept():
    made = cpu_pool(SystemPool)
    assert made.inputs["nodeSourceDetails"]["imageId"] == "newest"
    assert "nodeSourceDetails.imageId" not in made.ignore_changes
    (stash,) = cpu_pool_stack(SystemPool).of_type("pulumi:index:Stash")
    assert (stash.name, stash.inputs["input"]) == ("system-image-v1.34.2", "newest")
    assert cpu_pool_stack(SystemPool, image_id="image").of_type("pulumi:index:Stash") == []


def test_taints_and_cycling_of_a_pool_without_gpus_reach_its_oci_node_pool():
    made = cpu_pool(
        CpuPool,
        image_id="image",
        taints=[{"key": "only", "effect": "NoSchedule"}],
        cycling={"mode": "replace-node", "max_surge": "1", "max_unavailable": "0"},
    )
    assert "--register-with-taints=only=:NoSchedule" in script(made.inputs["nodeMetadata"])
    assert made.inputs["nodePoolCyclingDetails"]["cycleModes"] == ["INSTANCE_REPLACE"]


def image(checksum: str, uri: str = "https://objectstorage/o/image.oci") -> Declared:
    args: Any = {"compartment_id": "compartment", "display_name": "ubuntu", "uri": uri, "checksum": checksum}
    made = declared(lambda: NodeImage("gpu", args), cluster=OciMocks())
    (resource,) = oci_resources(made)
    return resource


def test_a_node_image_is_imported_from_object_storage_with_its_checksum_as_tag():
    made = image("md5:" + "a" * 32)
    require_known_arguments([made])
    assert made.inputs["imageSourceDetails"] == {
        "sourceType": "objectStorageUri",
        "sourceUri": "https://objectstorage/o/image.oci",
    }
    assert made.inputs["freeformTags"]["llmd-oke-checksum"] == "md5:" + "a" * 32


def test_a_node_image_is_imported_again_for_another_checksum_but_not_another_link():
    assert image("md5:" + "a" * 32).name != image("md5:" + "b" * 32).name
    assert "imageSourceDetails" in image("md5:" + "a" * 32).ignore_changes


@pytest.mark.parametrize("launch", [Launch.CLUSTER_NETWORK, Launch.COMPUTE_CLUSTER_INSTANCES])
def test_self_managed_nodes_cannot_be_autoscaled(launch: Launch):
    with pytest.raises(KitError, match=f"The cluster autoscaler can't change 'mi300x': {launch}"):
        declared(lambda: GpuPool("mi300x", {**BASE, "launch": launch, "autoscaled": True}))


def test_the_system_pool_cannot_be_autoscaled():
    assert "autoscaled" in CpuPoolArgs.__annotations__
    assert "autoscaled" not in SystemPoolArgs.__annotations__


def test_the_cluster_and_network_of_a_pool_can_be_passed_as_components():
    def program() -> None:
        network = Network("net", {"compartment_id": "compartment", "pools": [{"nodes": 1, "max_pods": 31}]})
        args: Any = {"network": network, "compartment_id": "compartment", "tenancy_id": "tenancy"}
        oke = OkeCluster("oke", {**args, "region": "us-ashburn-1", "kubernetes_version": "v1.34.2"})
        nodes: Any = {key: BASE[key] for key in ("shape", "size", "kubernetes_version", "image_id")}
        GpuPool("gpu", {"cluster": oke, "network": network, **nodes, "availability_domain": "AD-1"})

    mocks = OciWithKubeconfig()
    made = declared(program, cluster=mocks).resource(NODE_POOL, "gpu-node-pool")
    assert (made.inputs["clusterId"], made.inputs["name"]) == ("id-of-oke-cluster", "gpu")
    placements = made.inputs["nodeConfigDetails"]["placementConfigs"]
    assert [placement["subnetId"] for placement in placements] == ["id-of-net-workers-subnet"]
    assert made.inputs["nodeMetadata"]["apiserver_host"] == "10.140.0.5"


class OciWithKubeconfig(OciMocks):
    def call(self, args: Any) -> dict[str, Any]:
        return {"content": KUBECONFIG} if "KubeConfig" in args.token else super().call(args)


def test_a_pools_shape_can_be_an_entry_that_the_user_defines():
    own = resolve_shape("BM.GPU.MI300X.8").model_copy(update={"name": "BM.GPU.OWN.8"})
    rendered = declared(lambda: GpuPool("mi300x", {**BASE, "shape": own}), cluster=OciMocks())
    assert rendered.resource(NODE_POOL, "mi300x-node-pool").inputs["nodeShape"] == "BM.GPU.OWN.8"
    assert rendered.resource("llmd-oke:index:GpuPool", "mi300x").inputs["shape"] == "BM.GPU.OWN.8"


def test_all_arguments_of_a_node_image_but_its_secret_link_are_component_inputs():
    image: Any = {"compartment_id": "c", "display_name": "own", "uri": "https://own/o", "checksum": "md5:0123456789"}
    component = declared(lambda: NodeImage("own", image), cluster=OciMocks()).resource(
        "llmd-oke:index:NodeImage", "own"
    )
    assert component.inputs == {key: value for key, value in image.items() if key != "uri"}
