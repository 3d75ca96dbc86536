"""Runs one pod from its binding to its removal: order of its containers, their restarts, its end."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.pods import tasks
from llmd_oke.rehearsal.pods.container_worker import ContainerWorker, Manner
from llmd_oke.rehearsal.pods.containers import Container
from llmd_oke.rehearsal.pods.facts import DEFAULT_GRACE_S, spec_of
from llmd_oke.rehearsal.pods.homes import Home
from llmd_oke.rehearsal.pods.records import ContainerRecord, Role, initial_records
from llmd_oke.rehearsal.pods.status import pod_status
from llmd_oke.rehearsal.pods.status_writer import StatusWriter, delete_object
from llmd_oke.rehearsal.pods.surroundings import Surroundings
from llmd_oke.rehearsal.watches import identity, metadata, texts

_log = logging.getLogger(__name__)
_LEAST_SIDECAR_GRACE_S = 2.0
SIMULATED_ANNOTATION = "rehearsal.llmd-oke/simulated"


class PodWorker:
    """One pod. `run` goes on until its containers are over; `terminate` ends it earlier."""

    def __init__(self, surroundings: Surroundings, pod: Pod) -> None:
        self.pod = pod
        self.identity = identity(pod)
        self._surroundings = surroundings
        self._home = Home(surroundings, pod)
        self._start = datetime.now(UTC)
        self._records = initial_records(pod)
        self._workers: dict[str, ContainerWorker] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._writer = StatusWriter(surroundings.client, self.identity, self._status)
        self._title = f"pod {self.identity.namespace}/{self.identity.name}"
        self._writing = tasks.start(self._writer.run(), f"{self._title}: status")
        self._living = tasks.start(self._live(), self._title)
        self._end: asyncio.Task[None] | None = None

    @property
    def grace_s(self) -> float:
        """The grace period that the pod's spec asks for, in seconds."""
        grace = spec_of(self.pod).terminationGracePeriodSeconds
        return DEFAULT_GRACE_S if grace is None else grace

    def update(self, pod: Pod) -> None:
        """Take a new version of the object; one that is being deleted is terminated, once."""
        self.pod = pod
        self._writer.seen(_is_ready(pod))
        meta = metadata(pod)
        if meta.deletionTimestamp is not None and self._end is None:
            grace = meta.deletionGracePeriodSeconds
            self._begin_end(DEFAULT_GRACE_S if grace is None else grace, delete=True)

    def touch(self) -> None:
        """Say that a ConfigMap or Secret of the pod's namespace has changed."""
        self._home.touch()

    async def terminate(self, grace_s: float) -> None:
        """End the pod without touching its object: it's gone already, or the agent itself ends."""
        await asyncio.shield(self._end or self._begin_end(grace_s, delete=False))

    async def cut_off(self) -> None:
        """End the pod as its node loses power: at once, and without a word to the API server."""
        self._writing.cancel()
        if self._end is not None:
            self._end.cancel()
        await self._begin_end(0.0, delete=False)

    def _begin_end(self, grace_s: float, *, delete: bool) -> asyncio.Task[None]:
        self._end = tasks.start(self._terminate(grace_s, delete=delete), f"{self._title}: end")
        return self._end

    async def _live(self) -> None:
        self._writer.changed()
        try:
            await self._mark_simulated()
            await self._home.enter(self.pod, self._warn)
            self._writer.changed()
            if await self._initialise():
                mains = [self._begin(model, Role.MAIN) for model in spec_of(self.pod).containers]
                await asyncio.wait(mains)  # which, other than gather, leaves them running when this is cancelled
            await self._stop(reversed(self._of_role(Role.SIDECAR)), self.grace_s)
        except KitError as error:
            self._warn("FailedCreatePodSandBox", str(error))
            return
        self._writer.changed()
        await self._home.leave()

    async def _initialise(self) -> bool:
        """Run init containers one after the other; False when one has failed for good."""
        for model in spec_of(self.pod).initContainers or []:
            record = self._records[model.name]
            task = self._begin(model, record.role)
            if record.role is Role.SIDECAR:
                await self._workers[model.name].started.wait()
                continue
            await asyncio.wait([task])
            if not record.succeeded:
                return False
        return True

    def _begin(self, model: ContainerModel, role: Role) -> asyncio.Task[None]:
        worker = ContainerWorker(model, self._records[model.name], self._manner(model, role))
        self._workers[model.name] = worker
        task = self._running[model.name] = tasks.start(worker.run(), f"{self._title}: container {model.name}")
        return task

    def _manner(self, model: ContainerModel, role: Role) -> Manner:
        def make() -> Container:
            setting = self._home.setting(self.pod, model)
            self._home.rotate_log(model.name)
            return self._surroundings.factory.make(model, setting)

        spec, facts = spec_of(self.pod), self._home.facts
        return Manner(
            make=make,
            last_words=partial(self._home.last_words, model),
            restarts=_restarts(spec.restartPolicy or "Always", role),
            changed=self._writer.changed,
            warn=self._warn,
            address=facts.pod_ip if facts else "",
            time_scale=self._surroundings.probe_time_scale,
            back_off=self._surroundings.back_off,
            grace_s=self.grace_s,
        )

    async def _terminate(self, grace_s: float, *, delete: bool) -> None:
        self._living.cancel()
        deadline = asyncio.get_running_loop().time() + grace_s
        await asyncio.gather(self._living, return_exceptions=True)
        await self._stop([*self._of_role(Role.MAIN), *self._of_role(Role.INIT)], grace_s)
        for name in reversed(self._of_role(Role.SIDECAR)):
            left_s = deadline - asyncio.get_running_loop().time()
            await self._stop([name], max(left_s, min(_LEAST_SIDECAR_GRACE_S, grace_s)))
        self._writing.cancel()
        if delete:
            await _tolerant(self._writer.send())
        await self._home.leave()
        if delete:
            await _tolerant(delete_object(self._surroundings.client, self.identity))
        self._surroundings.recorder.forget(self.identity.uid)

    async def _stop(self, names: Iterable[str], grace_s: float) -> None:
        known = [name for name in names if name in self._workers]
        await asyncio.gather(*(self._workers[name].stop(grace_s) for name in known))
        await asyncio.gather(*(self._running[name] for name in known))

    def _of_role(self, role: Role) -> list[str]:
        return [name for name, record in self._records.items() if record.role is role]

    def _status(self) -> dict[str, Any]:
        records: list[ContainerRecord] = list(self._records.values())
        return pod_status(self.pod, self._home.facts, records, self._start, datetime.now(UTC))

    def _warn(self, reason: str, message: str) -> None:
        self._surroundings.recorder.warn(self.pod, reason, message)

    async def _mark_simulated(self) -> None:
        spec, factory = spec_of(self.pod), self._surroundings.factory
        names = [each.name for each in [*(spec.initContainers or []), *spec.containers] if factory.is_simulated(each)]
        if not names or texts(metadata(self.pod), "annotations").get(SIMULATED_ANNOTATION):
            return
        patch = {"metadata": {"annotations": {SIMULATED_ANNOTATION: ",".join(names)}}}
        who = self.identity
        await _tolerant(
            self._surroundings.client.patch(Pod, who.name, patch, namespace=who.namespace, patch_type=PatchType.MERGE)
        )


def _restarts(policy: str, role: Role) -> Callable[[int], bool]:
    always = role is Role.SIDECAR or (policy == "Always" and role is Role.MAIN)

    def restarts(code: int) -> bool:
        return always or (policy != "Never" and code != 0)

    return restarts


def _is_ready(pod: Pod) -> bool:
    conditions = (pod.status.conditions if pod.status else None) or []
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


async def _tolerant(request: Coroutine[Any, Any, object]) -> None:
    """Await a request whose failure doesn't keep the pod from going on."""
    try:
        await request
    except (ApiError, httpx2.HTTPError) as error:
        _log.warning("%s", error)
