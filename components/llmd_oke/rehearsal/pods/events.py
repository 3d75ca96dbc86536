"""Warnings that a kubelet would report, as Event objects; the same one isn't repeated."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import cast

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Event, Pod

from llmd_oke.rehearsal.nodes.objects import timestamp
from llmd_oke.rehearsal.pods.facts import spec_of
from llmd_oke.rehearsal.watches import identity

_log = logging.getLogger(__name__)
_SOURCE = "rehearsal-node-agent"


class Recorder:
    """Writes events in the background; one that can't be written is only logged."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._told: set[tuple[str, str, str]] = set()
        self._writing: set[asyncio.Task[None]] = set()

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        """Report a warning about a pod."""
        key = (identity(pod).uid, reason, message)
        if key in self._told:
            return
        self._told.add(key)
        _log.info("pod %s/%s: %s: %s", identity(pod).namespace, identity(pod).name, reason, message)
        task = asyncio.create_task(self._write(pod, reason, message))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, pod: Pod, reason: str, message: str) -> None:
        try:
            await self._client.create(_event(pod, reason, message))
        except (ApiError, httpx2.HTTPError) as error:
            _log.debug("event not written: %s", error)

    def forget(self, uid: str) -> None:
        """Forget what was told of a pod that is gone."""
        self._told = {key for key in self._told if key[0] != uid}


def _event(pod: Pod, reason: str, message: str) -> Event:
    who, now = identity(pod), timestamp(datetime.now(UTC))
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": who.namespace, "name": who.name, "uid": who.uid}
    body = {
        "metadata": {"generateName": f"{who.name}.", "namespace": who.namespace},
        "involvedObject": involved,
        "reason": reason,
        "message": message[:1024],
        "type": "Warning",
        "source": {"component": _SOURCE, "host": spec_of(pod).nodeName or ""},
        "reportingComponent": _SOURCE,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    return cast("Event", Event.from_dict(body))
