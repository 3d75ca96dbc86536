"""Client side of the OpenAI completions and chat completions APIs: targets, requests, event streams.

A busy client receives thousands of events per second, so events with output are only detected, not parsed: JSON escapes
quotes inside text, so a quoted key in the line can't come from generated text. All other events are parsed.
"""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import urlsplit

from llmd_base.errors import KitError

Api = Literal["completions", "chat"]

PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_MAX_ERROR_CHARACTERS = 400


@dataclass(slots=True)
class EventStream:
    """Parser of the server-sent events of one answer, which is fed the bytes as they arrive.

    With `keep_text` every event is parsed and the generated text is collected.
    """

    api: Api
    keep_text: bool = False
    text: str = ""
    event_times_s: list[float] = field(default_factory=list[float])
    finished: bool = False
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    _rest: bytes = b""
    _last: bytes = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Parse `data`, which arrived at `now_s` (seconds on the caller's clock)."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line:
                continue
            completion = self.api == "completions"
            if b'"text"' in line if completion else b'"delta"' in line and b'"role"' not in line:
                self.event_times_s.append(now_s)
                self._last = line
                if self.keep_text:
                    self._read(line[5:].strip())
            elif line.startswith(b"data:"):
                self._read(line[5:].strip())

    def end(self) -> None:
        """Finish parsing after the end of the connection: token counts may be in the last event with output instead of
        after it.
        """
        if self.output_tokens is None and not self.keep_text and b'"usage"' in self._last:
            self._read(self._last[5:].strip())

    def _read(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.finished = True
            return
        try:
            event: object = json.loads(payload)
        except ValueError:
            self.error = f"not JSON: {payload[:_MAX_ERROR_CHARACTERS].decode(errors='replace')}"
            return
        if isinstance(event, dict):
            self._note(cast("dict[str, object]", event))

    def _note(self, event: dict[str, object]) -> None:
        if event.get("error"):
            self.error = json.dumps(event["error"])[:_MAX_ERROR_CHARACTERS]
        usage = event.get("usage")
        if isinstance(usage, dict):
            counts = cast("dict[str, object]", usage)
            self.input_tokens = _count(counts.get("prompt_tokens"))
            self.output_tokens = _count(counts.get("completion_tokens"))
        match event.get("choices"):  # without reasoning, which clients don't send back in the next turn
            case [{"text": str(text)}] | [{"delta": {"content": str(text)}}] if self.keep_text:
                self.text += text
            case _:
                pass


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


_CREDENTIALS = ("authorization", "proxy-authorization", "cookie", "x-api-key")
KNOWN_BY = 12
"""Number of leading characters by which a credential is recognised, since texts may be truncated within it."""


@dataclass(frozen=True)
class CompletionsTarget:
    """Address, model and API of a load's requests. `base_url` is the part before `/v1/...` and may contain the path of
    a proxy.
    """

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True
    api: Api = "completions"

    def without_credentials(self, text: str) -> str:
        """Replace the credentials of `headers` in a text from a server or proxy, which may echo request headers, before
        it reaches files or terminals. A credential's first `KNOWN_BY` characters suffice, because texts are truncated.
        """
        values = (value for name, value in self.headers.items() if name.lower() in _CREDENTIALS)
        for credential in (value.split()[-1] for value in values if value.strip()):
            text = re.sub(re.escape(credential[:KNOWN_BY]) + r"[^\s\"'<>,]*", "[credential]", text)
        return text


@dataclass(frozen=True)
class Address:
    """Host, port and path of a target; `tls` is the TLS context, None for plain HTTP."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """Host and port of the address as the value of the HTTP header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def address_of(target: CompletionsTarget) -> Address:
    """Return the parsed URL of a target.

    Raises:
        KitError: `base_url` is no HTTP or HTTPS URL.
    """
    accepted = "Give a URL such as http://10.0.0.7:8000."
    try:
        parts = urlsplit(target.base_url)
        port = parts.port
    except ValueError as error:
        raise KitError(f"{target.base_url!r} is no URL: {error}", accepted) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise KitError(f"{target.base_url!r} is no URL of HTTP", accepted)
    tls: ssl.SSLContext | None = None
    if parts.scheme == "https":
        tls = target.verify if isinstance(target.verify, ssl.SSLContext) else ssl.create_default_context()
        if not target.verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
    return Address(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), tls)


async def resolve(address: Address) -> Sequence[str]:
    """Return the IP addresses of the host in the resolver's order.

    Raises:
        OSError: the host name can't be resolved.
    """
    entries = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


Turn = tuple[str, str]
"""Question and answer of an earlier turn of a conversation."""

_ROLES = ("user", "assistant")


class RequestWriter:
    """Serializer of HTTP requests to one target; the constant part of the headers is built once.

    Raises:
        KitError: a header value contains a line break.
    """

    def __init__(self, target: CompletionsTarget, address: Address) -> None:
        self._target = target
        headers = {
            "host": address.authority,
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "llmd-oke",
            **{name.lower(): value for name, value in target.headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if lines.count("\r\n") != len(headers) or lines.count("\n") != len(headers):
            raise KitError("A header of the target has a line end in its value.")
        self._head = f"POST {address.path}{PATHS[target.api]} HTTP/1.1\r\n{lines}content-length: ".encode("latin-1")

    def write(self, text: str, output_tokens: int, earlier: Sequence[Turn] = ()) -> bytes:
        """Return the bytes of a streaming request for exactly `output_tokens` tokens, whose stream ends with the
        server's token counts.
        """
        if self._target.api == "completions":
            content: dict[str, object] = {"prompt": "".join(part for turn in earlier for part in turn) + text}
        else:
            spoken = [(role, part) for turn in earlier for role, part in zip(_ROLES, turn, strict=True)]
            content = {"messages": [{"role": role, "content": part} for role, part in [*spoken, ("user", text)]]}
        body = json.dumps(
            {
                "model": self._target.model,
                **content,
                "max_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
