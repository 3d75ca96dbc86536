"""Model servers, routers and front doors of a stack: numbers of ready pods, and the symptoms of faulty ones."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

from lightkube.generic_resource import GenericNamespacedResource
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Event, Node, Pod
from llmd_bench.deployment import EndpointRole
from llmd_pods.disaggregated_set_program import ROLE_LABEL, SET_LABEL

from llmd_oke.config.model import HANDING_OVER
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.operations.status.reading import age_text, condition, container_statuses, ended, name_of
from llmd_oke.operations.status.symptoms import Severity, Symptom, grouped, some
from llmd_oke.planning import ModelPlan, Plan, RolePlan
from llmd_oke.program.models import unit_name
from llmd_oke.serving import labels
from llmd_oke.serving.leader_worker_set import GROUP_LABEL

FRONT_DOOR = "front door"
ROLES: Mapping[str, EndpointRole] = {"prefill": "prefill", "decode": "decode", "prefill-decode": "aggregated"}
"""Role by value of the label `llmd_oke.serving.labels.ROLE`."""

RESTARTED_WITHIN = timedelta(minutes=10)
"""Time after which a container's restart is no longer a symptom."""

_COMPONENT = "app.kubernetes.io/component"
_FRONT_DOORS = ("front-door", "stack-front-door")
_STARTING = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class DeploymentPods:
    """Numbers of pods of one Deployment, or of groups of pods of one LeaderWorkerSet or of one role of a
    DisaggregatedSet, in all its revisions: ready, desired by the object, and planned.

    `role` is that of model servers, `router`, or `front door`. `planned` is None if the plan has no such object, or if
    an autoscaler sets the number.
    """

    name: str
    model: str | None
    unit: str | None
    role: EndpointRole | str
    ready: int
    desired: int
    planned: int | None


@dataclass(frozen=True)
class CountedProgram:
    """Pod of a unit (servers with a router of their own) that exposes metrics: name, IP address, model, unit
    and role.
    """

    pod: str
    address: str
    model: str
    unit: str
    role: EndpointRole


def server_groups(
    plan: Plan, deployments: Iterable[Deployment], sets: Iterable[GenericNamespacedResource] = ()
) -> tuple[DeploymentPods, ...]:
    """Return the numbers of pods of all Deployments and LeaderWorkerSets that serve models, in the plan's order,
    followed by those that the plan doesn't have.
    """
    planned = {name: None if role.scaling else role.replicas for name, role in _roles(plan)}
    order = {name: place for place, name in enumerate(planned)}
    found = (*(_group(item, planned) for item in deployments), *(_of_set(item, planned) for item in sets))
    groups: dict[str, DeploymentPods] = {}
    for group in filter(None, found):
        known = groups.get(group.name)
        more = (known.ready, known.desired) if known else (0, 0)
        groups[group.name] = replace(group, ready=group.ready + more[0], desired=group.desired + more[1])
    return tuple(sorted(groups.values(), key=lambda group: (order.get(group.name, len(order)), group.name)))


def _roles(plan: Plan) -> Iterator[tuple[str, RolePlan]]:
    """Yield the roles of all units, with the names of their Deployments or LeaderWorkerSets."""
    for model in plan.models:
        for unit in model.units:
            yield from ((f"{unit_name(plan, model, unit)}-{role.role}", role) for role in unit.roles)


def _group(item: Deployment, planned: Mapping[str, int | None]) -> DeploymentPods | None:
    spec, ready = item.spec, item.status.readyReplicas if item.status else None
    desired = 1 if spec.replicas is None else spec.replicas
    return _serving(name_of(item), texts(spec.template.metadata, "labels"), ready or 0, desired, planned)


def _of_set(item: GenericNamespacedResource, planned: Mapping[str, int | None]) -> DeploymentPods | None:
    """Return the numbers of servers of a LeaderWorkerSet; a server is ready if its pods on all nodes are ready. Sets
    of a DisaggregatedSet count for unit and role, whatever their revision.
    """
    spec, status = cast("dict[str, Any]", item.spec or {}), cast("dict[str, Any]", item.status or {})
    own: dict[str, str] = spec["leaderWorkerTemplate"]["workerTemplate"]["metadata"].get("labels", {})
    role = texts(metadata(item), "labels").get(ROLE_LABEL)
    name = name_of(item) if role is None else f"{own.get(labels.UNIT)}-{role}"
    return _serving(name, own, status.get("readyReplicas", 0), spec.get("replicas", 1), planned)


def _serving(
    name: str, own: Mapping[str, str], ready: int, desired: int, planned: Mapping[str, int | None]
) -> DeploymentPods | None:
    """Return the numbers of a workload whose pods have the labels `own`; None if its pods don't serve models."""
    role: EndpointRole | str | None = None
    if labels.SERVING in own and labels.ROLE in own:
        role = ROLES.get(own[labels.ROLE])
    elif labels.ROUTED in own:
        role = "router"
    elif own.get(_COMPONENT) in _FRONT_DOORS:
        role = FRONT_DOOR
    if role is None:
        return None
    model, unit = own.get(labels.MODEL), own.get(labels.UNIT)
    return DeploymentPods(name, model, unit, role, ready, desired, planned.get(name))


def programs(pods: Iterable[Pod]) -> tuple[CountedProgram, ...]:
    """Return the servers and routers of units that have an IP address and aren't being deleted, sorted by name."""
    found: list[CountedProgram] = []
    for pod in pods:
        own = texts(metadata(pod), "labels")
        role: EndpointRole | None = "router" if labels.ROUTED in own else ROLES.get(own.get(labels.ROLE, ""))
        address = pod.status.podIP if pod.status else None
        if role and address and labels.UNIT in own and not _leaving(pod) and not ended(pod):
            found.append(CountedProgram(name_of(pod), address, own.get(labels.MODEL, ""), own[labels.UNIT], role))
    return tuple(sorted(found, key=lambda program: program.pod))


def server_symptoms(plan: Plan, stack: str, groups: Sequence[DeploymentPods]) -> Iterator[Symptom]:
    """Yield the symptoms that follow from the numbers of pods: outages, missing or unplanned units,
    changed replicas.
    """
    for model in plan.models:
        own = [group for group in groups if group.model == model.name]
        yield from _outages(plan, model, own)
        yield from _missing(plan, model, own, stack)
    stack_doors = [group for group in groups if group.role == FRONT_DOOR and group.model is None]
    if plan.front_door and not _any_ready(stack_doors):
        yield Symptom(Severity.OUTAGE, "the stack's front door has no ready Envoy", _pods_of(plan, FRONT_DOOR))
    for group in groups:
        if group.planned is not None and group.planned != group.desired:
            what = f"{group.name} is to have {group.desired} servers, and {group.planned} by the stack file"
            yield Symptom(Severity.RISK, what, f"llmd-oke drift --stack {stack}")


def group_symptoms(pods: Iterable[Pod], nodes: Iterable[Node]) -> Iterator[Symptom]:
    """Yield a symptom for servers that span nodes and can't be recreated: one of their pods is being deleted on a node
    that isn't Ready, and keeps its name until the node's object is gone.
    """
    lost = {name_of(node) for node in nodes if not condition(node, "Ready")[0]}
    stuck = grouped(
        (pod.spec.nodeName, name_of(pod))
        for pod in pods
        if pod.spec and pod.spec.nodeName in lost and _leaving(pod) and GROUP_LABEL in texts(metadata(pod), "labels")
    )
    for node, names in stuck.items():
        what = f"{some(names)} can't end on {node}, which isn't Ready: until it is gone their server stays away"
        remedy = f"llmd-oke nodes replace launches it anew; once its machine is gone: kubectl delete node {node}"
        yield Symptom(Severity.DEGRADED, what, remedy)


def shortages(plan: Plan, groups: Iterable[DeploymentPods], known: Sequence[Symptom]) -> Iterator[Symptom]:
    """Yield a symptom for each workload with fewer ready pods than desired, unless `known` has a
    symptom of its pods.
    """
    spanning = {name for name, role in _roles(plan) if role.parallelism.nodes > 1}
    together = {model.name for model in plan.models if model.disaggregated_set}
    for group in groups:
        pods, kind = f"{group.name}-", "leaderworkerset" if group.name in spanning else "deployment"
        described = f"{kind} {group.name}"
        if group.model in together and group.role in HANDING_OVER:
            pods = f"{group.unit}-[0-9a-f]{{8}}-{group.role}-"
            described = f"leaderworkersets -l {SET_LABEL}={group.unit},{ROLE_LABEL}={group.role}"
        if group.ready < group.desired and not any(re.search(pods, symptom.what) for symptom in known):
            what = f"{group.name}: {group.ready} of {group.desired} ready"
            yield Symptom(Severity.DEGRADED, what, f"kubectl -n {plan.namespace} describe {described}")


def _outages(plan: Plan, model: ModelPlan, own: Sequence[DeploymentPods]) -> Iterator[Symptom]:
    units = grouped((group.unit, group) for group in own if group.unit is not None)
    whys = {name: _why_silent(model, groups) for name, groups in units.items()}
    doors = [group for group in own if group.role == FRONT_DOOR]
    if all(whys.values()):
        reasons = dict.fromkeys(why for why in whys.values() if why)
        what = f"no unit of {model.name} answers: {'; '.join(reasons) or 'nothing is deployed'}"
        yield Symptom(Severity.OUTAGE, what, _pods_of(plan, model.name))
        return
    if model.routed and not plan.front_door and not _any_ready(doors):
        yield Symptom(Severity.OUTAGE, f"the front door of {model.name} has no ready Envoy", _pods_of(plan, model.name))
    for name, groups in units.items():
        if why := whys[name]:
            yield Symptom(Severity.DEGRADED, f"unit {name} does not answer: {why}", _pods_of(plan, model.name))
        elif model.topology.disaggregated and not _any_ready(_of(groups, "prefill")):
            what = f"unit {name} has no ready prefill server: its decode servers compute prompts themselves"
            yield Symptom(Severity.DEGRADED, what, "docs/how-to/when-prefill-servers-crash.md")


def _why_silent(model: ModelPlan, groups: Sequence[DeploymentPods]) -> str | None:
    """Return why a unit answers no requests; None if it answers."""
    role = "decode" if model.topology.disaggregated else "aggregated"
    if not _any_ready(_of(groups, role)):
        return f"no {'decode' if role == 'decode' else 'model'} server is ready"
    return "no router is ready" if model.routed and not _any_ready(_of(groups, "router")) else None


def _missing(plan: Plan, model: ModelPlan, own: Sequence[DeploymentPods], stack: str) -> Iterator[Symptom]:
    """Yield the symptoms of units that only the stack file or only the cluster has."""
    planned = {unit_name(plan, model, unit) for unit in model.units}
    deployed = {group.unit for group in own if group.unit is not None}
    if missing := planned - deployed:
        what = f"{some(missing)} of the stack file is not in the cluster"
        yield Symptom(Severity.RISK, what, f"llmd-oke up --stack {stack}")
    if others := deployed - planned:
        what = f"{some(others)} is not in the stack file: an update goes on, or was not finished"
        yield Symptom(Severity.RISK, what, f"llmd-oke up --stack {stack}")


def _of(groups: Iterable[DeploymentPods], role: str) -> list[DeploymentPods]:
    return [group for group in groups if group.role == role]


def _any_ready(groups: Iterable[DeploymentPods]) -> bool:
    return any(group.ready for group in groups)


def _pods_of(plan: Plan, name: str) -> str:
    selector = f"{_COMPONENT}=stack-front-door" if name == FRONT_DOOR else f"{labels.MODEL}={name}"
    return f"kubectl -n {plan.namespace} get pods -l {selector}"


def pod_symptoms(plan: Plan, pods: Iterable[Pod], warnings: Iterable[Event], now: datetime) -> Iterator[Symptom]:
    """Yield the symptoms of single pods; pods of the same workload with the same fault have one symptom."""
    latest = {
        event.involvedObject.name: f"{event.reason or 'warning'}: {_line(event.message)}"
        for event in sorted(warnings, key=lambda event: str(event.lastTimestamp or event.eventTime or ""))
        if event.involvedObject.name
    }
    budgets = {model.name: max(role.startup_budget_s for role in model.units[0].roles) for model in plan.models}
    troubled = [
        ((metadata(pod).generateName or name_of(pod), *trouble), name_of(pod))
        for pod in pods
        if not ended(pod) and not _leaving(pod)
        and (trouble := _trouble(pod, latest.get(name_of(pod)), budgets, now))
    ]  # fmt: skip
    for (prefix, what, command), names in grouped(troubled).items():
        subject = names[0] if len(names) == 1 else f"{len(names)} pods {prefix}*"
        remedy = f"kubectl -n {plan.namespace} {command.format(pod=names[0])}"
        yield Symptom(Severity.DEGRADED, f"{subject}: {what}", remedy)


def _trouble(pod: Pod, warning: str | None, budgets_s: Mapping[str, int], now: datetime) -> tuple[str, str] | None:
    """Return the fault of a pod, and the kubectl command that shows details; None if the pod has no fault.

    `warning` is the newest event about the pod, `budgets_s` the longest start of a server in seconds, by model.
    """
    describe = "describe pod {pod}"
    for status in container_statuses(pod):
        waiting = status.state.waiting if status.state else None
        last = status.lastState.terminated if status.lastState else None
        if waiting and waiting.reason not in _STARTING:
            if last:
                words = f"{waiting.reason}, {status.restartCount} restarts; {_end_text(last.reason, last.exitCode)}"
                return f"{status.name}: {words}", f"logs {{pod}} -c {status.name} --previous"
            return f"{status.name}: {': '.join(filter(None, (waiting.reason, _line(waiting.message))))}", describe
        if last and last.finishedAt and now - last.finishedAt < RESTARTED_WITHIN:
            words = f"restarted {age_text(last.finishedAt, now)} ago, {_end_text(last.reason, last.exitCode)}"
            return f"{status.name}: {words}", f"logs {{pod}} -c {status.name} --previous"
    if condition(pod, "Ready")[0]:
        return None
    scheduled, why, _ = condition(pod, "PodScheduled")
    if not scheduled and why:
        return f"has no node: {_line(why)}", describe
    created = metadata(pod).creationTimestamp
    budget_s = budgets_s.get(texts(metadata(pod), "labels").get(labels.MODEL, ""))
    limit = f" (a start takes {budget_s // 60} min at most)" if budget_s else ""
    return f"not ready, made {age_text(created, now)} ago{limit}{f'; {warning}' if warning else ''}", describe


def _end_text(reason: str | None, code: int) -> str:
    return f"ended with {reason or 'Error'}, exit code {code}"


def _line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0] if lines else ""


def _leaving(pod: Pod) -> bool:
    return metadata(pod).deletionTimestamp is not None
