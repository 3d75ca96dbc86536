"""Component for Calico as NetworkPolicy engine: the objects of Calico's manifest, changed as Oracle
documents for OKE.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.container_images import locked_image
from llmd_oke.catalogue.downloads import pinned_file
from llmd_oke.catalogue.operators import PolicyEngine
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest, inputs, outputs, when_declared
from llmd_oke.values import cache_folder, read_yaml_documents

_DEFINITION = "CustomResourceDefinition"
_WORKLOADS = frozenset({"DaemonSet", "Deployment"})


class CalicoArgs(TypedDict):
    """Arguments of Calico; its version and Oracle's changes come from the catalogue."""

    manifest_file: NotRequired[str | None]
    """Path of a manifest on this machine; if left out, the published manifest is downloaded and its SHA-256 verified.
    """


class Calico(pulumi.ComponentResource):
    """Calico's policy engine, which enforces NetworkPolicies on every node of a cluster with VCN-native pod network.

    Pods keep the addresses of OKE's CNI plug-in. Must not be installed beside another policy engine, nor in a cluster
    with flannel.
    """

    version: pulumi.Output[str]
    """Version of Calico, known once its DaemonSet and Deployments are ready."""

    def __init__(self, name: str, args: CalicoArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Calico", name, inputs(self, args, "manifest_file"), opts)
        facts = operators.policy_engine()
        limit = f"{facts.timeout_s}s"
        timeouts = pulumi.CustomTimeouts(create=limit, update=limit, delete=limit)
        path = args.get("manifest_file")
        first: list[pulumi.Resource] = []
        workloads: list[pulumi.Resource] = []
        for manifest in manifests(facts, published(facts) if path is None else Path(path)):
            runs = manifest["kind"] in _WORKLOADS
            child = pulumi.ResourceOptions(parent=self, depends_on=first if runs else None, custom_timeouts=timeouts)
            own_name = f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}"
            (workloads if runs else first).append(KubernetesObject(own_name, manifest, child))
        self.version = pulumi.Output.all(*(when_declared(item, "") for item in workloads)).apply(
            lambda _: facts.version
        )
        self.register_outputs(outputs(self))


def published(facts: PolicyEngine) -> Path:
    """Download the published manifest into the cache, unless it is there; return its path.

    Raises:
        KitError: the manifest can't be downloaded or read, or its SHA-256 isn't the catalogue's.
    """
    cached = cache_folder() / "calico" / facts.version / Path(facts.manifest.url).name
    return pinned_file(facts.manifest.url, facts.manifest.sha256, cached)


def manifests(facts: PolicyEngine, path: Path) -> Iterator[Manifest]:
    """Yield the objects of Calico's manifest without those that OKE's pod network replaces, custom resource definitions
    first.
    """
    documents: list[dict[str, Any]] = read_yaml_documents(path)
    for manifest in sorted(documents, key=lambda item: item["kind"] != _DEFINITION):
        kind, metadata = manifest["kind"], manifest["metadata"]
        if f"{kind}/{metadata['name']}" in facts.left_out:
            continue
        if kind == "DaemonSet" and metadata["name"] == facts.node.name:
            _beside_okes_network(facts, manifest["spec"]["template"]["spec"])
        if kind in _WORKLOADS:
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["image"] = locked_image(container["image"]).pinned
        labels = {**metadata.get("labels", {}), **PART_OF}
        own = {key: value for key, value in manifest.items() if key != "status"}
        yield {**own, "metadata": {**metadata, "labels": labels}}


def _beside_okes_network(facts: PolicyEngine, pod: dict[str, Any]) -> None:
    """Change the DaemonSet's pod template in place: it installs no CNI plug-in, and uses the interfaces of OKE's."""
    pod.pop("initContainers", None)
    for container in pod["containers"]:
        container.pop("envFrom", None)
        chosen = {name: {"name": name, "value": value} for name, value in facts.node.environment.items()}
        removed = {*facts.node.removed_environment, *chosen}
        container["env"] = [*(item for item in container["env"] if item["name"] not in removed), *chosen.values()]
        mounts = container["volumeMounts"]
        container["volumeMounts"] = [item for item in mounts if item["name"] not in facts.node.removed_volumes]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] in mounted]
