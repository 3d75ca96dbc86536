"""Nodes of a stack by GPU pool, with the GPUs that pods use, and the symptoms of faulty nodes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from lightkube.resources.core_v1 import Node, Pod
from lightkube.utils.quantity import parse_quantity

from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL, POOL_LABEL
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.operations.status.reading import age_text, condition, containers, ended, name_of
from llmd_oke.operations.status.symptoms import Severity, Symptom, grouped, some
from llmd_oke.planning import Plan, PlannedPool

OTHERS = "others"
"""Name of the group of nodes that belong to none of the stack's GPU pools."""

_TOLD_OTHERWISE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Key prefixes of taints that follow from node conditions or a cordon, for which there are other symptoms."""


@dataclass(frozen=True)
class NodePool:
    """Numbers of nodes and GPUs of a GPU pool, or of all other nodes of the cluster, for which `planned` is None.
    `free_gpus` counts only nodes that are Ready and not cordoned.
    """

    name: str
    planned: int | None
    nodes: int
    ready: int
    gpus: int
    used_gpus: int
    free_gpus: int


def node_pools(plan: Plan, nodes: Sequence[Node], pods: Iterable[Pod]) -> tuple[NodePool, ...]:
    """Return the numbers of the plan's GPU pools, followed by those of other nodes, if any."""
    used = _used_gpus(plan, pods)
    members = grouped((pool.name if (pool := _pool(plan, node)) else OTHERS, node) for node in nodes)
    pools = [_summary(pool.name, pool, members.get(pool.name, []), used) for pool in plan.pools]
    return (*pools, *([_summary(OTHERS, None, members[OTHERS], used)] if OTHERS in members else []))


def _summary(name: str, pool: PlannedPool | None, nodes: Sequence[Node], used: Counter[str]) -> NodePool:
    offers = {name_of(node): _offered(node, pool.shape.gpu.resource) if pool else 0 for node in nodes}
    open_to_pods = [node for node in nodes if _ready(node) and not _cordoned(node)]
    return NodePool(
        name=name,
        planned=pool.size if pool else None,
        nodes=len(nodes),
        ready=sum(map(_ready, nodes)),
        gpus=sum(offers.values()),
        used_gpus=sum(used[node] for node in offers),
        free_gpus=sum(max(0, offers[name_of(node)] - used[name_of(node)]) for node in open_to_pods),
    )


def node_symptoms(plan: Plan, nodes: Sequence[Node], now: datetime) -> Iterator[Symptom]:
    """Yield the symptoms of nodes that are missing, not Ready, unschedulable, or without all their GPUs."""
    for pool in plan.pools:
        members = [node for node in nodes if _pool(plan, node) is pool]
        if len(members) < pool.limits.least:
            what = f"pool {pool.name} has {len(members)} of {pool.limits.least} nodes"
            yield Symptom(Severity.DEGRADED, what, "OCI says why they are missing: their instances, work requests.")
        short = [
            name_of(node)
            for node in members
            if _ready(node) and _offered(node, pool.shape.gpu.resource) < pool.shape.gpus
        ]
        if short:
            what = f"{some(short)} {'offers' if len(short) == 1 else 'offer'} fewer than {pool.shape.gpus} GPUs"
            yield Symptom(Severity.DEGRADED, what, f"kubectl describe node {short[0]}")
    for node in nodes:
        ready, why, since = condition(node, "Ready")
        if not ready:
            what = f"node {name_of(node)} is not Ready for {age_text(since, now)}{f': {why}' if why else ''}"
            severity = Severity.DEGRADED if _pool(plan, node) else Severity.RISK
            yield Symptom(severity, what, f"kubectl describe node {name_of(node)}")
    yield from _closed(plan, nodes)


def _closed(plan: Plan, nodes: Sequence[Node]) -> Iterator[Symptom]:
    """Yield the symptoms of nodes that are cordoned, or have a taint that isn't in the plan."""
    if cordoned := [name_of(node) for node in nodes if _cordoned(node)]:
        what = f"{some(cordoned)} {'takes' if len(cordoned) == 1 else 'take'} no pods: cordoned"
        yield Symptom(Severity.RISK, what, f"kubectl uncordon {cordoned[0]}, once it is sound")
    strange = grouped((taint, name_of(node)) for node in nodes for taint in _strange_taints(plan, node))
    for taint, names in strange.items():
        have = "has" if len(names) == 1 else "have"
        what = f"{some(names)} {have} the taint {taint}, which the stack file doesn't know"
        yield Symptom(Severity.RISK, what, f"kubectl describe node {names[0]} says who set it and why.")


def _strange_taints(plan: Plan, node: Node) -> Iterator[str]:
    """Yield the taints of a GPU pool's node that neither its shape nor the stack file has, as `key:effect`."""
    pool = _pool(plan, node)
    if pool is None:
        return
    known = {taint.key for taint in (*pool.shape.node.taints, *pool.taints, *plan.gpu_stack.tolerations)}
    for taint in (node.spec.taints if node.spec else None) or ():
        if taint.key not in known and not taint.key.startswith(_TOLD_OTHERWISE):
            yield f"{taint.key}:{taint.effect}"


def _pool(plan: Plan, node: Node) -> PlannedPool | None:
    """Return the plan's pool of a node, by the pool label, or else by the shape; None if it is of no pool."""
    own = texts(metadata(node), "labels")
    by_name = {pool.name: pool for pool in plan.pools}
    if own.get(POOL_LABEL) in by_name:
        return by_name[own[POOL_LABEL]]
    shape = own.get(INSTANCE_TYPE_LABEL)
    return next((pool for pool in plan.pools if pool.shape.name == shape), None)


def _ready(node: Node) -> bool:
    return condition(node, "Ready")[0]


def _cordoned(node: Node) -> bool:
    return bool(node.spec and node.spec.unschedulable)


def _offered(node: Node, resource: str) -> int:
    return _count(texts(node.status, "allocatable"), resource)


def _used_gpus(plan: Plan, pods: Iterable[Pod]) -> Counter[str]:
    """Return the number of GPUs that pods request, by node."""
    used: Counter[str] = Counter()
    resources = {pool.shape.gpu.resource for pool in plan.pools}
    for pod in pods:
        if pod.spec and pod.spec.nodeName and not ended(pod):
            asked = [texts(container.resources, "requests") for container in containers(pod)]
            used[pod.spec.nodeName] += sum(_count(request, resource) for request in asked for resource in resources)
    return used


def _count(quantities: dict[str, str], resource: str) -> int:
    return int(parse_quantity(quantities.get(resource, "0")) or 0)
