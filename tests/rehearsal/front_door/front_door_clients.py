"""The real Envoy with a front door's bootstrap, four units behind it, and clients. Prints what they saw.

Run as the first process of a new network namespace; everything ends with it.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from llmd_oke.serving.model_envoy import DRAIN_PORT, READY_PORT, REQUEST_PORT, bootstrap

UNITS = ["127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.1.4"]
PORT = 9080
HERE = "127.0.0.1"
LIMIT_S = 30
CHUNK = b"5\r\ntoken\r\n"


class Unit:
    """A unit that answers like a router: at once, as a stream of tokens, broken, or not at all."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.seen: list[str] = []
        self.refuses = 0
        self.hold = asyncio.Event()
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, self.address, PORT)

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                size = re.search(r"content-length: (\d+)", head)
                body = await reader.readexactly(int(size[1])) if size else b""
                await self.answer(json.loads(body)["prompt"] if body else head.split()[1], head, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def answer(self, asked: str, head: str, writer: asyncio.StreamWriter) -> None:
        self.seen.append(asked)
        if self.refuses:
            writer.write(f"HTTP/1.1 {self.refuses} InvalidStack\r\ncontent-length: 0\r\n\r\n".encode())
        elif asked == "headers":
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(head)}\r\n\r\n{head}".encode())
        elif asked == "stream":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNK)
            await self.hold.wait()
            writer.write(CHUNK + b"0\r\n\r\n")
        elif asked == "broken":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNK)
            await writer.drain()
            writer.close()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


class Client:
    """One connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int, host: str = HERE) -> "Client":
        return cls(*await asyncio.open_connection(host, port))

    async def get(self, path: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and body of an answer."""
        return await self.send(f"GET {path} HTTP/1.1\r\nhost: model\r\n\r\n")

    async def ask(self, prompt: str, *headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and body of the answer to a prompt; the body of a stream is left."""
        body = json.dumps({"prompt": prompt})
        lines = ["POST /v1/completions HTTP/1.1", "host: model", "content-type: application/json", *headers]
        return await self.send("\r\n".join([*lines, f"content-length: {len(body)}", "", body]))

    async def send(self, text: str) -> tuple[int, dict[str, str], str]:
        self.writer.write(text.encode())
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], str]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await self.reader.readexactly(int(fields.get("content-length", 0)))
        return int(head.split()[1]), fields, body.decode()

    async def chunk(self) -> str | None:
        """A chunk of a stream; empty at its end, None where it broke."""
        try:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2].decode()
        except (asyncio.IncompleteReadError, OSError):
            return None


async def until_ready(wanted: bool) -> None:
    """Wait until the readiness is as it is wanted."""
    for _ in range(LIMIT_S * 20):
        try:
            status, _, _ = await (await Client.to(READY_PORT)).get("/ready")
        except OSError:
            status = 503
        if (status == 200) is wanted:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"not {'ready' if wanted else 'unready'} within {LIMIT_S} s")


async def statuses(client: Client, number: int) -> dict[int, int]:
    """Return how often each status was answered to requests that are sent without waiting for answers."""
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: model\r\n\r\n" * number)
    return Counter([(await client.answer())[0] for _ in range(number)])


def forget(units: Sequence[Unit]) -> None:
    for unit in units:
        unit.seen.clear()


async def streams(units: Sequence[Unit]) -> dict[str, object]:
    """Twelve streams at a time, while one unit is busy with three already."""
    busy = [await Client.to(REQUEST_PORT) for _ in range(12)]
    for client in busy:
        await client.ask("stream")
    begun = [await client.chunk() for client in busy]
    shares = [len(unit.seen) for unit in units]
    for unit in units:
        unit.hold.set()
    ended = [[await client.chunk(), await client.chunk()] for client in busy]
    return {"shares": shares, "begun": begun, "ended": ended}


async def refused(client: Client, units: Sequence[Unit]) -> dict[int, int]:
    """Statuses while all units but the one that refuses are busy."""
    for unit in units:
        unit.hold = asyncio.Event()
    busy = [await Client.to(REQUEST_PORT) for _ in range(12)]
    for connection in busy:
        await connection.ask("stream")
    answered = await statuses(client, 200)
    for unit in units:
        unit.hold.set()
    return answered


async def drained(units: Sequence[Unit]) -> dict[str, object]:
    """End a pod while a stream is under way and a client keeps its connection; return what it does."""
    for unit in units:
        unit.hold = asyncio.Event()
    stream, kept, hook = [await Client.to(port) for port in (REQUEST_PORT, REQUEST_PORT, DRAIN_PORT)]
    await stream.ask("stream")
    hooked = asyncio.create_task(hook.get("/drain"))
    await until_ready(wanted=False)
    status, headers, _ = await kept.get("/v1/models")
    await asyncio.sleep(7)  # longer than a pod without requests waits
    waited = not hooked.done()
    for unit in units:
        unit.hold.set()
    chunks = [await stream.chunk() for _ in range(3)]
    return {
        "status": status,
        "connection": headers.get("connection"),
        "waited": waited,
        "chunks": chunks,
        "hook": (await hooked)[0],
    }


async def added_ms(requests: int) -> dict[str, float]:
    """Milliseconds of a request through the front door and without it, the median of many."""
    direct, through = await Client.to(PORT, UNITS[0]), await Client.to(REQUEST_PORT)
    taken: dict[str, list[float]] = {"direct": [], "through": []}
    for _ in range(requests):
        for name, client in (("direct", direct), ("through", through)):
            start_s = time.perf_counter()
            await client.get("/v1/models")
            taken[name].append((time.perf_counter() - start_s) * 1e3)
    return {name: sorted(times_ms)[requests // 2] for name, times_ms in taken.items()}


async def observe() -> dict[str, object]:
    units = [Unit(address) for address in UNITS]
    for unit in units:
        await unit.start()
    await until_ready(wanted=True)
    seen: dict[str, object] = {}
    client = await Client.to(REQUEST_PORT)
    while not all(unit.seen for unit in units):  # Envoy is ready with the first of them
        await statuses(client, 20)
    forget(units)
    await statuses(client, 8000)
    seen["shares"] = [len(unit.seen) for unit in units]
    forget(units)
    named = ("x-prefiller-host-port: evil:1", "x-gateway-destination-endpoint: evil:1", "authorization: kept")
    seen["headers"] = (await client.ask("headers", *named))[2]
    forget(units)
    seen["streams"] = await streams(units)
    forget(units)
    broken = await Client.to(REQUEST_PORT)
    await broken.ask("broken")
    seen["broken"] = {"chunks": [await broken.chunk(), await broken.chunk()], "sent": sum(len(u.seen) for u in units)}
    for status in (503, 429):
        units[0].refuses = status
        seen[f"refused_{status}"] = await refused(client, units)
    seen["refused_prompts"] = [(await client.ask("x" * 900 * 1024))[0] for _ in range(40)]
    units[1].stop()
    seen["one_gone"] = await statuses(client, 200)
    for unit in units:
        unit.refuses = 503
    seen["all_refuse"] = await statuses(client, 5)
    for unit in units:
        unit.refuses = 0
    await units[1].start()
    seen["added_ms"] = await added_ms(300)
    seen["drained"] = await drained(units)
    return seen


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=30)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "envoy.yaml"
        file.write_text(bootstrap(UNITS, PORT))
        argv = [sys.argv[1], "-c", str(file), "--log-level", "warn", "--concurrency", "2", "--disable-hot-restart"]
        with subprocess.Popen(argv, stdout=sys.stderr) as envoy:
            try:
                print(json.dumps(asyncio.run(observe())))
            finally:
                envoy.kill()


if __name__ == "__main__":
    main()
