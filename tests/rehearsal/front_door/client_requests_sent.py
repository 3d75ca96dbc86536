"""The real Envoys of a model's and of a stack's front door, a server that records, and clients that attack it.

Prints what was answered and what reached the server.

Run as the first process of a new network namespace; everything ends with it.
"""

import asyncio
import json
import os
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h11
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_oke.catalogue.client_requests import client_requests
from llmd_oke.serving import client_requests as programs
from llmd_oke.serving import gateway, model_envoy, stack_envoy
from llmd_oke.serving.model_envoy import READY_PORT, REQUEST_PORT, Upstream
from llmd_oke.serving.stack_envoy import FIRST_MODEL_PORT, STACK_PORT, EnvoySettings, ServedModel
from llmd_rehearsal.pods.volumes import File, write_files
from request_attacks import MODEL, Attack, attacks, chunked, forbidden, post, read, sample, steered

HERE, SERVER, PORT = "127.0.0.1", "127.0.1.1", 9080
LIMIT_S = 30
EXAMPLES = int(os.environ.get("LLMD_OKE_EXAMPLES", "120"))


class Server:
    """A server that records what it is asked, and answers."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser, request, body = h11.Connection(h11.SERVER), None, b""
        try:
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    parser.receive_data(await reader.read(2**16))
                elif isinstance(event, h11.Request):
                    request, body = event, b""
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    assert request is not None
                    self.record(request, body, event)
                    for part in (
                        h11.Response(status_code=200, headers=[("content-length", "2")]),
                        h11.Data(data=b"ok"),
                    ):
                        writer.write(parser.send(part) or b"")
                    writer.write(parser.send(h11.EndOfMessage()) or b"")
                    parser.start_next_cycle()
                else:
                    return
        except OSError:
            return
        finally:
            writer.close()

    def record(self, request: h11.Request, body: bytes, end: h11.EndOfMessage) -> None:
        names = [name.decode() for name, _ in [*request.headers, *end.headers]]
        values = {name.decode(): value.decode() for name, value in request.headers}
        row = {"method": request.method.decode(), "path": request.target.decode(), "headers": names, "body": body.hex()}
        self.seen.append({**row, "request_id": values.get("x-request-id", "")})


async def answer_to(request: bytes, port: int) -> tuple[int, dict[str, Any]]:
    """Status and error of the answer to a request as it stands; 0 where the connection was closed."""
    reader, writer = await asyncio.open_connection(HERE, port)
    parser, verb = h11.Connection(h11.CLIENT), request.split(b" ", 1)[0]
    parser.send(h11.Request(method=verb if verb == b"HEAD" else "POST", target="/", headers=[("host", "m")]))
    parser.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        writer.write(request)
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await asyncio.wait_for(reader.read(2**16), LIMIT_S))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif not isinstance(event, h11.InformationalResponse):
                break
    except (OSError, h11.RemoteProtocolError):
        return status, {}
    finally:
        writer.close()
    try:
        return status, json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        return status, {}


async def by_http2(headers: Mapping[str, str], body: bytes, trailers: Mapping[str, str], port: int) -> int:
    """Status of the answer to a request of HTTP/2."""
    reader, writer = await asyncio.open_connection(HERE, port)
    link = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False))
    link.initiate_connection()
    said = {":method": "POST", ":scheme": "http", ":authority": "model", ":path": "/v1/completions"}
    link.send_headers(1, [*{**said, "content-type": "application/json", **headers}.items()])
    for i in range(0, len(body), 5):
        link.send_data(1, body[i : i + 5])
    if trailers:
        link.send_headers(1, [*trailers.items()], end_stream=True)
    else:
        link.end_stream(1)
    try:
        while True:
            writer.write(link.data_to_send())
            data = await asyncio.wait_for(reader.read(2**16), LIMIT_S)
            for event in link.receive_data(data) if data else []:
                if isinstance(event, h2.events.ResponseReceived):
                    return int(dict(event.headers or [])[b":status"])
                if isinstance(event, h2.events.StreamReset):
                    return 0
            if not data:
                return 0
    finally:
        writer.close()


def http2_requests() -> dict[str, tuple[dict[str, str], bytes, dict[str, str]]]:
    """Headers, body and trailers of requests of HTTP/2, by what they try."""
    clean, evil = json.dumps({"model": MODEL}).encode(), json.dumps({"kv_transfer_params": {"a": 1}}).encode()
    named = {sample(name): "10.0.0.66:8000" for name in client_requests().dropped}
    return {
        "headers": (named, clean, {}),
        "trailers": ({}, clean, named),
        "field": ({}, evil, {}),
        "field with trailers": ({}, evil, {"x-a": "b"}),
        "compressed": ({"content-encoding": "gzip"}, evil, {}),
        "path": ({":path": "/sleep"}, clean, {}),
        "method": ({":method": "PUT"}, clean, {}),
        "websocket": ({":method": "CONNECT", ":protocol": "websocket", ":path": "/v1/realtime"}, clean, {}),
        "underscore": ({"x_prefiller_host_port": "evil:1"}, clean, {}),
        "space in a name": ({"x-prefiller-host-port ": "evil:1"}, clean, {}),
        "capital in a name": ({"X-Prefiller-Host-Port": "evil:1"}, clean, {}),
        "length": ({"content-length": "3"}, evil, {}),
        "two lengths": ({"content-length": "3, 30"}, evil, {}),
        "newline in a value": ({"x-a": "b\r\nx-prefiller-host-port: evil:1"}, clean, {}),
    }


NAMES = [sample(name) for row in client_requests().fields for name in row.names for name in name.split(".")]
_NAME = st.one_of(st.sampled_from(["prompt", "messages", "content", "input", "tools"]), st.text(max_size=4))
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
_URLS = st.sampled_from(["http://10.0.0.66/", "data:,a", "DATA:,b"])


def _documents(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Bodies as lists of pairs, so that a name can come twice."""
    inner = st.recursive(
        st.one_of(_LEAVES, _URLS),
        lambda part: st.one_of(
            st.lists(part, max_size=3),
            st.lists(st.tuples(names, part), max_size=4).map(lambda pairs: {"pairs": pairs}),
        ),
        max_leaves=8,
    )
    return st.lists(st.tuples(names, inner), max_size=6).map(lambda pairs: {"pairs": pairs})


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A body with fields of all kinds in all letters, encoded and perhaps damaged."""
    names = st.one_of(st.sampled_from(NAMES), _NAME)
    document = draw(_documents(names))
    text = draw(_written(document))
    if text.startswith("{") and draw(st.integers(0, 3)):
        text = f'{{"model": "{MODEL}"{"," if document["pairs"] else ""}{text[1:]}'
    encoding = draw(st.sampled_from(["utf-8"] * 6 + ["utf-16", "utf-16-le", "utf-32-be", "utf-8-sig"]))
    body = text.encode(encoding, "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(body)))
        bits = st.sampled_from([b"\\", b'"', b"\x00", b"\xff", b"\xc5\xbf", b"{", b"}", b",", b":", b"\\u006", b"NaN"])
        body = body[:place] + draw(bits) + body[place + draw(st.integers(0, 2)) :]
    return body


@st.composite
def _written(draw: st.DrawFn, document: Any) -> str:
    """JSON of a document, with spaces and escapes where they may be."""
    if isinstance(document, dict):
        pairs = cast("dict[str, list[tuple[str, Any]]]", document)["pairs"]
        parts = [draw(_spelled(name)) + draw(_space) + ":" + draw(_written(value)) for name, value in pairs]
        return "{" + draw(_space) + (draw(_space) + ",").join(parts) + "}"
    if isinstance(document, list):
        return "[" + ",".join(draw(_written(part)) for part in cast("list[Any]", document)) + draw(_space) + "]"
    return draw(_space) + json.dumps(document, ensure_ascii=draw(st.booleans()))


_space = st.text(" \t\r\n", max_size=2)
_LIKE = {"s": "\u017f", "k": "\u212a"}


@st.composite
def _spelled(draw: st.DrawFn, name: str) -> str:
    letters: list[str] = []
    for letter in name:
        way = draw(st.sampled_from(["plain"] * 8 + ["escape", "capital", "like"]))
        if way == "escape" and ord(letter) < 2**16:
            letters.append(f"\\u{ord(letter):04x}")
        elif way == "capital" and letter in string.ascii_letters:
            letters.append(letter.upper())
        else:
            letters.append(json.dumps(_LIKE.get(letter, letter) if way == "like" else letter, ensure_ascii=False)[1:-1])
    return f'"{"".join(letters)}"'


def passes(body: bytes) -> bool:
    """Tell whether a body is plain and has nothing in it that is the router's."""
    try:
        document = read(body)
    except ValueError:
        return False
    pairs: list[tuple[str, Any]] = document
    names = [name.casefold() for name, _ in pairs]
    return len(set(names)) == len(names) and not forbidden(document)


@dataclass
class RandomRequests:
    """Requests with random bodies, and plain bodies that have nothing in them that is the router's."""

    requests: list[bytes] = field(default_factory=list[bytes])
    passing: list[bytes] = field(default_factory=list[bytes])


def random_requests() -> RandomRequests:
    """Return the same requests each time: all doors are asked the same ones, as drawing them takes longest."""
    drawn = RandomRequests()

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None)
    @given(body=bodies(), in_parts=st.booleans())
    def random_bodies(body: bytes, in_parts: bool) -> None:
        drawn.requests.append(chunked(body, 5) if in_parts else post(body))

    @settings(max_examples=EXAMPLES // 2, derandomize=True, database=None, deadline=None)
    @given(fields=st.dictionaries(_NAME, _plain(), max_size=5), spaced=st.booleans(), ascii_only=st.booleans())
    def plain_bodies(fields: dict[str, Any], spaced: bool, ascii_only: bool) -> None:
        document = {**fields, "model": MODEL}
        body = json.dumps(document, ensure_ascii=ascii_only, indent=1 if spaced else None).encode(errors="replace")
        if passes(body):
            drawn.passing.append(body)

    random_bodies()
    plain_bodies()
    return drawn


def _plain() -> st.SearchStrategy[Any]:
    names = st.text(max_size=4)
    return st.recursive(
        _LEAVES, lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(names, part)), max_leaves=6
    )


class Door:
    """A port of an Envoy, and what reached the server behind it."""

    def __init__(self, server: Server, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.port, self.loop = server, port, loop

    def send(self, request: bytes) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        self.server.seen.clear()
        status, error = self.loop.run_until_complete(answer_to(request, self.port))
        return status, error, list(self.server.seen)

    def attacked(self, attack: Attack) -> dict[str, Any]:
        status, error, seen = self.send(attack.request)
        found = [name for request in seen for name in steered(request)]
        ids = [request["request_id"] for request in seen if "evil" in request["request_id"]]
        return {"status": status, "param": error.get("param"), "reached": len(seen), "steered": found + ids}

    def http2(self) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for name, (headers, body, trailers) in http2_requests().items():
            self.server.seen.clear()
            status = self.loop.run_until_complete(by_http2(headers, body, trailers, self.port))
            found = [name for request in self.server.seen for name in steered(request)]
            answers[name] = {"status": status, "steered": found}
        return answers

    def fuzzed(self, random: RandomRequests) -> dict[str, Any]:
        """Return the random bodies that reached the server, the plain ones that didn't, and how many passed."""
        counts = {"passed": 0, "refused": 0}
        found: list[str] = []
        for request in random.requests:
            status, _, seen = self.send(request)
            counts["passed" if seen else "refused"] += 1
            found.extend(f"{request!r} reached the server: {names}" for row in seen if (names := steered(row)))
            if status not in {200, 400, 404}:
                found.append(f"{request!r} was answered with {status}")
        for body in random.passing:
            _, _, seen = self.send(post(body))
            if [row["body"] for row in seen] != [body.hex()]:
                found.append(f"{body!r} was refused or changed")
        return {**counts, "found": found[:10]}


@asynccontextmanager
async def envoy(program: str, file: Path) -> AsyncGenerator[None]:
    argv = [program, "-c", str(file), "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=sys.stderr)
    try:
        end_s = time.monotonic() + LIMIT_S
        while not await _is_ready():
            if time.monotonic() > end_s:
                raise TimeoutError(f"not ready within {LIMIT_S} s")
            await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), LIMIT_S)


async def _is_ready() -> bool:
    try:
        return (await answer_to(b"GET /ready HTTP/1.1\r\nhost: m\r\n\r\n", READY_PORT))[0] == 200
    except OSError:
        return False


def bootstraps(folder: Path) -> dict[str, tuple[str, dict[str, int]]]:
    """Envoys' bootstraps, and the ports at which they are attacked by their names."""
    upstream = Upstream(SERVER, PORT)
    model = ServedModel("gpt", MODEL, (), (upstream,))
    stack = EnvoySettings((model,), encrypted=False, authenticated=False)
    clusters = {"clusters.json": File(stack_envoy.clusters([model]).encode())}
    write_files(folder / "front-door" / "traffic", clusters)
    return {
        "model": (model_envoy.bootstrap([SERVER], PORT), {"a model's front door": REQUEST_PORT}),
        "gateway": (as_gateway(model_envoy.bootstrap([SERVER], PORT)), {"a Gateway's filters": REQUEST_PORT}),
        "stack": (
            stack_envoy.bootstrap(stack).replace("/etc/", f"{folder}/"),
            {"a stack's front door": STACK_PORT, "a model's port of a stack's front door": FIRST_MODEL_PORT},
        ),
    }


def as_gateway(bootstrap: str) -> str:
    """The bootstrap with the buffer and the program that Envoy Gateway has by policies of a route."""
    args: gateway.ModelRouteArgs = {
        "namespace": "llm-d",
        "model": "m",
        "units": ["m"],
        "provider": "envoy-gateway",
        "gateway": "g",
        "gateway_namespace": "llm-d",
        "service_host": "g",
    }
    policies = {policy["kind"]: policy["spec"] for policy in gateway.route_policies(args)}
    (lua,) = policies["EnvoyExtensionPolicy"]["lua"]
    whole, named = json.loads(bootstrap), {row["name"] for row in programs.filters()}
    managers = [
        network["typed_config"]
        for listener in whole["static_resources"]["listeners"]
        for chain in listener["filter_chains"]
        for network in chain["filters"]
    ]
    (manager,) = [m for m in managers if named <= {row["name"] for row in m["http_filters"]}]
    (buffer,) = [row for row in manager["http_filters"] if row["name"] == "envoy.filters.http.buffer"]
    assert policies["BackendTrafficPolicy"]["requestBuffer"]["limit"] == f"{programs.LARGEST_BODY_MIB}Mi"
    checked = next(row for row in manager["http_filters"] if row["name"] == programs.BODIES_FILTER)
    checked["typed_config"]["default_source_code"] = {"inline_string": lua["inline"]}
    manager["http_filters"] = [buffer, checked, manager["http_filters"][-1]]
    return json.dumps(whole)


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=30)
    loop = asyncio.new_event_loop()
    server, seen = Server(), dict[str, Any]()
    catalogued, random = list(attacks()), random_requests()
    loop.run_until_complete(asyncio.start_server(server.serve, SERVER, PORT))
    with tempfile.TemporaryDirectory() as folder:
        for name, (bootstrap, ports) in bootstraps(Path(folder)).items():
            file = Path(folder) / f"{name}.json"
            file.write_text(bootstrap)
            running = envoy(sys.argv[1], file)
            loop.run_until_complete(running.__aenter__())
            for label, port in ports.items():
                door = Door(server, port, loop)
                table = {attack.name: door.attacked(attack) for attack in catalogued}
                seen[label] = {"table": table, "http2": door.http2(), "fuzzed": door.fuzzed(random)}
            loop.run_until_complete(running.__aexit__(None, None, None))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
