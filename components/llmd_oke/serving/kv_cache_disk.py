"""KV cache in files on a node's disks: the directory of each kind of servers, and the container that limits the files
of all of them.
"""

from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.kv_connectors import KV_CACHE_FOLDER
from llmd_oke.catalogue.serving import model_cache as facts
from llmd_oke.kubernetes_types import Container, Volume, VolumeMount
from llmd_oke.serving import bench_program

VOLUME = "kv-cache"
PROGRAM = "kv_cache_disk"
"""Package of `llmd_pods` that creates the directories, limits their files and starts servers."""

PROGRAM_VOLUME = "kv-cache-program"
PROGRAM_FOLDER = "/opt/llmd-oke/kv_cache_disk"


def command(own: list[str]) -> list[str]:
    """Return the command of a server: the program that removes what a killed server left in `/dev/shm`, then `own`."""
    return ["python3", "-IB", f"{PROGRAM_FOLDER}/serve.py", "--", *own]


def mounts(model: str, key: str) -> list[VolumeMount]:
    """Return the volume mounts of a server's container: its own directory, named `key` (`vllm.kv_cache_key`) in that of
    its model, and the program.
    """
    return [{"name": VOLUME, "mountPath": KV_CACHE_FOLDER, "subPath": f"{model}/{key}"}, _program_mount()]


def volumes(folder: str) -> list[Volume]:
    """Return the volumes of a server's pod: the stack's directory `folder` on the node, and the ConfigMap of the
    program.
    """
    path: Volume = {"name": VOLUME, "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
    return [path, bench_program.files_volume(PROGRAM, PROGRAM_VOLUME)]


def containers(model: str, key: str, user: int, most_gib: int) -> list[Container]:
    """Return the container that creates the directory `key` of a model for the user ID `user`, as root with the
    capability CHOWN, and the native sidecar that deletes files of any user, as root with the capability DAC_OVERRIDE,
    while those of the model take more than `most_gib` GiB or the node's disks are nearly full. Neither makes
    connections or reads secrets.
    """
    create = ["create", f"--key={key}", f"--user={user}"]
    settings = facts().kv_cache_disk
    space = [f"--most-gib={most_gib}", f"--least-free-share={settings.least_free_share}"]
    limit = ["limit", *space, f"--period-s={settings.period_s}"]
    return [
        _container("kv-cache-folder", model, create, "CHOWN"),
        {**_container("kv-cache-limit", model, limit, "DAC_OVERRIDE"), "restartPolicy": "Always"},
    ]


def _container(name: str, model: str, words: list[str], capability: str) -> Container:
    settings = facts().kv_cache_disk
    return bench_program.container(
        name=name,
        image=job_images().python.pinned,
        command=["python", "-IB", f"{PROGRAM_FOLDER}/files.py"],
        args=[*words, f"--root={KV_CACHE_FOLDER}", f"--model={model}"],
        resources={"requests": settings.requests.model_dump(), "limits": {"memory": settings.memory_limit}},
        securityContext=bench_program.root_with(capability),
        volumeMounts=[{"name": VOLUME, "mountPath": KV_CACHE_FOLDER}, _program_mount()],
    )


def _program_mount() -> VolumeMount:
    return {"name": PROGRAM_VOLUME, "mountPath": PROGRAM_FOLDER, "readOnly": True}
