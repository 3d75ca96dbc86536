"""A steady load on a front door or a Gateway whose certificate is rotated, and a client's key too where it has two.
Says `flowing` once requests are answered, `changed` once the renewed certificate and the next key are in use, `ended`
once the first key is refused, and when a file is there, as JSON, what became of the requests.

Run inside a rehearsal's cluster: rotation_load.py ADDRESS KNOWN END, where KNOWN is a JSON file with the client's
`first` key, its `next` one if it gets another, the `trusted` certificates, and the `renewed` one.
"""

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

REQUESTS_PER_S = 5
LIMIT_S = 600
POLL_S = 1.0
EACH = 20
"""Requests that are answered before anything is rotated, and again after the renewed certificate is in use."""
CONNECTIONS = 8
"""New connections by which the threads of both Envoys are asked."""
BODY = {"model": "openai/gpt-oss-120b", "prompt": "hello", "max_tokens": 8}


class Client:
    """A client that sends every other request by a connection of its own, and the others by kept ones."""

    def __init__(self, address: str, known: dict[str, str]) -> None:
        self.address, self.known, self.key = address, known, known["first"]
        self.trust = ssl.create_default_context(cadata=known["trusted"])
        self.sent: list[asyncio.Task[None]] = []
        self.answered_s: list[float] = []
        self.failures: list[str] = []

    def session(self, trust: ssl.SSLContext) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=trust)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120))

    async def send(self, kept: aiohttp.ClientSession | None) -> None:
        try:
            if kept is not None:
                status = await self.ask(kept, self.key)
            else:
                async with self.session(self.trust) as own:
                    status = await self.ask(own, self.key)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures.append(repr(error))
            return
        if status == 200:
            self.answered_s.append(time.monotonic())
        else:
            self.failures.append(str(status))

    async def ask(self, session: aiohttp.ClientSession, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        async with session.post(f"{self.address}/v1/completions", json=BODY, headers=headers) as response:
            await response.read()
            return response.status

    async def flow(self, ended: asyncio.Event) -> None:
        started_s = time.monotonic()
        async with self.session(self.trust) as kept:
            while not ended.is_set():
                self.sent.append(asyncio.create_task(self.send(kept if len(self.sent) % 2 else None)))
                await asyncio.sleep(max(0.0, started_s + len(self.sent) / REQUESTS_PER_S - time.monotonic()))
            await asyncio.gather(*self.sent)

    async def statuses(self, key: str, trust: ssl.SSLContext) -> set[int]:
        """Return the statuses of new connections that trust some certificates; 0 where they don't trust Envoy's."""

        async def status() -> int:
            asked_s = time.monotonic()
            try:
                async with (
                    self.session(trust) as session,
                    session.get(f"{self.address}/v1/models", headers={"authorization": f"Bearer {key}"}) as response,
                ):
                    return response.status
            except aiohttp.ClientConnectorCertificateError:
                return 0
            except aiohttp.ClientError as error:  # nobody may be turned away, whatever he asks for
                self.failures.append(f"{error!r} after {time.monotonic() - asked_s:.1f} s")
                return -1

        return set(await asyncio.gather(*(status() for _ in range(CONNECTIONS))))

    def told(self) -> dict[str, Any]:
        at = sorted(self.answered_s)
        gap_s = max((later - earlier for earlier, later in pairwise(at)), default=0.0)
        return {
            "sent": len(self.sent),
            "failures": self.failures,
            "longest_gap_s": round(gap_s, 2),
            "seconds": round(at[-1] - at[0], 1),
        }


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not await condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {LIMIT_S} s")
        await asyncio.sleep(POLL_S)


async def main(address: str, known: dict[str, str], end: Path) -> None:
    client, ended = Client(address, known), asyncio.Event()
    renewed = ssl.create_default_context(cadata=known["renewed"])

    async def answered() -> bool:
        return len(client.answered_s) >= wanted

    async def taken() -> bool:
        return await client.statuses(known.get("next", known["first"]), renewed) == {200}

    async def refused() -> bool:
        return 200 not in await client.statuses(known["first"], renewed)

    async def is_over() -> bool:
        return end.exists()  # noqa: ASYNC240 - a file of this machine

    flowing = asyncio.create_task(client.flow(ended))
    try:
        wanted = EACH
        await until(answered)
        print("flowing", flush=True)
        await until(taken)
        client.key = known.get("next", known["first"])
        await asyncio.gather(*client.sent)
        wanted = len(client.answered_s) + EACH
        await until(answered)
        print("changed", flush=True)
        if "next" in known:
            await until(refused)
            print("ended", flush=True)
        await until(is_over)
    finally:
        ended.set()
        await flowing
    print(json.dumps(client.told()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])))
