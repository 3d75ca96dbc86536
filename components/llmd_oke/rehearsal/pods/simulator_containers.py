"""A container that is a server inside the simulated vLLM process, made by that process's control API."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from llmd_oke.rehearsal.pods.containers import StartError
from llmd_oke.rehearsal.pods.sandboxes import Mount

_LONG_POLL_S = 30
_START_LIMIT_S = 30
_POLL_TRIES = 3
_LOST = 137
_OK, _CREATED, _NO_CONTENT = 200, 201, 204


@dataclass(frozen=True)
class SimulatorSpec:
    """All that a simulated server needs."""

    network: Path
    argv: Sequence[str]
    environment: Mapping[str, str]
    image: str
    log: Path
    mounts: Sequence[Mount] = ()


def simulator_client(url: str) -> httpx2.AsyncClient:
    """A way to the simulator; each server keeps a connection, on which its end is waited for."""
    return httpx2.AsyncClient(base_url=url, limits=httpx2.Limits(max_connections=None), trust_env=False)


class SimulatorContainer:
    """A simulated model server; its log is fetched when it ends."""

    probed = True

    def __init__(self, spec: SimulatorSpec, client: httpx2.AsyncClient) -> None:
        self._spec = spec
        self._client = client
        self._id = uuid4().hex
        self.identity = f"simulator://{self._id}"

    async def start(self) -> None:
        """Ask for the server; StartError when the simulator refuses or isn't there."""
        spec = self._spec
        body: dict[str, Any] = {
            "id": self._id,
            "netns": str(spec.network),
            "argv": list(spec.argv),
            "env": dict(spec.environment),
            "image": spec.image,
            "mounts": {mount.target: str(mount.source) for mount in spec.mounts},
        }
        try:
            response = await self._client.post("/servers", json=body, timeout=_START_LIMIT_S)
        except httpx2.HTTPError as error:
            await self._forget(0)  # it may have been made all the same, and would keep the port
            raise StartError("CreateContainerError", f"simulated vLLM can't be reached: {error}") from error
        if response.status_code != _CREATED:
            raise StartError("CreateContainerError", f"simulated vLLM refused: {response.text}")

    async def wait(self) -> int:
        """Give the exit code; 137 when the simulator has forgotten the server or has gone itself."""
        unanswered = 0
        while unanswered < _POLL_TRIES:
            try:
                response = await self._poll()
            except httpx2.ConnectError:
                return _LOST
            except httpx2.HTTPError:
                unanswered += 1
                continue
            unanswered = 0
            if response.status_code == _OK:
                await self._fetch_log()
                return int(response.json().get("exit_code") or 0)
            if response.status_code != _NO_CONTENT:
                return _LOST
        return _LOST

    async def stop(self, grace_s: float) -> None:
        """End the server; running requests may end within the grace period."""
        await self._fetch_log()
        await self._forget(grace_s)

    async def _poll(self) -> httpx2.Response:
        limits = httpx2.Timeout(_LONG_POLL_S + 10)
        return await self._client.get(f"/servers/{self._id}/wait", params={"timeout_s": _LONG_POLL_S}, timeout=limits)

    async def _forget(self, grace_s: float) -> None:
        with suppress(httpx2.HTTPError):
            timeout = httpx2.Timeout(grace_s + 10)
            await self._client.delete(f"/servers/{self._id}", params={"grace_s": grace_s}, timeout=timeout)

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:  # noqa: ARG002
        """Do nothing, successfully: a simulated server has no file system to run a command in."""
        return 0, ""

    async def _fetch_log(self) -> None:
        with suppress(httpx2.HTTPError):
            response = await self._client.get(f"/servers/{self._id}/log")
            if response.status_code == _OK:
                self._spec.log.parent.mkdir(parents=True, exist_ok=True)
                self._spec.log.write_text(response.text)
