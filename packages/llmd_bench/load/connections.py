"""HTTP/1.1 connections (RFC 9112) with keep-alive, one request at a time on each.

Proxies from the environment are ignored, since they would be measured too. Streamed answers usually have one short
chunk per packet: a fast path handles that case, all others go through a buffer.
"""

import asyncio
import ssl
from email.utils import parsedate_to_datetime
from socket import gaierror
from time import perf_counter, time
from typing import Protocol, cast

from llmd_bench.load.completions import Address, resolve
from llmd_bench.load.records import Failure

MAX_HEAD_BYTES = 65536


class BadAnswer(Exception):
    """Error for bytes that are no HTTP/1.1 response."""


class AnswerReader:
    """Parser of one HTTP response, which is fed the bytes as they arrive until it is `complete`."""

    __slots__ = ("_chunked", "_in_chunk", "_left", "_rest", "_trailer", "complete", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self.keep_alive = True
        self._rest = b""
        self._chunked = False
        self._in_chunk = False
        self._trailer = False
        self._left: int | None = None
        """Remaining bytes of the body or of the chunk; None if the body ends with the connection."""

    def feed(self, data: bytes) -> bytes:
        """Parse `data` and return the bytes of the body in it.

        Raises:
            BadAnswer: the bytes are no HTTP/1.1 response.
        """
        if self._chunked and not self._rest and not self._in_chunk and not self._trailer:
            end = data.find(b"\r\n", 0, 10)
            if end > 0 and data[:end].isalnum():
                size = _size(data[:end])
                if size and len(data) == end + size + 4:
                    return data[end + 2 : -2]
        self._rest += data
        if not self.status and not self._read_head():
            return b""
        if self._chunked:
            return self._read_chunks()
        body, self._rest = self._rest[: self._left], b""
        if self._left is not None:
            self._left -= len(body)
            self.complete = not self._left
        return body

    def end(self) -> bool:
        """Finish parsing after the end of the connection; return whether the response is complete."""
        self.complete = self.complete or (self.status > 0 and not self._chunked and self._left is None)
        self.keep_alive = False
        return self.complete

    @property
    def retry_after_s(self) -> float | None:
        """Value of the `Retry-After` header in seconds from now; None if the header is absent or invalid."""
        text = self.headers.get(b"retry-after", b"").decode("latin-1").strip()
        if text.isdigit():
            return float(text)
        try:
            return max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
        except (ValueError, TypeError):
            return None

    def _read_head(self) -> bool:
        """Parse the status line and headers, skipping interim responses (1xx); return False if they aren't complete
        yet.
        """
        while not self.status:
            head, mark, rest = self._rest.partition(b"\r\n\r\n")
            if not mark:
                if len(self._rest) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(self._rest[:7]):
                    raise BadAnswer(f"not HTTP/1.1: {self._rest[:60]!r}")
                return False
            self._rest = rest
            self._note_head(head)
        return True

    def _note_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, after = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not after[:3].isdigit():
            raise BadAnswer(f"not HTTP/1.1: {first[:60]!r}")
        status = int(after[:3])
        if status < 200:
            return
        self.status = status
        pairs = (line.partition(b":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._note_framing(version)

    def _note_framing(self, version: bytes) -> None:
        connection = self.headers.get(b"connection", b"").lower()
        self.keep_alive = connection != b"close" and (version != b"HTTP/1.0" or connection == b"keep-alive")
        length = self.headers.get(b"content-length")
        self._chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        if self._chunked:
            return
        if length is not None and not length.isdigit():
            raise BadAnswer(f"content-length is {length[:60]!r}")
        self._left = 0 if self.status in {204, 304} else None if length is None else int(length)

    def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        while not self.complete and (self._trailer or self._in_chunk or self._begin_chunk()):
            if self._trailer:
                line, mark, rest = self._rest.partition(b"\r\n")
                if not mark:
                    break
                self._rest, self.complete = rest, not line
                continue
            part = self._rest[: self._left]
            parts.append(part)
            self._rest = self._rest[len(part) :]
            self._left = (self._left or 0) - len(part)
            if self._left or len(self._rest) < 2:
                break
            if not self._rest.startswith(b"\r\n"):
                raise BadAnswer("a chunk longer than its size")
            self._rest, self._in_chunk = self._rest[2:], False
        return b"".join(parts)

    def _begin_chunk(self) -> bool:
        line, mark, rest = self._rest.partition(b"\r\n")
        if not mark:
            if len(line) > MAX_HEAD_BYTES:
                raise BadAnswer("a chunk without size")
            return False
        self._left, self._rest = _size(line.partition(b";")[0].strip()), rest
        self._trailer, self._in_chunk = not self._left, bool(self._left)
        return True


def _size(text: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise BadAnswer(f"the size of a chunk is {text[:60]!r}") from error


CONNECT_TIMEOUT_S = 10.0
"""Time limit for opening a connection in seconds; the load sets the limit of the whole request."""

LONGEST_IDLE_S = 4.0
"""Maximum idle time of a reused connection in seconds: vLLM's server closes idle connections after 5 s (uvicorn's
default).
"""


class ResponseListener(Protocol):
    """Receiver of the response to a request on a connection."""

    def on_body(self, body: bytes, status: int, now_s: float) -> None:
        """Receive a part of the response's body; `now_s` is its arrival on the clock of `perf_counter`."""
        ...

    def on_answer(self, answer: AnswerReader) -> None:
        """Receive the complete response; the connection can be reused."""
        ...

    def on_lost(self, reason: str) -> None:
        """Receive the reason why there is no complete response: the connection ended, or the bytes are no HTTP."""
        ...


class NotConnected(Exception):
    """Error for a connection that could not be opened; `failure` is the kind of failure."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


_BUFFER = bytearray(65536)
"""Receive buffer shared by all connections, since allocating a buffer per read would cost more than the read."""

_VIEW = memoryview(_BUFFER)


class Connection(asyncio.BufferedProtocol):
    """TCP or TLS connection of a `ConnectionPool`."""

    __slots__ = ("_answer", "_listener", "_pool", "_transport", "idle_since_s")

    def __init__(self, pool: "ConnectionPool") -> None:
        self.idle_since_s = 0.0
        self._pool = pool
        self._listener: ResponseListener | None = None
        self._answer = AnswerReader()
        self._transport: asyncio.Transport | None = None

    @property
    def usable(self) -> bool:
        """True unless the connection is closed or closing."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; asyncio calls this method."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, listener: ResponseListener) -> None:
        """Send a request whose response goes to `listener`."""
        self._listener, self._answer = listener, AnswerReader()
        if self._transport:
            self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return the buffer for the next read; asyncio calls this method."""
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes and pass the response on to the listener; asyncio calls this method."""
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
        """Finish the request in flight, if any; asyncio calls this method."""
        self._pool.forget(self)
        listener = self._listener
        if listener and self._answer.end():
            self._complete(listener)
        else:
            self._end("peer closed connection" if exc is None else f"{type(exc).__name__}: {exc}")

    def close(self) -> None:
        """Close the connection without a call to the listener."""
        self._listener = None
        if self._transport:
            self._transport.abort()

    def _complete(self, listener: ResponseListener) -> None:
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


class ConnectionPool:
    """Pool of reusable connections to one address."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._hosts: list[str] = []
        self._turn = 0
        self._idle: list[Connection] = []

    def take(self) -> Connection | None:
        """Return the most recently used idle connection; None if there is none."""
        now_s = perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now_s - connection.idle_since_s < LONGEST_IDLE_S:
                return connection
            connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """Keep a connection with a complete response for the next request."""
        connection.idle_since_s = perf_counter()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection from the pool."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all idle connections of the pool."""
        while self._idle:
            self._idle.pop().close()

    async def connect(self) -> Connection:
        """Open a connection. The host name is resolved on the first call and after a failure; its addresses are used in
        turn.

        Raises:
            NotConnected: the connection can't be opened.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._open()
        except TimeoutError as error:
            raise NotConnected(Failure.CONNECTION, f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {self._address.host} is refused: {error.verify_message.rstrip('.')}"
            raise NotConnected(Failure.TLS, text) from error
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
