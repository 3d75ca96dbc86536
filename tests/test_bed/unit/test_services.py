"""Services by their own addresses and by DNS."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import dns.message
import dns.rcode
import pytest
from free_ports import free_port
from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice
from llmd_rehearsal.pods.processes import ChildProcess
from llmd_rehearsal.services import (
    RoundRobin,
    ServiceListener,
    ServiceProxy,
    SocketAddress,
    dns_names,
    dns_response,
    forwardings,
)


def make_service(name: str, address: str = "10.96.0.20", **spec: Any) -> Service:
    ports = spec.pop("ports", [{"name": "http", "port": 80, "targetPort": "web"}])
    body = {"metadata": {"name": name, "namespace": "serving"}, "spec": {"clusterIP": address, "ports": ports, **spec}}
    return cast("Service", Service.from_dict(body))


def make_slice(service: str, *addresses: str, port: int = 8080, name: str = "http", **endpoint: Any) -> EndpointSlice:
    body = {
        "metadata": {"name": f"{service}-x", "namespace": "serving", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": name, "port": port}],
        "endpoints": [{"addresses": [address], **endpoint} for address in addresses],
    }
    return cast("EndpointSlice", EndpointSlice.from_dict(body))


WEB = SocketAddress("10.96.0.20", 80)


def test_a_service_port_leads_to_the_named_port_of_every_ready_endpoint() -> None:
    slices = [make_slice("web", "10.244.1.1", "10.244.2.1"), make_slice("web", "10.244.3.1", port=9090)]
    assert forwardings([make_service("web")], slices) == {
        WEB: (SocketAddress("10.244.1.1", 8080), SocketAddress("10.244.2.1", 8080), SocketAddress("10.244.3.1", 9090))
    }


def test_endpoints_that_are_not_ready_get_no_traffic() -> None:
    states = {"10.244.1.1": {"ready": False}, "10.244.2.1": {"ready": True}, "10.244.3.1": {}}
    slices = [make_slice("web", address, conditions=state) for address, state in states.items()]
    ready = (SocketAddress("10.244.2.1", 8080), SocketAddress("10.244.3.1", 8080))
    assert forwardings([make_service("web")], slices) == {WEB: ready}


UDP = [{"port": 53, "protocol": "UDP"}]


@pytest.mark.parametrize(
    ("service", "endpoints"),
    [
        pytest.param({}, make_slice("web", "10.244.1.1", conditions={"ready": False}), id="no endpoint is ready"),
        pytest.param({"address": "None"}, make_slice("web", "10.244.1.1"), id="headless"),
        pytest.param({"ports": UDP}, make_slice("web", "10.244.1.1", name=""), id="a UDP port"),
        pytest.param({}, make_slice("other", "10.244.1.1"), id="another service's endpoints"),
        pytest.param({}, make_slice("web", "10.244.1.1", name="metrics"), id="another port's endpoints"),
    ],
)
def test_a_service_listens_only_at_tcp_ports_with_ready_endpoints(service: Any, endpoints: EndpointSlice) -> None:
    assert forwardings([make_service("web", **service)], [endpoints]) == {}


def test_a_services_endpoints_are_used_in_turn_with_the_others_as_fallback() -> None:
    one, two, three = (SocketAddress("10.0.0.1", port) for port in (1, 2, 3))
    robin = RoundRobin([one, two, three])
    assert [robin.order()[0] for _ in range(4)] == [one, two, three, one]
    assert robin.order() == [two, three, one]
    robin.targets = (one,)
    assert robin.order() == [one]


@pytest.fixture
async def proxy() -> AsyncIterator[ServiceProxy]:
    proxy = ServiceProxy()
    yield proxy
    proxy.close()


async def serve(name: bytes) -> tuple[asyncio.Server, SocketAddress]:
    """Answer everything that was sent, after the sender's half-close, behind a name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name)
        writer.write(await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, SocketAddress(*server.sockets[0].getsockname()[:2])


def free_address() -> SocketAddress:
    return SocketAddress("127.0.0.1", free_port())


async def exchange(address: SocketAddress, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.ip, address.port)
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    return answer


@asynccontextmanager
async def behind(proxy: ServiceProxy, name: bytes) -> AsyncGenerator[SocketAddress]:
    """Serve behind a service's address; yield that."""
    server, target = await serve(name)
    address = free_address()
    proxy.apply({address: [target]})
    async with server:
        yield address


async def test_connections_go_to_endpoints_in_turn_and_half_close_is_forwarded(proxy: ServiceProxy) -> None:
    (one, first), (two, second) = await serve(b"1"), await serve(b"2")
    address = free_address()
    proxy.apply({address: [first, second]})
    async with one, two:
        assert [await exchange(address, b"x") for _ in range(3)] == [b"1x", b"2x", b"1x"]


async def test_large_transfers_through_a_service_arrive_completely(proxy: ServiceProxy) -> None:
    data = bytes(range(256)) * 40_000  # 10 MB: more than all socket buffers
    async with behind(proxy, b"") as address:
        reader, writer = await asyncio.open_connection(address.ip, address.port)
        writer.write(data)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 30) == data
        writer.close()


async def test_a_service_endpoint_that_refuses_a_connection_is_skipped(proxy: ServiceProxy) -> None:
    server, target = await serve(b"ok")
    address = free_address()
    proxy.apply({address: [free_address(), target]})
    async with server:
        assert await exchange(address, b"") == b"ok"


async def test_a_service_without_endpoints_refuses_connections(proxy: ServiceProxy) -> None:
    async with behind(proxy, b"ok") as address:
        assert proxy.addresses == {address}
        proxy.apply({})
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.ip, address.port)


async def test_open_connections_survive_a_change_of_endpoints(proxy: ServiceProxy) -> None:
    async with behind(proxy, b"hello ") as address:
        reader, writer = await asyncio.open_connection(address.ip, address.port)
        assert await asyncio.wait_for(reader.readexactly(6), 10) == b"hello "
        proxy.apply({})
        writer.write(b"after")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 10) == b"after"
        writer.close()


async def test_a_connection_whose_endpoints_are_all_denied_by_policies_is_closed() -> None:
    (one, first), (two, second) = await serve(b"1"), await serve(b"2")
    calls: list[tuple[str, SocketAddress]] = []

    def allows(source: str, target: SocketAddress) -> bool:
        calls.append((source, target))
        return target == second

    proxy = ServiceProxy(allows)
    open_address, shut_address = free_address(), free_address()
    proxy.apply({open_address: [first, second], shut_address: [first]})
    assert [await exchange(open_address, b"") for _ in range(2)] == [b"2", b"2"]
    assert await exchange(shut_address, b"") == b""
    assert {source for source, _ in calls} == {"127.0.0.1"}
    proxy.close()
    for server in (one, two):
        server.close()


DOMAIN = "cluster.local"
ZONE = dns_names(
    [
        make_service("router"),
        make_service("decode", address="None"),
        make_service("outside", type="ExternalName", externalName="api.example.com", address=""),
        make_service("alias", type="ExternalName", externalName="router.serving.svc.cluster.local", address=""),
    ],
    [
        make_slice("decode", "10.244.1.1", hostname="decode-0"),
        make_slice("decode", "10.244.2.1"),
        make_slice("decode", "10.244.3.1", conditions={"ready": False}),
    ],
    DOMAIN,
)


def ask(name: str, kind: str = "A") -> tuple[str, list[str]]:
    wire = dns_response(dns.message.make_query(name, kind).to_wire(), ZONE, DOMAIN)
    assert wire is not None
    message = dns.message.from_wire(wire)
    return dns.rcode.to_text(message.rcode()), [item.to_text() for records in message.answer for item in records]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("router.serving.svc.cluster.local.", "A", ["10.96.0.20"]),
        ("ROUTER.serving.svc.cluster.local.", "A", ["10.96.0.20"]),
        ("router.serving.svc.cluster.local.", "AAAA", []),
        ("decode.serving.svc.cluster.local.", "A", ["10.244.1.1", "10.244.2.1"]),
        ("decode-0.decode.serving.svc.cluster.local.", "A", ["10.244.1.1"]),
        ("outside.serving.svc.cluster.local.", "A", ["api.example.com."]),
        ("alias.serving.svc.cluster.local.", "A", ["10.96.0.20", "router.serving.svc.cluster.local."]),
        ("10-244-1-1.serving.pod.cluster.local.", "A", ["10.244.1.1"]),
        ("_http._tcp.router.serving.svc.cluster.local.", "SRV", ["0 100 80 router.serving.svc.cluster.local."]),
        ("serving.svc.cluster.local.", "A", []),
    ],
)
def test_names_of_services_and_pods_resolve_in_the_local_cluster(name: str, kind: str, expected: list[str]) -> None:
    code, records = ask(name, kind)
    assert code == "NOERROR"
    assert sorted(records) == expected


def test_host_names_outside_of_the_local_cluster_do_not_resolve() -> None:
    absent = ("nothing.serving.svc.cluster.local.", "router.other.svc.cluster.local.", "x-1.a.pod.cluster.local.")
    assert [ask(name) for name in (*absent, "example.com.")] == [("NXDOMAIN", [])] * 4


def test_a_packet_that_is_no_dns_query_gets_no_answer() -> None:
    assert dns_response(b"nonsense", ZONE, DOMAIN) is None


async def test_endpoints_of_services_are_still_watched_after_a_listener_closed() -> None:
    """A closed listener's number goes to the next descriptor that is opened."""
    listener = ServiceListener(SocketAddress("127.0.0.1", 0), [], lambda _source, _target: True)
    await asyncio.sleep(0)
    listener.close()
    assert await asyncio.wait_for(ChildProcess(["true"]).wait(), 5) == 0


async def test_closing_a_services_listener_twice_causes_no_error() -> None:
    listener = ServiceListener(SocketAddress("127.0.0.1", 0), [], lambda _source, _target: True)
    listener.close()
    for _ in range(3):
        await asyncio.sleep(0)
    listener.close()
