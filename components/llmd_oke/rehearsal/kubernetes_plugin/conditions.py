"""When an object of each kind counts as ready: one table, at the end.

The conditions are those of pulumi-kubernetes 4.30.0, and so are the reasons for not being ready; its default of ten
minutes too (https://github.com/pulumi/pulumi-kubernetes/tree/v4.30.0/provider/pkg/await).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmd_oke.rehearsal.kubernetes_plugin import pods
from llmd_oke.rehearsal.kubernetes_plugin.client import Resource
from llmd_oke.rehearsal.kubernetes_plugin.objects import annotation, condition, is_owned_by, name_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig, dig_list, dig_map

_REVISION: Final = "deployment.kubernetes.io/revision"


@dataclass(frozen=True)
class Scene:
    """What there is to judge an object by.

    `live` is the object as it is, `previous` as it was before an update; `related` are other objects by the plural
    name of their kind; `quiet_s` is how long nothing changed in a Service's endpoints, `settle_s` how long it must.
    """

    live: JsonObject
    previous: JsonObject | None = None
    related: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict[str, Sequence[JsonObject]])
    quiet_s: float | None = None
    settle_s: float = 10

    def all(self, plural: str) -> Sequence[JsonObject]:
        """The related objects of a kind."""
        return self.related.get(plural, ())


@dataclass(frozen=True)
class Verdict:
    """Whether an object is ready.

    `failed`: it never will be. `passes_at_limit`: when the time is up it counts as ready all the same.
    `look_again_s`: it may become ready by that time without any change.
    """

    ready: bool = False
    failed: bool = False
    passes_at_limit: bool = False
    look_again_s: float | None = None
    reasons: tuple[str, ...] = ()


READY: Final = Verdict(ready=True)


def deployment(scene: Scene) -> Verdict:
    """The controller has seen the last change, the Deployment is available, and so is its newest ReplicaSet.

    Between a change of `replicas` and the rollout of a change that came with it, the old ReplicaSet still is the
    newest: the count of updated replicas tells.
    """
    live = scene.live
    if dig(live, "status", "observedGeneration") != dig(live, "metadata", "generation"):
        return Verdict(reasons=("Minimum number of live Pods was not attained",))
    revision = annotation(live, _REVISION)
    newest = _newest_replica_set(scene, revision)
    available = _is_true(live, "Available")
    rolled_out = revision == "1" or _has_rolled_out(live)
    unbound = _unbound_claims(scene)
    updated = (dig(live, "status", "updatedReplicas") or 0) >= (dig(live, "spec", "replicas") or 0)
    if available and rolled_out and updated and _replicas_ready(newest) and not unbound:
        return READY
    reasons = _condition_texts(live, "Available", "Progressing")
    if unbound:
        reasons.append(f'Failed to bind PersistentVolumeClaim(s): "{",".join(unbound)}"')
    reasons += _shortfall(available, rolled_out, newest, revision)
    return Verdict(reasons=(*reasons, *_pod_messages(scene, newest)))


def _shortfall(available: bool, rolled_out: bool, newest: JsonObject | None, revision: str) -> list[str]:
    if not available:
        return ["Minimum number of live Pods was not attained"]
    if not rolled_out or (revision == "1" and not _replicas_ready(newest)):
        return ["Minimum number of Pods to consider the application live was not attained"]
    if not _replicas_ready(newest):
        return ["Attempted to roll forward to new ReplicaSet, but minimum number of Pods did not become live"]
    return []


def _newest_replica_set(scene: Scene, revision: str) -> JsonObject | None:
    return next(
        (
            replica_set
            for replica_set in scene.all("replicasets")
            if is_owned_by(replica_set, scene.live) and annotation(replica_set, _REVISION) == revision
        ),
        None,
    )


def _replicas_ready(replica_set: JsonObject | None) -> bool:
    if replica_set is None:
        return False
    wanted = dig(replica_set, "spec", "replicas")
    return (dig(replica_set, "status", "readyReplicas") or 0) >= (1 if wanted is None else wanted)


def _has_rolled_out(live: JsonObject) -> bool:
    progress = condition(live, "Progressing")
    return dig(progress, "reason") == "NewReplicaSetAvailable" and dig(progress, "status") == "True"


def _unbound_claims(scene: Scene) -> list[str]:
    volumes = dig_list(scene.live, "spec", "template", "spec", "volumes")
    used = {dig(volume, "persistentVolumeClaim", "claimName") for volume in volumes}
    claims = [claim for claim in scene.all("persistentvolumeclaims") if name_of(claim) in used]
    return [name_of(claim) for claim in claims if dig(claim, "status", "phase") != "Bound"]


def stateful_set(scene: Scene) -> Verdict:
    """The controller has seen the last change, and all replicas are ready and of the newest revision."""
    live = scene.live
    generation, status = dig(live, "metadata", "generation"), dig_map(live, "status")
    seen = (status.get("observedGeneration") or 0) >= generation
    current, update = status.get("currentRevision", ""), status.get("updateRevision", "")
    on_delete = generation > 1 and dig(live, "spec", "updateStrategy", "type") == "OnDelete"
    newest = seen and (on_delete or (current != "" and current == update))
    wanted = dig(live, "spec", "replicas") or 0
    counts = ("replicas", "readyReplicas") if on_delete else ("replicas", "readyReplicas", "currentReplicas")
    complete = seen and all((status.get(count) or 0) == wanted for count in counts)
    if newest and complete:
        return READY
    reasons: list[str] = []
    if not complete:
        ready = status.get("readyReplicas") or 0
        counted = ready if newest else min(ready, status.get("updatedReplicas") or 0)
        reasons.append(f"{counted} out of {wanted} replicas succeeded readiness checks")
    if not newest:
        reasons.append(f'StatefulSet controller failed to advance from revision "{current}" to revision "{update}"')
    return Verdict(reasons=(*reasons, *_pod_messages(scene, live)))


def daemon_set(scene: Scene) -> Verdict:
    """The controller has seen the last change, and every node that should has a ready pod of the newest revision."""
    status = dig_map(scene.live, "status")
    wanted = status.get("desiredNumberScheduled")
    seen = status.get("observedGeneration") == dig(scene.live, "metadata", "generation")
    counts = ("currentNumberScheduled", "updatedNumberScheduled", "numberAvailable", "numberReady")
    if seen and wanted is not None and all((status.get(count) or 0) >= wanted for count in counts):
        return READY
    text = f"{status.get('numberReady') or 0} out of {wanted or 0} replicas succeeded readiness checks"
    return Verdict(reasons=(text, *_pod_messages(scene, scene.live)))


def job(scene: Scene) -> Verdict:
    """Started and complete; failed once it gave up."""
    failure = condition(scene.live, "Failed")
    gave_up = dig(failure, "reason") in {"BackoffLimitExceeded", "DeadlineExceeded"}
    if failure and failure["status"] == "True" and gave_up:
        said = f"[{failure['reason']}] {failure.get('message', '')}"
        return Verdict(failed=True, reasons=(*_pod_messages(scene, scene.live), said))
    if dig(scene.live, "status", "startTime") and _is_true(scene.live, "Complete"):
        return READY
    return Verdict(reasons=tuple(_pod_messages(scene, scene.live)))


def pod(scene: Scene) -> Verdict:
    """Scheduled, initialized, and ready or done."""
    return READY if pods.is_ready(scene.live) else Verdict(reasons=tuple(pods.messages(scene.live)))


def service(scene: Scene) -> Verdict:
    """No pod behind it is unready, and that for `settle_s`; a load balancer has an address."""
    balances = dig(scene.live, "spec", "type") == "LoadBalancer"
    has_address = not balances or bool(dig(scene.live, "status", "loadBalancer", "ingress"))
    if has_address and not _selects_pods(scene.live):
        return READY
    namesakes = [endpoints for endpoints in scene.all("endpoints") if name_of(endpoints) == name_of(scene.live)]
    subsets = [subset for endpoints in namesakes for subset in dig_list(endpoints, "subsets")]
    pending = any(subset.get("notReadyAddresses") for subset in subsets)
    left_s = None if scene.quiet_s is None else scene.settle_s - scene.quiet_s
    if has_address and not pending and left_s is not None and left_s <= 0:
        return READY
    return Verdict(
        passes_at_limit=has_address and not pending,
        look_again_s=left_s if left_s is not None and left_s > 0 else None,
        reasons=tuple(_service_reasons(any(subset.get("addresses") for subset in subsets), has_address)),
    )


def _selects_pods(live: JsonObject) -> bool:
    """Whether traffic to an address of its own goes to pods that it selects."""
    spec = dig_map(live, "spec")
    return spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None" and bool(spec.get("selector"))


def _service_reasons(has_pods: bool, has_address: bool) -> Iterator[str]:
    if not has_pods:
        yield (
            "Service does not target any Pods. Selected Pods may not be ready, or field '.spec.selector' "
            "may not match labels on any Pods"
        )
    if not has_address:
        yield "Service was not allocated an IP address; does your cloud provider support this?"


def claim(scene: Scene) -> Verdict:
    """Bound; or, when its storage class waits for the first consumer, pending."""
    phase, class_name = dig(scene.live, "status", "phase"), dig(scene.live, "spec", "storageClassName")
    if phase == "Bound" and scene.previous is not None:
        return READY
    modes = {name_of(item): item.get("volumeBindingMode") for item in scene.all("storageclasses")}
    wanted = "Pending" if modes.get(class_name) == "WaitForFirstConsumer" else "Bound"
    return Verdict(ready=phase == wanted)


def secret(scene: Scene) -> Verdict:
    """A service account token is filled in by its controller; anything else is ready at once."""
    filled = scene.live.get("type") != "kubernetes.io/service-account-token" or bool(scene.live.get("data"))
    return Verdict(ready=filled)


def _is_true(live: JsonObject, type_: str) -> bool:
    return dig(condition(live, type_), "status") == "True"


def _condition_texts(live: JsonObject, *types: str) -> list[str]:
    entries = [condition(live, type_) for type_ in types]
    return [f"[{entry['reason']}] {entry['message']}" for entry in entries if entry and entry["status"] != "True"]


def _pod_messages(scene: Scene, owner: JsonObject | None) -> list[str]:
    if owner is None:
        return []
    return [message for pod_ in scene.all("pods") if is_owned_by(pod_, owner) for message in pods.messages(pod_)]


@dataclass(frozen=True)
class Limits:
    """How long things are waited for, in seconds, as the real plug-in does."""

    ready_s: float = 600
    settle_s: float = 10
    missing_kind_s: float = 63
    claim_s: float = 300
    token_s: float = 5


@dataclass(frozen=True)
class Wait:
    """How a kind is waited for.

    `watched` are other collections whose changes matter; `evidence` those that explain a failure or a time-out.
    `fixed_limit` is kept whatever limit the program asks for. `checked_on_read`: a refresh tells of one that isn't
    ready.
    """

    condition: Callable[[Scene], Verdict]
    watched: tuple[Resource, ...] = ()
    evidence: tuple[Resource, ...] = ()
    fixed_limit: Callable[[Limits], float] | None = None
    checked_on_read: bool = True


_CLAIMS: Final = Resource("/api/v1", "persistentvolumeclaims", namespaced=True)
_ENDPOINTS: Final = Resource("/api/v1", "endpoints", namespaced=True)
_PODS: Final = Resource("/api/v1", "pods", namespaced=True)
_REPLICA_SETS: Final = Resource("/apis/apps/v1", "replicasets", namespaced=True)
_STORAGE_CLASSES: Final = Resource("/apis/storage.k8s.io/v1", "storageclasses", namespaced=False)

WAITS: Final[Mapping[str, Wait]] = {
    "apps/v1/DaemonSet": Wait(daemon_set, evidence=(_PODS,)),
    "apps/v1/Deployment": Wait(deployment, watched=(_REPLICA_SETS, _CLAIMS), evidence=(_PODS,)),
    "apps/v1/StatefulSet": Wait(stateful_set, evidence=(_PODS,)),
    "batch/v1/Job": Wait(job, evidence=(_PODS,)),
    "v1/PersistentVolumeClaim": Wait(
        claim, watched=(_STORAGE_CLASSES,), fixed_limit=lambda limits: limits.claim_s, checked_on_read=False
    ),
    "v1/Pod": Wait(pod),
    "v1/Secret": Wait(secret, fixed_limit=lambda limits: limits.token_s, checked_on_read=False),
    "v1/Service": Wait(service, watched=(_ENDPOINTS,)),
}
"""Kinds that aren't here are ready as soon as the API server has them."""
