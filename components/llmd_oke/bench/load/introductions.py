"""Introducing prefill and decode servers to each other before anything is measured.

The first prompt that a pair of servers shares takes seconds, because NIXL's handshake is lazy. A router picks pairs as
it likes, so that warm-up requests through it leave some pairs strangers; a request straight to the decode server's
routing sidecar names the prefill server.
"""

import asyncio
from collections.abc import Callable, Sequence

from llmd_oke.bench.load.load import Load, Target, run_load
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.workload.prompts import PromptSource
from llmd_oke.bench.workload.shapes import ClosedLoop

AT_A_TIME = 64
"""Handshakes of different pairs don't wait for each other."""

PROMPT_TOKENS = 256
"""A few blocks of cache, so that some are handed over."""


async def introduce(
    pairs: Sequence[Target], run: str, *, limit_s: float, on_done: Callable[[int], None]
) -> list[RequestRecord]:
    """Send one request of one token for each pair; `on_done` is told how many have ended. Failures are records."""
    prompts = PromptSource(PROMPT_TOKENS, 0, run)
    turns = asyncio.Semaphore(AT_A_TIME)
    records: list[RequestRecord] = []

    async def one(index: int, pair: Target) -> None:
        async with turns:
            load = Load(1, ClosedLoop(1), prompts, output_tokens=1, label=f"introduction {index} ")
            records.extend(await run_load(pair, load, limit_s=limit_s))
            on_done(len(records))

    async with asyncio.TaskGroup() as group:
        for index, pair in enumerate(pairs):
            group.create_task(one(index, pair))
    return records
