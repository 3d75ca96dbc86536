"""Connections that are kept between requests, one request on each at a time.

Proxies of the environment are never used, since they would be measured too.
"""

import asyncio
import ssl
from socket import gaierror
from time import perf_counter
from typing import Protocol, cast

from llmd_oke.bench.generator.addresses import Address, resolve
from llmd_oke.bench.generator.answers import AnswerReader, BadAnswer
from llmd_oke.bench.records.request import Failure

CONNECT_TIMEOUT_S = 10.0
"""Limit for opening a connection; the limit of the whole request is the load's."""

LONGEST_IDLE_S = 4.0
"""A connection that was idle for longer isn't used again: vLLM's server closes them after 5 s (uvicorn's default)."""


class Listener(Protocol):
    """Who has a request on a connection."""

    def on_body(self, body: bytes, status: int, now_s: float) -> None:
        """Part of the answer's body has arrived."""
        ...

    def on_answer(self, answer: AnswerReader) -> None:
        """The answer is complete; the connection is free again."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection has ended before the answer did, or what came is no answer."""
        ...


class NotConnected(Exception):
    """A connection that could not be opened; `failure` is its kind."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


_BUFFER = bytearray(65536)
"""What all connections read into, one after the other; a buffer for each read would cost more than the read."""

_VIEW = memoryview(_BUFFER)


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    __slots__ = ("_answer", "_listener", "_pool", "_transport", "idle_since_s")

    def __init__(self, pool: "Pool") -> None:
        self.idle_since_s = 0.0
        self._pool = pool
        self._listener: Listener | None = None
        self._answer = AnswerReader()
        self._transport: asyncio.Transport | None = None

    @property
    def usable(self) -> bool:
        """Whether the other side has not ended it."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, listener: Listener) -> None:
        """Send a request and tell `listener` about its answer."""
        self._listener, self._answer = listener, AnswerReader()
        if self._transport:
            self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Where to read to; called by the loop."""
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        """Give the body on as it comes; called by the loop."""
        now_s = perf_counter()
        data = bytes(_VIEW[:nbytes])
        listener, answer = self._listener, self._answer
        if listener is None:
            self.close()
            return
        try:
            body = answer.feed(data)
        except BadAnswer as error:
            self._end(str(error))
            return
        if body:
            listener.on_body(body, answer.status, now_s)
        if answer.complete:
            self._complete(listener)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that is under way, if there is one; called by the loop."""
        self._pool.forget(self)
        listener = self._listener
        if listener and self._answer.end():
            self._complete(listener)
        else:
            self._end("peer closed connection" if exc is None else f"{type(exc).__name__}: {exc}")

    def close(self) -> None:
        """End the connection; nobody is told."""
        self._listener = None
        if self._transport:
            self._transport.abort()

    def _complete(self, listener: Listener) -> None:
        self._listener = None
        if self._answer.keep_alive:
            self._pool.give_back(self)
        else:
            self.close()
        listener.on_answer(self._answer)

    def _end(self, reason: str) -> None:
        listener = self._listener
        self.close()
        if listener:
            listener.on_lost(reason)


class Pool:
    """All connections to one address."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._hosts: list[str] = []
        self._turn = 0
        self._idle: list[Connection] = []

    def take(self) -> Connection | None:
        """A connection that is open and free, or None. The one used last is the first to be taken."""
        now_s = perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now_s - connection.idle_since_s < LONGEST_IDLE_S:
                return connection
            connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """The connection's answer is complete."""
        connection.idle_since_s = perf_counter()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """End all idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def connect(self) -> Connection:
        """Open a connection; a name is resolved once and again after a failure, and its addresses are used in turn.

        Raises `NotConnected`.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._open()
        except TimeoutError as error:
            raise NotConnected(Failure.CONNECTION, f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except ssl.SSLError as error:
            raise NotConnected(Failure.TLS, f"{type(error).__name__}: {error}") from error
        except gaierror as error:
            raise NotConnected(Failure.ADDRESS, f"{self._address.host} can't be resolved: {error.strerror}") from error
        except OSError as error:
            self._hosts = []
            raise NotConnected(Failure.CONNECTION, f"{type(error).__name__}: {error}") from error

    async def _open(self) -> Connection:
        address = self._address
        if not self._hosts:
            self._hosts = list(await resolve(address))
        host = self._hosts[self._turn % len(self._hosts)]
        self._turn += 1
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self),
            host,
            address.port,
            ssl=address.tls,
            server_hostname=address.host if address.tls else None,
        )
        return connection
