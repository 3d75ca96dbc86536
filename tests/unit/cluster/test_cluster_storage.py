"""The shared file system: what is created, and what it is known by."""

from typing import Any, cast

import pulumi
import pytest
from llmd_base.errors import KitError
from llmd_oke.cluster.storage import Storage, StorageArgs
from llmd_oke.testing import ClusterMocks, Rendered, declared

PLACE: Any = {"compartment_id": "ocid1.compartment.oc1..c", "availability_domain": "x:AD-1", "subnet_id": "s"}

COMPUTED = {
    "oci:FileStorage/mountTarget:MountTarget": {"ipAddress": "10.0.0.9", "exportSetId": "set"},
    "oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem": {"managementServiceAddress": "10.0.0.8"},
}


class Oci(ClusterMocks):
    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        return f"ocid1.{args.name}", {**cast("dict[str, Any]", args.inputs), **COMPUTED.get(args.typ, {})}


def storage(**args: Any) -> Rendered:
    def program() -> None:
        made = Storage("models", cast("StorageArgs", args))
        pulumi.export("handle", made.volume_handle)

    return declared(program, cluster=Oci())


def test_a_file_storage_volume_has_a_file_system_mount_target_and_export():
    made = storage(kind="file-storage", **PLACE, nsg_ids=["nsg"], client_cidr="10.0.0.0/16")
    target = made.resource("oci:FileStorage/mountTarget:MountTarget", "models-mount-target").inputs
    export = made.resource("oci:FileStorage/export:Export", "models-export").inputs
    assert (target["subnetId"], target["nsgIds"], target["availabilityDomain"]) == ("s", ["nsg"], "x:AD-1")
    assert (export["path"], export["exportSetId"]) == ("/models", "set")
    (option,) = export["exportOptions"]
    assert (option["source"], option["access"], option["identitySquash"]) == ("10.0.0.0/16", "READ_WRITE", "ALL")
    assert (option["anonymousUid"], option["anonymousGid"]) == ("0", "0")
    assert option["requirePrivilegedSourcePort"] is True
    assert made.outputs["handle"] == "ocid1.models-file-system:10.0.0.9:/models"


def test_lustre_has_the_requested_capacity_performance_tier_and_create_timeout():
    made = storage(kind="lustre", **PLACE, capacity_gb=41600, performance_tier="MBPS_PER_TB_250")
    (system,) = made.of_type("oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem")
    assert (system.inputs["capacityInGbs"], system.inputs["performanceTier"]) == (41600, "MBPS_PER_TB_250")
    assert system.inputs["rootSquashConfiguration"] == {"identitySquash": "NONE"}
    assert system.timeouts["create"] == "60m"
    assert made.outputs["handle"] == "10.0.0.8@tcp:/models"


def test_an_existing_file_system_is_used_without_creating_oci_resources():
    made = storage(kind="lustre", existing_volume_handle="10.0.0.7@tcp:/old")
    assert [resource.type for resource in made.resources] == ["llmd-oke:index:Storage"]
    assert made.outputs["handle"] == "10.0.0.7@tcp:/old"


def test_missing_arguments_of_a_file_system_are_named():
    with pytest.raises(KitError, match="without availability_domain, subnet_id, client_cidr"):
        storage(kind="file-storage", compartment_id="c")


def test_an_unknown_kind_of_file_system_is_refused():
    with pytest.raises(KitError, match="'tape' is no kind"):
        storage(kind="tape", **PLACE)
