"""Readiness of Kubernetes objects: one condition for each kind, and the table of kinds (`WAITS`).

Conditions, reasons and the default limit of ten minutes are those of pulumi-kubernetes 4.30.0
(https://github.com/pulumi/pulumi-kubernetes/tree/v4.30.0/provider/pkg/await).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmd_rehearsal.kubernetes_plugin.client import ApiResource
from llmd_rehearsal.kubernetes_plugin.objects import (
    annotation,
    condition,
    id_of,
    is_owned_by,
    name_of,
    namespace_of,
)
from llmd_rehearsal.plugin_values import JsonObject, dig, dig_list, dig_map

_REVISION: Final = "deployment.kubernetes.io/revision"
_PULL_PREFIX = "rpc error: code = Unknown desc = Error response from daemon: "
_PULL_SUFFIX = ": manifest unknown"


@dataclass(frozen=True)
class ReadinessEvidence:
    """Data from which an object's readiness is judged.

    `live` is the present object and `previous` the object before an update (None after a create). `related` are other
    objects by their kind's plural name. `quiet_s` is the number of seconds since a Service's endpoints last changed
    (None if no change was seen), `settle_s` the required number.
    """

    live: JsonObject
    previous: JsonObject | None = None
    related: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict[str, Sequence[JsonObject]])
    quiet_s: float | None = None
    settle_s: float = 10

    def all(self, plural: str) -> Sequence[JsonObject]:
        """Return the related objects of one kind, given by the kind's plural name."""
        return self.related.get(plural, ())


@dataclass(frozen=True)
class Readiness:
    """Verdict on an object's readiness, with the reasons if the object isn't ready.

    `failed`: the object will never become ready. `passes_at_limit`: the object counts as ready when the wait's time
    limit is reached. `look_again_s`: number of seconds after which the object may become ready without any change.
    """

    ready: bool = False
    failed: bool = False
    passes_at_limit: bool = False
    look_again_s: float | None = None
    reasons: tuple[str, ...] = ()


READY: Final = Readiness(ready=True)


@dataclass(frozen=True)
class WaitLimits:
    """Time limits in seconds of waits for objects to become ready or to be deleted, with the defaults of the real
    Kubernetes plug-in.
    """

    ready_s: float = 600
    settle_s: float = 10
    missing_kind_s: float = 63
    claim_s: float = 300
    token_s: float = 5


@dataclass(frozen=True)
class Wait:
    """Condition and time limit of a wait for objects of one kind.

    Changes in the collections `watched` may affect the condition; those in `evidence` are read only to explain a
    failure or timeout. `fixed_limit` overrides the time limit that the program sets. With `checked_on_read`, a refresh
    reports objects that aren't ready.
    """

    condition: Callable[[ReadinessEvidence], Readiness]
    watched: tuple[ApiResource, ...] = ()
    evidence: tuple[ApiResource, ...] = ()
    fixed_limit: Callable[[WaitLimits], float] | None = None
    checked_on_read: bool = True


def deployment(observation: ReadinessEvidence) -> Readiness:
    """Judge a Deployment: ready if its controller observed the latest generation, and if the Deployment, its newest
    ReplicaSet and its volume claims are available.

    After a change of `replicas` together with the pod template, the old ReplicaSet is the newest until the rollout
    begins, so that the number of updated replicas is compared too.
    """
    live = observation.live
    if dig(live, "status", "observedGeneration") != dig(live, "metadata", "generation"):
        return Readiness(reasons=("Minimum number of live Pods was not attained",))
    revision = annotation(live, _REVISION)
    owned = [item for item in observation.all("replicasets") if is_owned_by(item, live)]
    newest = next((item for item in owned if annotation(item, _REVISION) == revision), None)
    available = _is_true(live, "Available")
    progress = condition(live, "Progressing")
    rolled_out = revision == "1" or (
        dig(progress, "reason") == "NewReplicaSetAvailable" and dig(progress, "status") == "True"
    )
    volumes = dig_list(observation.live, "spec", "template", "spec", "volumes")
    used = {dig(volume, "persistentVolumeClaim", "claimName") for volume in volumes}
    claims = [claim for claim in observation.all("persistentvolumeclaims") if name_of(claim) in used]
    unbound = [name_of(claim) for claim in claims if dig(claim, "status", "phase") != "Bound"]
    updated = (dig(live, "status", "updatedReplicas") or 0) >= (dig(live, "spec", "replicas") or 0)
    if available and rolled_out and updated and _replicas_ready(newest) and not unbound:
        return READY
    conditions = [condition(live, type_) for type_ in ("Available", "Progressing")]
    reasons = [f"[{entry['reason']}] {entry['message']}" for entry in conditions if entry and entry["status"] != "True"]
    if unbound:
        reasons.append(f'Failed to bind PersistentVolumeClaim(s): "{",".join(unbound)}"')
    if not available:
        reasons.append("Minimum number of live Pods was not attained")
    elif not rolled_out or (revision == "1" and not _replicas_ready(newest)):
        reasons.append("Minimum number of Pods to consider the application live was not attained")
    elif not _replicas_ready(newest):
        reasons.append("Attempted to roll forward to new ReplicaSet, but minimum number of Pods did not become live")
    return Readiness(reasons=(*reasons, *_pod_messages(observation, newest)))


def _replicas_ready(replica_set: JsonObject | None) -> bool:
    if replica_set is None:
        return False
    desired = dig(replica_set, "spec", "replicas")
    return (dig(replica_set, "status", "readyReplicas") or 0) >= (1 if desired is None else desired)


def stateful_set(observation: ReadinessEvidence) -> Readiness:
    """Judge a StatefulSet: ready if its controller observed the latest generation and all replicas are ready and up to
    date.
    """
    live = observation.live
    generation, status = dig(live, "metadata", "generation"), dig_map(live, "status")
    observed = (status.get("observedGeneration") or 0) >= generation
    current, update = status.get("currentRevision", ""), status.get("updateRevision", "")
    on_delete = generation > 1 and dig(live, "spec", "updateStrategy", "type") == "OnDelete"
    newest = observed and (on_delete or (current != "" and current == update))
    desired = dig(live, "spec", "replicas") or 0
    counts = ("replicas", "readyReplicas") if on_delete else ("replicas", "readyReplicas", "currentReplicas")
    complete = observed and all((status.get(count) or 0) == desired for count in counts)
    if newest and complete:
        return READY
    reasons: list[str] = []
    if not complete:
        ready = status.get("readyReplicas") or 0
        counted = ready if newest else min(ready, status.get("updatedReplicas") or 0)
        reasons.append(f"{counted} out of {desired} replicas succeeded readiness checks")
    if not newest:
        reasons.append(f'StatefulSet controller failed to advance from revision "{current}" to revision "{update}"')
    return Readiness(reasons=(*reasons, *_pod_messages(observation, live)))


def daemon_set(observation: ReadinessEvidence) -> Readiness:
    """Judge a DaemonSet: ready if its controller observed the latest generation and each node has a ready, up-to-date
    pod.
    """
    status = dig_map(observation.live, "status")
    desired = status.get("desiredNumberScheduled")
    observed = status.get("observedGeneration") == dig(observation.live, "metadata", "generation")
    counts = ("currentNumberScheduled", "updatedNumberScheduled", "numberAvailable", "numberReady")
    if observed and desired is not None and all((status.get(count) or 0) >= desired for count in counts):
        return READY
    text = f"{status.get('numberReady') or 0} out of {desired or 0} replicas succeeded readiness checks"
    return Readiness(reasons=(text, *_pod_messages(observation, observation.live)))


def job(observation: ReadinessEvidence) -> Readiness:
    """Judge a Job: ready once complete; failed once its backoff limit or deadline is exceeded."""
    failure = condition(observation.live, "Failed")
    gave_up = dig(failure, "reason") in {"BackoffLimitExceeded", "DeadlineExceeded"}
    if failure and failure["status"] == "True" and gave_up:
        reason = f"[{failure['reason']}] {failure.get('message', '')}"
        return Readiness(failed=True, reasons=(*_pod_messages(observation, observation.live), reason))
    if dig(observation.live, "status", "startTime") and _is_true(observation.live, "Complete"):
        return READY
    return Readiness(reasons=tuple(_pod_messages(observation, observation.live)))


def pod(observation: ReadinessEvidence) -> Readiness:
    """Judge a pod: ready if scheduled, initialized, and either Ready or succeeded."""
    obj = observation.live
    started = _is_true(obj, "PodScheduled") and _is_true(obj, "Initialized")
    if started and (_is_true(obj, "Ready") or dig(obj, "status", "phase") == "Succeeded"):
        return READY
    return Readiness(reasons=tuple(pod_messages(obj)))


def service(observation: ReadinessEvidence) -> Readiness:
    """Judge a Service: ready if none of its pods was unready for `settle_s` seconds and a load balancer has an
    address.
    """
    name, spec = name_of(observation.live), dig_map(observation.live, "spec")
    balances = spec.get("type") == "LoadBalancer"
    has_address = not balances or bool(dig(observation.live, "status", "loadBalancer", "ingress"))
    # Whether the Service has an IP address of its own and selects pods.
    selects = spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None" and bool(spec.get("selector"))
    if has_address and not selects:
        return READY
    namesakes = [endpoints for endpoints in observation.all("endpoints") if name_of(endpoints) == name]
    subsets = [subset for endpoints in namesakes for subset in dig_list(endpoints, "subsets")]
    pending = any(subset.get("notReadyAddresses") for subset in subsets)
    left_s = None if observation.quiet_s is None else observation.settle_s - observation.quiet_s
    if has_address and not pending and left_s is not None and left_s <= 0:
        return READY
    reasons: list[str] = []
    if not any(subset.get("addresses") for subset in subsets):
        reasons.append(
            "Service does not target any Pods. Selected Pods may not be ready, or field '.spec.selector' "
            "may not match labels on any Pods"
        )
    if not has_address:
        reasons.append("Service was not allocated an IP address; does your cloud provider support this?")
    return Readiness(
        passes_at_limit=has_address and not pending,
        look_again_s=left_s if left_s is not None and left_s > 0 else None,
        reasons=tuple(reasons),
    )


def claim(observation: ReadinessEvidence) -> Readiness:
    """Judge a PersistentVolumeClaim: ready if bound, or if pending when its storage class waits for the first
    consumer.
    """
    phase, class_name = dig(observation.live, "status", "phase"), dig(observation.live, "spec", "storageClassName")
    if phase == "Bound" and observation.previous is not None:
        return READY
    modes = {name_of(item): item.get("volumeBindingMode") for item in observation.all("storageclasses")}
    desired = "Pending" if modes.get(class_name) == "WaitForFirstConsumer" else "Bound"
    return Readiness(ready=phase == desired)


def secret(observation: ReadinessEvidence) -> Readiness:
    """Judge a Secret: a service account token is ready once its controller filled in the data; any other Secret is
    ready.
    """
    filled = observation.live.get("type") != "kubernetes.io/service-account-token" or bool(observation.live.get("data"))
    return Readiness(ready=filled)


def awaited_condition(expression: str) -> Wait:
    """Return the wait for the annotation `pulumi.com/waitFor` with the value `condition=TYPE` or
    `condition=TYPE=STATUS`.

    The condition counts only if its controller observed the latest generation (`checkCondition` of the real plug-in).
    """
    type_, _, status = expression.removeprefix("condition=").partition("=")
    wanted = (status or "True").lower()

    def met(observation: ReadinessEvidence) -> Readiness:
        live = observation.live
        found = [entry for entry in dig_list(live, "status", "conditions") if entry["type"].lower() == type_.lower()]
        seen = [entry.get("observedGeneration", dig(live, "status", "observedGeneration")) for entry in found]
        outdated = any(number is not None and number < dig(live, "metadata", "generation") for number in seen)
        if found and not outdated and found[0]["status"].lower() == wanted:
            return READY
        told = f"Resource has condition {type_}={found[0]['status']}" if found else "Has no such condition"
        return Readiness(reasons=(f"{told} (want {status or 'True'})",))

    return Wait(met)


def pod_messages(obj: JsonObject) -> list[str]:
    """Return one message for each of a pod's unmet conditions that has a message or failed containers."""
    messages: list[str] = []
    for type_ in ("Initialized", "Ready"):
        entry = condition(obj, type_)
        if entry is None or dig(entry, "status") == "True":
            continue
        if type_ == "Ready" and dig(obj, "status", "phase") == "Succeeded":
            continue
        errors = "\n".join(_container_errors(obj))
        if errors or entry.get("message"):
            name = name_of(obj) if namespace_of(obj) == "default" else id_of(obj)
            reason = entry["message"] if entry.get("reason") and entry.get("message") else ""
            messages.append(f"[Pod {name}]: {reason}{errors}")
    return messages


def _container_errors(obj: JsonObject) -> Iterator[str]:
    for status in dig_list(obj, "status", "containerStatuses"):
        if status.get("ready"):
            continue
        waiting, terminated = dig(status, "state", "waiting"), dig(status, "state", "terminated")
        if waiting and waiting.get("reason") != "ContainerCreating":
            yield f"[{waiting.get('reason', '')}] {_trimmed(waiting.get('message', ''))}"
        if terminated and terminated.get("reason"):
            if terminated.get("message"):
                yield f"[{terminated['reason']}] {_trimmed(terminated['message'])}"
            else:
                yield f'container "{status["name"]}" completed with exit code {terminated.get("exitCode", 0)}'
        if last := dig(status, "lastState", "terminated"):
            when, why, code = last.get("finishedAt"), last.get("reason", ""), last.get("exitCode", 0)
            yield f'container "{status["name"]}" terminated at {when} ({why}: exit code {code})'
            if last.get("message"):
                yield last["message"]


def _trimmed(message: str) -> str:
    return message.removeprefix(_PULL_PREFIX).removesuffix(_PULL_SUFFIX)


def _is_true(live: JsonObject, type_: str) -> bool:
    return dig(condition(live, type_), "status") == "True"


def _pod_messages(observation: ReadinessEvidence, owner: JsonObject | None) -> list[str]:
    if owner is None:
        return []
    owned = [item for item in observation.all("pods") if is_owned_by(item, owner)]
    return [message for item in owned for message in pod_messages(item)]


_CLAIMS: Final = ApiResource("/api/v1", "persistentvolumeclaims", namespaced=True)
_ENDPOINTS: Final = ApiResource("/api/v1", "endpoints", namespaced=True)
_PODS: Final = ApiResource("/api/v1", "pods", namespaced=True)
_REPLICA_SETS: Final = ApiResource("/apis/apps/v1", "replicasets", namespaced=True)
_STORAGE_CLASSES: Final = ApiResource("/apis/storage.k8s.io/v1", "storageclasses", namespaced=False)
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
"""Conditions for which creations and updates wait, by kind. Objects of other kinds are ready as soon as the API server
has stored them.
"""
