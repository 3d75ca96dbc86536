"""Pods of the simulated nodes, from binding to removal: start order of containers, termination, and status."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.resources.core_v1 import ConfigMap, Pod, Secret
from llmd_base.errors import KitError
from llmd_oke.operations.objects import SIMULATED_ANNOTATION, metadata

from llmd_rehearsal.pods.container_worker import ContainerOptions, ContainerWorker
from llmd_rehearsal.pods.containers import Container
from llmd_rehearsal.pods.environment import DEFAULT_GRACE_S
from llmd_rehearsal.pods.pod_sandbox import AgentContext, PodSandbox
from llmd_rehearsal.pods.processes import start_task
from llmd_rehearsal.pods.status import (
    ContainerRecord,
    ContainerRole,
    StatusWriter,
    delete_object,
    gather_s,
    initial_records,
    pod_status,
)
from llmd_rehearsal.pods.volumes import source_names
from llmd_rehearsal.watches import ObjectStore, identity, is_ready, spec_of

_log = logging.getLogger(__name__)
_MIN_SIDECAR_GRACE_S = 2.0
_LOST_GRACE_S = 5.0
_SANDBOX_S = 0.5
"""Seconds after which a pod's status is written although its sandbox isn't created yet; most sandboxes are created
sooner.
"""
_END_PHASES = {"Succeeded", "Failed"}


class PodRunner:
    """Workers of all pods on the simulated nodes, by uid. Of several pods with the same name, all but the latest are
    terminated.
    """

    def __init__(self, context: AgentContext, pods: ObjectStore[Pod]) -> None:
        self._context = context
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        pods.subscribe(self.pod_changed)
        context.sources.config_maps.subscribe(self._source_changed)
        context.sources.secrets.subscribe(self._source_changed)

    async def stop(self, grace_s: float) -> None:
        """End the processes of all pods without changing the pod objects."""
        ends = [asyncio.create_task(worker.terminate(grace_s)) for worker in tuple(self._workers.values())]
        if ends:
            await asyncio.wait(ends, timeout=grace_s + _LOST_GRACE_S)

    async def cut_off(self, node: str) -> None:
        """Kill all processes of a stopped node's pods; the pod objects stay unchanged.

        Unlike on a real machine, the content of `emptyDir` volumes is gone when the node is started again.
        """
        uids = [uid for uid, worker in self._workers.items() if spec_of(worker.pod).nodeName == node]
        await asyncio.gather(*(self._workers.pop(uid).cut_off() for uid in uids))

    async def write_log(self, namespace: str, pod: str, container: str) -> bool:
        """Write what a container has said so far to its log file; return False if the container doesn't run."""
        for worker in self._workers.values():
            if (worker.identity.namespace, worker.identity.name) == (namespace, pod):
                return await worker.write_log(container)
        return False

    def pod_changed(self, pod: Pod, exists: bool) -> None:
        """Create a worker for a pod that is bound to one of the running simulated nodes and has none; update the worker
        of a changed pod, and end that of a pod that no longer exists. Called for each change in the store of pods.
        """
        pod_id = identity(pod)
        if not exists:
            self._lost(pod_id.uid)
            return
        if pod_id.uid in self._workers:
            self._workers[pod_id.uid].update(pod)
            return
        for other in [worker.identity for worker in self._workers.values()]:
            if (other.namespace, other.name) == (pod_id.namespace, pod_id.name):
                self._lost(other.uid)
        if not self._context.fleet.runs(spec_of(pod).nodeName):
            return
        if metadata(pod).deletionTimestamp is not None:
            self._spawn(delete_object(self._context.client, pod_id))
        elif pod.status is None or pod.status.phase not in _END_PHASES:
            worker = PodWorker(self._context, pod, lambda: len(self._workers))
            self._workers[worker.identity.uid] = worker

    def _lost(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker is not None:
            self._spawn(worker.terminate(min(_LOST_GRACE_S, worker.grace_s)))

    def _source_changed(self, source: ConfigMap | Secret, exists: bool) -> None:  # noqa: ARG002
        changed = identity(source)
        for worker in self._workers.values():
            if worker.identity.namespace == changed.namespace and changed.name in worker.sources:
                worker.touch()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work, "end of a pod")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class PodWorker:
    """Worker of one pod: runs its containers until all have ended, or until `terminate`."""

    def __init__(self, context: AgentContext, pod: Pod, pods: Callable[[], int]) -> None:
        """Start the worker; `pods` returns the number of pods on this machine."""
        self.pod = pod
        self.identity = identity(pod)
        self.sources = source_names(pod)
        self._context = context
        self._sandbox = PodSandbox(context, pod)
        self._start = datetime.now(UTC)
        self._records = initial_records(pod)
        self._workers: dict[str, ContainerWorker] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        spec = spec_of(pod)
        containers = [*(spec.initContainers or []), *spec.containers]
        simulated = ",".join(item.name for item in containers if context.factory.is_simulated(item))
        self._writer = StatusWriter(
            context.client,
            self.identity,
            self._status,
            annotations={SIMULATED_ANNOTATION: simulated} if simulated else {},
            gather_s=lambda: gather_s(pods()),
            serves=(spec.restartPolicy or "Always") == "Always",
        )
        self._title = f"pod {self.identity.namespace}/{self.identity.name}"
        self._writing = start_task(self._writer.run(), f"{self._title}: status")
        self._living = start_task(self._live(), self._title)
        self._end: asyncio.Task[None] | None = None

    @property
    def grace_s(self) -> float:
        """Termination grace period of the pod's spec in seconds."""
        grace = spec_of(self.pod).terminationGracePeriodSeconds
        return DEFAULT_GRACE_S if grace is None else grace

    def update(self, pod: Pod) -> None:
        """Process a new version of the pod object; begin the pod's termination if it is being deleted."""
        self.pod = pod
        self._writer.seen(is_ready(pod))
        meta = metadata(pod)
        if meta.deletionTimestamp is not None and self._end is None:
            grace = meta.deletionGracePeriodSeconds
            slowest = max((1.0, *(worker.time_scale for worker in self._workers.values())))
            self._begin_end((DEFAULT_GRACE_S if grace is None else grace) * slowest, delete=True)

    def touch(self) -> None:
        """Request that the pod's volumes are written anew, because a ConfigMap or Secret of its `sources` has
        changed.
        """
        self._sandbox.touch()

    async def write_log(self, container: str) -> bool:
        """Write what a container has said so far to its log file; return False if the container doesn't run."""
        return container in self._workers and await self._workers[container].write_log()

    async def terminate(self, grace_s: float) -> None:
        """Terminate the pod without changing its object, which is deleted already or outlives the agent."""
        await asyncio.shield(self._end or self._begin_end(grace_s, delete=False))

    async def cut_off(self) -> None:
        """Kill the pod's processes without writing its status, as if its node lost power."""
        self._writing.cancel()
        if self._end is not None:
            self._end.cancel()
        await self._begin_end(0.0, delete=False)

    def _begin_end(self, grace_s: float, *, delete: bool) -> asyncio.Task[None]:
        self._end = start_task(self._terminate(grace_s, delete=delete), f"{self._title}: end")
        return self._end

    async def _live(self) -> None:
        waiting = asyncio.get_running_loop().call_later(_SANDBOX_S, self._writer.changed)
        try:
            await self._sandbox.create(self.pod, self._warn)
            waiting.cancel()
            self._writer.changed()
            if await self._initialise():
                mains = [self._begin(model, ContainerRole.MAIN) for model in spec_of(self.pod).containers]
                await asyncio.wait(mains)  # unlike gather, doesn't cancel the containers if this task is cancelled
            await self._stop(reversed(self._names_with_role(ContainerRole.SIDECAR)), self.grace_s)
        except KitError as error:
            self._warn("FailedCreatePodSandBox", str(error))
            return
        self._writer.changed()
        await self._sandbox.remove()

    async def _initialise(self) -> bool:
        """Run the init containers in order; return False if one has failed and isn't restarted."""
        for model in spec_of(self.pod).initContainers or []:
            record = self._records[model.name]
            task = self._begin(model, record.role)
            if record.role is ContainerRole.SIDECAR:
                await self._workers[model.name].started.wait()
                continue
            await asyncio.wait([task])
            if not record.succeeded:
                return False
        return True

    def _begin(self, model: ContainerModel, role: ContainerRole) -> asyncio.Task[None]:
        worker = ContainerWorker(model, self._records[model.name], self._container_options(model, role))
        self._workers[model.name] = worker
        task = self._running[model.name] = start_task(worker.run(), f"{self._title}: container {model.name}")
        return task

    def _container_options(self, model: ContainerModel, role: ContainerRole) -> ContainerOptions:
        def make() -> Container:
            return self._context.factory.make(model, self._sandbox.container_context(self.pod, model))

        facts, policy = self._sandbox.facts, spec_of(self.pod).restartPolicy or "Always"
        always = role is ContainerRole.SIDECAR or (policy == "Always" and role is ContainerRole.MAIN)
        return ContainerOptions(
            pull=lambda: self._context.puller.pull(self.pod, model.image or ""),
            make=make,
            termination_message=partial(self._sandbox.termination_message, model),
            restarts=lambda code: always or (policy != "Never" and code != 0),
            changed=self._writer.changed,
            warn=self._warn,
            address=facts.pod_ip if facts else "",
            probes=self._context.probes,
            starts=self._context.starts,
            time_scale=self._context.probe_time_scale,
            back_off=self._context.back_off,
            grace_s=self.grace_s,
        )

    async def _terminate(self, grace_s: float, *, delete: bool) -> None:
        self._living.cancel()
        deadline = asyncio.get_running_loop().time() + grace_s
        await asyncio.gather(self._living, return_exceptions=True)
        await self._stop(
            [*self._names_with_role(ContainerRole.MAIN), *self._names_with_role(ContainerRole.INIT)], grace_s
        )
        for name in reversed(self._names_with_role(ContainerRole.SIDECAR)):
            left_s = deadline - asyncio.get_running_loop().time()
            await self._stop([name], max(left_s, min(_MIN_SIDECAR_GRACE_S, grace_s)))
        self._writing.cancel()
        if delete:
            await _log_failure(self._writer.send())
        await self._sandbox.remove()
        if delete:
            await _log_failure(delete_object(self._context.client, self.identity))
        self._context.recorder.forget(self.identity.uid)

    async def _stop(self, names: Iterable[str], grace_s: float) -> None:
        started = [name for name in names if name in self._workers]
        await asyncio.gather(*(self._workers[name].stop(grace_s) for name in started))
        await asyncio.gather(*(self._running[name] for name in started))

    def _names_with_role(self, role: ContainerRole) -> list[str]:
        return [name for name, record in self._records.items() if record.role is role]

    def _status(self) -> dict[str, Any]:
        records: list[ContainerRecord] = list(self._records.values())
        return pod_status(self.pod, self._sandbox.facts, records, self._start, datetime.now(UTC))

    def _warn(self, reason: str, message: str) -> None:
        self._context.recorder.warn(self.pod, reason, message)


async def _log_failure(request: Coroutine[Any, Any, object]) -> None:
    """Await a request and log its failure, so that the pod's termination continues."""
    try:
        await request
    except (ApiError, httpx2.HTTPError) as error:
        _log.warning("%s", error)
