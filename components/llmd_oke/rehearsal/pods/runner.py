"""Gives every pod bound to one of the simulated nodes a worker."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from lightkube.resources.core_v1 import ConfigMap, Pod, Secret

from llmd_oke.rehearsal.pods import tasks
from llmd_oke.rehearsal.pods.facts import spec_of
from llmd_oke.rehearsal.pods.pod_worker import PodWorker
from llmd_oke.rehearsal.pods.status_writer import delete_object
from llmd_oke.rehearsal.pods.surroundings import Surroundings
from llmd_oke.rehearsal.watches import Identity, Store, identity, metadata

_LOST_GRACE_S = 5.0
_ENDED = {"Succeeded", "Failed"}


class Runner:
    """The workers of all pods, by uid; each name has one at a time that isn't ending."""

    def __init__(self, surroundings: Surroundings, pods: Store[Pod]) -> None:
        self._surroundings = surroundings
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        pods.subscribe(self._pod_changed)
        surroundings.sources.config_maps.subscribe(self._source_changed)
        surroundings.sources.secrets.subscribe(self._source_changed)

    async def stop(self, grace_s: float) -> None:
        """End all pods' processes without touching their objects."""
        ends = [asyncio.create_task(worker.terminate(grace_s)) for worker in tuple(self._workers.values())]
        if ends:
            await asyncio.wait(ends, timeout=grace_s + _LOST_GRACE_S)

    def consider(self, pod: Pod) -> None:
        """Take a pod, if it's bound to one of the nodes and has no worker yet: for nodes added later."""
        self._pod_changed(pod, exists=True)

    async def cut_off(self, node: str) -> None:
        """End all processes of a node's pods at once and take no more of its pods; their objects stay as they are.

        Unlike on a real machine, what pods had in `emptyDir` volumes is gone when the node comes back.
        """
        uids = [uid for uid, worker in self._workers.items() if spec_of(worker.pod).nodeName == node]
        await asyncio.gather(*(self._workers.pop(uid).cut_off() for uid in uids))

    def _pod_changed(self, pod: Pod, exists: bool) -> None:  # a store's subscriber
        who = identity(pod)
        if not exists:
            self._lost(who.uid)
            return
        for worker in tuple(self._workers.values()):
            if worker.identity.uid != who.uid and _same_name(worker.identity, who):
                self._lost(worker.identity.uid)
        if who.uid in self._workers:
            self._workers[who.uid].update(pod)
        elif self._surroundings.fleet.runs(spec_of(pod).nodeName):
            self._take(pod)

    def _take(self, pod: Pod) -> None:
        ended = pod.status is not None and pod.status.phase in _ENDED
        deleting = metadata(pod).deletionTimestamp is not None
        if ended and not deleting:
            return
        if deleting:
            self._spawn(delete_object(self._surroundings.client, identity(pod)))
            return
        worker = PodWorker(self._surroundings, pod)
        self._workers[worker.identity.uid] = worker

    def _lost(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker is not None:
            self._spawn(worker.terminate(min(_LOST_GRACE_S, worker.grace_s)))

    def _source_changed(self, source: ConfigMap | Secret, exists: bool) -> None:  # noqa: ARG002
        namespace = metadata(source).namespace
        for worker in self._workers.values():
            if worker.identity.namespace == namespace:
                worker.touch()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = tasks.start(work, "end of a pod")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _same_name(one: Identity, other: Identity) -> bool:
    return (one.namespace, one.name) == (other.namespace, other.name)
