"""A file system that all nodes share, for the weights of models: File Storage, or File Storage with Lustre."""

from typing import NotRequired, TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.tags import stack_tags
from llmd_oke.errors import KitError

CREATE_TIMEOUT = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")
"""A Lustre file system takes half an hour and more."""


class StorageArgs(TypedDict):
    """What a shared file system needs."""

    kind: str
    """`file-storage` or `lustre`."""
    existing_volume_handle: NotRequired[pulumi.Input[str]]
    """What the storage driver knows a file system by that is there already; then nothing is created."""
    compartment_id: NotRequired[pulumi.Input[str]]
    """Compartment to create it in."""
    availability_domain: NotRequired[pulumi.Input[str]]
    """Availability domain to create it in, that of the GPU nodes."""
    subnet_id: NotRequired[pulumi.Input[str]]
    """Subnet of its mount target or servers."""
    nsg_ids: NotRequired[list[pulumi.Input[str]]]
    """Network security groups of its mount target or servers."""
    client_cidr: NotRequired[pulumi.Input[str]]
    """Addresses of the nodes, which alone may mount File Storage."""
    export_path: NotRequired[str]
    """Path of the export of File Storage; `/models` if left out."""
    capacity_gb: NotRequired[int]
    """Size of a Lustre file system in GB; 31200 if left out."""
    performance_tier: NotRequired[str]
    """Throughput of a Lustre file system; `MBPS_PER_TB_125` if left out."""
    file_system_name: NotRequired[str]
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
        super().__init__("llmd-oke:index:Storage", name, None, opts)
        self.file_system_id = pulumi.Output.from_input("")
        if "existing_volume_handle" in args:
            self.volume_handle = pulumi.Output.from_input(args["existing_volume_handle"])
        elif args["kind"] == "file-storage":
            self.volume_handle = self._file_storage(name, args)
        elif args["kind"] == "lustre":
            self.volume_handle = self._lustre(name, args)
        else:
            raise KitError(f"{args['kind']!r} is no kind of shared file system.", "Known: file-storage, lustre.")
        self.register_outputs({"volume_handle": self.volume_handle, "file_system_id": self.file_system_id})

    def _file_storage(self, name: str, args: StorageArgs) -> pulumi.Output[str]:
        place = _Place(args, "client_cidr")
        child = pulumi.ResourceOptions(parent=self)
        file_system = oci.filestorage.FileSystem(
            f"{name}-file-system",
            compartment_id=place.compartment_id,
            availability_domain=place.availability_domain,
            display_name=name,
            freeform_tags=stack_tags(),
            opts=child,
        )
        target = oci.filestorage.MountTarget(
            f"{name}-mount-target",
            compartment_id=place.compartment_id,
            availability_domain=place.availability_domain,
            subnet_id=place.subnet_id,
            nsg_ids=args.get("nsg_ids", []),
            display_name=name,
            freeform_tags=stack_tags(),
            opts=child,
        )
        self.file_system_id = file_system.id
        path = self._export(name, args, file_system.id, target.export_set_id)
        return pulumi.Output.concat(file_system.id, ":", target.ip_address, ":", path)

    def _export(
        self, name: str, args: StorageArgs, file_system_id: pulumi.Output[str], export_set_id: pulumi.Output[str]
    ) -> pulumi.Output[str]:
        """Nodes alone mount it, from ports that only root may take: with flannel, pods come with addresses of nodes.

        Every user is mapped to the owner of a new file system's root folder, so that nobody has to be root to write to
        it, and no identity of a node counts (OCI documentation, Provisioning PVCs on the File Storage Service,
        Insufficient Permissions: squash all to the owner's or root's ids). Mapped to another user, nobody could write:
        fsGroup doesn't reach volumes of many nodes, and root is mapped too. Who may write is up to the pods: servers
        mount the volume read-only, and mounts ignore set-user-id bits.
        """
        option = oci.filestorage.ExportExportOptionArgs(
            source=args.get("client_cidr", ""),
            access="READ_WRITE",
            identity_squash="ALL",
            anonymous_uid="0",
            anonymous_gid="0",
            require_privileged_source_port=True,
        )
        export = oci.filestorage.Export(
            f"{name}-export",
            export_set_id=export_set_id,
            file_system_id=file_system_id,
            path=args.get("export_path", "/models"),
            export_options=[option],
            opts=pulumi.ResourceOptions(parent=self),
        )
        return export.path

    def _lustre(self, name: str, args: StorageArgs) -> pulumi.Output[str]:
        """Root stays root: Lustre maps root alone, which would leave nobody to give the root folder away."""
        place = _Place(args)
        squash = oci.lustre.FileStorageLustreFileSystemRootSquashConfigurationArgs(identity_squash="NONE")
        file_system = oci.lustre.FileStorageLustreFileSystem(
            f"{name}-file-system",
            compartment_id=place.compartment_id,
            availability_domain=place.availability_domain,
            subnet_id=place.subnet_id,
            nsg_ids=args.get("nsg_ids", []),
            display_name=name,
            file_system_name=args.get("file_system_name", "models"),
            capacity_in_gbs=args.get("capacity_gb", 31_200),
            performance_tier=args.get("performance_tier", "MBPS_PER_TB_125"),
            root_squash_configuration=squash,
            freeform_tags=stack_tags(),
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=CREATE_TIMEOUT),
        )
        self.file_system_id = file_system.id
        address, lustre_name = file_system.management_service_address, file_system.file_system_name
        return pulumi.Output.concat(address, "@tcp:/", lustre_name)


class _Place:
    """Where a file system is created.

    Raises:
        KitError: something of it is left out.
    """

    def __init__(self, args: StorageArgs, *more: str) -> None:
        needed = ("compartment_id", "availability_domain", "subnet_id", *more)
        if missing := [key for key in needed if key not in args]:
            raise KitError(f"A file system can't be created without {', '.join(missing)}.", "Or give an existing one.")
        self.compartment_id = args.get("compartment_id", "")
        self.availability_domain = args.get("availability_domain", "")
        self.subnet_id = args.get("subnet_id", "")
