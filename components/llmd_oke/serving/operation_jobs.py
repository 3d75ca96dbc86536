"""Jobs of one operation, which are no part of a deployment.

The Job comes first, suspended, and owns everything else, so that all of it goes with it; it goes by itself an hour
after its end, should nobody be there to take it away.
"""

from dataclasses import dataclass
from typing import Any

from llmd_oke.bench.in_cluster.parcels import PART_LABEL
from llmd_oke.catalogue import Shape
from llmd_oke.serving.args import NodeTaintArgs
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
    image: str
    shape: Shape
    node_taints: tuple[NodeTaintArgs, ...] = ()

    def tolerations(self) -> list[dict[str, str]]:
        """What the pods tolerate, taint by taint."""
        return tolerations(self.shape, self.node_taints)


def job(place: Place, pod: dict[str, Any], limit_s: float, more: dict[str, Any]) -> dict[str, Any]:
    """A Job around a pod that may run for so long; `more` is what else its specification says."""
    own = {"app.kubernetes.io/part-of": "llmd-oke", PART_LABEL: place.job}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": place.job, "namespace": place.namespace, "labels": own},
        "spec": {
            **more,
            "suspend": True,
            "backoffLimit": 0,
            "activeDeadlineSeconds": round(limit_s) + STARTING_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": own}, "spec": pod},
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
    return {
        "name": name,
        "namespace": place.namespace,
        "labels": {"app.kubernetes.io/part-of": "llmd-oke"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": place.job, "uid": uid}],
    }
