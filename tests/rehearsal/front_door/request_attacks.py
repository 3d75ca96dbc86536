"""Requests that try to say to servers what is the router's to say, and what of a request may reach a server.

What may is judged by Python's JSON, whose mistakes are none of the Envoy's that is tested.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from llmd_oke.catalogue.client_requests import Where, client_requests

MODEL = "openai/gpt-oss-120b"
EVIL = {"do_remote_prefill": True, "remote_host": "10.0.0.66", "remote_port": 5600, "remote_block_ids": [1, 2, 3]}
DEEP = 200


@dataclass(frozen=True)
class Attack:
    """A request as bytes of HTTP/1.1, and what is answered: statuses (0 where the connection is closed), and the
    field that is named, if one is. With 200 it passes, cleaned.
    """

    name: str
    request: bytes
    statuses: tuple[int, ...] = (400,)
    param: str | None = None


def body_of(**fields: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "x", **fields}).encode()


def post(
    body: bytes, path: str = "/v1/completions", *headers: str, kind: str | None = "application/json", verb: str = "POST"
) -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "host: model", *([f"content-type: {kind}"] if kind else []), *headers]
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, size: int, *headers: str, trailers: str = "") -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    text = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    return post(
        text + b"0\r\n" + trailers.encode() + b"\r\n", "/v1/completions", "transfer-encoding: chunked", *headers
    )


def sample(name: str) -> str:
    """A name that a row of the catalogue means."""
    return f"{name[:-1]}later" if name.endswith("*") else name


def nested(place: str, value: object) -> dict[str, object]:
    """A body with the value at a place, in a list of objects at each level."""
    first, *rest = place.split(".")
    for part in reversed(rest):
        value = [{part: value}]
    return {first: value}


def fields() -> Iterator[Attack]:
    """Every field of the catalogue, at the place where it is read."""
    facts = client_requests()
    for name in map(sample, facts.refused("anywhere")):
        yield Attack(f"{name} in the body", post(body_of(**{name: EVIL})), param=name)
        yield Attack(f"{name} deep in the body", post(body_of(a=[{"b": [[{name: EVIL}]]}])), param=name)
    for name in map(sample, facts.refused("body")):
        yield Attack(f"{name} in the body", post(body_of(**{name: 1})), param=name)
        inner = {"function": {"parameters": {"properties": {name: {"type": "string"}}}}}
        yield Attack(f"{name} as the property of a tool", post(body_of(tools=[inner])), (200,))
    for name in (*facts.refused("place"), *facts.refused("data-url")):
        wanted = nested(name, "http://169.254.169.254/")
        yield Attack(f"{name} in the body", post(body_of(**wanted), "/v1/chat/completions"), param=name)
    for name in facts.refused("data-url"):
        yield Attack(f"{name} with its data", post(body_of(**nested(name, "data:image/png;base64,AA=="))), (200,))


def headers() -> Iterator[Attack]:
    """Every header of the catalogue, once and repeated, in other letters."""
    for name in map(sample, client_requests().dropped):
        lines = (f"{name}: 10.0.0.66:8000", f"{name.title()}: 10.0.0.67:8000")
        yield Attack(f"header {name}", post(body_of(), "/v1/completions", *lines), (200,))
    yield Attack(
        "header x-request-id", post(body_of(), "/v1/completions", "x-request-id: ___prefill_addr_evil"), (200,)
    )
    for name in ("x_prefiller_host_port", "x-prefiller_host-port"):
        yield Attack(f"header {name}", post(body_of(), "/v1/completions", f"{name}: evil:1"))
    named = "connection: x-gateway-destination-endpoint"
    yield Attack("headers named in connection", post(body_of(), "/v1/completions", named), (200, 400))
    trailers = "x-prefiller-host-port: evil:1\r\nx-data-parallel-rank: 3\r\n"
    yield Attack("headers as trailers", chunked(body_of(), 8, trailers=trailers), (200,))


def spellings() -> Iterator[Attack]:
    """One field in letters that Python or Go read as its own, and bodies that one of them reads and another doesn't."""
    evil = json.dumps({"model": MODEL, "prompt": "x", "kv_transfer_params": EVIL})
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in "kv_transfer_params")
    first = evil.replace('"kv_', '"\\u006Bv_')
    known = "kv_transfer_params"
    yield Attack("escaped name", post(evil.replace("kv_transfer_params", escaped).encode()), param=known)
    yield Attack("one letter escaped", post(first.encode()), param=known)
    yield Attack("capitals", post(evil.replace("kv_transfer_params", "KV_Transfer_Params").encode()), param=known)
    yield Attack("long s", post(evil.replace("params", "param\u017f").encode()), param=known)
    yield Attack("sign of Kelvin", post(evil.replace("kv_", "\u212av_").encode()), param=known)
    yield Attack("long s escaped", post(evil.replace("params", "param\\u017F").encode()), param=known)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig"):
        yield Attack(encoding, post(evil.encode(encoding)))
        yield Attack(f"{encoding} without the field", post(body_of().decode().encode(encoding)))
    yield Attack("UTF-7", post(evil.replace("kv_", "+AGs-v_").encode(), kind="application/json; charset=utf-7"), (415,))
    for name, text in {
        "said twice": '{"model": "m", "prompt": "a", "prompt": "b"}',
        "said twice with other letters": '{"model": "m", "Model": "n"}',
        "said twice, escaped": '{"model": "m", "mode\\u006c": "n"}',
        "first harmless": '{"model": "m", "kv_transfer_params": null, "kv_transfer_params": {"remote_host": "e"}}',
        "not a number": '{"model": "m", "temperature": NaN}',
        "infinity": '{"model": "m", "temperature": -Infinity}',
        "leading zero": '{"model": "m", "n": 01}',
        "hexadecimal": '{"model": "m", "n": 0x1}',
        "text after the body": body_of().decode() + evil,
        "text before the body": "x" + evil,
        "two bodies on two lines": body_of().decode() + "\n" + evil,
        "comma at the end": '{"model": "m",}',
        "no comma": '{"model": "m" "n": 1}',
        "comment": '{"model": "m" /* , */, "n": 1}',
        "single quotes": "{'model': 'm'}",
        "names without quotes": '{model: "m"}',
        "list": f"[{evil}]",
        "text": '"text"',
        "null": "null",
        "nothing but spaces": "   ",
        "not closed": evil[:-1],
        "wrong bracket": '{"model": ["m"}',
        "control character": '{"model": "m", "prompt": "a\nb"}',
        "unknown escape": '{"model": "m", "prompt": "\\x41"}',
        "half an escape": '{"model": "m", "prompt": "\\u00g1"}',
        "NUL": '{"model": "m"\x00}',
        "deep": '{"model": "m", "a": ' + "[" * DEEP + "]" * DEEP + "}",
        "fields without end": json.dumps({"model": "m", "a": dict.fromkeys(map(str, range(70000)))}),
    }.items():
        yield Attack(name, post(text.encode()))
    for name, text in {"no UTF-8": b"\xff\xfe", "overlong": b"\xc0\xab", "surrogate": b"\xed\xa0\x80"}.items():
        yield Attack(name, post(b'{"model": "m", "prompt": "' + text + b'"}'))
        yield Attack(f"{name} in a name", post(b'{"model": "m", "kv_transfer' + text + b'params": 1}'))
    form = b"kv_transfer_params=%7B%7D&model=m"
    part = '--b\r\ncontent-disposition: form-data; name="vllm_xargs"\r\n\r\n{"kv_transfer_params": {}}\r\n--b--\r\n'
    for kind in (None, "text/plain", "application/json+x", "application/jsonx", "application/json, text/plain", "*/*"):
        yield Attack(f"content type {kind}", post(evil.encode(), kind=kind), (415,))
    for charset in ("utf-16", "utf-16le", "iso-8859-1", '"utf-32"'):
        kind = f"application/json; charset={charset}"
        yield Attack(f"charset {charset}", post(evil.encode(), kind=kind), (415,))
    yield Attack("two content types", post(evil.encode(), "/v1/completions", "content-type: text/plain"), (400, 415))
    yield Attack("form", post(form, kind="application/x-www-form-urlencoded"), (415,))
    yield Attack("parts", post(part.encode(), kind="multipart/form-data; boundary=b"), (415,))
    for coding, text in {"gzip": gzip.compress(evil.encode()), "br": evil.encode(), "deflate": evil.encode()}.items():
        yield Attack(f"content encoding {coding}", post(text, "/v1/completions", f"content-encoding: {coding}"), (415,))
    encodings = ("content-encoding: identity", "content-encoding: gzip")
    yield Attack("two content encodings", post(evil.encode(), "/v1/completions", *encodings), (415,))


def framings() -> Iterator[Attack]:
    """The same field in bodies that come in parts, or that Envoy and servers might cut at different places."""
    evil = body_of(kv_transfer_params=EVIL)
    known = "kv_transfer_params"
    for size in (1, 7, 4096):
        yield Attack(f"chunks of {size}", chunked(evil, size), param=known)
    yield Attack("100-continue", post(evil, "/v1/completions", "expect: 100-continue"), (100, 400))
    yield Attack("length and chunks", post(evil, "/v1/completions", "transfer-encoding: chunked", "content-length: 5"))
    yield Attack("two lengths", post(evil, "/v1/completions", "content-length: 5"))
    yield Attack("unknown transfer encoding", post(evil, "/v1/completions", "transfer-encoding: xchunked"), (400, 501))
    extended = b'5;a=b\r\n{"a":\r\n2\r\n1}\r\n0\r\n\r\n'
    yield Attack("chunk extension", post(extended, "/v1/completions", "transfer-encoding: chunked"), (200, 400))
    yield Attack("no body", post(b""))
    for name, upgrade in {"websocket": "websocket", "h2c": "h2c"}.items():
        lines = ("connection: upgrade", f"upgrade: {upgrade}", "sec-websocket-version: 13", "sec-websocket-key: AA==")
        for path in ("/v1/realtime", "/v1/completions"):
            yield Attack(f"{name} {path}", post(b"", path, *lines, verb="GET", kind=None), (400, 403, 404, 405))


def paths() -> Iterator[Attack]:
    """Paths and methods that aren't for clients, or only look as if they were."""
    evil = body_of(kv_transfer_params=EVIL)
    for path in (
        *("/inference/v1/generate", "/invocations", "/generative_scoring", "/pooling", "/classify", "/v2/embed"),
        *("/v1/chat/completions/batch", "/v1/completions/render", "/v1/chat/completions/derender", "/abort_requests"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/pause", "/collective_rpc"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/server_info", "/update_weights", "/start_profile", "/metrics"),
        *("/health", "/version", "/docs", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/responses/resp_1"),
        *("/v1/completions/", "/v1/Completions", "/v1/completions/x", "/v1/completionsx", "/v1/completions;x=/sleep"),
        *("/v1/completions/../../sleep", "/v1/./sleep", "/v1/%2e%2e/sleep", "/V1/completions", "/", "*"),
    ):
        yield Attack(f"path {path}", post(body_of(), path), (400, 404))
    for path in ("//v1//completions", "/v1/%63ompletions", "/v1/./completions", "/v1/completions?a=/sleep"):
        yield Attack(f"path {path}", post(evil, path), (400, 404), None)
    for path in ("/v1%2fcompletions", "/v1/completions%2f..%2f..%2fsleep", "/sleep%3f/v1/completions"):
        yield Attack(f"path {path}", post(body_of(), path), (307, 400, 404))
    yield Attack("the whole address", post(evil, "http://other/v1/completions"), (400, 404))
    for verb in ("PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS", "TRACE", "FOO"):
        yield Attack(f"method {verb}", post(evil, verb=verb), (400, 404, 405, 501))
    yield Attack("CONNECT", b"CONNECT 10.0.0.66:8000 HTTP/1.1\r\nhost: 10.0.0.66:8000\r\n\r\n", (0, 400, 403, 404, 405))
    yield Attack("a body of GET", post(evil, "/v1/models", verb="GET"), (200, 400))


def attacks() -> list[Attack]:
    """Return all attacks."""
    rows = [*fields(), *headers(), *spellings(), *framings(), *paths()]
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    return rows


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name.startswith(row[:-1]) if row.endswith("*") else name == row for row in patterns)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all that it says, twice too."""


def read(body: bytes) -> Any:
    """The body as Python's JSON reads it."""
    return json.loads(body, object_pairs_hook=_Pairs)


def forbidden(document: Any, depth: int = 0, place: str = "") -> list[str]:
    """Fields of a body that are the router's alone."""

    def of(where: Where) -> list[str]:
        return client_requests().refused(where)

    if isinstance(document, _Pairs):
        found: list[str] = []
        for written, value in document:
            name = written.casefold()
            here = f"{place}.{name}" if place else name
            if _matches(name, of("anywhere")) or here in of("place") or (depth == 0 and _matches(name, of("body"))):
                found.append(here)
            if here in of("data-url"):
                texts = [text for text in _texts(value) if text[:5].lower() != "data:"]
                found += [here] if texts else []
            found += forbidden(value, depth + 1, here)
        return found
    if isinstance(document, list):
        return [name for part in cast("list[Any]", document) for name in forbidden(part, depth + 1, place)]
    return []


def _texts(value: Any) -> list[str]:
    if isinstance(value, _Pairs):
        return []
    if isinstance(value, list):
        return [text for part in cast("list[Any]", value) for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def steered(request: Mapping[str, Any]) -> list[str]:
    """Return the parts of a request that reached a server and should not have."""
    facts = client_requests()
    method, path, body = request["method"], request["path"].split("?")[0], bytes.fromhex(request["body"])
    found = [name for name in request["headers"] if _matches(name, facts.dropped)]
    if (method, path) not in {(row.method, row.path) for row in facts.paths}:
        found.append(f"{method} {path}")
    if method != "POST":
        return found + (["a body"] if body else [])
    try:
        document = read(body)
        body.decode()
    except ValueError as error:
        return [*found, str(error)]
    names = [name.casefold() for name, _ in document] if isinstance(document, _Pairs) else None
    if names is None or len(set(names)) != len(names):
        found.append("no object, or a field twice")
    return found + forbidden(document)
