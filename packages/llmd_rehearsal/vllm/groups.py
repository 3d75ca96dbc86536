"""Meeting of the simulated containers of one server that spans nodes.

vLLM's ranks meet at the leader's address by ZeroMQ and torch.distributed, and none of them goes on once one is gone.
Here they do by one TCP connection each, from and to the pods' own networks: the cluster's names and network policies
are in its way as they are in vLLM's.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from llmd_rehearsal.control_plane import CLUSTER_DOMAIN
from llmd_rehearsal.pods.networks import bound_socket, in_namespace
from llmd_rehearsal.vllm.command import ServerNode, StartRefusal

_RETRY_S = 0.25
_COMPLETE = b"complete\n"


class RankGroup:
    """Connections of one container to the others of its server: of the leader to all, of the others to the leader."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._watches: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._lost: Callable[[], None] | None = None
        self._closed = False

    @classmethod
    async def join(cls, place: ServerNode, nodes: int, network_namespace: str | None, wait_s: float) -> "RankGroup":
        """Return the group once all of its containers are there.

        Args:
            place: the container's own number, and the leader's address.
            nodes: number of containers.
            network_namespace: path of the pod's; the process's own if None.
            wait_s: wall seconds for which is waited.

        Raises:
            StartRefusal: one of them did not come in time, or the leader's port is taken.
        """
        group = cls()
        try:
            async with asyncio.timeout(wait_s):
                if place.node_rank == 0:
                    await group._lead(place, nodes, network_namespace)
                else:
                    await group._follow(place, network_namespace)
        except TimeoutError:
            group.close()
            raise StartRefusal(
                1,
                f"TimeoutError: Timed out waiting for engine core processes to start at "
                f"{place.address}:{place.rpc_port} (node {place.node_rank} of {nodes}).",
            ) from None
        except BaseException:
            group.close()
            raise
        return group

    def on_loss(self, lost: Callable[[], None]) -> None:
        """Call `lost` once another container is gone."""
        self._lost = lost
        if any(watch.done() for watch in self._watches):
            lost()

    def close(self) -> None:
        """Leave: the others lose this one."""
        self._closed = True
        for task in self._watches:
            task.cancel()
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _lead(self, place: ServerNode, nodes: int, network_namespace: str | None) -> None:
        """Wait for the others, each of which says its number, and tell them when all are there."""
        readers: dict[bytes, asyncio.StreamReader] = {}
        complete = asyncio.Event()

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = await reader.readline()
            self._writers.append(writer)
            readers[number] = reader
            if len(readers) == nodes - 1:
                complete.set()

        listener = bound_socket("0.0.0.0", place.rpc_port, network_namespace)  # noqa: S104 - in the pod's own network
        self._server = await asyncio.start_server(welcome, sock=listener)
        await complete.wait()
        for reader in readers.values():
            self._watch(reader)
        for writer in self._writers:
            writer.write(_COMPLETE)

    async def _follow(self, place: ServerNode, network_namespace: str | None) -> None:
        """Find the leader, whose name comes with its pod, and wait until it has found all."""
        loop = asyncio.get_running_loop()
        while True:
            connection = in_namespace(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM), network_namespace)
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, (await _address(place.address), place.rpc_port))
                reader, writer = await asyncio.open_connection(sock=connection)
            except OSError:
                connection.close()
                await asyncio.sleep(_RETRY_S)
                continue
            except BaseException:
                connection.close()
                raise
            self._writers.append(writer)
            writer.write(f"{place.node_rank}\n".encode())
            with suppress(OSError):
                if await reader.readline() == _COMPLETE:
                    self._watch(reader)
                    return
            self._writers.remove(writer)
            writer.close()
            await asyncio.sleep(_RETRY_S)

    def _watch(self, reader: asyncio.StreamReader) -> None:
        self._watches.append(asyncio.create_task(self._until_gone(reader)))

    async def _until_gone(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            await reader.read()
        if not self._closed and self._lost is not None:
            self._lost()


async def _address(name: str) -> str:
    """Look up a leader's name as pods do, whose resolver tries the cluster's domain behind it.

    Raises:
        OSError: it has no address yet.
    """
    loop, failure = asyncio.get_running_loop(), OSError(name)
    for candidate in (f"{name}.svc.{CLUSTER_DOMAIN}", name):
        try:
            found = await loop.getaddrinfo(candidate, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = error
        else:
            return str(found[0][4][0])
    raise failure
