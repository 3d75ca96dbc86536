"""Status of a stack: objects, counters and alerts that are read, compared with the plan."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from llmd_base.config_maps import LABEL
from llmd_base.row import Basis
from llmd_bench.deployment import Snapshot
from llmd_bench.passport import RunningImage
from llmd_bench.queries import SCRAPE_TIMEOUT_S
from llmd_bench.run_context import RunContext

from llmd_oke.config import ExistingCluster
from llmd_oke.operations import jobs
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.operations.passport import running_images
from llmd_oke.operations.status.credentials import Credential, credential_symptoms, credentials, used_secrets
from llmd_oke.operations.status.load import (
    CounterGrowth,
    Gauges,
    ModelLoad,
    PodCounters,
    load_symptoms,
    model_load,
    unit_gauges,
)
from llmd_oke.operations.status.nodes import NodePool, node_pools, node_symptoms
from llmd_oke.operations.status.prometheus import ActiveAlert, PrometheusServer
from llmd_oke.operations.status.reading import LIMIT_S, ClusterReading, ThreadedRead, Unread, name_of, read_cluster
from llmd_oke.operations.status.servers import (
    CountedProgram,
    DeploymentPods,
    group_symptoms,
    pod_symptoms,
    programs,
    server_groups,
    server_symptoms,
    shortages,
)
from llmd_oke.operations.status.symptoms import Severity, Symptom, grouped, some, worst_first
from llmd_oke.planning import Plan
from llmd_oke.serving import labels

_COUNTING_S = 2 * SCRAPE_TIMEOUT_S + 5.0
"""Seconds that two scrapes of all pods may take, in addition to the time between them."""

_CONTROLLERS = ("kube-controller-manager", "llmd-rehearsal")
"""Field managers of controllers, whose changes aren't listed."""

_OCID_CHARACTERS = 12
"""Number of characters at the end of an OCID that are shown, since only the end differs."""

_ENVOY = "envoy"
_SAME_UPDATE_S = 60.0
_MAX_CHANGES = 3


@dataclass(frozen=True)
class StackChange:
    """Recent change of a stack's objects: time, description, and the field manager that made it, None if unknown."""

    when: datetime
    what: str
    by: str | None = None


@dataclass(frozen=True)
class StackStatus:
    """Status of a stack. Parts that couldn't be read are `Unread`.

    `counters` are all metrics of the servers and routers at the last scrape. `loads` are those of models, and
    `load_source` describes the source of their figures. `images` are the running images by role and container; `ran`
    has, in a rehearsal, the versions of programs that run instead of an image's own, by container.
    """

    stack: str
    cluster: str
    namespace: str
    release: str
    basis: Basis
    reading: ClusterReading
    symptoms: tuple[Symptom, ...]
    nodes: tuple[NodePool, ...] | Unread
    groups: tuple[DeploymentPods, ...] | Unread
    counters: Snapshot | Unread
    gauges: Mapping[str, Gauges]
    loads: tuple[ModelLoad, ...] | Unread
    load_source: str
    images: Mapping[str, RunningImage] | Unread
    ran: Mapping[str, str]
    changes: tuple[StackChange, ...]
    prometheus: str | None
    alerts: tuple[ActiveAlert, ...] | Unread
    credentials: tuple[Credential, ...] | Unread

    @property
    def seen(self) -> bool:
        """True if nodes, pods and workloads could be read, so that the stack's health is known."""
        return not any(isinstance(part, Unread) for part in (self.reading.nodes, self.reading.pods, self.groups))


class StatusReader:
    """Reader of a stack's status, which can be called repeatedly. Each call takes at most about a minute, even if no
    server answers.

    `every_s` is the wall time in seconds between two scrapes of the pods' counters, if Prometheus doesn't have them;
    `prometheus` is the URL of Prometheus, None without one. Certificates that end within `ends_within` are symptoms; if
    it is None, Secrets aren't read.
    """

    def __init__(
        self,
        stack: str,
        plan: Plan,
        how: RunContext,
        every_s: float,
        prometheus: str | None = None,
        ends_within: timedelta | None = None,
    ) -> None:
        self._stack, self._plan, self._how, self._every_s = stack, plan, how, every_s
        self._ends_within = ends_within
        self._access = ClusterAccess(plan.kubeconfig_context)
        decisions = plan.release.endpoint_picker.dialect.metrics.decisions
        self._prometheus = (
            PrometheusServer(prometheus, self._access, plan.namespace, (decisions,)) if prometheus else None
        )
        self._pod_counters = PodCounters(self._access, plan.namespace, every_s)

    def __call__(self) -> StackStatus:
        """Read the present status."""
        prometheus = self._prometheus
        alerts = ThreadedRead(prometheus.alerts) if prometheus else None
        secrets = used_secrets(self._plan) if self._ends_within is not None else ()
        with_sets = self._plan.needs_group_controller
        reading = read_cluster(self._access, self._plan.namespace, with_sets=with_sets, secrets=secrets)
        running = () if isinstance(reading.pods, Unread) else programs(own_pods(self._plan, reading.pods))
        growth = self._growth(running, reading)
        unasked = Unread("no Prometheus; `--prometheus URL` names one")
        return judge_status(
            self._stack,
            self._plan,
            self._how,
            reading,
            growth,
            alerts.until(time.monotonic() + LIMIT_S) if alerts else unasked,
            prometheus.url if prometheus else None,
            self._ends_within,
        )

    def _growth(self, running: Sequence[CountedProgram], reading: ClusterReading) -> CounterGrowth | Unread:
        if not running:
            return Unread("no pods are known" if isinstance(reading.pods, Unread) else "no server runs")
        unscraped: tuple[str, ...] = ()
        if prometheus := self._prometheus:
            growth = ThreadedRead(lambda: prometheus.counters(running)).until(time.monotonic() + LIMIT_S)
            if not isinstance(growth, Unread):
                if not growth.unscraped:
                    return growth
                unscraped = growth.unscraped
        limit_s = self._every_s + _COUNTING_S
        counted = ThreadedRead(lambda: self._pod_counters(running)).until(time.monotonic() + limit_s)
        return counted if isinstance(counted, Unread) else replace(counted, unscraped=unscraped)


def judge_status(
    stack: str,
    plan: Plan,
    how: RunContext,
    reading: ClusterReading,
    growth: CounterGrowth | Unread,
    alerts: tuple[ActiveAlert, ...] | Unread,
    prometheus: str | None = None,
    ends_within: timedelta | None = None,
) -> StackStatus:
    """Determine a stack's status from the objects, counters and alerts that were read from its cluster and
    Prometheus.
    """
    nodes, pods = reading.nodes, reading.pods
    own = () if isinstance(pods, Unread) else own_pods(plan, pods)
    known = () if isinstance(pods, Unread) else pods
    groups = _groups(plan, reading)
    loads = growth if isinstance(growth, Unread) else _loads(plan, programs(own), growth, how)
    images = (
        pods
        if isinstance(pods, Unread)
        else running_images(
            pod
            for pod in own
            if labels.MODEL in texts(metadata(pod), "labels") and metadata(pod).deletionTimestamp is None
        )
    )
    return StackStatus(
        stack=stack,
        cluster=cluster_name(plan),
        namespace=plan.namespace,
        release=plan.release.name,
        basis=how.basis,
        reading=reading,
        symptoms=worst_first(
            chain(
                _cluster_symptoms(plan, stack, reading, groups, own),
                load_symptoms(loads, stack),
                () if isinstance(images, Unread) else _image_symptoms(plan, stack, images),
                _alert_symptoms(alerts, prometheus),
                () if ends_within is None else credential_symptoms(plan, reading.secrets, reading.taken, ends_within),
                () if isinstance(growth, Unread) else _scraping_symptoms(growth, prometheus),
            )
        ),
        nodes=nodes if isinstance(nodes, Unread) else node_pools(plan, nodes, known),
        groups=groups,
        counters=growth if isinstance(growth, Unread) else growth.after,
        gauges={} if isinstance(growth, Unread) else unit_gauges(programs(own), growth.after),
        loads=loads,
        load_source=growth.why if isinstance(growth, Unread) else growth.source,
        images=images,
        ran=_ran(plan, how),
        changes=tuple(_changes(reading))[:_MAX_CHANGES],
        prometheus=prometheus,
        alerts=alerts,
        credentials=credentials(plan, reading.secrets),
    )


def _groups(plan: Plan, reading: ClusterReading) -> tuple[DeploymentPods, ...] | Unread:
    if isinstance(reading.deployments, Unread):
        return reading.deployments
    if isinstance(reading.leader_worker_sets, Unread):
        return reading.leader_worker_sets
    return server_groups(plan, reading.deployments, reading.leader_worker_sets)


def cluster_name(plan: Plan) -> str:
    """Return the name of the stack's cluster: context, identifier (of an OCID only the end), name, or cluster stack."""
    if isinstance(plan.cluster, ExistingCluster):
        name = plan.cluster.kubeconfig_context or plan.cluster.identifier
        return f"…{name[-_OCID_CHARACTERS:]}" if name.startswith("ocid1.") else name
    return plan.cluster.name if plan.cluster else (plan.cluster_stack or "the kubeconfig's cluster")


def own_pods(plan: Plan, pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return those of a cluster's pods that are in the stack's namespace."""
    return tuple(pod for pod in pods if metadata(pod).namespace == plan.namespace)


def _loads(
    plan: Plan, running: Sequence[CountedProgram], growth: CounterGrowth, how: RunContext
) -> tuple[ModelLoad, ...]:
    bases = [how.basis_of(model.model.repository) for model in plan.models]
    return tuple(
        model_load(plan, model, running, growth, how.time_scale, basis)
        for model, basis in zip(plan.models, bases, strict=True)
    )


def _cluster_symptoms(
    plan: Plan, stack: str, reading: ClusterReading, groups: tuple[DeploymentPods, ...] | Unread, own: Sequence[Pod]
) -> Iterator[Symptom]:
    warnings = [
        event
        for event in (() if isinstance(reading.warnings, Unread) else reading.warnings)
        if event.involvedObject.namespace in {None, plan.namespace}
    ]
    if not isinstance(reading.nodes, Unread):
        yield from node_symptoms(plan, reading.nodes, reading.taken)
        yield from group_symptoms(own, reading.nodes)
    of_pods = list(pod_symptoms(plan, own, warnings, reading.taken))
    yield from of_pods
    if not isinstance(groups, Unread):
        yield from server_symptoms(plan, stack, groups)
        yield from shortages(plan, groups, of_pods)
    if isinstance(reading.jobs, Unread):
        return
    of_models = grouped((texts(metadata(job), "labels").get(LABEL, ""), job) for job in reading.jobs)
    for model in plan.models:
        newest = max(of_models.get(model.name, []), key=_created, default=None)
        if newest and jobs.ended(newest) is False:
            what = f"the last smoke benchmark of {model.name} failed"
            yield Symptom(Severity.RISK, what, f"llmd-oke smoke --stack {stack} --fetch")


def _image_symptoms(plan: Plan, stack: str, images: Mapping[str, RunningImage]) -> Iterator[Symptom]:
    planned = planned_images(plan)
    for place, image in images.items():
        asked = planned.get(place.rpartition("/")[2])
        if asked and asked != image.asked:
            what = f"{place} runs {image.tag}, and is {asked.partition('@')[0].rpartition(':')[2]} by the stack file"
            yield Symptom(Severity.RISK, what, f"llmd-oke up --stack {stack}")
        if len(image.digests) > 1:
            digests = some(digest[:19] for digest in image.digests)
            yield Symptom(Severity.RISK, f"{place} runs several images: {digests}", "docs/how-to/pin-images.md")


def _ran(plan: Plan, how: RunContext) -> dict[str, str]:
    """Return the versions of programs that run instead of the images' own in a rehearsal, by container."""
    release = plan.release
    programs = {
        "routing-proxy": release.routing_sidecar.program.name,
        "epp": release.endpoint_picker.program.name,
        release.router.proxy_container: _ENVOY,
        "envoy": _ENVOY,
    }
    return {container: how.ran[program] for container, program in programs.items() if program in how.ran}


def planned_images(plan: Plan) -> dict[str, str]:
    """Return the planned images of containers that serve models, by container name."""
    release = plan.release
    proxy = plan.pulled(release.proxy.image).pinned
    return {
        "vllm": plan.pulled(release.vllm.image).pinned,
        "routing-proxy": plan.pulled(release.routing_sidecar.image).pinned,
        "epp": plan.pulled(release.endpoint_picker.image).pinned,
        release.router.proxy_container: proxy,
        "envoy": proxy,
    }


def _alert_symptoms(alerts: tuple[ActiveAlert, ...] | Unread, prometheus: str | None) -> Iterator[Symptom]:
    if isinstance(alerts, Unread):
        if prometheus:
            what = f"Prometheus does not tell which alerts fire: {alerts.why}"
            yield Symptom(Severity.RISK, what, f"Does {prometheus} run?")
        return
    for (name, severity), same in grouped(((alert.name, alert.severity), alert) for alert in alerts).items():
        count = f" ({len(same)} times)" if len(same) > 1 else ""
        what = f"alert {name}{count}: {same[0].about}"
        worst = Severity.DEGRADED if severity == "critical" else Severity.RISK
        yield Symptom(worst, what, same[0].remedy or "Its rule in Prometheus says when it fires.")


def _scraping_symptoms(growth: CounterGrowth, prometheus: str | None) -> Iterator[Symptom]:
    if growth.unscraped:
        what = f"{prometheus} has no metrics of the stack's servers: {', '.join(growth.unscraped)}"
        yield Symptom(Severity.RISK, what, "docs/alerts/stack-not-scraped.md")


def _changes(reading: ClusterReading) -> list[StackChange]:
    """Return the changes of Deployments by field manager, new nodes, and Jobs, the newest first."""
    changes: list[StackChange] = []
    if not isinstance(reading.deployments, Unread):
        changes += _deployment_changes(reading.deployments)
    if not isinstance(reading.nodes, Unread):
        created = ((metadata(node).creationTimestamp, name_of(node)) for node in reading.nodes)
        for when, names in grouped((when, name) for when, name in created if when).items():
            what = f"nodes {some(names)} joined" if len(names) > 1 else f"node {names[0]} joined"
            changes.append(StackChange(when, what))
    if not isinstance(reading.jobs, Unread):
        words = {True: "ended well", False: "failed", None: "runs"}
        changes += [StackChange(_created(job), f"Job {name_of(job)} {words[jobs.ended(job)]}") for job in reading.jobs]
    return sorted(changes, key=lambda change: change.when, reverse=True)


def _deployment_changes(deployments: Iterable[Deployment]) -> Iterator[StackChange]:
    """Yield changes of Deployments; changes of one field manager within `_SAME_UPDATE_S` of each other are one."""
    last = [
        (entry.time, entry.manager or "", name_of(item))
        for item in deployments
        for entry in metadata(item).managedFields or ()
        if entry.time and entry.subresource != "status" and entry.manager not in _CONTROLLERS
    ]
    update: list[tuple[datetime, str, str]] = []
    for when, by, name in [*sorted(last, reverse=True), (None, "", "")]:
        same = when and update and by == update[-1][1] and (update[-1][0] - when).total_seconds() < _SAME_UPDATE_S
        if update and not same:
            yield StackChange(update[0][0], f"Deployments {some({item[2] for item in update})}", update[0][1])
            update = []
        if when:
            update.append((when, by, name))


def _created(job: Job) -> datetime:
    return metadata(job).creationTimestamp or datetime.min.replace(tzinfo=UTC)
