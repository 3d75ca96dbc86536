"""What the router's chart can't be told: labels, a restricted security context, and pods that follow their config."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmd_oke.objects import PART_OF, Manifest

CONFIG_ANNOTATION = "llmd-oke/config"

_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def completed(manifests: Sequence[Manifest], pod_labels: Mapping[str, str]) -> list[Manifest]:
    """The chart's objects with the kit's labels; pods are restricted and roll when a ConfigMap of theirs changes."""
    config = config_hash(manifests)
    return [_complete(manifest, pod_labels, config) for manifest in manifests]


def config_hash(manifests: Iterable[Manifest]) -> str:
    """A short name of the content of all ConfigMaps: the endpoint picker and Envoy read theirs only when they start."""
    data = [[m["metadata"]["name"], m.get("data")] for m in manifests if m["kind"] == "ConfigMap"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]


def _complete(manifest: Manifest, pod_labels: Mapping[str, str], config: str) -> Manifest:
    labelled = {**manifest, "metadata": _labelled(manifest["metadata"], PART_OF)}
    if manifest["kind"] != "Deployment":
        return labelled
    template = manifest["spec"]["template"]
    metadata = _labelled(template["metadata"], pod_labels)
    annotations = {**metadata.get("annotations", {}), CONFIG_ANNOTATION: config}
    changed = {"metadata": {**metadata, "annotations": annotations}, "spec": _restricted(template["spec"])}
    return {**labelled, "spec": {**manifest["spec"], "template": changed}}


def _labelled(metadata: Mapping[str, Any], more: Mapping[str, str]) -> dict[str, Any]:
    return {**metadata, "labels": {**metadata.get("labels", {}), **more}}


def _restricted(pod: Mapping[str, Any]) -> dict[str, Any]:
    containers = [{**container, "securityContext": dict(_RESTRICTED)} for container in pod["containers"]]
    return {**pod, "containers": containers, "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
