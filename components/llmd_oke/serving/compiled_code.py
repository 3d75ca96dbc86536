"""Directory on a node for code that servers compile at their start: the program that manages it, its container and
volumes.
"""

from llmd_oke.catalogue import Release
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.serving import model_cache as facts
from llmd_oke.kubernetes_types import Container, Volume, VolumeMount
from llmd_oke.serving import bench_program
from llmd_oke.serving.args import ModelCacheMountArgs

FOLDER = "/compiled"
"""Mount path of the directory for compiled code: servers mount the subdirectory of their own key there, the container
that creates the subdirectories mounts their parent directory.
"""

VOLUME = "compiled-code"
PROGRAM = "compiled_code"
"""Package of `llmd_pods` that creates the directories and starts servers with links to them."""

PROGRAM_VOLUME = "compiled-code-program"
PROGRAM_FOLDER = "/opt/llmd-oke/compiled_code"


def command(release: Release, port: int, startup_budget_s: int, own: list[str]) -> list[str]:
    """Return the command of a server whose compiled code is stored: the program, then `own`, the command of vLLM."""
    links = [f"--link={path}" for path in release.vllm.compiled_code.values()]
    health = [f"--health=http://127.0.0.1:{port}/health", f"--limit-s={startup_budget_s}"]
    return ["python3", "-IB", f"{PROGRAM_FOLDER}/start.py", f"--folder={FOLDER}", *links, *health, "--", *own]


def mounts(key: str) -> list[VolumeMount]:
    """Return the volume mounts for compiled code of a server's container; `key` is the name of the server's
    subdirectory (`vllm.compiled_key`).
    """
    return [{"name": VOLUME, "mountPath": FOLDER, "subPath": key}, _program_mount()]


def volumes(place: ModelCacheMountArgs) -> list[Volume]:
    """Return the volumes of a server's pod for compiled code: the stack's directory on the node, and the ConfigMap of
    the program that manages it.
    """
    folder: Volume = {
        "name": VOLUME,
        "hostPath": {"path": place.get("compiled_path") or "", "type": "DirectoryOrCreate"},
    }
    return [folder, bench_program.files_volume(PROGRAM, PROGRAM_VOLUME)]


def container(key: str, user: int) -> Container:
    """Return the container that creates the subdirectory `key` and removes old ones.

    It runs as root with the capability CHOWN: root owns the parent directory, and the subdirectory must belong to
    `user`, whose ID servers run as. It makes no connections and reads no secrets.
    """
    bounds = facts().compiled_code
    return bench_program.container(
        name="compiled-code",
        image=job_images().python.pinned,
        command=["python", "-IB", f"{PROGRAM_FOLDER}/folders.py"],
        args=[
            f"--root={FOLDER}",
            f"--key={key}",
            f"--user={user}",
            f"--unused-days={bounds.unused_days}",
            f"--most={bounds.most_folders}",
        ],
        resources={"requests": bounds.requests.model_dump(), "limits": {"memory": bounds.requests.memory}},
        securityContext=bench_program.root_with("CHOWN"),
        volumeMounts=[{"name": VOLUME, "mountPath": FOLDER}, _program_mount()],
    )


def _program_mount() -> VolumeMount:
    return {"name": PROGRAM_VOLUME, "mountPath": PROGRAM_FOLDER, "readOnly": True}
