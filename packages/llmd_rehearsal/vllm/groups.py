"""Connections between the simulated containers of one server that spans nodes.

vLLM's ranks connect to the leader's address by ZeroMQ and torch.distributed, and all of them end once one has ended.
Here each container has one TCP connection to the leader, in the pods' network namespaces, so that the cluster's DNS
names and network policies apply as they do to vLLM.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from llmd_rehearsal.control_plane import CLUSTER_DOMAIN
from llmd_rehearsal.pods.networks import bound_socket, in_namespace
from llmd_rehearsal.vllm.command import ServerNode
from llmd_rehearsal.vllm.flags import StartRefusal

_RETRY_S = 0.25
_COMPLETE = b"complete\n"


class RankGroup:
    """Connections of one container to the other containers of its simulated server, which spans several nodes: from the
    leader to all, from others to the leader.
    """

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._watches: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._lost: Callable[[], None] | None = None
        self._closed = False

    @classmethod
    async def join(cls, place: ServerNode, nodes: int, network_namespace: str | None, wait_s: float) -> "RankGroup":
        """Return the group once all of its containers are connected.

        Args:
            place: the container's own number, and the leader's address.
            nodes: number of containers.
            network_namespace: path of the pod's network namespace; None for the process's own.
            wait_s: limit in wall seconds.

        Raises:
            StartRefusal: a container didn't connect in time, or the leader's port is in use.
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
        """Call the function `lost` once the connection to another container of the server ends."""
        self._lost = lost
        if any(watch.done() for watch in self._watches):
            lost()

    def close(self) -> None:
        """Close all connections, which the other containers notice as a loss."""
        self._closed = True
        for task in self._watches:
            task.cancel()
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _lead(self, place: ServerNode, nodes: int, network_namespace: str | None) -> None:
        """Accept a connection from each other container, which sends its number; answer all once the last is there."""
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
        """Connect to the leader, whose DNS name exists once its pod does, and wait until the leader has all
        connections.
        """
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
    """Return the IP address of a leader's name, looked up as in pods, whose resolver appends the cluster's domain.

    Raises:
        OSError: the name has no address yet.
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
