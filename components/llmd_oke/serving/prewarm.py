"""The container that has a model complete in the cache: in Jobs, and before vLLM in each pod."""

import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from llmd_oke.catalogue import Model
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.models import Vocabulary
from llmd_oke.catalogue.storage import model_cache
from llmd_oke.objects import PART_OF, Manifest
from llmd_oke.serving.cache_args import PrewarmArgs
from llmd_oke.serving.vllm import CACHE_FOLDER, hugging_face_token

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


def container(model: Model, prewarm: PrewarmArgs) -> dict[str, Any]:
    """The container. It ends at once where the model is complete already."""
    facts = model_cache()
    return {
        "name": "prewarm",
        "image": job_images().python.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-B", "-m", "prewarm"],
        "args": [
            f"--cache={CACHE_FOLDER}",
            f"--repository={model.repository}",
            f"--revision={prewarm.get('revision', 'main')}",
            f"--source={prewarm['source']}",
            f"--connections={prewarm.get('connections', 8)}",
            *([f"--vocabulary={_vocabulary(model.vocabulary)}"] if model.vocabulary else []),
        ],
        "workingDir": PROGRAM_FOLDER,
        "env": [_source_url() if prewarm["source"] == "object-storage" else hugging_face_token()],
        "resources": {"requests": facts.requests.model_dump(), "limits": {"memory": facts.requests.memory}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
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
