"""A file system that all nodes share, for the weights of models: File Storage, or File Storage with Lustre."""

from typing import NotRequired

import pulumi
import pulumi_oci as oci
from llmd_base.errors import KitError

from llmd_oke.cluster.provider import TagArgs, tag_args
from llmd_oke.objects import given, inputs, outputs

CREATE_TIMEOUT = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")
"""A Lustre file system takes half an hour and more."""


class StorageArgs(TagArgs):
    """Arguments of a shared file system."""

    kind: str
    """`file-storage` or `lustre`."""
    existing_volume_handle: NotRequired[pulumi.Input[str] | None]
    """What the storage driver knows a file system by that is there already; then nothing is created."""
    compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment to create it in."""
    availability_domain: NotRequired[pulumi.Input[str] | None]
    """Availability domain to create it in, that of the GPU nodes."""
    subnet_id: NotRequired[pulumi.Input[str] | None]
    """Subnet of its mount target or servers."""
    nsg_ids: NotRequired[list[pulumi.Input[str]] | None]
    """Network security groups of its mount target or servers."""
    client_cidr: NotRequired[pulumi.Input[str] | None]
    """Addresses of the nodes, which alone may mount File Storage."""
    export_path: NotRequired[str | None]
    """Path of the export of File Storage; `/models` if left out."""
    capacity_gb: NotRequired[int | None]
    """Size of a Lustre file system in GB; 31200 if left out."""
    performance_tier: NotRequired[str | None]
    """Throughput of a Lustre file system; `MBPS_PER_TB_125` if left out."""
    file_system_name: NotRequired[str | None]
    """Lustre name of a Lustre file system, at most eight characters; `models` if left out."""


class Storage(pulumi.ComponentResource):
    """A file system for the weights of models, mounted by all nodes.

    Weights can be had again, so nothing of it is protected; but a change of its place replaces and so empties it.
    """

    volume_handle: pulumi.Output[str]
    """What the storage driver knows it by: the `volume_handle` of `ModelCache`."""
    file_system_id: pulumi.Output[str]
    """OCID of the file system; empty for one that was there already."""

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
        """Nodes alone mount it, from ports that only root may take: with flannel, pods come with addresses of nodes.

        Every user is mapped to the owner of a new file system's root folder, so that nobody has to be root to write to
        it, and no identity of a node counts (OCI documentation, Provisioning PVCs on the File Storage Service,
        Insufficient Permissions: squash all to the owner's or root's ids). Mapped to another user, nobody could write:
        fsGroup doesn't reach volumes of many nodes, and root is mapped too. Who may write is up to the pods: servers
        mount the volume read-only, and mounts ignore set-user-id bits.
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
        """Root stays root: Lustre maps root alone, which would leave nobody to give the root folder away."""
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
    """Require what creating a file system takes.

    Raises:
        KitError: something of it is left out.
    """
    if missing := [key for key in keys if args.get(key) is None]:
        raise KitError(f"A file system can't be created without {', '.join(missing)}.", "Or give an existing one.")
