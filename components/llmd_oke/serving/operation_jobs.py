"""Jobs of one operation, which are no part of a deployment.

The Job comes first, suspended, and owns everything else, so that all of it goes with it; it goes by itself an hour
after its end, should nobody be there to take it away.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_oke.bench.in_cluster import parcels
from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.serving.args import NodeTaintArgs
from llmd_oke.serving.bench_program import from_label
from llmd_oke.serving.manifests import role, role_binding
from llmd_oke.serving.model_pod import tolerations

KEPT_S = 3600
STARTING_S = 900
"""What pods may take to be placed, to pull their image and to begin."""


@dataclass(frozen=True)
class Place:
    """Where the pods of a Job run: rather on nodes of `shape`, which have the image of the servers already.

    They tolerate what such nodes are tainted with: by their shape, and `node_taints` beside it.
    """

    namespace: str
    job: str
    image: ContainerImage
    shape: Shape
    node_taints: tuple[NodeTaintArgs, ...] = ()

    def tolerations(self) -> list[dict[str, str]]:
        """What the pods tolerate, taint by taint."""
        return tolerations(self.shape, self.node_taints)


def job(place: Place, pod: dict[str, Any], limit_s: float, more: dict[str, Any]) -> dict[str, Any]:
    """A Job around a pod that may run for so long; `more` is what else its specification says."""
    own = {"app.kubernetes.io/part-of": "llmd-oke", parcels.PART_LABEL: place.job}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": place.job, "namespace": place.namespace, "labels": own},
        "spec": {
            "suspend": True,
            "backoffLimit": 0,
            "activeDeadlineSeconds": round(limit_s) + STARTING_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": own}, "spec": pod},
            **more,
        },
    }


def config_map(place: Place, uid: str, role: str, data: dict[str, str], binary_data: dict[str, str]) -> dict[str, Any]:
    """A ConfigMap that belongs to the Job, named by it and by its role."""
    content = {"data": data, "binaryData": binary_data}
    metadata = owned(place, f"{place.job}-{role}", uid)
    given = {key: part for key, part in content.items() if part}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **given}


def owned(place: Place, name: str, uid: str) -> dict[str, Any]:
    """Metadata of an object that goes with the Job."""
    return parcels.owned(name, place.namespace, place.job, uid)


def account(place: Place, uid: str, written: Sequence[str], read: Sequence[str]) -> list[dict[str, Any]]:
    """The pods' account: it may read and write ConfigMaps of these names, and nothing else."""
    metadata = owned(place, place.job, uid)
    rules = [_rule(written, ["create", "patch"]), *([_rule(read, ["get"])] if read else [])]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        dict(role(metadata, rules)),
        dict(role_binding(metadata, place.job)),
    ]


def identity() -> list[dict[str, Any]]:
    """The environment variables by which a pod knows its Job, for what it publishes."""
    return [
        from_label("JOB_NAME", "batch.kubernetes.io/job-name"),
        from_label("JOB_UID", "batch.kubernetes.io/controller-uid"),
    ]


def _rule(names: Iterable[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": list(names), "verbs": verbs}
