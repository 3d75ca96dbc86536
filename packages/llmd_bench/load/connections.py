"""HTTP/1.1 connections (RFC 9112) that stay open between requests, one request on each at a time.

Proxies of the environment are never used, since they would be measured too. An answer that streams tokens has one short
chunk in each packet, as a rule; that case takes a few operations, all others go through a buffer.
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
    """Bytes that are not HTTP/1.1."""


class AnswerReader:
    """Reader of one answer; feed it the bytes as they come, until it is `complete`."""

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
        """Bytes of the body, or of the chunk, that are still to come; None: until the connection ends."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body in `data`.

        Raises `BadAnswer`.
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
        """Note that the connection has ended, and return whether the answer is complete with that."""
        self.complete = self.complete or (self.status > 0 and not self._chunked and self._left is None)
        self.keep_alive = False
        return self.complete

    @property
    def retry_after_s(self) -> float | None:
        """Seconds from now that the server asks to wait in `Retry-After`; None if that is absent or can't be read."""
        text = self.headers.get(b"retry-after", b"").decode("latin-1").strip()
        if text.isdigit():
            return float(text)
        try:
            return max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
        except (ValueError, TypeError):
            return None

    def _read_head(self) -> bool:
        """Read the status line and headers if they are there; interim answers (1xx) are skipped."""
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
"""Limit for opening a connection; the limit of the whole request is the load's."""

LONGEST_IDLE_S = 4.0
"""A connection that was idle for longer isn't used again: vLLM's server closes them after 5 s (uvicorn's default)."""


class ResponseListener(Protocol):
    """Owner of a request on a connection."""

    def on_body(self, body: bytes, status: int, now_s: float) -> None:
        """Take a part of the answer's body that has arrived."""
        ...

    def on_answer(self, answer: AnswerReader) -> None:
        """Take the complete answer; the connection is free again."""
        ...

    def on_lost(self, reason: str) -> None:
        """Note that the connection has ended before the answer did, or that what came is no answer."""
        ...


class NotConnected(Exception):
    """A connection that could not be opened; `failure` is its kind."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


_BUFFER = bytearray(65536)
"""Buffer that all connections read into, one after the other; one for each read would cost more than the read."""

_VIEW = memoryview(_BUFFER)


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    __slots__ = ("_answer", "_listener", "_pool", "_transport", "idle_since_s")

    def __init__(self, pool: "ConnectionPool") -> None:
        self.idle_since_s = 0.0
        self._pool = pool
        self._listener: ResponseListener | None = None
        self._answer = AnswerReader()
        self._transport: asyncio.Transport | None = None

    @property
    def usable(self) -> bool:
        """True while the other side has not ended the connection."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, listener: ResponseListener) -> None:
        """Send a request and tell `listener` about its answer."""
        self._listener, self._answer = listener, AnswerReader()
        if self._transport:
            self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return the buffer to read to; called by the loop."""
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
    """All connections to one address."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._hosts: list[str] = []
        self._turn = 0
        self._idle: list[Connection] = []

    def take(self) -> Connection | None:
        """Return a connection that is open and free, or None. The one used last is the first to be taken."""
        now_s = perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now_s - connection.idle_since_s < LONGEST_IDLE_S:
                return connection
            connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer is complete for the next request."""
        connection.idle_since_s = perf_counter()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
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
