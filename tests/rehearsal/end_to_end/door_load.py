"""A steady load on a model behind several addresses. Prints what became of each request, until a file is there.

Run inside a rehearsal's cluster: door_load.py REQUESTS_PER_S ADDRESSES END, where the file ADDRESSES has a JSON list of
those that are asked in turn; it is read before each request.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

LIMIT_S = 120
OUTPUT_TOKENS = 24


async def ask(session: aiohttp.ClientSession, address: str, number: int) -> str | None:
    """Stream an answer; return what was wrong."""
    body = {"model": "openai/gpt-oss-120b", "prompt": f"{number} " * 300, "max_tokens": OUTPUT_TOKENS, "stream": True}
    try:
        async with session.post(f"{address}/v1/completions", json=body) as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return repr(error)
    whole = response.status == 200 and "[DONE]" in text and '"error"' not in text
    return None if whole else f"{response.status}: {text[-200:]}"


async def main(requests_per_s: float, addresses: Path, end: Path) -> None:
    started_s = time.monotonic()

    async def send(session: aiohttp.ClientSession, address: str, number: int) -> None:
        row: dict[str, Any] = {"address": address, "sent_s": time.monotonic() - started_s}
        row["failure"] = await ask(session, address, number)
        print(json.dumps({**row, "ended_s": time.monotonic() - started_s}), flush=True)

    limits = aiohttp.ClientTimeout(total=LIMIT_S)
    sent: list[asyncio.Task[None]] = []
    async with aiohttp.ClientSession(timeout=limits) as session:
        while not end.exists():  # noqa: ASYNC240 - a file of this machine
            known = json.loads(addresses.read_text())  # noqa: ASYNC240
            sent.append(asyncio.create_task(send(session, known[len(sent) % len(known)], len(sent))))
            await asyncio.sleep(max(0.0, len(sent) / requests_per_s - (time.monotonic() - started_s)))
        await asyncio.gather(*sent)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
