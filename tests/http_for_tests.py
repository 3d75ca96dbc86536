"""Servers of HTTP on the loopback interface whose answers are a function's."""

import json
import ssl
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True)
class HttpRequest:
    """Request of a client, with its body."""

    method: str
    url: SplitResult
    headers: Message
    body: bytes


@dataclass(frozen=True)
class HttpAnswer:
    """Answer to a request: bytes as they are, and anything else as JSON."""

    status: int
    content: object
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class StandIn(Protocol):
    """Stand-in for a service, at the address `url` once it is served."""

    url: str

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request."""
        ...


_StandIn = TypeVar("_StandIn", bound=StandIn)


@contextmanager
def http_server(
    answer: Callable[[HttpRequest], HttpAnswer], tls: ssl.SSLContext | None = None
) -> Generator[ThreadingHTTPServer]:
    """Answer requests at a free port of 127.0.0.1, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            said = answer(HttpRequest(self.command, urlsplit(self.path), self.headers, body))
            content, headers = said.content, {**said.headers}
            if not isinstance(content, bytes):
                content, headers = json.dumps(content).encode(), {"Content-Type": "application/json", **headers}
            self.send_response(said.status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def address_of(server: ThreadingHTTPServer) -> str:
    """Return the address of a server without TLS."""
    return f"http://127.0.0.1:{server.server_port}"


@contextmanager
def served(stand_in: _StandIn) -> Generator[_StandIn]:
    """Let a stand-in answer requests at a free port of 127.0.0.1, until the block ends."""
    with http_server(stand_in.answer) as server:
        stand_in.url = address_of(server)
        yield stand_in
