"""Where the weights of models are kept, and how they get there before servers start."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmd_oke.config.base import Part

FOLDER = r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
ADDRESS = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"
LUSTRE_NAME = r"^[a-z0-9]{1,8}$"
COMMIT = r"^[0-9a-f]{40}$"

WORDS = {
    FOLDER: "an absolute path of letters, digits, dots, dashes and underscores, without a slash at its end",
    ADDRESS: "an IPv4 address",
    LUSTRE_NAME: "one to eight lower-case letters and digits",
    COMMIT: "a commit of 40 hexadecimal digits; branches and tags move",
}
"""The patterns in words."""

FolderPath = Annotated[str, StringConstraints(pattern=FOLDER, max_length=255)]
"""An absolute path without a slash at its end."""

Commit = Annotated[str, StringConstraints(pattern=COMMIT)]
"""A commit, whole."""

SMALLEST_LUSTRE_GB = 31_200
LustreTier = Literal["MBPS_PER_TB_125", "MBPS_PER_TB_250", "MBPS_PER_TB_500", "MBPS_PER_TB_1000"]


class NoModelCache(Part):
    """Every server downloads its weights into a folder of its own pod."""

    kind: Literal["none"]
    """`none`: no cache; weights are downloaded at each start of a server."""


class NodeDisk(Part):
    """A folder on each node's own disks, the fastest place for weights."""

    kind: Literal["node-disk"]
    """`node-disk`: the nodes' own NVMe disks."""

    path: FolderPath = "/mnt/nvme/models"
    """Folder on the nodes; it is made where it isn't there."""

    capacity_gib: Annotated[int, Field(ge=1)] | None = None
    """Room for weights on each node in GiB; half of the shape's NVMe disks (RAID 10) if left out."""


class ExistingFileSystem(Part):
    """A File Storage file system that is there already."""

    file_system_id: Annotated[str, StringConstraints(min_length=1)]
    """OCID of the file system."""

    mount_target_ip: Annotated[str, StringConstraints(pattern=ADDRESS)]
    """Address of its mount target."""

    export_path: FolderPath
    """Path of its export. User 65532 has to be able to write there: the export maps all users to the folder's owner
    (squash all), or the folder is that user's."""


class FileStorage(Part):
    """One OCI File Storage file system for all nodes. It grows by itself."""

    kind: Literal["file-storage"]
    """`file-storage`: OCI File Storage, over NFS."""

    existing: ExistingFileSystem | None = None
    """A file system that is there already; nothing is created then."""

    availability_domain: str | None = None
    """Availability domain of a file system to create, that of the GPU pools for example."""

    export_path: FolderPath = "/models"
    """Path of the export of a file system to create."""


class ExistingLustre(Part):
    """A Lustre file system that is there already."""

    management_ip: Annotated[str, StringConstraints(pattern=ADDRESS)]
    """Address of its management service."""

    file_system_name: Annotated[str, StringConstraints(pattern=LUSTRE_NAME)]
    """Its Lustre name."""


class Lustre(Part):
    """One OCI File Storage with Lustre file system for all nodes."""

    kind: Literal["lustre"]
    """`lustre`: OCI File Storage with Lustre."""

    existing: ExistingLustre | None = None
    """A file system that is there already; nothing is created then."""

    availability_domain: str | None = None
    """Availability domain of a file system to create."""

    capacity_gb: Annotated[int, Field(ge=SMALLEST_LUSTRE_GB)] = SMALLEST_LUSTRE_GB
    """Size of a file system to create, or of the existing one, in GB."""

    performance_tier: LustreTier = "MBPS_PER_TB_125"
    """Throughput of a file system to create in MB/s for each TB."""


ModelCache = Annotated[NoModelCache | NodeDisk | FileStorage | Lustre, Field(discriminator="kind")]


class Prewarm(Part):
    """Weights are put into the cache before servers start, and servers then read nothing else."""

    source: Literal["hugging-face", "object-storage", "none"] = "hugging-face"
    """`hugging-face`: the model's repository. `object-storage`: a bucket that the pre-authenticated request in the
    secret `llmd-oke:modelSourceUrl` may list and read, with the files of each model under the name of its repository.
    `none`: the first server downloads what it needs.
    """

    revisions: dict[str, Commit] = Field(default_factory=dict[str, str])
    """Commits of repositories by the models' keys in the catalogue, which has commits of its own for Hugging Face. For
    `object-storage` it is the one that pre-warming names as it ends, made of names, sizes and checksums. Without any it
    is what lies there at the time of the download, which may differ between nodes that were filled on different days.
    """

    connections: Annotated[int, Field(ge=1, le=64)] = 8
    """Files that one download reads at a time."""

    timeout_s: Annotated[int, Field(ge=60, le=86_400)] = 7200
    """Longest that filling the cache with one model may take in seconds."""


class Storage(Part):
    """What a stack stores beside what Kubernetes does."""

    model_cache: ModelCache = NoModelCache(kind="none")
    """Where weights are kept."""

    prewarm: Prewarm = Prewarm()
    """How weights get there. It has no meaning without a cache."""
