import json
from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.terraform_states import TerraformPool, read_cluster
from terraform_states_for_tests import (
    CLUSTER,
    CLUSTER_ID,
    CP_SUBNET,
    NETWORK_OPERATOR,
    RDMA,
    SYSTEM,
    USUAL,
    cluster_network,
    node_pool,
    shown,
    state,
)


def written(folder: Path, document: Any) -> Path:
    file = folder / "terraform.tfstate"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


@pytest.mark.parametrize("document", [state(), shown()], ids=["tfstate", "show"])
def test_a_cluster_is_read_from_terraforms_state_file_or_terraform_show(tmp_path: Path, document: dict[str, Any]):
    made = read_cluster(written(tmp_path, document))
    assert (made.identifier, made.kubernetes_version) == (CLUSTER_ID, "v1.34.2")
    assert made.control_plane_cidrs == ("10.140.0.0/29",)
    assert made.has_virtual_functions
    assert made.pools == (TerraformPool("oke-rdma", "BM.GPU.MI300X.8", 2),)
    assert made.others == ("oke-system (3 x VM.Standard.E5.Flex)",)


def test_a_cluster_networks_shape_is_read_from_its_instance_configuration(tmp_path: Path):
    rows = [CLUSTER, *cluster_network("oke-rdma", "BM.GPU.MI300X.8", 4)]
    made = read_cluster(written(tmp_path, state(rows)))
    assert made.pool() == TerraformPool("oke-rdma", "BM.GPU.MI300X.8", 4)
    assert made.control_plane_cidrs == ()
    assert not made.has_virtual_functions


def test_the_largest_gpu_pool_is_chosen_unless_one_is_named_or_no_shape_is_known(tmp_path: Path):
    made = read_cluster(written(tmp_path, state([*USUAL, node_pool("oke-gpu", "BM.GPU.MI300X.8", 5)])))
    assert made.pool().name == "oke-gpu"
    assert made.pool("oke-rdma").size == 2
    with pytest.raises(KitError, match="no pool oke-system of GPU nodes") as refusal:
        made.pool("oke-system")
    assert "oke-rdma (2 x BM.GPU.MI300X.8)" in (refusal.value.remedy or "")
    made = read_cluster(written(tmp_path, state([CLUSTER, SYSTEM, node_pool("oke-gpu", "BM.GPU.H100.8", 2)])))
    with pytest.raises(KitError, match="no pool of GPU nodes whose shape the kit knows") as refusal:
        made.pool()
    assert "oke-gpu (2 x BM.GPU.H100.8)" in (refusal.value.remedy or "")


@pytest.mark.parametrize(
    "document",
    ["", "no JSON", "[]", "{}", {"version": 3, "deployment": {}}, {"format_version": "1.0", "values": {}}],
)
def test_a_file_that_is_no_terraform_state_is_refused(tmp_path: Path, document: Any):
    with pytest.raises(KitError, match=r"is no (whole )?state of Terraform"):
        read_cluster(written(tmp_path, document))


def test_a_truncated_terraform_state_is_refused(tmp_path: Path):
    text = json.dumps(state())
    for length in range(0, len(text) - 1, 97):
        with pytest.raises(KitError, match="is no state of Terraform"):
            read_cluster(written(tmp_path, text[:length]))


def test_a_terraform_state_of_another_format_module_or_without_a_cluster_is_refused(tmp_path: Path):
    with pytest.raises(KitError, match="has no OKE cluster"):
        read_cluster(written(tmp_path, state([CP_SUBNET, NETWORK_OPERATOR])))
    with pytest.raises(KitError, match="has version 3 of the format"):
        read_cluster(written(tmp_path, state(version=3)))
    other = ("module.mine", *CLUSTER[1:])
    with pytest.raises(KitError, match="not one cluster of the module `oke`") as refusal:
        read_cluster(written(tmp_path, state([other, RDMA])))
    assert f"llmd-oke init --cluster existing --cluster-id {CLUSTER_ID}" in (refusal.value.remedy or "")
