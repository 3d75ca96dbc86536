"""Component for the file system with model weights that all nodes mount: File Storage, or File Storage with Lustre."""

from typing import NotRequired

import pulumi
import pulumi_oci as oci
from llmd_base.errors import KitError

from llmd_oke.cluster.provider import TagArgs, tag_args
from llmd_oke.objects import given, inputs, outputs

CREATE_TIMEOUT = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")
"""Pulumi's timeouts for a Lustre file system, whose creation takes 30 minutes or more."""


class StorageArgs(TagArgs):
    """Arguments of a shared file system."""

    kind: str
    """Kind of the file system: `file-storage` or `lustre`."""
    existing_volume_handle: NotRequired[pulumi.Input[str] | None]
    """CSI volume handle of an existing file system; if given, nothing is created."""
    compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment in which the file system is created."""
    availability_domain: NotRequired[pulumi.Input[str] | None]
    """Availability domain in which the file system is created: that of the GPU nodes."""
    subnet_id: NotRequired[pulumi.Input[str] | None]
    """Subnet of the mount target (File Storage) or of the servers (Lustre)."""
    nsg_ids: NotRequired[list[pulumi.Input[str]] | None]
    """Network security groups of the mount target (File Storage) or of the servers (Lustre)."""
    client_cidr: NotRequired[pulumi.Input[str] | None]
    """CIDR of the nodes, the only clients that may mount a File Storage file system."""
    export_path: NotRequired[str | None]
    """Path of the export of File Storage; `/models` if left out."""
    capacity_gb: NotRequired[int | None]
    """Size of a Lustre file system in GB; 31200 if left out."""
    performance_tier: NotRequired[str | None]
    """Performance tier of a Lustre file system, its throughput per TB; `MBPS_PER_TB_125` if left out."""
    file_system_name: NotRequired[str | None]
    """Name by which clients mount a Lustre file system, at most eight characters; `models` if left out."""


class Storage(pulumi.ComponentResource):
    """A file system for the weights of models, mounted by all nodes.

    Weights can be downloaded again, so no resource is protected; but another availability domain replaces the file
    system, and the new one is empty.
    """

    volume_handle: pulumi.Output[str]
    """CSI volume handle of the file system: the `volume_handle` of `ModelCache`."""
    file_system_id: pulumi.Output[str]
    """OCID of the file system; empty if the file system existed already."""

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Storage", name, inputs(self, args), opts)
        self.file_system_id = pulumi.Output.from_input("")
        handle = args.get("existing_volume_handle")
        if handle is not None:
            self.volume_handle = pulumi.Output.from_input(handle)
        elif args["kind"] == "file-storage":
            self.volume_handle = self._file_storage(name, args)
        elif args["kind"] == "lustre":
            self.volume_handle = self._lustre(name, args)
        else:
            raise KitError(f"{args['kind']!r} is no kind of shared file system.", "Known: file-storage, lustre.")
        self.register_outputs(outputs(self))

    def _file_storage(self, name: str, args: StorageArgs) -> pulumi.Output[str]:
        """Declare a file system, its mount target and its export; return the CSI volume handle.

        Only the nodes may mount the export, from privileged source ports: with flannel, pods have the nodes' source
        addresses. Every user id is squashed to 0, the owner of a new file system's root directory, so that processes
        of any user can write (OCI documentation, Provisioning PVCs on the File Storage Service, Insufficient
        Permissions: squash all to the owner's or root's ids). Squashed to another id, no process could write: fsGroup
        doesn't apply to ReadWriteMany volumes, and root is squashed too. Pods decide who may write: servers mount the
        volume read-only, and mounts ignore set-user-id bits.
        """
        _require(args, "compartment_id", "availability_domain", "subnet_id", "client_cidr")
        child = pulumi.ResourceOptions(parent=self)
        place = {**given(args, "compartment_id", "availability_domain"), **tag_args(args)}
        file_system = oci.filestorage.FileSystem(f"{name}-file-system", display_name=name, **place, opts=child)
        target = oci.filestorage.MountTarget(
            f"{name}-mount-target",
            display_name=name,
            nsg_ids=args.get("nsg_ids") or [],
            **given(args, "subnet_id"),
            **place,
            opts=child,
        )
        export = oci.filestorage.Export(
            f"{name}-export",
            export_set_id=target.export_set_id,
            file_system_id=file_system.id,
            path=args.get("export_path") or "/models",
            export_options=[
                {
                    "source": args.get("client_cidr") or "",
                    "access": "READ_WRITE",
                    "identity_squash": "ALL",
                    "anonymous_uid": "0",
                    "anonymous_gid": "0",
                    "require_privileged_source_port": True,
                }
            ],
            opts=child,
        )
        self.file_system_id = file_system.id
        return pulumi.Output.concat(file_system.id, ":", target.ip_address, ":", export.path)

    def _lustre(self, name: str, args: StorageArgs) -> pulumi.Output[str]:
        """Declare a Lustre file system; return the CSI volume handle.

        Root isn't squashed: Lustre squashes no user but root, and then no user could change the owner of the root
        directory.
        """
        _require(args, "compartment_id", "availability_domain", "subnet_id")
        file_system = oci.lustre.FileStorageLustreFileSystem(
            f"{name}-file-system",
            **given(args, "compartment_id", "availability_domain", "subnet_id"),
            nsg_ids=args.get("nsg_ids") or [],
            display_name=name,
            file_system_name=args.get("file_system_name") or "models",
            capacity_in_gbs=args.get("capacity_gb") or 31_200,
            performance_tier=args.get("performance_tier") or "MBPS_PER_TB_125",
            root_squash_configuration={"identity_squash": "NONE"},
            **tag_args(args),
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=CREATE_TIMEOUT),
        )
        self.file_system_id = file_system.id
        address, lustre_name = file_system.management_service_address, file_system.file_system_name
        return pulumi.Output.concat(address, "@tcp:/", lustre_name)


def _require(args: StorageArgs, *keys: str) -> None:
    """Require the arguments that the creation of a file system needs.

    Raises:
        KitError: an argument of `keys` is left out.
    """
    if missing := [key for key in keys if args.get(key) is None]:
        names = ", ".join(missing)
        raise KitError(
            f"A file system can't be created without {names}.", "Pass these arguments, or existing_volume_handle."
        )
