"""What is refused of pools that a stack creates."""

from typing import Any

import pytest
from created_stacks import gpu_pool, ocid, refusals
from llmd_oke import catalogue

ROCM = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-AMD-ROCM-724-2026.07.13-0"
IMPORT = {"name": ROCM, "uri": "https://objectstorage/o/image.oci", "checksum": "md5:" + "0" * 32}


def of_pool(**changes: Any) -> dict[str, str]:
    return refusals(gpu_pool(**changes))


def of_stack(**changes: Any) -> dict[str, str]:
    return refusals(stack_changes=changes)


@pytest.mark.parametrize("launch", ["managed-compute-cluster", "cluster-network", "compute-cluster-instances", "plain"])
def test_every_launch_mode_is_accepted(launch: str):
    made = refusals(gpu_pool(launch=launch), stack_changes={"rdma": "none" if launch == "plain" else "sriov-vf"})
    assert [path for path in made if path.startswith("gpuPools")] == []


@pytest.mark.parametrize(
    ("launch", "option", "key"),
    [
        ("cluster-network", {"computeClusterId": ocid("computecluster")}, "computeClusterId"),
        ("plain", {"computeClusterId": ocid("computecluster")}, "computeClusterId"),
        ("cluster-network", {"faultDomains": ["FAULT-DOMAIN-1"]}, "faultDomains"),
        ("cluster-network", {"hostGroupId": ocid("hostgroup")}, "hostGroupId"),
        ("compute-cluster-instances", {"hostGroupId": ocid("hostgroup")}, "hostGroupId"),
        ("managed-compute-cluster", {"bootVolumeVpusPerGb": 20}, "bootVolumeVpusPerGb"),
        ("plain", {"bootVolumeVpusPerGb": 20}, "bootVolumeVpusPerGb"),
        ("cluster-network", {"cycling": {}}, "cycling"),
        ("compute-cluster-instances", {"cycling": {}}, "cycling"),
        ("cluster-network", {"evictionGraceMinutes": 5}, "evictionGraceMinutes"),
        ("compute-cluster-instances", {"poolId": ocid("instancepool")}, "poolId"),
    ],
)
def test_what_a_launch_mode_can_not_carry_is_refused(launch: str, option: dict[str, Any], key: str):
    found = of_pool(launch=launch, **option)
    assert f"launch is {launch}" in found[f"gpuPools[0].{key}"]


@pytest.mark.parametrize(
    ("launch", "option"),
    [
        ("managed-compute-cluster", {"computeClusterId": ocid("computecluster")}),
        ("compute-cluster-instances", {"computeClusterId": ocid("computecluster")}),
        ("managed-compute-cluster", {"faultDomains": ["FAULT-DOMAIN-1"], "hostGroupId": ocid("hostgroup")}),
        ("cluster-network", {"bootVolumeVpusPerGb": 20, "capacityReservationId": ocid("capacityreservation")}),
        ("managed-compute-cluster", {"cycling": {"mode": "replace-boot-volume"}, "evictionGraceMinutes": 5}),
    ],
)
def test_what_a_launch_mode_carries_is_accepted(launch: str, option: dict[str, Any]):
    assert of_pool(launch=launch, **option) == {}


def test_a_pool_to_create_needs_a_place_and_an_image():
    pool = {key: value for key, value in gpu_pool().items() if key not in {"availabilityDomain", "image"}}
    assert set(refusals(pool)) == {"gpuPools[0].availabilityDomain", "gpuPools[0].image"}


def test_a_pool_that_is_there_needs_neither():
    pool = {key: value for key, value in gpu_pool().items() if key not in {"availabilityDomain", "image"}}
    assert refusals({**pool, "poolId": ocid("nodepool")}) == {}


def test_a_pool_that_is_there_keeps_its_compute_cluster():
    found = of_pool(poolId=ocid("nodepool"), computeClusterId=ocid("computecluster"))
    assert set(found) == {"gpuPools[0].computeClusterId"}


@pytest.mark.parametrize("image", [{}, {"ocid": ocid("image"), "import": IMPORT}])
def test_an_image_is_one_of_two(image: dict[str, Any]):
    assert "nodes boot from one image" in of_pool(image=image)["gpuPools[0].image"]


def test_an_imported_image_is_one_of_the_catalogue():
    assert of_pool(image={"import": IMPORT}) == {}
    found = of_pool(image={"import": {**IMPORT, "name": "Canonical-Ubuntu"}})
    assert ROCM in found["gpuPools[0].image.import.name"]


def test_an_image_is_made_for_the_shape(monkeypatch: pytest.MonkeyPatch):
    known = catalogue.image(ROCM)
    assert known is not None
    monkeypatch.setattr(catalogue, "image", lambda name: known.model_copy(update={"shapes": ("BM.GPU.MI355X.8",)}))
    found = of_pool(image={"import": IMPORT})
    assert "made for BM.GPU.MI355X.8" in found["gpuPools[0].image.import.name"]


@pytest.mark.parametrize(("launch", "refused"), [("managed-compute-cluster", True), ("plain", False)])
def test_rdma_nodes_run_ubuntu(monkeypatch: pytest.MonkeyPatch, launch: str, refused: bool):
    known = catalogue.image(ROCM)
    assert known is not None
    monkeypatch.setattr(catalogue, "image", lambda name: known.model_copy(update={"operating_system": "Oracle Linux"}))
    assert ("gpuPools[0].image.import.name" in of_pool(launch=launch, image={"import": IMPORT})) is refused


def test_pods_can_not_have_an_rdma_network_that_nodes_do_not_have():
    assert "has no RDMA network" in of_pool(launch="plain")["gpuPools[0].launch"]


@pytest.mark.parametrize(
    ("version", "why"),
    [("v1.35.0", "newer than the control plane"), ("v1.34.3", "newer"), ("v1.30.9", "3 minor versions behind")],
)
def test_nodes_are_at_most_three_minor_versions_behind(version: str, why: str):
    assert why in of_pool(kubernetesVersion=version)["gpuPools[0].kubernetesVersion"]
    assert why in of_stack(systemPool={"kubernetesVersion": version})["systemPool.kubernetesVersion"]


@pytest.mark.parametrize("version", ["v1.34.2", "v1.34.1", "v1.31.0"])
def test_nodes_may_lag_behind(version: str):
    assert of_pool(kubernetesVersion=version) == {}


def test_self_managed_nodes_need_a_control_plane_that_knows_them():
    old: dict[str, Any] = {"stack_changes": {"gpuStack": "oke-plugin"}, "kubernetesVersion": "v1.27.2"}
    found = refusals(gpu_pool(launch="cluster-network"), **old)
    assert "at least v1.27.10" in found["cluster.kubernetesVersion"]
    assert "cluster.kubernetesVersion" not in refusals(gpu_pool(), **old)


def test_huge_pages_leave_memory_to_the_servers(monkeypatch: pytest.MonkeyPatch):
    assert of_pool(hugePagesGib=1024) == {}
    known = catalogue.shape("BM.GPU.MI300X.8")
    assert known is not None
    monkeypatch.setattr(catalogue, "shape", lambda name: known.model_copy(update={"memory_gib": 1536}))
    assert "at most 512" in of_pool(hugePagesGib=1024)["gpuPools[0].hugePagesGib"]


@pytest.mark.parametrize(
    ("cycling", "key"),
    [
        ({"maxSurge": "0", "maxUnavailable": "0"}, "cycling"),
        ({"maxSurge": "0%", "maxUnavailable": "0"}, "cycling"),
        ({"mode": "replace-boot-volume", "maxSurge": "1"}, "cycling.maxSurge"),
    ],
)
def test_cycling_can_replace_nodes(cycling: dict[str, Any], key: str):
    assert list(of_pool(cycling=cycling)) == [f"gpuPools[0].{key}"]


def test_controllers_do_not_run_on_gpu_nodes():
    assert "GPU nodes are tainted" in of_stack(systemPool={"shape": "BM.GPU.MI300X.8"})["systemPool.shape"]


def test_names_of_pools_are_unique():
    assert "gpuPools[0] has it already" in of_stack(cpuPools=[{"name": "mi300x"}])["cpuPools[0].name"]
    assert "systemPool has it already" in of_stack(cpuPools=[{"name": "system"}])["cpuPools[0].name"]
    assert "systemPool has it already" in of_pool(name="system")["gpuPools[0].name"]


def test_several_problems_are_told_at_once():
    pool = gpu_pool(kubernetesVersion="v1.36.1", image={}, bootVolumeVpusPerGb=20)
    found = refusals(pool, stack_changes={"systemPool": {"shape": "VM.GPU.A10.1"}})
    assert len(found) == 4
