"""Code that servers compile as they start, kept in a folder of their node: the program, its container and volumes."""

from typing import Any

from llmd_oke.catalogue import Release
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.serving import model_cache as facts
from llmd_oke.serving import bench_program
from llmd_oke.serving.args import ModelCacheMountArgs

FOLDER = "/compiled"
"""Where the folder of servers of one kind is in their pods, and the folder of all kinds in the one that makes it."""

VOLUME = "compiled-code"
PROGRAM = "compiled_code"
"""Package of `llmd_pods` that makes the folders and starts servers with them."""

PROGRAM_VOLUME = "compiled-code-program"
PROGRAM_FOLDER = "/opt/llmd-oke/compiled_code"


def is_kept(release: Release, place: ModelCacheMountArgs) -> bool:
    """Tell whether a server keeps the code that it compiles: its stack has a folder, and its vLLM finds the code."""
    return bool(release.vllm.compiled_code and place.get("compiled_path"))


def command(release: Release, port: int, startup_budget_s: int, own: list[str]) -> list[str]:
    """Return the command by which a server keeps what it compiles: the program, then the server's `own` command."""
    links = [f"--link={path}" for path in release.vllm.compiled_code.values()]
    health = [f"--health=http://127.0.0.1:{port}/health", f"--limit-s={startup_budget_s}"]
    return ["python3", "-IB", f"{PROGRAM_FOLDER}/start.py", f"--folder={FOLDER}", *links, *health, "--", *own]


def mounts(key: str) -> list[dict[str, Any]]:
    """Return the mounts of a server's container; `key` names the folder of its kind."""
    return [{"name": VOLUME, "mountPath": FOLDER, "subPath": key}, _program_mount()]


def volumes(place: ModelCacheMountArgs) -> list[dict[str, Any]]:
    """Return the volumes of a server's pod: the stack's folder on the node, and the program."""
    folder = {"path": place.get("compiled_path"), "type": "DirectoryOrCreate"}
    return [{"name": VOLUME, "hostPath": folder}, bench_program.files_volume(PROGRAM, PROGRAM_VOLUME)]


def container(key: str, user: int) -> dict[str, Any]:
    """Return the container that makes the folder for servers of one kind and removes old ones.

    Root, because the folder above is root's, and able to change owners: folders belong to the user that servers run as.
    It asks nobody and has no secret.
    """
    bounds = facts().compiled_code
    capabilities = {"drop": ["ALL"], "add": ["CHOWN"]}
    return {
        "name": "compiled-code",
        "image": job_images().python.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-IB", f"{PROGRAM_FOLDER}/folders.py"],
        "args": [
            f"--root={FOLDER}",
            f"--key={key}",
            f"--user={user}",
            f"--unused-days={bounds.unused_days}",
            f"--most={bounds.most_folders}",
        ],
        "resources": {"requests": bounds.requests.model_dump(), "limits": {"memory": bounds.requests.memory}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {**bench_program.CONTAINER_SECURITY, "capabilities": capabilities, "runAsUser": 0},
        "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER}, _program_mount()],
    }


def _program_mount() -> dict[str, Any]:
    return {"name": PROGRAM_VOLUME, "mountPath": PROGRAM_FOLDER, "readOnly": True}
