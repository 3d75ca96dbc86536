"""The proxy of Service addresses, on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from llmd_oke.rehearsal.services.proxy import Proxy, RoundRobin
from llmd_oke.rehearsal.services.table import Address

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


def test_endpoints_take_turns_and_the_others_follow_as_second_choice() -> None:
    one, two, three = (Address("10.0.0.1", port) for port in (1, 2, 3))
    robin = RoundRobin([one, two, three])
    assert [robin.order()[0] for _ in range(4)] == [one, two, three, one]
    assert robin.order() == [two, three, one]
    robin.targets = (one,)
    assert robin.order() == [one]


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


async def serve(name: bytes) -> tuple[asyncio.Server, Address]:
    """Answer everything that was sent, after the sender's half-close, behind a name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name)
        writer.write(await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, Address(*server.sockets[0].getsockname()[:2])


async def free_address() -> Address:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    server.close()
    await server.wait_closed()
    return address


async def exchange(address: Address, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.ip, address.port)
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    return answer


async def test_connections_go_to_endpoints_in_turn_and_half_close_is_passed_on(proxy: Proxy) -> None:
    (one, first), (two, second) = await serve(b"1"), await serve(b"2")
    address = await free_address()
    proxy.apply({address: [first, second]})
    async with one, two:
        assert [await exchange(address, b"x") for _ in range(3)] == [b"1x", b"2x", b"1x"]


async def test_much_data_arrives_whole(proxy: Proxy) -> None:
    server, target = await serve(b"")
    address = await free_address()
    proxy.apply({address: [target]})
    data = bytes(range(256)) * 40_000  # 10 MB: more than all socket buffers
    async with server:
        reader, writer = await asyncio.open_connection(address.ip, address.port)
        writer.write(data)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 30) == data
        writer.close()


async def test_an_endpoint_that_refuses_is_passed_over(proxy: Proxy) -> None:
    server, target = await serve(b"ok")
    address = await free_address()
    proxy.apply({address: [await free_address(), target]})
    async with server:
        assert await exchange(address, b"") == b"ok"


async def test_a_service_that_lost_its_endpoints_refuses_connections(proxy: Proxy) -> None:
    server, target = await serve(b"ok")
    address = await free_address()
    proxy.apply({address: [target]})
    assert proxy.addresses == {address}
    proxy.apply({})
    async with server:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.ip, address.port)


async def test_open_connections_outlive_a_change_of_endpoints(proxy: Proxy) -> None:
    server, target = await serve(b"hello ")
    address = await free_address()
    proxy.apply({address: [target]})
    async with server:
        reader, writer = await asyncio.open_connection(address.ip, address.port)
        assert await asyncio.wait_for(reader.readexactly(6), 10) == b"hello "
        proxy.apply({})
        writer.write(b"after")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 10) == b"after"
        writer.close()


async def test_a_connection_that_policies_keep_from_all_endpoints_is_closed() -> None:
    (one, first), (two, second) = await serve(b"1"), await serve(b"2")
    asked: list[tuple[str, Address]] = []

    def lets_in(source: str, target: Address) -> bool:
        asked.append((source, target))
        return target == second

    proxy = Proxy(lets_in)
    open_address, shut_address = await free_address(), await free_address()
    proxy.apply({open_address: [first, second], shut_address: [first]})
    assert [await exchange(open_address, b"") for _ in range(2)] == [b"2", b"2"]
    assert await exchange(shut_address, b"") == b""
    assert {source for source, _ in asked} == {"127.0.0.1"}
    proxy.close()
    for server in (one, two):
        server.close()
