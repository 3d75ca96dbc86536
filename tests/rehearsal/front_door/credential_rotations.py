"""The real Envoy as a front door whose keys, certificate and key set are rotated under load. Prints what that cost.

Run as the first process of a new network namespace; everything ends with it.
"""

import asyncio
import json
import ssl
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from cryptography.hazmat.primitives.asymmetric import rsa
from llmd_oke.serving import authentication, stack_envoy
from llmd_oke.serving.stack_envoy import EnvoySettings
from stack_front_door_clients import (
    ALICE,
    AUDIENCE,
    BOB,
    HOST,
    ISSUER,
    LLAMA,
    Client,
    Front,
    Units,
    asks,
    main,
    models,
    public_set,
    token,
    until,
)

sys.path.insert(0, str(Path(__file__).parents[2]))
from certificates_for_tests import certificate, private_key

NEXT = "sk-next-Hd5kV9bMq2TzXc7R"
REQUESTS_PER_S = 50
STEADY_S = 1.0
"""Seconds of load before the first change and after the last one."""
CONNECTIONS = 8
"""New connections by which both threads of Envoy are asked."""


@dataclass
class Known:
    """Knowledge of a client: its present key or token, and the certificates that it trusts."""

    key: str
    trust: ssl.SSLContext | bool = False


@dataclass
class Load:
    """Requests at a steady rate, every other one by a connection of its own, the others by kept ones."""

    known: Known
    sent: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    answered_s: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])

    @asynccontextmanager
    async def flowing(self) -> AsyncGenerator[None]:
        """Send requests until the end of the context, and for a while before and after what happens in it."""
        ended = asyncio.Event()
        sending = asyncio.create_task(self._send_all(ended))
        try:
            await asyncio.sleep(STEADY_S)
            yield
            await asyncio.sleep(STEADY_S)
        finally:
            ended.set()
            await sending

    async def _send_all(self, ended: asyncio.Event) -> None:
        started_s = time.monotonic()
        async with Client(tls=self.known.trust) as kept:
            while not ended.is_set():
                self.sent.append(asyncio.create_task(self._send(kept if len(self.sent) % 2 else None)))
                await asyncio.sleep(max(0.0, started_s + len(self.sent) / REQUESTS_PER_S - time.monotonic()))
            await asyncio.gather(*self.sent)

    async def change_to(self, key: str) -> None:
        """Use another key or token from now on, and wait for the requests with the one before."""
        self.known.key = key
        await asyncio.gather(*self.sent)

    async def _send(self, kept: Client | None) -> None:
        headers = {"authorization": f"Bearer {self.known.key}"}
        try:
            if kept is None:
                async with Client(tls=self.known.trust) as own:
                    answer = await own.ask(asks(LLAMA), headers=headers)
            else:
                answer = await kept.ask(asks(LLAMA), headers=headers)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures.append(repr(error))
            return
        if answer["status"] == 200:
            self.answered_s.append(time.monotonic())
        else:
            self.failures.append(f"{answer['status']}: {answer['document']}")

    def cost(self) -> dict[str, Any]:
        """Return what became of the requests; the longest gap is the longest time without an answer."""
        at = sorted(self.answered_s)
        gaps = [later - earlier for earlier, later in pairwise(at)]
        return {
            "sent": len(at) + len(self.failures),
            "failures": self.failures,
            "longest_gap_s": round(max(gaps, default=0.0), 3),
            "seconds": round(at[-1] - at[0] if at else 0.0, 1),
        }


async def answers(known: Known) -> set[int]:
    """Return the statuses of several new connections with a key or token, which reach all threads of Envoy."""

    async def ask() -> int:
        async with Client(tls=known.trust, key=known.key) as client:
            return (await client.ask(path="/v1/models"))["status"]

    return set(await asyncio.gather(*(ask() for _ in range(CONNECTIONS))))


async def taken(known: Known) -> bool:
    return await answers(known) == {200}


async def refused(known: Known) -> bool:
    return 200 not in await answers(known)


async def rotated_keys(front: Front, known: Known) -> dict[str, Any]:
    """A client gets a second key, changes to it, and loses the first one."""
    first, second = replace(known), replace(known, key=NEXT)
    load = Load(known)
    async with load.flowing():
        front.admit(authentication.api_keys({"alice": ALICE, "bob": BOB}, {"alice": NEXT}))
        await until(lambda: taken(second), "taking the second key")
        both = await taken(first)
        await load.change_to(NEXT)
        front.admit(authentication.api_keys({"alice": NEXT, "bob": BOB}))
        await until(lambda: refused(first), "refusing the first key")
    return {**load.cost(), "both": both}


async def rotated_certificate(front: Front, known: Known, chain: str) -> dict[str, Any]:
    """Clients trust another certificate of another key too, then it takes the place of the first one."""
    key = private_key()
    renewed = certificate(key, HOST).chain
    own = Known(known.key, ssl.create_default_context(cadata=renewed))
    known.trust = ssl.create_default_context(cadata=chain + renewed)
    load = Load(known)

    async def renewed_alone() -> bool:
        try:
            return await taken(own)
        except aiohttp.ClientConnectorCertificateError:
            return False

    async with load.flowing():
        front.write(stack_envoy.CERTIFICATE_FOLDER, tls_crt=renewed, tls_key=key.pem)
        await until(renewed_alone, "using the other certificate")
    return load.cost()


async def rotated_key_set(front: Front) -> dict[str, Any]:
    """A token issuer publishes a second key, signs by it, and takes the first one back."""
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    sets = [public_set(key, str(number))["keys"] for number, key in enumerate(keys)]
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "team", "exp": int(time.time()) + 600}
    first, second = (Known(token(key, claims, str(number))) for number, key in enumerate(keys))

    def publish(*published: list[dict[str, Any]]) -> None:
        key_set = json.dumps({"keys": [key for keys in published for key in keys]})
        front.admit(authentication.tokens(ISSUER, [AUDIENCE], key_set))

    publish(sets[0])
    front.move()
    async with front.running():
        known = replace(first)
        load = Load(known)
        async with load.flowing():
            publish(*sets)
            await until(lambda: taken(second), "taking tokens of the second key")
            both = await taken(first)
            await load.change_to(second.key)
            publish(sets[1])
            await until(lambda: refused(first), "refusing tokens of the first key")
    return {**load.cost(), "both": both}


async def observe(folder: Path, program: str) -> dict[str, Any]:
    units = Units()
    units.hold.set()
    for number in range(1, 5):
        await units.start(number)
    settings = EnvoySettings(models(), encrypted=True, authenticated=True)
    front = Front(folder / "keys", settings, program)
    key = private_key()
    chain = certificate(key, HOST).chain
    front.write(stack_envoy.CERTIFICATE_FOLDER, tls_crt=chain, tls_key=key.pem)
    front.admit(authentication.api_keys({"alice": ALICE, "bob": BOB}))
    front.move()
    known = Known(ALICE, ssl.create_default_context(cadata=chain))
    async with front.running():
        seen = {"keys": await rotated_keys(front, known)}
        seen["certificate"] = await rotated_certificate(front, known, chain)
    clients = {line["client"] for line in map(json.loads, front.log.splitlines()) if line["status"] == 200}
    seen["keys"]["clients"] = sorted(clients)
    signed = replace(settings, encrypted=False, tokens=True)
    return {**seen, "key_set": await rotated_key_set(Front(folder / "tokens", signed, program))}


if __name__ == "__main__":
    main(observe)
