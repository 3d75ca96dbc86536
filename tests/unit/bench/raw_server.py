"""A loopback server that says byte for byte what a test wants."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext

from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.generator import GeneratedLoad, run_load
from llmd_bench.load.records import RequestRecord
from llmd_bench.load.workload import ClosedLoop, LoadShape, PromptSource

TOKEN = b'data: {"choices":[{"text":" tok"}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
ONE_USER = ClosedLoop(1)

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


WHOLE = HEAD + chunk(TOKEN) + chunk(DONE) + LAST


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(length)


def always(answer: bytes, *, close: bool = False) -> Talk:
    """The same bytes after each request."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()
            if close:
                return

    return talk


@asynccontextmanager
async def serving(talk: Talk, ssl: SSLContext | None = None) -> AsyncGenerator[CompletionsTarget]:
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=ssl)
    scheme = "https" if ssl else "http"
    try:
        yield CompletionsTarget(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", "m")
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def send(
    target: CompletionsTarget, requests: int = 1, shape: LoadShape = ONE_USER, *, request_timeout_s: float = 10
) -> list[RequestRecord]:
    """The records of requests for one token each."""
    load = GeneratedLoad(requests, shape, PromptSource(8, 0, "test"), 1, request_timeout_s=request_timeout_s)
    return await run_load(target, load, limit_s=10)
