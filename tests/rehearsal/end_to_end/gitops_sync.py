"""Apply a folder of rendered YAML as Argo CD does: wave by wave, each once the Deployments and Jobs of the one before
are ready. Run inside a rehearsal: gitops_sync.py FOLDER LIMIT_S.
"""

import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import LoadResourceError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from llmd_oke.values import read_yaml


def register(client: Client) -> None:
    """Have objects of all definitions of the cluster read as such."""
    for definition in client.list(CustomResourceDefinition):
        spec = definition.spec
        make = create_namespaced_resource if spec.scope == "Namespaced" else create_global_resource
        for version in spec.versions:
            make(spec.group, version.name, spec.names.kind, spec.names.plural)


def is_ready(client: Client, manifest: dict[str, Any]) -> bool:
    name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace")
    if manifest["kind"] == "Job":
        return bool(client.get(Job, name, namespace=namespace).status.succeeded)
    if manifest["kind"] == "Deployment":
        found = client.get(Deployment, name, namespace=namespace)
        status, wanted = found.status, found.spec.replicas
        counts = (status.replicas, status.updatedReplicas, status.availableReplicas)
        return status.observedGeneration == found.metadata.generation and counts == (wanted,) * 3
    return True


def pods(client: Client) -> str:
    """All pods of the models, and why containers wait."""
    found = client.list(Pod, namespace="llm-d")
    return "\n".join(
        f"{pod.metadata.name} {pod.status.phase} {pod.metadata.deletionTimestamp or ''} "
        + " ".join(
            f"{item.name}: {item.ready} {item.state.waiting or ''}" for item in pod.status.containerStatuses or ()
        )
        for pod in found
    )


def sync(client: Client, folder: Path, limit_s: float) -> None:
    files = read_yaml(folder / "kustomization.yaml")["resources"]
    for wave, names in groupby(files, key=lambda name: name[:2]):
        manifests = [read_yaml(folder / name) for name in names]
        for manifest in manifests:
            try:
                client.apply(from_dict(manifest), field_manager="argocd-controller", force=True)
            except LoadResourceError as error:
                raise SystemExit(f"wave {wave}: {error}") from error
        deadline_s = time.monotonic() + limit_s
        while not all(is_ready(client, manifest) for manifest in manifests):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"wave {wave} is not ready after {limit_s} s:\n{pods(client)}")
            time.sleep(0.5)


if __name__ == "__main__":
    own = Client(KubeConfig.from_env(), trust_env=False)
    register(own)
    sync(own, Path(sys.argv[1]), float(sys.argv[2]))
