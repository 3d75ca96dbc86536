"""LeaderWorkerSets for servers that span nodes, and as roles of DisaggregatedSets: each server is a group of pods, one
on each of its nodes.

The controller (https://lws.sigs.k8s.io) creates the pods of a group together, passes the leader's address and the pod's
index to each, and recreates all pods of a group if one ends, since a server can't continue without all its ranks.
Arguments of routing sidecars contain the DNS names of all pods of both roles.
"""

from importlib import resources
from typing import Any

from llmd_oke.catalogue.releases import POD_IP
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.config import Role
from llmd_oke.kubernetes_types import Affinity, Container, EnvVar, ObjectMeta, PodAffinity, PodAffinityTerm, PodTemplate
from llmd_oke.objects import RESTRICTED_CONTAINER, Manifest
from llmd_oke.planning import Rollout
from llmd_oke.serving import bench_program, labels
from llmd_oke.serving.manifests import from_field, waiting_for
from llmd_oke.serving.vllm import ServerSpec

API_VERSION = "leaderworkerset.x-k8s.io/v1"
KIND = "LeaderWorkerSet"

GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-key"
"""Label that the controller sets on the pods of one group, with the same value for all."""


REVISION_LABEL = "disaggregatedset.x-k8s.io/revision"
"""Label that the controller of DisaggregatedSets sets on sets and pods (LWS 0.9.0, pkg/controllers/disaggregatedset);
both roles of a revision have the same value."""


def leader_worker_set(metadata: ObjectMeta, spec: Manifest) -> Manifest:
    """Return the LeaderWorkerSet with this specification, whose update Pulumi waits for.

    Its name in `metadata` is also that of its Service and the prefix of the pods' names.
    """
    annotations = waiting_for("Available")
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def set_spec(
    replicas: int,
    nodes: int,
    rollout: Rollout,
    template: PodTemplate,
    selector: dict[str, str],
    *,
    keeps_to_pool: bool,
) -> dict[str, Any]:
    """Return the specification of a LeaderWorkerSet whose servers each have a pod made from `template` on each of their
    nodes. Servers inside a node are groups of one pod, whose containers restart in place.

    Args:
        replicas: number of servers.
        nodes: number of nodes of each server.
        rollout: servers that an update may add and remove at a time.
        template: template of all pods; leaders have the same.
        selector: labels that all pods of the object have, and no other pods.
        keeps_to_pool: whether all pods of a group must run in one pool, instead of only preferring one.
    """
    pods: PodTemplate = template
    if nodes > 1:
        affinity: Affinity = {"podAffinity": _in_one_pool(selector, keeps_to_pool)}
        pods = {**template, "spec": {**(template.get("spec") or {}), "affinity": affinity}}
    return {
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
            "restartPolicy": "RecreateGroupOnPodRestart" if nodes > 1 else "None",
            "workerTemplate": pods,
        },
    }


def _in_one_pool(selector: dict[str, str], required: bool) -> PodAffinity:
    """Return the pod affinity that keeps the pods of a group on nodes of one pool, which share an RDMA network; the
    first pod may go to any pool. If pools lack the label, as in clusters that others created, a preference treats all
    nodes as one pool, and a requirement matches no node.
    """
    term: PodAffinityTerm = {
        "labelSelector": {"matchLabels": selector},
        "matchLabelKeys": [GROUP_LABEL],
        "topologyKey": POOL_LABEL,
    }
    if required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


_UNIT, _REVISION, _NAMESPACE = "LLMD_OKE_UNIT", "DISAGGREGATED_SET_REVISION", "POD_NAMESPACE"


def peer_hosts(spec: ServerSpec, role: Role) -> list[str]:
    """Return the DNS names of the pods of a role's first server in the order of their nodes, as its LeaderWorkerSet
    creates them: that of the same revision in a DisaggregatedSet. Unit, revision and namespace are references to
    environment variables, which Kubernetes expands.
    """
    nodes = spec.parallelism.nodes
    name = f"$({_UNIT})-$({_REVISION})-{role}" if spec.disaggregated_set else f"$({_UNIT})-{role}"
    return [f"{name}-0{f'-{rank}' if rank else ''}.{name}.$({_NAMESPACE}).svc" for rank in range(nodes)]


def peer_environment(spec: ServerSpec) -> list[EnvVar]:
    """Return the environment variables that the peers' DNS names refer to, and the pod's own address."""
    namespace, address = from_field(_NAMESPACE, "metadata.namespace"), from_field(POD_IP, "status.podIP")
    revision = [bench_program.from_label(_REVISION, REVISION_LABEL)] if spec.disaggregated_set else []
    return [bench_program.from_label(_UNIT, labels.UNIT), *revision, namespace, address]


def peer_names_container(spec: ServerSpec) -> Container:
    """Return the init container that waits, at most for the start-up budget, until the DNS names of the pods of both
    roles resolve: a sidecar that ended because of a missing name would restart all pods of its group.
    """
    names = [name for role in ("prefill", "decode") for name in peer_hosts(spec, role)]
    return bench_program.container(
        name="peer-names",
        image=spec.release.vllm.image.pinned,
        command=["python3", "-IBc", (resources.files("llmd_pods") / "peer_names.py").read_text(encoding="utf-8")],
        args=[f"--limit-s={spec.model.startup_budget_s}", f"--own=$({POD_IP})", *names],
        env=peer_environment(spec),
        resources={"requests": {"cpu": "100m", "memory": "64Mi"}},
        securityContext={**RESTRICTED_CONTAINER, "runAsNonRoot": True, "runAsUser": 65534},
    )
