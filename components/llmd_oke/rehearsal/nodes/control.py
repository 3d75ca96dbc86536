"""The node agent's control API: nodes that come and go while the agent runs, as a cloud's pools make them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.nodes.fleet import Fleet

Add: TypeAlias = Callable[[Sequence[NodeConfig]], Awaitable[None]]
Change: TypeAlias = Literal["remove", "stop", "start"]
ChangeNode: TypeAlias = Callable[[str], Awaitable[None]]


class NodesAsked(BaseModel):
    """The body of a request to add nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeConfig, ...]


class NodeControl:
    """`POST /nodes`, `GET /nodes`, `DELETE /nodes/{name}`, `POST /nodes/{name}/stop` and `/start`, `GET /healthz`.

    A node that is there already is left as it is; one to remove that isn't there is no error. A stopped one is a
    machine without power, until it is started.
    """

    def __init__(self, fleet: Fleet, add: Add, change: Mapping[Change, ChangeNode]) -> None:
        self._fleet = fleet
        self._add_nodes = add
        self._change = change

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(client_max_size=4 * 2**20)
        application.add_routes([
            web.get("/healthz", self._healthz),
            web.get("/nodes", self._names),
            web.post("/nodes", self._add),
            web.delete("/nodes/{name}", partial(self._changed, "remove")),
            web.post("/nodes/{name}/stop", partial(self._changed, "stop")),
            web.post("/nodes/{name}/start", partial(self._changed, "start")),
        ])  # fmt: skip
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"nodes": len(self._fleet.configs())})

    async def _names(self, _: web.Request) -> web.Response:
        return web.json_response({"nodes": [config.name for config in self._fleet.configs()]})

    async def _add(self, request: web.Request) -> web.Response:
        try:
            asked = NodesAsked.model_validate(await request.json())
            await self._add_nodes(asked.nodes)
        except (ValidationError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except KitError as error:
            raise web.HTTPConflict(text=error.message) from error
        return web.json_response({"nodes": [node.name for node in asked.nodes]}, status=201)

    async def _changed(self, change: Change, request: web.Request) -> web.Response:
        try:
            await self._change[change](request.match_info["name"])
        except KitError as error:
            raise web.HTTPNotFound(text=str(error)) from error
        return web.Response(status=204)


async def serve_control(control: NodeControl, port: int) -> web.AppRunner:
    """Serves on a port of 127.0.0.1 until the runner is cleaned up."""
    runner = web.AppRunner(control.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner
