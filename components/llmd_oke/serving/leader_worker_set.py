"""LeaderWorkerSets: servers that span nodes, each a group of pods with a node each.

The controller (https://lws.sigs.k8s.io) makes the pods of a group together, tells each the leader's address and its
number, and makes all of them anew where one ends: ranks of a server can't go on without the others.
"""

from collections.abc import Mapping
from typing import Any

from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.objects import Manifest
from llmd_oke.planning import Rollout
from llmd_oke.serving.manifests import waiting_for

API_VERSION = "leaderworkerset.x-k8s.io/v1"
KIND = "LeaderWorkerSet"

GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-key"
"""Label of the pods of one group, which the controller gives them."""


def leader_worker_set(
    metadata: Mapping[str, Any],
    replicas: int,
    nodes: int,
    rollout: Rollout,
    template: Mapping[str, Any],
    selector: Mapping[str, str],
    *,
    keeps_to_pool: bool,
) -> Manifest:
    """The LeaderWorkerSet of so many servers, each with a pod by `template` on each of its nodes.

    Args:
        metadata: of the object. Its name is that of a Service, and the pods' names begin with it.
        replicas: number of servers.
        nodes: nodes of each server.
        rollout: servers that an update may add and take away at a time.
        template: of all pods; leaders are no different.
        selector: labels that all pods have, and no others.
        keeps_to_pool: whether the pods of a group have nodes of one pool or none at all.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {**metadata, "annotations": waiting_for("Available")},
        "spec": {
            "replicas": replicas,
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                    "partition": 0,
                },
            },
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {
                "size": nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": {
                    **template,
                    "spec": {**template["spec"], "affinity": {"podAffinity": _in_one_pool(selector, keeps_to_pool)}},
                },
            },
        },
    }


def _in_one_pool(selector: Mapping[str, str], required: bool) -> Mapping[str, Any]:
    """Keep the pods of a group on nodes of one pool, which have one RDMA network: each goes where others of its group
    are, the first one anywhere. Where pools have no label, as in clusters that others made, all nodes count as one, and
    with a requirement none would do.
    """
    term = {
        "labelSelector": {"matchLabels": selector},
        "matchLabelKeys": [GROUP_LABEL],
        "topologyKey": POOL_LABEL,
    }
    if required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
