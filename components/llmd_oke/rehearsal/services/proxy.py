"""The Services' own addresses: a listener for each port that passes connections on to ready endpoints in turn."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence

from llmd_oke.rehearsal.services.pipes import Relay
from llmd_oke.rehearsal.services.table import Address

_log = logging.getLogger(__name__)
_CONNECT_S = 5.0
LetsIn = Callable[[str, Address], bool]
"""Whether a connection from an IPv4 address may be passed on to an endpoint."""
_BACKLOG = 1024


class RoundRobin:
    """Endpoints in turn; a change of endpoints keeps the turn."""

    def __init__(self, targets: Sequence[Address]) -> None:
        self.targets = tuple(targets)
        self._next = 0

    def order(self) -> list[Address]:
        """Give all endpoints, the one whose turn it is first, to be tried until one answers."""
        start = self._next % len(self.targets)
        self._next = start + 1
        return [*self.targets[start:], *self.targets[:start]]


class Listener:
    """One Service address: accepts connections and relays them."""

    def __init__(self, address: Address, targets: Sequence[Address], lets_in: LetsIn) -> None:
        self.robin = RoundRobin(targets)
        self._lets_in = lets_in
        self._address = address
        self._relays: set[Relay] = set()
        self._socket = _listening(address)
        self._accepting = asyncio.create_task(self._accept())
        self._connecting: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        self._accepting.cancel()
        self._socket.close()

    def abort(self) -> None:
        """End everything."""
        self.close()
        for relay in tuple(self._relays):
            relay.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, (source, *_) = await loop.sock_accept(self._socket)
            except OSError as error:
                _log.warning("accept on %s: %s", self._address, error)
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._connect(client, source))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: socket.socket, source: str) -> None:
        """Servers see the node as the client, so what policies keep from the client is kept here."""
        server = await _first_answering([each for each in self.robin.order() if self._lets_in(source, each)])
        if server is None:
            client.close()
            return
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._relays.add(Relay(client, server, self._relays.discard))


class Proxy:
    """Keeps one listener for each Service address that has ready endpoints."""

    def __init__(self, lets_in: LetsIn = lambda _source, _target: True) -> None:
        self._listeners: dict[Address, Listener] = {}
        self._lets_in = lets_in

    @property
    def addresses(self) -> frozenset[Address]:
        """The addresses that are listened on."""
        return frozenset(self._listeners)

    def apply(self, table: Mapping[Address, Sequence[Address]]) -> None:
        """Open, change and close listeners so that they match the table."""
        for address in self._listeners.keys() - table.keys():
            self._listeners.pop(address).close()
        for address, targets in table.items():
            if address in self._listeners:
                self._listeners[address].robin.targets = tuple(targets)
            else:
                self._open(address, targets)

    def close(self) -> None:
        """Close all listeners and connections."""
        for listener in self._listeners.values():
            listener.abort()
        self._listeners.clear()

    def _open(self, address: Address, targets: Sequence[Address]) -> None:
        try:
            self._listeners[address] = Listener(address, targets, self._lets_in)
        except OSError as error:
            _log.warning("Service address %s:%d: %s", address.ip, address.port, error)


async def _first_answering(targets: Sequence[Address]) -> socket.socket | None:
    for target in targets:
        candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        connecting = asyncio.get_running_loop().sock_connect(candidate, (target.ip, target.port))
        try:
            await asyncio.wait_for(connecting, _CONNECT_S)
        except (OSError, TimeoutError):
            candidate.close()
        else:
            return candidate
    return None


def _listening(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.ip, address.port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
