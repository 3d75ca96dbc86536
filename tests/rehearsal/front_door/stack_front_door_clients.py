"""The real Envoy as the front door of a stack: three models on four units, and clients. Prints what they saw.

Run as the first process of a new network namespace; everything ends with it.
"""

import asyncio
import base64
import json
import re
import secrets
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from llmd_oke.planning.placement import FRONT_DOOR_THREADS
from llmd_oke.serving import authentication, stack_envoy
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.serving.model_envoy import READY_PORT, Upstream
from llmd_oke.serving.stack_envoy import FIRST_MODEL_PORT, STACK_PORT, ClientLimits, EnvoySettings, ServedModel
from llmd_rehearsal.pods.volumes import File, write_files

sys.path.insert(0, str(Path(__file__).parents[2]))
from certificates_for_tests import certificate, private_key

PORT = 9080
LIMIT_S = 30
GPT, LLAMA = "openai/gpt-oss-120b", "meta/llama"
ALICE, BOB, CAROL, DAVE = (f"sk-{name}-Qm7xT2vKd9RwZb4H" for name in ("alice", "bob", "carol", "dave"))
HOST = "llm.example.com"
CACHE_SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f0aabbccdd"
ISSUER, AUDIENCE = "https://id.example.com", "llm"


def upstream(number: int, weight: int | None = None) -> Upstream:
    return Upstream(f"127.0.1.{number}", PORT, weight)


def models(*weights: int) -> tuple[ServedModel, ...]:
    """Two copies of a model and another topology of it, and another model."""
    copies = tuple(upstream(i + 1, weight) for i, weight in enumerate(weights[:2] or (None, None)))
    other = upstream(3, weights[2] if weights else None)
    return (
        ServedModel("gpt", GPT, ("gpt.example.com",), copies, 131_072),
        ServedModel("gpt-agg", GPT, (), (other,), 300),
        ServedModel("llama", LLAMA, (), (upstream(4),), 300),
    )


class Units:
    """Answer with what they were asked, at once or as a stream that goes on until it is told to end."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.hold = asyncio.Event()

    async def start(self, number: int) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", lambda request: self.answer(number, request))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, f"127.0.1.{number}", PORT).start()

    async def answer(self, number: int, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen[str(number)] += 1
        if b'"stream"' in body:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"token")
            await self.hold.wait()
            await response.write(b" end")
            return response
        return web.json_response(
            {
                "unit": number,
                "path": request.path,
                "bytes": len(body),
                "headers": dict(request.headers.items()),
                "salt": json.loads(body or b"{}").get("cache_salt"),
            }
        )


class Front:
    """An Envoy with its folders, as Kubernetes would mount them."""

    def __init__(self, folder: Path, settings: EnvoySettings, program: str) -> None:
        self.folder, self.settings, self.program = folder, settings, program
        self.log = ""

    def text(self, text: str) -> bytes:
        return text.replace("/etc/", f"{self.folder}/").encode()

    def write(self, path: str, **files: str) -> None:
        """The files of a mounted folder, all changed at once."""
        contents = {name.replace("_", "."): File(self.text(text)) for name, text in files.items()}
        write_files(Path(path.replace("/etc/", f"{self.folder}/")), contents)

    def move(self, *weights: int) -> None:
        self.write(stack_envoy.TRAFFIC_FOLDER, clusters_json=stack_envoy.clusters(models(*weights)))

    def admit(self, authentication: str) -> None:
        self.write(stack_envoy.ACCESS_FOLDER, authentication_json=authentication)

    def certify(self) -> ssl.SSLContext:
        """A certificate of a new key; gives what trusts it."""
        key = private_key()
        chain = certificate(key, HOST).chain
        self.write(stack_envoy.CERTIFICATE_FOLDER, tls_crt=chain, tls_key=key.pem)
        return ssl.create_default_context(cadata=chain)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The Envoy, ready; what it logged is in `log` when it has ended."""
        bootstrap = stack_envoy.bootstrap(self.settings)
        self.write("/etc/envoy", envoy_yaml=bootstrap, certificate_json=stack_envoy.certificate())
        log = self.folder / "access.log"
        argv = [self.program, "-c", f"{self.folder}/envoy/envoy.yaml", "--log-level", "warn", "--concurrency", "2"]
        with log.open("w") as output:
            envoy = await asyncio.create_subprocess_exec(*argv, "--disable-hot-restart", stdout=output)
            try:
                await until(ready, "ready")
                yield
            finally:
                envoy.terminate()
                await asyncio.wait_for(envoy.wait(), LIMIT_S)
        self.log = log.read_text()


class Client:
    """A client with connections of its own."""

    def __init__(self, *, tls: ssl.SSLContext | bool = False, key: str | None = None) -> None:
        self.scheme = "https" if tls else "http"
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        connector = aiohttp.TCPConnector(ssl=tls if isinstance(tls, ssl.SSLContext) else True)
        self.session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=LIMIT_S))

    async def ask(
        self,
        body: object = None,
        path: str = "/v1/completions",
        port: int = STACK_PORT,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Status and document of an answer, with some of its headers; a GET where there is no body."""
        url = f"{self.scheme}://127.0.0.1:{port}{path}"
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **self.headers, **(headers or {})}
        name = HOST if self.scheme == "https" else None
        method = "GET" if body is None else "POST"
        async with self.session.request(method, url, headers=sent, data=data, server_hostname=name) as response:
            text = await response.text()
            document = json.loads(text) if "json" in response.headers.get("content-type", "") else text
            kept = ("x-request-id", "retry-after", "content-type")
            shown = {name: response.headers[name] for name in kept if name in response.headers}
            return {"status": response.status, "document": document, "headers": shown}

    async def begin(self, body: object) -> aiohttp.ClientResponse:
        """An answer that has begun."""
        url = f"{self.scheme}://127.0.0.1:{STACK_PORT}/v1/completions"
        response = await self.session.post(url, headers=self.headers, json=body)
        await response.content.readany()
        return response

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not await condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not {what} within {LIMIT_S} s")
        await asyncio.sleep(0.02)


async def ready() -> bool:
    try:
        async with Client() as client:
            return (await client.ask(path="/ready", port=READY_PORT))["status"] == 200
    except OSError:
        return False


def asks(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "prompt": "a secret prompt", **more}


async def routed(units: Units) -> dict[str, Any]:
    """An open front door: which unit is asked by body, path, host and port, and what is said where none is."""
    seen: dict[str, Any] = {}
    async with Client() as client:

        async def all_units() -> bool:
            await client.ask(asks(GPT))
            return len(units.seen) == 3

        await until(all_units, "sending to three units")
        large = json.dumps(asks(GPT, pad="x" * 8 * 2**20)).encode()
        charset = {"content-type": "application/json; charset=utf-8"}
        seen["body"] = [(await client.ask(asks(name)))["document"]["unit"] for name in (GPT, LLAMA)]
        seen["charset"] = await client.ask(asks(LLAMA), headers=charset)
        seen["large"] = await client.ask(large)
        seen["too_large"] = await client.ask(large * 5)
        seen["path"] = await client.ask(asks("any"), "/models/gpt-agg/v1/chat/completions")
        seen["host"] = [
            (await client.ask(asks(GPT), headers={"host": "gpt.example.com:443"}))["document"]["unit"] for _ in "123456"
        ]
        seen["ports"] = [
            (await client.ask(asks(GPT), port=FIRST_MODEL_PORT + i))["document"]["unit"] for i in range(1, 3)
        ]
        seen["unknown"] = await client.ask(asks("gpt-5"))
        seen["none"] = [await client.ask({"prompt": "x"}), await client.ask(b"{")]
        seen["number"] = await client.ask({"model": 7})
        seen["newline"] = await client.ask(asks(f"{GPT}\r\nx-prefiller-host-port: evil"))
        seen["elsewhere"] = await client.ask(path="/metrics")
        seen["models"] = await client.ask(path="/v1/models")
        seen["models_of_host"] = await client.ask(path="/v1/models", headers={"host": "gpt.example.com"})
        named = {"x-prefiller-host-port": "evil:1", "x-llmd-oke-client": "evil", "x-request-id": "chosen"}
        seen["headers"] = await client.ask(asks(GPT), headers=named)
        seen["streams"] = await streams(units, client)
        seen["long_name"] = await client.ask(b'{"kv_' + b"x" * 2**20 + b'":1}')
        seen["names"] = {
            name: await client.ask(f'{{"{name}":1}}'.encode())
            for name in ("kv_" + "x" * 900, "kv_\\u0022\\n\\u0000\\\\", "kv_\u00e9\\u00e9")
        }
        seen["long_model"] = await client.ask(asks("x" * 2**20))
    seen["unfinished"] = await unfinished()
    seen["probe_s"] = await next_probe_s()
    return seen


async def next_probe_s() -> float | None:
    """Seconds until Envoy's side of a silent connection sends a probe (/proc/net/tcp); None where it sends none."""
    _, writer = await asyncio.open_connection("127.0.0.1", STACK_PORT)
    port = writer.get_extra_info("sockname")[1]

    async def accepted() -> bool:
        return own_timer(port) is not None

    await until(accepted, "accepted")
    timer = own_timer(port)
    writer.close()
    kind, _, ticks = (timer or "").partition(":")
    return int(ticks, 16) / 100 if kind == "02" else None


def own_timer(port: int) -> str | None:
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ends = f":{STACK_PORT:04X}", f":{port:04X}"
    return next(
        (row[5] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1]) and row[3] == "01"), None
    )


_ASKS, _LISTS = "POST /v1/completions", "GET /v1/models"
_CHUNKED, _PIECE = "transfer-encoding: chunked", b"20000\r\n" + b"x" * 2**17 + b"\r\n"
UNFINISHED = {
    "length": (_ASKS, "content-length: 32505856", b""),
    "chunks": (_ASKS, _CHUNKED, b"1\r\nx\r\n"),
    "longer": (_ASKS, "content-length: 41943040", b""),
    "chunks of GET": (_LISTS, _CHUNKED, _PIECE),
    "length of GET": (_LISTS, "content-length: 32505856", b""),
}
"""Method and path, header, and beginning of the body, of requests that are never finished."""


async def unfinished() -> dict[str, Any]:
    """Return the answers to twenty such requests of a client, of each kind and after those of another client, and to a
    third client at the same time and after the second has gone."""
    told: dict[str, Counter[str]] = {}
    others: list[int] = []
    async with Client() as client:
        for kind in UNFINISHED:
            async with sent_in_part(kind, "127.0.0.2") as told[kind]:
                others.append((await client.ask(asks(LLAMA)))["status"])
        async with sent_in_part("chunks", "127.0.0.2"), sent_in_part("chunks", "127.0.0.3") as told["second client"]:
            others += [(await client.ask(asks(LLAMA)))["status"], (await client.ask(path="/v1/models"))["status"]]
            async with sent_in_part("chunks", "127.0.0.4") as told["third client"]:
                others.append((await client.ask(asks(LLAMA)))["status"])
    return {"told": told, "others": others}


@asynccontextmanager
async def sent_in_part(kind: str, address: str) -> AsyncGenerator[Counter[str]]:
    """Twenty unfinished requests from an address; gives the statuses that they are told, if they are."""
    begun, header, body = UNFINISHED[kind]
    head = f"{begun} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{header}\r\n\r\n".encode()
    kept: list[asyncio.StreamWriter] = []
    told: Counter[str] = Counter()
    try:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", STACK_PORT, local_addr=(address, 0))
            kept.append(writer)
            writer.write(head + body)
            try:
                told[(await asyncio.wait_for(reader.readline(), 0.5)).decode().split(" ")[1]] += 1
            except TimeoutError:
                told["nothing"] += 1
        yield told
    finally:
        for writer in kept:
            writer.close()
        await asyncio.sleep(0.2)  # until Envoy lets go of them


async def streams(units: Units, client: Client) -> dict[str, Any]:
    units.hold.clear()
    url = f"http://127.0.0.1:{STACK_PORT}/v1/completions"
    async with client.session.post(url, json=asks(GPT, stream=True)) as response:
        begun = await response.content.readany()
        units.hold.set()
        return {"begun": begun.decode(), "end": (await response.content.read()).decode()}


async def moved(units: Units, front: Front) -> dict[str, Any]:
    """Weights that move while requests flow and one stream goes on."""
    seen: dict[str, Any] = {"shares": []}
    statuses: Counter[int] = Counter()
    async with Client() as client:

        async def flow(number: int) -> None:
            for answer in await asyncio.gather(*(client.ask(asks(GPT)) for _ in range(number))):
                statuses[answer["status"]] += 1

        async def back() -> bool:
            units.seen.clear()
            await flow(20)
            return bool(units.seen["1"])

        async def drained() -> bool:
            return not await back()

        units.hold.clear()
        url = f"http://127.0.0.1:{FIRST_MODEL_PORT}/v1/completions"
        front.move(100, 0, 0)
        await until(back, "back at the first unit")
        async with client.session.post(url, json=asks(GPT, stream=True)) as response:
            first = (await response.content.readany()).decode()
            front.move(0, 100, 0)
            await until(drained, "drained")
            for _ in range(3):
                front.move(90, 10, 0)
                await until(back, "back")
                units.seen.clear()
                for _ in range(200):
                    await flow(1)
                seen["shares"].append(dict(units.seen))
                front.move(0, 100, 0)
                await until(drained, "drained")
            units.hold.set()
            seen["stream"] = first + (await response.content.read()).decode()
    seen["statuses"] = statuses
    return seen


async def entitled(units: Units, front: Front) -> dict[str, Any]:
    """Return what clients get that may use one model, so many tokens in a minute, or one request at a time."""
    seen: dict[str, Any] = {}
    front.admit(authentication.api_keys({"alice": ALICE, "bob": BOB, "carol": CAROL, "dave": DAVE}))
    front.write(stack_envoy.TRAFFIC_FOLDER, clusters_json=stack_envoy.clusters(models(), {"carol": 2}))
    async with front.running(), Client(key=ALICE) as alice, Client(key=BOB) as bob, Client(key=CAROL) as carol:

        async def served() -> bool:
            return (await alice.ask(asks(LLAMA)))["status"] == (await carol.ask(asks(GPT)))["status"] == 200

        await until(served, "sending")
        seen["allowed"] = [
            (await alice.ask(asks(LLAMA)))["status"],
            (await alice.ask(asks("any"), "/models/llama/v1/completions"))["status"],
        ]
        seen["denied"] = [
            await alice.ask(asks(GPT)),
            await alice.ask(asks("gpt-5")),
            await alice.ask(asks(LLAMA), "/models/gpt/v1/completions"),
            await alice.ask(asks(LLAMA), headers={"host": "gpt.example.com"}),
        ]
        seen["lists"] = [
            [entry["id"] for entry in (await alice.ask(path="/v1/models", headers=headers))["document"]["data"]]
            for headers in ({}, {"host": "gpt.example.com"})
        ]
        seen["others"] = (await bob.ask(path="/v1/models"))["document"]["data"]
        large: list[dict[str, object]] = [
            {"max_tokens": 4000},
            {"max_tokens": "4_000"},
            {"max_completion_tokens": 1, "max_tokens": 4000},
            {"max_tokens": 500, "n": 8},
            {"max_tokens": 20, "prompt": ["x"] * 200},
            {"max_tokens": 20, "prompt": [[1]] * 200},
            {"max_tokens": 1, "suffix": "x" * 16000},
            {"prompt": ["x"] * 4},
        ]
        seen["large"] = [await bob.ask({**asks(GPT), **more}) for more in large]
        async with Client(key=DAVE) as dave:
            seen["unbounded"] = await unbounded(dave)
        seen["small"] = [(await bob.ask(asks(GPT, max_tokens=500)))["status"] for _ in range(7)]
        units.hold.clear()
        streams = [await carol.begin(asks(GPT, stream=True)) for _ in range(2)]
        seen["third"] = await carol.ask(asks(GPT))
        seen["third_elsewhere"] = [
            await carol.ask(asks("any"), "/models/gpt/v1/completions"),
            await carol.ask(asks("any"), "/models/gpt-agg/v1/completions"),
            await carol.ask(asks(GPT), headers={"host": "gpt.example.com"}),
        ]
        seen["elsewhere"] = (await carol.ask(asks(LLAMA)))["status"]
        streams[0].close()

        async def free() -> bool:
            return (await carol.ask(asks(GPT)))["status"] == 200

        await until(free, "free of the request whose client has gone")
        units.hold.set()
        streams[1].close()
        own = ("/models/gpt-agg", None), ("/models/gpt", None), ("", {"host": "gpt.example.com"})
        answers = [await carol.ask(asks(LLAMA), f"{path}/v1/completions", headers=host) for path, host in own * 4]
        seen["own_units"] = [answer["document"]["unit"] for answer in answers]
        front.write(stack_envoy.TRAFFIC_FOLDER, clusters_json=stack_envoy.clusters(models(0, 100, 0), {"carol": 2}))

        async def moved_on() -> bool:
            return {(await carol.ask(asks(GPT)))["document"]["unit"] for _ in "12345678"} == {2}

        await until(moved_on, "sending by other weights")
        alone = await carol.ask(asks("any"), "/models/gpt-agg/v1/completions")
        seen["unit_without_weight"] = alone["document"]["unit"]
    return seen


async def unbounded(client: Client) -> dict[str, list[dict[str, Any]]]:
    """Send requests that don't say how long an answer may be, to a model with a long and one with a short longest
    sequence, where the client has 3,500 tokens; return the answers.
    """
    completions, chat, responses = "/v1/completions", "/v1/chat/completions", "/v1/responses"
    long: list[tuple[str, dict[str, object]]] = [
        (completions, {}),
        (completions, {"max_tokens": None}),
        (completions, {"max_completion_tokens": 1, "max_output_tokens": 1}),
        (completions, {"max_tokens": 0}),
        (completions, {"max_tokens": "\u0661"}),
        (chat, {}),
        (chat, {"max_tokens": None, "max_completion_tokens": None}),
        (chat, {"max_output_tokens": 1}),
        (chat, {"max_tokens": 1, "max_completion_tokens": 0}),
        (responses, {"max_tokens": 1}),
        ("/v1/messages", {"max_output_tokens": 1}),
        (f"/models/gpt{completions}", {"model": LLAMA}),
    ]
    short: list[tuple[str, dict[str, object]]] = [
        (completions, {"model": LLAMA}),
        (completions, {"model": LLAMA, "max_tokens": None}),
        (f"/models/llama{chat}", {}),
        (f"/models/gpt-agg{completions}", {}),
        (chat, {"max_tokens": None, "max_completion_tokens": 300}),
        (responses, {"max_output_tokens": 300}),
        ("/v1/embeddings", {}),
    ]
    seen = {
        name: [await client.ask({**asks(GPT), **more}, path) for path, more in cases]
        for name, cases in {"long": long, "short": short}.items()
    }
    seen["long"].append(await client.ask(asks(LLAMA), headers={"host": "gpt.example.com"}))
    return seen


async def guarded(front: Front) -> dict[str, Any]:
    """Keys, limits and a certificate, all of which change while Envoy runs."""
    seen: dict[str, Any] = {}
    trusted = front.certify()
    front.admit(authentication.api_keys({"alice": ALICE, "bob": BOB}))
    front.move()
    async with front.running(), Client(tls=trusted) as nobody, Client(tls=trusted, key=CAROL) as carol:
        async with Client(tls=trusted, key=BOB) as bob, Client(tls=trusted, key=ALICE) as alice:
            seen["nobody"] = [await nobody.ask(asks(GPT)), await nobody.ask(path="/v1/models")]
            seen["wrong"] = await carol.ask(asks(GPT))
            seen["forms"] = [
                (await nobody.ask(path="/v1/models", headers={"authorization": text}))["status"]
                for text in (
                    f"bearer  {ALICE}",
                    ALICE,
                    f"Basic {ALICE}",
                    f"Bearer {ALICE},{BOB}",
                    f"Bearer {'x' * 9000}",
                )
            ]
            guesses = [
                await carol.ask(path="/v1/models") for _ in range(FRONT_DOOR_THREADS * bounds().refusals_per_minute + 5)
            ]
            seen["guesses"] = guesses[-1]
            seen["known_beside_guesses"] = (await alice.ask(path="/v1/models"))["status"]
            seen["alice"] = await alice.ask(asks(LLAMA), headers={"x-llmd-oke-client": "bob"})
            seen["models"] = (await alice.ask(path="/v1/models"))["status"]
            seen["bob"] = [await bob.ask(asks(GPT)) for _ in range(5)]
            seen["alice_after"] = (await alice.ask(asks(GPT)))["status"]
            front.admit(authentication.api_keys({"alice": ALICE, "carol": CAROL}))

            async def admitted() -> bool:
                return (await carol.ask(asks(GPT)))["status"] == 200

            await until(admitted, "admitted with the new key")
            seen["bob_after"] = (await bob.ask(asks(GPT)))["status"]
        renewed_trust = front.certify()

        async def renewed() -> bool:
            try:
                async with Client(tls=renewed_trust, key=ALICE) as fresh:
                    return (await fresh.ask(path="/v1/models"))["status"] == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

        await until(renewed, "encrypted with the new certificate")
        seen["kept"] = (await carol.ask(path="/v1/models"))["status"]
    seen["log"] = front.log
    return seen


async def salted(front: Front) -> dict[str, Any]:
    """Clients whose prefix cache is their own."""
    access, own_salts = authentication.api_keys({"alice": ALICE, "bob": BOB}), stack_envoy.salts(models(), CACHE_SECRET)
    front.write(stack_envoy.ACCESS_FOLDER, authentication_json=access, salts_json=own_salts)
    front.move()
    seen: dict[str, Any] = {}
    async with front.running(), Client(key=ALICE) as alice, Client(key=BOB) as bob, Client() as pod:
        for name, client in (("alice", alice), ("bob", bob)):
            answers = [await client.ask(asks(LLAMA)), await client.ask(asks(LLAMA, pad="x" * 2**20))]
            answers.append(await client.ask(asks("any"), "/models/llama/v1/chat/completions"))
            seen[name] = [answer["document"]["salt"] for answer in answers]
        seen["own"] = await alice.ask(asks(LLAMA, cache_salt=seen["bob"][0]))
        seen["named"] = await alice.ask(asks(LLAMA), headers={"x-llmd-oke-client": "bob"})
        seen["unsalted"] = await alice.ask(asks(LLAMA), "/v1/messages")
        seen["pod"] = await pod.ask(asks(LLAMA), port=FIRST_MODEL_PORT + 2)
    return seen


async def signed(front: Front) -> dict[str, Any]:
    """Tokens of an identity provider."""
    key = rsa.generate_private_key(65537, 2048)
    key_set = json.dumps(public_set(key, "1"))
    front.admit(authentication.tokens(ISSUER, [AUDIENCE], key_set))
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "team", "exp": now + 600}
    changes: dict[str, dict[str, str | int]] = {
        "good": {},
        "expired": {"exp": now - 600},
        "audience": {"aud": "other"},
        "issuer": {"iss": "https://evil.example.com"},
    }
    seen: dict[str, Any] = {}
    async with front.running():
        seen["guessed"] = await guessed_tokens(key, good)
        for name, change in changes.items():
            async with Client(key=token(key, good | change)) as client:
                seen[name] = await client.ask(asks(LLAMA))
        async with Client(key=token(rsa.generate_private_key(65537, 2048), good)) as client:
            seen["forged"] = await client.ask(asks(LLAMA))
        async with Client() as client:
            seen["missing"] = await client.ask(asks(LLAMA))
        uses = FRONT_DOOR_THREADS * bounds().refusals_per_minute + 5
        async with Client(key=token(key, good)) as known, Client(key=token(key, good | {"exp": now - 600})) as old:
            seen["repeated"] = [await old.ask(path="/v1/models") for _ in range(uses)][-1]
            seen["known_beside_repeated"] = (await known.ask(asks(LLAMA)))["status"]
        async with Client(key=token(key, good | {"exp": now + 900})) as fresh:
            seen["fresh_beside_repeated"] = (await fresh.ask(asks(LLAMA)))["status"]
    return seen


async def guessed_tokens(key: rsa.RSAPrivateKey, good: Mapping[str, object]) -> dict[str, Any]:
    """Send tokens none of which comes twice, one that passed before them, and one that comes after; return the
    answers.
    """
    said = token(key, good).rpartition(".")[0]
    told: Counter[str] = Counter()
    beside: list[int] = []
    async with Client(key=token(key, {**good, "exp": int(time.time()) + 700})) as known, Client() as client:
        beside.append((await known.ask(path="/v1/models"))["status"])

        async def too_many() -> bool:
            guesses = ({"authorization": f"Bearer {said}.{encoded(secrets.token_bytes(256))}"} for _ in range(400))
            asked = asyncio.gather(*(client.ask(path="/v1/models", headers=headers) for headers in guesses))
            beside.extend([(await known.ask(path="/v1/models"))["status"] for _ in "12345678"])
            told.update(answer["document"]["error"]["message"] for answer in await asked)
            return any("Too many tokens" in words for words in told)

        await until(too_many, "refusing tokens that haven't passed before")
        refused_at = int(time.time())
    async with Client(key=token(key, {**good, "exp": int(time.time()) + 800})) as fresh:

        async def passes() -> bool:
            answer = await fresh.ask(path="/v1/models")
            return answer["status"] == 200 and int(time.time()) > refused_at  # each thread counts by itself

        await until(passes, "verifying other tokens")
    return {"told": told, "beside": beside}


async def unlisted(units: Units, front: Front) -> dict[str, Any]:
    """Send requests of clients of whom the limits say nothing: to one model, and four at a time, two by each thread."""
    key = rsa.generate_private_key(65537, 2048)
    front.admit(authentication.tokens(ISSUER, [AUDIENCE], json.dumps(public_set(key, "1"))))
    front.write(stack_envoy.TRAFFIC_FOLDER, clusters_json=stack_envoy.clusters(models(), {"team": 6}))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600}
    seen: dict[str, Any] = {}
    async with (
        front.running(),
        Client(key=token(key, claims | {"sub": "team"})) as team,
        Client(key=token(key, claims | {"sub": "other"})) as other,
        Client(key=token(key, claims)) as nameless,
    ):
        seen["team"] = [(await team.ask(asks(name)))["status"] for name in (GPT, LLAMA)]
        for name, client in (("other", other), ("nameless", nameless)):
            seen[name] = [await client.ask(asks(LLAMA)), await client.ask(asks(GPT))]
            seen[name].append(await client.ask(asks(LLAMA), "/models/gpt/v1/completions"))
            seen[name].append(await client.ask(path="/v1/models"))
        units.hold.clear()
        for name, client in (("other_at_a_time", other), ("team_at_a_time", team)):
            begun = [await client.begin(asks(LLAMA, stream=True)) for _ in range(9)]
            seen[name] = Counter(str(response.status) for response in begun)
            if client is other:
                seen["crowded"] = await crowded(other)
                seen["nameless_beside"] = (await nameless.ask(asks(LLAMA)))["status"]
                begun.pop().close()
                units.hold.set()
                seen["ends"] = [(await response.content.read()).decode()[-3:] for response in begun]
                units.hold.clear()
                again = [await client.begin(asks(LLAMA, stream=True)) for _ in range(9)]
                seen["again_at_a_time"] = Counter(str(response.status) for response in again)
                begun.extend(again)
            for response in begun:
                response.close()

            async def free(client: Client = client) -> bool:
                answers = await asyncio.gather(*(client.ask(asks(LLAMA)) for _ in range(2)))
                return {answer["status"] for answer in answers} == {200}

            await until(free, "free of requests whose client has gone")
        units.hold.set()
    return seen


async def crowded(client: Client) -> dict[str, Any]:
    """Return the answers to a client that has as many requests under way as it may have, at whichever thread."""
    path = "/models/llama/v1/completions"
    answers = await asyncio.gather(*(client.ask(asks("any"), path) for _ in range(20)))
    return next(answer for answer in answers if answer["status"] == 429)


async def fetched(folder: Path, settings: EnvoySettings, program: str) -> dict[str, Any]:
    """Tokens of a provider that publishes its keys, gets other ones, and goes away."""
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    published = [0]

    async def publish(_: web.Request) -> web.Response:
        return web.json_response(public_set(keys[published[0]], str(published[0])))

    app = web.Application()
    app.router.add_get("/jwks.json", publish)
    runner = web.AppRunner(app)
    await runner.setup()
    own = private_key()
    pair = certificate(own, "localhost")
    (folder / "provider").mkdir()
    chain, key_file = folder / "provider" / "chain.pem", folder / "provider" / "key.pem"
    chain.write_text(pair.chain)
    key_file.write_text(own.pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key_file)
    await web.TCPSite(runner, "127.0.0.1", 9443, ssl_context=context).start()
    uri = "https://localhost:9443/jwks.json"
    front = Front(folder / "fetched", replace(settings, authenticated=True, tokens=True, key_set_uri=uri), program)
    front.move()
    authorities = folder / "fetched" / "ssl" / "certs"
    authorities.mkdir(parents=True)
    (authorities / "ca-certificates.crt").write_text(pair.chain)
    quick = authentication.tokens(ISSUER, [AUDIENCE], None, uri).replace(f'"{bounds().key_set_s}s"', '"1s"')
    front.admit(quick)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "team", "exp": int(time.time()) + 600}
    seen: dict[str, Any] = {}
    async with front.running():

        async def accepted(number: int) -> bool:
            async with Client(key=token(keys[number], claims, str(number))) as client:
                return (await client.ask(asks(LLAMA)))["status"] == 200

        await until(lambda: accepted(0), "accepting the first key")
        seen["second_before"] = await accepted(1)
        published[0] = 1
        await until(lambda: accepted(1), "accepting the second key")
        seen["first_after"] = await accepted(0)
        await runner.cleanup()
        await until(fetch_failed, "failing to fetch")
        seen["provider_gone"] = await accepted(1)
    return seen


async def fetch_failed() -> bool:
    async with Client() as client:
        stats = (await client.ask(path="/stats/prometheus", port=READY_PORT))["document"]
    return bool(re.search(r"jwt_authn_jwks_fetch_failed\{[^}]*\} [1-9]", stats))


def public_set(key: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    n, e = (encoded(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
    return {"keys": [{"kty": "RSA", "kid": kid, "alg": "RS256", "n": n, "e": e}]}


def token(key: rsa.RSAPrivateKey, claims: Mapping[str, object], kid: str = "1") -> str:
    parts = [encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": kid}, claims)]
    signature = key.sign(".".join(parts).encode(), padding.PKCS1v15(), SHA256())
    return ".".join([*parts, encoded(signature)])


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def observe(folder: Path, program: str) -> dict[str, Any]:
    units = Units()
    units.hold.set()
    for number in range(1, 5):
        await units.start(number)
    free = EnvoySettings(models(), encrypted=False, authenticated=False)
    front = Front(folder / "open", free, program)
    front.move()
    async with front.running():
        seen = {"routed": await routed(units), "moved": await moved(units, front)}
    seen["routed"]["log"] = front.log
    limited = replace(
        free, encrypted=True, authenticated=True, limits=ClientLimits(3), clients={"alice": ClientLimits(100)}
    )
    seen["guarded"] = await guarded(Front(folder / "guarded", limited, program))
    own = {
        "alice": ClientLimits(models=(LLAMA,)),
        "bob": ClientLimits(tokens_per_minute=3500),
        "carol": ClientLimits(concurrent_requests=2),
        "dave": ClientLimits(tokens_per_minute=3500),
    }
    seen["entitled"] = await entitled(
        units, Front(folder / "own", replace(free, authenticated=True, clients=own), program)
    )
    tokens = Front(folder / "signed", replace(free, authenticated=True, tokens=True), program)
    tokens.move()
    seen["signed"] = await signed(tokens)
    seen["fetched"] = await fetched(folder, free, program)
    others = ClientLimits(concurrent_requests=4, models=(LLAMA,))
    listed = {"team": ClientLimits(concurrent_requests=6, models=(GPT, LLAMA))}
    by_default = replace(free, authenticated=True, tokens=True, limits=others, clients=listed)
    seen["unlisted"] = await unlisted(units, Front(folder / "unlisted", by_default, program))
    isolated = replace(free, authenticated=True, salted=True)
    seen["salted"] = await salted(Front(folder / "salted", isolated, program))
    return seen


def main(observe: Callable[[Path, str], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """Print what is observed of the program of Envoy that is named, with a folder for it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=30)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(observe(Path(folder), sys.argv[1]))))


if __name__ == "__main__":
    main(observe)
