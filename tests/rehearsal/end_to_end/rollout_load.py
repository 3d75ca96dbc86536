"""A steady load on a model while its servers change. Prints what became of each request, until a file is there.

Run inside a rehearsal's cluster: rollout_load.py ADDRESS REQUESTS_PER_S FILE
"""

import asyncio
import json
import os
import sys
import time
import urllib.parse
from contextlib import suppress

OUTPUT_TOKENS = 24
LIMIT_S = 120
CROSSED_S = 0.1
"""A connection that is closed so soon after a request was sent was closed before the request arrived."""


class ClosedUnanswered(OSError):
    """The connection was closed as the request was sent."""


class Connections:
    """Connections that are kept open, as clients keep them: none that the server has closed since is used again.

    Where it closes one while the request is on its way, the request goes by another, as with Go's net/http
    (`errServerClosedIdle`) and with clients of OpenAI's API, which try again.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int) -> int:
        """Stream an answer and count its tokens; raise OSError with what was wrong."""
        self.idle = [connection for connection in self.idle if not connection[0].at_eof()]
        while self.idle:
            with suppress(ConnectionResetError, ClosedUnanswered):
                return await self.ask_by(number, *self.idle.pop())
        return await self.ask_by(number, *await asyncio.open_connection(self.host, 80))

    async def ask_by(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        prompt = f"{number} " * 300
        body = json.dumps(
            {"model": "openai/gpt-oss-120b", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}
        )
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
        sent_s = time.monotonic()
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        except asyncio.IncompleteReadError as error:
            crossed = not error.partial and time.monotonic() - sent_s < CROSSED_S
            raise ClosedUnanswered("closed as the request was sent") if crossed else error from None
        if " 200 " not in answer.splitlines()[0]:
            length = next((line.split(": ")[1] for line in answer.splitlines() if "content-length" in line), "0")
            text = (await reader.readexactly(int(length))).decode()
            raise OSError(f"{answer.splitlines()[0]} {text[:200]}")
        tokens = await self.tokens(reader)
        if "connection: close" in answer:
            writer.close()
        else:
            self.idle.append((reader, writer))
        return tokens

    async def tokens(self, reader: asyncio.StreamReader) -> int:
        text = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            text += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        if b"[DONE]" not in text or b'"error"' in text:
            raise OSError(f"the stream ended with {text[-200:]!r}")
        return text.count(b'"text"')


async def send(connections: Connections, number: int, started_s: float) -> None:
    sent_s = time.monotonic() - started_s
    failure = None
    try:
        await asyncio.wait_for(connections.ask(number), LIMIT_S)
    except (OSError, TimeoutError, EOFError) as error:
        failure = f"{type(error).__name__}: {error}"
    row = {"number": number, "sent_s": sent_s, "ended_s": time.monotonic() - started_s, "failure": failure}
    print(json.dumps(row), flush=True)


async def main(address: str, requests_per_s: float, end: str) -> None:
    connections = Connections(urllib.parse.urlsplit(address).hostname or "")
    started_s = time.monotonic()
    sent: list[asyncio.Task[None]] = []
    while not os.path.exists(end):  # noqa: ASYNC240, PTH110 - a file of this machine
        sent.append(asyncio.create_task(send(connections, len(sent), started_s)))
        await asyncio.sleep(max(0.0, len(sent) / requests_per_s - (time.monotonic() - started_s)))
    await asyncio.gather(*sent)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
