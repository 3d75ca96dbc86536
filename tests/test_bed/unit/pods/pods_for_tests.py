"""Pods and sources for the tests of the pod runner's pure parts."""

from collections.abc import Mapping
from typing import Any, cast

from lightkube.resources.core_v1 import Pod
from llmd_rehearsal.pods.environment import PodFacts

FACTS = PodFacts("10.244.3.7", "10.244.0.12", "gpu-2", {"cpu": "112", "memory": "2048Gi"})


def make_pod(containers: list[dict[str, Any]] | None = None, **spec: object) -> Pod:
    body = {
        "metadata": {
            "name": "decode-0",
            "namespace": "serving",
            "uid": "0d6c1f7a-1111-2222-3333-444455556666",
            "labels": {"app": "decode", "llm-d.ai/role": "decode"},
            "annotations": {"note": 'two\n"lines"'},
            "generation": 3,
        },
        "spec": {"nodeName": "gpu-2", "containers": containers or [{"name": "vllm", "image": "x"}], **spec},
    }
    return cast("Pod", Pod.from_dict(body))


class FixedSources:
    """ConfigMaps and Secrets of namespace `serving`."""

    def __init__(
        self,
        config_maps: Mapping[str, dict[str, bytes]] | None = None,
        secrets: Mapping[str, dict[str, bytes]] | None = None,
    ) -> None:
        self._config_maps = config_maps or {}
        self._secrets = secrets or {}

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return self._config_maps.get(name) if namespace == "serving" else None

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return self._secrets.get(name) if namespace == "serving" else None
