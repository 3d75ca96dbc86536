"""Services of the local cluster: a proxy for their addresses, and a DNS server for their names.

Both are computed from Services and EndpointSlices. Names follow the Kubernetes DNS specification
(https://github.com/kubernetes/dns/blob/master/docs/specification.md) as far as the kit's pods need it: A and SRV
records of Services, headless Services and their host names, ExternalName, and pod addresses. No other DNS server is
queried.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
from lightkube.models.core_v1 import ServicePort, ServiceSpec
from lightkube.models.discovery_v1 import Endpoint
from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice
from llmd_oke.operations.objects import metadata, texts

from llmd_rehearsal.watches import Changes, ObjectStore

SERVICE_LABEL = "kubernetes.io/service-name"
_CONNECT_S = 5.0
_BACKLOG = 1024
_BUFFER = memoryview(bytearray(256 * 1024))  # shared by all pipes, as each call fills and empties it
_TTL_S = 5  # CoreDNS's own default for cluster names
DNS_PORT = 53
_GATHER_S = 0.005
_log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class SocketAddress:
    """An IPv4 address and a TCP port."""

    ip: str
    port: int


ConnectionFilter = Callable[[str, SocketAddress], bool]
"""Type of functions that tell whether a connection from an IPv4 address may be forwarded to an endpoint of a
Service.
"""


# Endpoints of Services.


def forwardings(
    services: Iterable[Service], slices: Iterable[EndpointSlice]
) -> dict[SocketAddress, tuple[SocketAddress, ...]]:
    """Return the ready endpoints of each address of a Service (cluster IP and port); addresses without ready endpoints
    are left out.
    """
    by_service = slices_by_service(slices)
    table: dict[SocketAddress, tuple[SocketAddress, ...]] = {}
    for service in services:
        spec = service.spec or ServiceSpec()
        if not spec.clusterIP or spec.clusterIP == "None":
            continue
        for port in spec.ports or []:
            targets = sorted(set(_targets(port, by_service.get(service_key(service), []))))
            if (port.protocol or "TCP") == "TCP" and targets:
                table[SocketAddress(spec.clusterIP, port.port)] = tuple(targets)
    return table


def slices_by_service(slices: Iterable[EndpointSlice]) -> Mapping[tuple[str, str], list[EndpointSlice]]:
    """Return the EndpointSlices grouped by namespace and name of their Service."""
    groups: dict[tuple[str, str], list[EndpointSlice]] = {}
    for endpoint_slice in slices:
        meta = metadata(endpoint_slice)
        name = texts(meta, "labels").get(SERVICE_LABEL)
        if name is not None and endpoint_slice.addressType == "IPv4":
            groups.setdefault((meta.namespace or "", name), []).append(endpoint_slice)
    return groups


def service_key(service: Service) -> tuple[str, str]:
    """Return a Service's namespace and name."""
    meta = metadata(service)
    return meta.namespace or "", meta.name or ""


def ready_endpoints(endpoint_slice: EndpointSlice) -> list[Endpoint]:
    """Return a slice's endpoints that may receive traffic; unknown readiness counts as ready, as the API defines."""
    endpoints = endpoint_slice.endpoints or []
    return [point for point in endpoints if point.conditions is None or point.conditions.ready is not False]


def _targets(port: ServicePort, slices: Iterable[EndpointSlice]) -> Iterator[SocketAddress]:
    for endpoint_slice in slices:
        ports = endpoint_slice.ports or []
        number = next((target.port for target in ports if (target.name or "") == (port.name or "")), None)
        if number is not None:
            for point in ready_endpoints(endpoint_slice):
                yield from (SocketAddress(ip, number) for ip in point.addresses)


# Proxy: one listener for each Service address, which forwards connections to ready endpoints round-robin.


class Pipe:
    """One direction of a relayed connection, without a task or buffer of its own; the end of the source is passed on as
    a half-close.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, closed: Callable[[bool], None]) -> None:
        """Start forwarding; `closed(broken)` is called once when this direction has ended."""
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._sink = sink
        self._closed = closed
        self._unsent = b""
        self._ended = False
        self._loop.add_reader(source, self._read)

    def abandon(self) -> None:
        """Stop forwarding in this direction."""
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._source)
            self._loop.remove_writer(self._sink)

    def _read(self) -> None:
        try:
            count = self._source.recv_into(_BUFFER)
            if count == 0:
                self.abandon()
                self._sink.shutdown(socket.SHUT_WR)
                self._closed(False)
                return
            sent = self._send(_BUFFER[:count])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._break()
            return
        if sent < count:
            self._unsent = bytes(_BUFFER[sent:count])
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)

    def _write(self) -> None:
        try:
            sent = self._send(self._unsent)
        except OSError:
            self._break()
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._read)

    def _send(self, data: memoryview | bytes) -> int:
        try:
            return self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def _break(self) -> None:
        self.abandon()
        self._closed(True)


class Relay:
    """Relay between two connected, non-blocking sockets in both directions; closes the sockets once both directions
    have ended.
    """

    def __init__(self, client: socket.socket, server: socket.socket, done: Callable[["Relay"], None]) -> None:
        self._sockets = (client, server)
        self._done = done
        self._open = 2
        self._pipes = (Pipe(client, server, self._ended), Pipe(server, client, self._ended))

    def close(self) -> None:
        """End both directions of the relay immediately."""
        if self._open < 0:
            return
        self._open = -1
        for pipe in self._pipes:
            pipe.abandon()
        for connection in self._sockets:
            connection.close()
        self._done(self)

    def _ended(self, broken: bool) -> None:
        self._open -= 1
        if broken or self._open == 0:
            self.close()


class RoundRobin:
    """Round-robin order of a Service's endpoints, which continues when the endpoints change."""

    def __init__(self, targets: Sequence[SocketAddress]) -> None:
        self.targets = tuple(targets)
        self._next = 0

    def order(self) -> list[SocketAddress]:
        """Return all endpoints, beginning with the next in turn, to be tried until one answers."""
        start = self._next % len(self.targets)
        self._next = start + 1
        return [*self.targets[start:], *self.targets[:start]]


class ServiceListener:
    """Listener on one address of a Service that accepts connections and relays them to the Service's endpoints."""

    def __init__(self, address: SocketAddress, targets: Sequence[SocketAddress], allows: ConnectionFilter) -> None:
        self.robin = RoundRobin(targets)
        self._allows = allows
        self._address = address
        self._relays: set[Relay] = set()
        self._socket = _listening(address)
        self._accepting = asyncio.create_task(self._accept())
        self._accepting.add_done_callback(lambda _: self._socket.close())
        self._connecting: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop accepting connections; open connections continue.

        The socket is closed after the event loop has removed it, because the loop would otherwise remove a later socket
        with the same file descriptor.
        """
        self._accepting.cancel()
        with suppress(OSError):  # the ended accept task has closed the socket already
            self._socket.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Stop listening and close all connections that are being relayed."""
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
        """Relay an accepted connection to an endpoint. Servers see the node's address as the client's, so that the
        client's NetworkPolicies are enforced here.
        """
        server = await _connected([target for target in self.robin.order() if self._allows(source, target)])
        if server is None:
            client.close()
            return
        for connection in (client, server):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._relays.add(Relay(client, server, self._relays.discard))


async def _connected(targets: Sequence[SocketAddress]) -> socket.socket | None:
    """Return a connection to the first endpoint that answers; None if no endpoint answers."""
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


def _listening(address: SocketAddress) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.ip, address.port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class ServiceProxy:
    """TCP proxy with one listener for each address of a Service that has ready endpoints."""

    def __init__(self, allows: ConnectionFilter = lambda _source, _target: True) -> None:
        self._listeners: dict[SocketAddress, ServiceListener] = {}
        self._allows = allows

    @property
    def addresses(self) -> frozenset[SocketAddress]:
        """Addresses of Services (cluster IP and port) that have a listener."""
        return frozenset(self._listeners)

    def apply(self, table: Mapping[SocketAddress, Sequence[SocketAddress]]) -> None:
        """Open, update and close listeners so that each address of a Service in `table` is relayed to its endpoints."""
        for address in self._listeners.keys() - table.keys():
            self._listeners.pop(address).close()
        for address, targets in table.items():
            if address in self._listeners:
                self._listeners[address].robin.targets = tuple(targets)
                continue
            try:
                self._listeners[address] = ServiceListener(address, targets, self._allows)
            except OSError as error:
                _log.warning("Service address %s:%d: %s", address.ip, address.port, error)

    def close(self) -> None:
        """Close all listeners and connections of the proxy."""
        for listener in self._listeners.values():
            listener.abort()
        self._listeners.clear()


# DNS names of the cluster.


@dataclass(frozen=True)
class NamedPort:
    """Named port of a Service, for DNS records of type SRV."""

    name: str
    protocol: str
    number: int


@dataclass(frozen=True)
class DnsName:
    """Answer to queries for one DNS name of the cluster: IP addresses, or an alias outside the cluster."""

    addresses: tuple[str, ...] = ()
    alias: str | None = None
    ports: tuple[NamedPort, ...] = ()


def dns_names(services: Iterable[Service], slices: Iterable[EndpointSlice], domain: str) -> dict[str, DnsName]:
    """Return all DNS names of Services and of headless Services' hosts, in lower case and without a final dot."""
    by_service = slices_by_service(slices)
    zone: dict[str, DnsName] = {}
    for service in services:
        namespace, name = service_key(service)
        full_name = f"{name}.{namespace}.svc.{domain}".lower()
        spec = service.spec or ServiceSpec()
        ports = tuple(
            NamedPort(port.name.lower(), (port.protocol or "TCP").lower(), port.port)
            for port in spec.ports or []
            if port.name
        )
        if spec.type == "ExternalName":
            zone[full_name] = DnsName(alias=spec.externalName)
        elif spec.clusterIP == "None":
            service_slices = by_service.get((namespace, name), [])
            endpoints = [point for endpoint_slice in service_slices for point in ready_endpoints(endpoint_slice)]
            addresses = {ip for point in endpoints for ip in point.addresses}
            zone[full_name] = DnsName(tuple(sorted(addresses)), ports=ports)
            for point in endpoints:
                if point.hostname:
                    zone[f"{point.hostname}.{full_name}"] = DnsName(tuple(point.addresses))
        elif spec.clusterIP:
            zone[full_name] = DnsName((spec.clusterIP,), ports=ports)
    return zone


def lookup(zone: Mapping[str, DnsName], name: str, domain: str) -> DnsName | None:
    """Return the content of a DNS name in the cluster's `domain`; None if the name doesn't exist."""
    key = name.lower().rstrip(".")
    if key in zone:
        return zone[key]
    labels = key.removesuffix(f".pod.{domain}").split(".")
    parts = labels[0].split("-")
    is_pod_address = key.endswith(f".pod.{domain}") and len(labels) == 2 and len(parts) == 4
    if is_pod_address and all(part.isdigit() for part in parts):
        return DnsName((".".join(parts),))
    has_names_below = any(other.endswith(f".{key}") for other in zone)
    return DnsName() if has_names_below else None


def service_port(zone: Mapping[str, DnsName], name: str) -> tuple[str, NamedPort] | None:
    """Return the host name and port to which an SRV name such as `_http._tcp.router.default.svc.cluster.local`
    resolves; None if the name doesn't exist.
    """
    labels = name.lower().rstrip(".").split(".", 2)
    if len(labels) < 3 or not labels[0].startswith("_") or not labels[1].startswith("_"):
        return None
    key = (labels[0][1:], labels[1][1:])
    ports = zone.get(labels[2], DnsName()).ports
    return next(((labels[2], port) for port in ports if (port.name, port.protocol) == key), None)


def dns_response(query: bytes, zone: Mapping[str, DnsName], domain: str) -> bytes | None:
    """Return the cluster's response to a DNS message; None if the message isn't a valid DNS query."""
    try:
        message = dns.message.from_wire(query)
        response = dns.message.make_response(message, recursion_available=True)
    except dns.exception.DNSException:
        return None
    if message.question:
        question = message.question[0]
        response.flags |= dns.flags.AA
        records = _records(question.name, question.rdtype, zone, domain)
        if records is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
        else:
            response.answer.extend(records)
    return response.to_wire()


def _records(
    name: dns.name.Name, kind: dns.rdatatype.RdataType, zone: Mapping[str, DnsName], domain: str
) -> list[dns.rrset.RRset] | None:
    """Return the records that answer a question: empty if the name has none of this type, None if the name doesn't
    exist.
    """

    def records(record_kind: str, *values: str) -> list[dns.rrset.RRset]:
        return [dns.rrset.from_text_list(name, _TTL_S, "IN", record_kind, list(values))]

    text = name.to_text(omit_final_dot=True)
    if target := service_port(zone, text):
        host, port = target
        return records("SRV", f"0 100 {port.number} {host}.") if kind == dns.rdatatype.SRV else []
    meaning = lookup(zone, text, domain)
    if meaning is None:
        return None
    if meaning.alias is not None:
        alias = dns.name.from_text(meaning.alias)
        further = _records(alias, kind, zone, domain) if alias != name else None
        return [*records("CNAME", alias.to_text()), *(further or ())]
    return records("A", *meaning.addresses) if kind == dns.rdatatype.A and meaning.addresses else []


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, reply: Callable[[bytes], bytes | None]) -> None:
        self._reply = reply
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._reply(data)
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, addr)


class DnsServer:
    """DNS server, over UDP and TCP, for the names that `zone` returns at each query."""

    def __init__(self, zone: Callable[[], Mapping[str, DnsName]], domain: str) -> None:
        self._zone = zone
        self._domain = domain
        self._datagrams: asyncio.DatagramTransport | None = None
        self._streams: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> None:
        """Answer DNS queries at this address on UDP and TCP.

        Raises:
            OSError: the address can't be bound.
        """
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self._reply), local_addr=(address, port))
        self._datagrams = transport
        self._streams = await asyncio.start_server(self._stream, address, port)

    def close(self) -> None:
        """Stop answering DNS queries."""
        if self._datagrams is not None:
            self._datagrams.close()
        if self._streams is not None:
            self._streams.close()

    def _reply(self, query: bytes) -> bytes | None:
        return dns_response(query, self._zone(), self._domain)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                reply = self._reply(await reader.readexactly(length))
                if reply is None:
                    break
                writer.write(struct.pack("!H", len(reply)) + reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


class ServiceNetwork:
    """Proxy and DNS server for the local cluster's Services, updated when Services or EndpointSlices change.

    `fixed` are forwardings that no Service defines, such as the API server's. `outside` are names outside the cluster's
    domain. `allows` tells whether NetworkPolicies permit a connection.
    """

    def __init__(
        self,
        services: ObjectStore[Service],
        slices: ObjectStore[EndpointSlice],
        domain: str,
        fixed: Mapping[SocketAddress, SocketAddress],
        outside: Mapping[str, DnsName],
        allows: ConnectionFilter,
    ) -> None:
        self._services = services
        self._slices = slices
        self._domain = domain
        self._fixed = {address: (target,) for address, target in fixed.items()}
        self._outside = outside
        self._zone: Mapping[str, DnsName] = {}
        self._changes = Changes(_GATHER_S)
        self._proxy = ServiceProxy(allows)
        self.names = DnsServer(lambda: self._zone, domain)
        services.subscribe(self._changes.note)
        slices.subscribe(self._changes.note)

    async def run(self) -> None:
        """Update the proxy and the DNS names after changes until cancelled."""
        await self._changes.follow(self._look)

    async def _look(self) -> None:
        self._proxy.apply(forwardings(self._services, self._slices) | self._fixed)
        self._zone = {**dns_names(self._services, self._slices, self._domain), **self._outside}

    def close(self) -> None:
        """Close all sockets of the proxy and the DNS server."""
        self._proxy.close()
        self.names.close()
