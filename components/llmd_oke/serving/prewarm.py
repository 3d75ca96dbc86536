"""The containers that have a model complete in the cache: in Jobs, and before vLLM in each pod."""

import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from llmd_oke.catalogue import Model
from llmd_oke.catalogue.bench_jobs import bench_jobs
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.models import Vocabulary
from llmd_oke.catalogue.storage import model_cache
from llmd_oke.objects import PART_OF, Manifest
from llmd_oke.prewarm import owner
from llmd_oke.serving import bench_program
from llmd_oke.serving.cache_args import ModelCacheMountArgs, PrewarmArgs
from llmd_oke.serving.vllm import CACHE_FOLDER, hugging_face_token, pinned_revision

PROGRAM_VOLUME = "prewarm-program"
PROGRAM_FOLDER = "/opt/llmd-oke"

SOURCE_SECRET = "model-source"  # noqa: S105 - the name of a Secret
SOURCE_SECRET_KEY = "url"  # noqa: S105 - a key's name


@cache
def program() -> dict[str, str]:
    """The files of the pre-warm program by name."""
    folder = resources.files("llmd_oke") / "prewarm"
    return {file.name: file.read_text() for file in sorted(folder.iterdir(), key=str) if file.name.endswith(".py")}


def program_name() -> str:
    """The name of the program's ConfigMap. It says the content, so that another program restarts what runs it."""
    return f"prewarm-{hashlib.sha256(repr(program()).encode()).hexdigest()[:10]}"


def program_config_map(namespace: Any) -> Manifest:
    """The ConfigMap that pods run the program from."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": program_name(), "namespace": namespace, "labels": PART_OF},
        "data": program(),
    }


def containers(model: Model, cache: ModelCacheMountArgs) -> list[dict[str, Any]]:
    """The containers in their order; the last one fills the cache. They end at once where the model is complete."""
    prewarm = cache.get("prewarm", PrewarmArgs(source="hugging-face"))
    first = [_gives_folder()] if prewarm.get("belongs_to_root") else []
    return [*first, _fills(model, cache, prewarm)]


def _gives_folder() -> dict[str, Any]:
    """Root, because the folder is root's, and able to change owners; it asks nobody and has no secret."""
    user = bench_jobs().user_id
    capabilities = {"drop": ["ALL"], "add": ["CHOWN"]}
    return {
        **_python("prewarm-owner", "prewarm.owner"),
        "args": [f"--cache={CACHE_FOLDER}", f"--user={user}"],
        "securityContext": {**bench_program.CONTAINER_SECURITY, "capabilities": capabilities, "runAsUser": 0},
    }


def _fills(model: Model, cache: ModelCacheMountArgs, prewarm: PrewarmArgs) -> dict[str, Any]:
    user = {"runAsNonRoot": True, "runAsUser": bench_jobs().user_id, "runAsGroup": owner.GROUP}
    return {
        **_python("prewarm", "prewarm"),
        "args": [
            f"--cache={CACHE_FOLDER}",
            f"--repository={model.repository}",
            f"--revision={pinned_revision(model, cache) or 'main'}",
            f"--source={prewarm['source']}",
            f"--connections={prewarm.get('connections', 8)}",
            *([f"--vocabulary={_vocabulary(model.vocabulary)}"] if model.vocabulary else []),
        ],
        "env": [_source_url() if prewarm["source"] == "object-storage" else hugging_face_token()],
        "securityContext": {**bench_program.CONTAINER_SECURITY, **user},
    }


def _python(name: str, module: str) -> dict[str, Any]:
    """A container that runs a module of the program on the cache."""
    requests = model_cache().requests
    return {
        "name": name,
        "image": job_images().python.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-B", "-m", module],
        "workingDir": PROGRAM_FOLDER,
        "resources": {"requests": requests.model_dump(), "limits": {"memory": requests.memory}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "model-cache", "mountPath": CACHE_FOLDER},
            {"name": PROGRAM_VOLUME, "mountPath": f"{PROGRAM_FOLDER}/prewarm", "readOnly": True},
        ],
    }


def _vocabulary(vocabulary: Vocabulary) -> str:
    return json.dumps(vocabulary.model_dump(include={"file", "url", "sha256", "bytes"}))


def _source_url() -> dict[str, Any]:
    return {
        "name": "MODEL_SOURCE_URL",
        "valueFrom": {"secretKeyRef": {"name": SOURCE_SECRET, "key": SOURCE_SECRET_KEY}},
    }


def program_volume() -> dict[str, Any]:
    """The volume that the program is in."""
    return {"name": PROGRAM_VOLUME, "configMap": {"name": program_name()}}
