"""Server of streaming completions with exact latencies: it computes nothing and uses precise timers.

`dev/exact_server.py` prints its port in one line and serves until its standard input is closed; then it prints one line
of JSON with its `ServerLog`.
"""

import asyncio
import heapq
import itertools
import json
import sys
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import cast

from llmd_bench.load.processes import new_loop

TTFT_S = 0.1
ITL_S = 0.01
OUTPUT_TOKENS = 50

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"model","object":"model","created":1,"owned_by":"us","max_model_len":8192}]}'


@dataclass
class ServerLog:
    """Log of the server with exact latencies: arrival times of requests in seconds (`perf_counter`), and how many
    seconds after their due times its tokens were sent.
    """

    arrivals_s: list[float] = field(default_factory=list[float])
    first_token_late_s: list[float] = field(default_factory=list[float])
    tokens_late_s: float = 0.0
    tokens: int = 0


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _event(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _frames(*, chat: bool) -> tuple[bytes, bytes]:
    """Return the bytes of one token's event, and the bytes that follow the last token."""
    common = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "model"}
    choice = {"delta": {"content": " tok"}} if chat else {"text": " tok"}
    token = _event({**common, "choices": [{"index": 0, **choice, "finish_reason": None}], "usage": None})
    counts = {"prompt_tokens": 128, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 128 + OUTPUT_TOKENS}
    usage = _event({**common, "choices": [], "usage": counts})
    return _chunk(token), _chunk(usage + b"data: [DONE]\n\n") + b"0\r\n\r\n"


_FRAMES = {chat: _frames(chat=chat) for chat in (False, True)}


class _Clock:
    """Scheduler that sends each stream's next token when it is due, with one event loop timer for all streams."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, _Client]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")

    def call_at(self, due_s: float, client: "_Client") -> None:
        heapq.heappush(self._due, (due_s, next(self._order), client))
        if due_s < self._timer_s:
            self._wake_at(due_s)

    def _wake_at(self, due_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_later(max(due_s - perf_counter(), 0.0), self._tick), due_s

    def _tick(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        due = self._due
        now_s = perf_counter()
        while due and due[0][0] <= now_s:
            _, _, client = heapq.heappop(due)
            client.send_token(now_s)
            now_s = perf_counter()
        if due:
            self._wake_at(due[0][0])


class _Client(asyncio.Protocol):
    """Connection with one request at a time."""

    def __init__(self, clock: _Clock, log: ServerLog) -> None:
        self._clock = clock
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._left = 0
        self._due_s = 0.0
        self._frames = _FRAMES[False]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, mark, body = self._rest.partition(b"\r\n\r\n")
        if not mark or len(body) < _length(head):
            return
        self._rest = b""
        if not head.startswith(b"POST"):
            if self._transport:
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_MODELS)
                self._transport.write(head + _MODELS)
            return
        now_s = perf_counter()
        self._log.arrivals_s.append(now_s)
        self._frames = _FRAMES[b"/chat/" in head[:60]]
        self._left, self._due_s = OUTPUT_TOKENS, now_s + TTFT_S
        self._clock.call_at(self._due_s, self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._left = 0
        self._transport = None

    def send_token(self, now_s: float) -> None:
        """Send the due token, and the end of the stream after the last one."""
        if not self._left or not self._transport:
            return
        token, end = self._frames
        first = self._left == OUTPUT_TOKENS
        self._left -= 1
        self._transport.write((_HEAD if first else b"") + token + (b"" if self._left else end))
        log = self._log
        log.tokens += 1
        log.tokens_late_s += now_s - self._due_s
        if first:
            log.first_token_late_s.append(now_s - self._due_s)
        if self._left:
            self._due_s += ITL_S
            self._clock.call_at(self._due_s, self)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def _serve() -> None:
    log = ServerLog()
    clock = _Clock()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(clock, log), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    print(json.dumps(asdict(log)), flush=True)


def main() -> None:
    """Serve streaming completions with exact latencies until standard input is closed."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve())


if __name__ == "__main__":
    main()
