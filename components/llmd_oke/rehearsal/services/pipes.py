"""Moves bytes from one socket to another as they come, without tasks or buffers of its own."""

import asyncio
import socket
from collections.abc import Callable

_BUFFER = memoryview(bytearray(256 * 1024))  # shared: it's filled and emptied within one call


class Pipe:
    """One direction of a connection; the end of the source is passed on as a half-close."""

    def __init__(self, source: socket.socket, sink: socket.socket, closed: Callable[[bool], None]) -> None:
        """Start moving; `closed(broken)` is called once, when this direction has ended."""
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._sink = sink
        self._closed = closed
        self._left = b""
        self._ended = False
        self._loop.add_reader(source, self._read)

    def abandon(self) -> None:
        """Stop moving."""
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._source)
            self._loop.remove_writer(self._sink)

    def _read(self) -> None:
        try:
            count = self._source.recv_into(_BUFFER)
            if count == 0:
                self._end()
                return
            sent = self._send(_BUFFER[:count])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._break()
            return
        if sent < count:
            self._left = bytes(_BUFFER[sent:count])
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)

    def _write(self) -> None:
        try:
            sent = self._send(self._left)
        except OSError:
            self._break()
            return
        self._left = self._left[sent:]
        if not self._left:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._read)

    def _send(self, data: memoryview | bytes) -> int:
        try:
            return self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def _end(self) -> None:
        self.abandon()
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._closed(True)
            return
        self._closed(False)

    def _break(self) -> None:
        self.abandon()
        self._closed(True)


class Relay:
    """Both directions between two connected, non-blocking sockets; closes them when both have ended."""

    def __init__(self, one: socket.socket, other: socket.socket, done: Callable[["Relay"], None]) -> None:
        self._sockets = (one, other)
        self._done = done
        self._open = 2
        self._pipes = (Pipe(one, other, self._ended), Pipe(other, one, self._ended))

    def close(self) -> None:
        """End both directions at once."""
        if self._open < 0:
            return
        self._open = -1
        for pipe in self._pipes:
            pipe.abandon()
        for each in self._sockets:
            each.close()
        self._done(self)

    def _ended(self, broken: bool) -> None:  # a pipe's answer
        self._open -= 1
        if broken or self._open == 0:
            self.close()
