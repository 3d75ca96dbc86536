"""Objects between this program and the processes that it forked from itself."""

import asyncio
import pickle
import socket
import struct

_LENGTH = struct.Struct("!Q")


class Channel:
    """One end of a pair of sockets. Both ends are the same program, so that pickles are safe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Channel":
        """The channel over one socket of a pair."""
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: object) -> None:
        """Send without waiting; what the other side hasn't read yet is kept here."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def sent(self) -> None:
        """Wait until the other side has read nearly all."""
        await self._writer.drain()

    async def receive(self) -> object | None:
        """The next message; None once the other side has ended."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - from our own fork
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """End the channel."""
        self._writer.close()
