"""The node agent's control API: nodes that come and go while the agent runs, as a cloud's pools make them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.nodes.fleet import Fleet

Add: TypeAlias = Callable[[Sequence[NodeConfig]], Awaitable[None]]
Remove: TypeAlias = Callable[[str], Awaitable[None]]


class NodesAsked(BaseModel):
    """The body of a request to add nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeConfig, ...]


class NodeControl:
    """`POST /nodes`, `GET /nodes`, `DELETE /nodes/{name}` and `GET /healthz`.

    A node that is there already is left as it is; one to remove that isn't there is no error.
    """

    def __init__(self, fleet: Fleet, add: Add, remove: Remove) -> None:
        self._fleet = fleet
        self._add_nodes = add
        self._remove_node = remove

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(client_max_size=4 * 2**20)
        application.add_routes([
            web.get("/healthz", self._healthz),
            web.get("/nodes", self._names),
            web.post("/nodes", self._add),
            web.delete("/nodes/{name}", self._remove),
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

    async def _remove(self, request: web.Request) -> web.Response:
        await self._remove_node(request.match_info["name"])
        return web.Response(status=204)


async def serve_control(control: NodeControl, port: int) -> web.AppRunner:
    """Serves on a port of 127.0.0.1 until the runner is cleaned up."""
    runner = web.AppRunner(control.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner
