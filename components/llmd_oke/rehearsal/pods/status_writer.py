"""Sends a pod's status to the API server, only when it has changed, several changes at once."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod, PodStatus
from lightkube.types import PatchType

from llmd_oke.rehearsal.watches import Identity

_log = logging.getLogger(__name__)
_GATHER_S = 0.01
_RETRY_S = 0.5
_MISSING = 404


class StatusWriter:
    """The one owner of a pod's status."""

    def __init__(self, client: AsyncClient, pod: Identity, compute: Callable[[], dict[str, Any]]) -> None:
        self._client = client
        self._pod = pod
        self._compute = compute
        self._dirty = asyncio.Event()
        self._sent: dict[str, Any] | None = None

    def changed(self) -> None:
        """Say that the status may have changed."""
        self._dirty.set()

    def seen(self, ready: bool) -> None:  # the one fact that others may write
        """Take note of the server's Ready condition: another controller (of an unreachable node) may have turned it."""
        if self._sent is not None and ready is not _says_ready(self._sent):
            self._sent = None
        self._dirty.set()

    async def run(self) -> None:
        """Send changes until cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(_GATHER_S)
            self._dirty.clear()
            if not await self.send():
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def send(self) -> bool:
        """Send the status now, unless the server has it; False when that failed and is worth another try."""
        status = self._compute()
        if self._sent is not None and _essence(status) == _essence(self._sent):
            return True
        try:
            await self._client.patch(
                PodStatus, self._pod.name, {"metadata": {"uid": self._pod.uid}, "status": status},
                namespace=self._pod.namespace, patch_type=PatchType.MERGE,
            )  # fmt: skip
        except ApiError as error:
            if error.status.code == _MISSING:
                return True
            _log.warning("status of %s not written: %s", self._pod.name, error)
            return error.status.code == 409  # another pod has this name by now
        except httpx2.HTTPError as error:
            _log.warning("status of %s not written: %s", self._pod.name, error)
            return False
        self._sent = status
        return True


async def delete_object(client: AsyncClient, pod: Identity) -> None:
    """Take the pod's object away for good, the last thing that a kubelet does."""
    try:
        await client.delete(Pod, pod.name, namespace=pod.namespace, grace_period=0)
    except ApiError as error:
        if error.status.code != _MISSING:
            raise


def _says_ready(status: dict[str, Any]) -> bool:
    conditions: list[dict[str, Any]] = status["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _essence(status: dict[str, Any]) -> dict[str, Any]:
    """Leave out what changes with the time of computing alone."""
    conditions: list[dict[str, Any]] = status["conditions"]
    timeless = [{key: value for key, value in each.items() if key != "lastTransitionTime"} for each in conditions]
    return {**status, "conditions": timeless}
