"""The control API: how the pod runner starts and stops simulated servers."""

import asyncio
import signal
from typing import Any, cast

from aiohttp import web

from llmd_oke.rehearsal.vllm.server import Container, SimulatedServer, Simulation, State

_KEPT_EXITED = 256
_STOP_GRACE_S = 30.0
_WAIT_S = 30.0
_KILLED = 128 + signal.SIGKILL
"""The exit code of a container that was killed at once, or because it took longer than its grace period."""


class Control:
    """All servers of the process by id. Exited ones stay readable until they are replaced or many newer ones exited."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._servers: dict[str, SimulatedServer] = {}

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(client_max_size=4 * 2**20)
        application.add_routes([
            web.get("/healthz", self._healthz),
            web.post("/servers", self._create),
            web.get("/pairings", self._pairings),
            web.get("/servers/{id}", self._show),
            web.get("/servers/{id}/wait", self._wait),
            web.get("/servers/{id}/log", self._log),
            web.post("/servers/{id}/kill", self._kill),
            web.delete("/servers/{id}", self._delete),
        ])  # fmt: skip
        application.on_shutdown.append(self._stop_all)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        lag = self._simulation.clock.lag
        return web.json_response({
            "servers": sum(server.state is not State.EXITED for server in self._servers.values()),
            "time_scale": self._simulation.clock.scale,
            "lag_s": lag.recent_s,
            "steps": lag.steps,
            "late_steps": lag.late_steps,
            "slipped_s": lag.slipped_s,
        })  # fmt: skip

    async def _pairings(self, _: web.Request) -> web.Response:
        pairs = self._simulation.network.pairings.items()
        return web.json_response([{"prefill": holder, "decode": asked, "pulls": n} for (holder, asked), n in pairs])

    async def _create(self, request: web.Request) -> web.Response:
        container = _container(await request.json())
        known = self._servers.get(container.id)
        if known is not None and known.state is not State.EXITED:
            raise web.HTTPConflict(text=f"server {container.id} is {known.state}")
        self._forget_old()
        self._servers.pop(container.id, None)
        server = self._servers[container.id] = SimulatedServer(container, self._simulation)
        server.start()
        return web.json_response({"id": container.id}, status=201)

    async def _show(self, request: web.Request) -> web.Response:
        return _shown(self._server(request))

    async def _wait(self, request: web.Request) -> web.Response:
        server = self._server(request)
        try:
            await asyncio.wait_for(server.exited.wait(), float(request.query.get("timeout_s", _WAIT_S)))
        except TimeoutError:
            return web.Response(status=204)
        return _shown(server)

    async def _log(self, request: web.Request) -> web.Response:
        return web.Response(text=self._server(request).log)

    async def _delete(self, request: web.Request) -> web.Response:
        server = self._servers.get(request.match_info["id"])
        if server is not None:
            # Shielded: a pod runner that doesn't wait for the answer must not leave a half-stopped server behind.
            grace_s = float(request.query.get("grace_s", _STOP_GRACE_S))
            await asyncio.shield(server.stop(grace_s) if grace_s else server.kill(_KILLED))
        return web.Response(status=204)

    async def _kill(self, request: web.Request) -> web.Response:
        await asyncio.shield(self._server(request).kill(_KILLED))
        return web.Response(status=204)

    def _server(self, request: web.Request) -> SimulatedServer:
        try:
            return self._servers[request.match_info["id"]]
        except KeyError:
            raise web.HTTPNotFound(text=f"no server {request.match_info['id']}") from None

    def _forget_old(self) -> None:
        exited = [id_ for id_, server in self._servers.items() if server.state is State.EXITED]
        for id_ in exited[:-_KEPT_EXITED]:
            del self._servers[id_]

    async def _stop_all(self, _: web.Application) -> None:
        await asyncio.gather(*(server.stop(0.0) for server in self._servers.values()))


def _container(body: Any) -> Container:
    """The container in a request's body; a wrong shape is answered with 400."""
    try:
        values = cast("dict[str, Any]", body)
        return Container(
            id=str(values["id"]),
            argv=tuple(map(str, values["argv"])),
            environment={str(name): str(value) for name, value in values.get("env", {}).items()},
            image=str(values.get("image", "")),
            network_namespace=values.get("netns"),
            gpus=values.get("gpus"),
            mounts={str(path): str(source) for path, source in values.get("mounts", {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise web.HTTPBadRequest(text=f"not a server: {error!r}") from error


def _shown(server: SimulatedServer) -> web.Response:
    return web.json_response({"state": server.state, "exit_code": server.exit_code})
