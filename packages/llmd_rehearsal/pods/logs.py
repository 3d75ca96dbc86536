"""Logs of containers, for which the API server asks the kubelet of a pod's node (`kubectl logs`).

One server answers for all nodes, as one process plays their kubelets. Lines have no times, so that `--since` and
`--timestamps` are refused.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

HOST: Final = "127.0.0.1"
"""Address of all kubelets, which the API server reaches and pods don't."""
PORT: Final = 10250

_LOOK_S = 0.5
_STOP_S = 1.0
_TIMES = ("sinceSeconds", "sinceTime", "timestamps")


class LogServer:
    """HTTP API of kubelets for logs: `GET /containerLogs/{namespace}/{pod}/{container}`, with `follow`, `previous`,
    `tailLines` and `limitBytes`.

    `folder` has the log of each container, NAMESPACE/POD/CONTAINER.log. `write` makes a container write its output so
    far to its log, and returns False if the container doesn't run.
    """

    def __init__(self, folder: Path, write: Callable[[str, str, str], Awaitable[bool]]) -> None:
        self._folder = folder
        self._write = write

    async def serve(self, certificate: Path, key: Path, port: int = PORT) -> web.AppRunner:
        """Serve the API with this certificate and return the runner, whose `cleanup` ends the server."""
        application = web.Application()
        application.add_routes([web.get("/containerLogs/{namespace}/{pod}/{container}", self._answer)])
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=_STOP_S)
        await runner.setup()
        secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        secured.load_cert_chain(certificate, key)
        await web.TCPSite(runner, HOST, port, ssl_context=secured).start()
        return runner

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (request.match_info[name] for name in ("namespace", "pod", "container"))
        query = request.query
        if refused := [name for name in _TIMES if query.get(name, "false") != "false"]:
            raise web.HTTPBadRequest(text=f"logs of a rehearsal have no times: {', '.join(refused)}")
        previous = query.get("previous") == "true"
        runs = await self._write(namespace, pod, container) and not previous
        file = self._folder / namespace / pod / f"{container}{'.previous' if previous else ''}.log"
        if not file.is_file() or file.resolve().parents[2] != self._folder.resolve():
            run = "previous run" if previous else "run"
            raise web.HTTPNotFound(text=f"no {run} of container {container} of pod {pod} has a log")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        content = file.read_bytes()
        await response.write(_end(content, query.get("tailLines"))[: int(query.get("limitBytes", len(content)))])
        while runs and query.get("follow") == "true" and request.transport is not None:
            await asyncio.sleep(_LOOK_S)
            runs, before = await self._write(namespace, pod, container), content
            content = file.read_bytes() if file.is_file() else b""  # a program that starts again has none at first
            await response.write(_news(before, content))
        return response


def _news(before: bytes, now: bytes) -> bytes:
    """Return what a log says since `before`. Its oldest lines may be gone, as of simulated servers, or all of them, if
    it is that of a new run.
    """
    if now.startswith(before):
        return now[len(before) :]
    return now.rpartition(before.splitlines(keepends=True)[-1])[2]


def _end(content: bytes, lines: str | None) -> bytes:
    """Return the last lines of a log; the whole log if the number of lines is None."""
    if lines is None:
        return content
    return b"".join(content.splitlines(keepends=True)[-int(lines) :]) if int(lines) else b""
