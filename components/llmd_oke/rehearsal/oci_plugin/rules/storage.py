"""File systems, what serves them, and the Bastion service, which all sit in subnets."""

from collections.abc import Callable, Mapping
from typing import Final

from llmd_oke.rehearsal.oci_plugin.errors import ServiceError, invalid
from llmd_oke.rehearsal.oci_plugin.rules.network import network
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene

LUSTRE_LEAST_GB: Final = 31_200
"""OCI documentation, File Storage with Lustre: 31.2 TB."""


def _file_system(scene: Scene) -> None:
    scene.need_domain(scene.given["availabilityDomain"])


def _mount_target(scene: Scene) -> None:
    scene.need_domain(scene.given["availabilityDomain"])
    subnet = scene.need_subnet(scene.given["subnetId"])
    scene.need_groups(scene.given.get("nsgIds"), subnet.state["vcnId"] if subnet else None)


def _export(scene: Scene) -> None:
    given = scene.given
    scene.need(given["fileSystemId"], "FileSystem")
    if not given["path"].startswith("/"):
        raise invalid(f"Invalid path: {given['path']}, must begin with /")
    for other in scene.others():
        if (other.state["exportSetId"], other.state["path"]) == (given["exportSetId"], given["path"]):
            raise ServiceError(409, "Conflict", f"Another export with path {given['path']} exists in the export set")


def _lustre(scene: Scene) -> None:
    given = scene.given
    scene.need_domain(given["availabilityDomain"])
    subnet = scene.need_subnet(given["subnetId"])
    scene.need_groups(given.get("nsgIds"), subnet.state["vcnId"] if subnet else None)
    if given["capacityInGbs"] < LUSTRE_LEAST_GB:
        raise invalid(f"capacityInGbs must be at least {LUSTRE_LEAST_GB}")


def _bastion(scene: Scene) -> None:
    scene.need_subnet(scene.given["targetSubnetId"])
    for text in scene.given.get("clientCidrBlockAllowLists") or ():
        network(text)


RULES: Final[Mapping[str, Callable[[Scene], None]]] = {
    "FileSystem": _file_system,
    "MountTarget": _mount_target,
    "Export": _export,
    "FileStorageLustreFileSystem": _lustre,
    "Bastion": _bastion,
}
