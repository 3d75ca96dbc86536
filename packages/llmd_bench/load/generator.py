"""One load from the program that sends it, with a record of what happened to each request.

It never raises for a request that fails; a failure is a record with its kind and text. Long or fast loads are better
run as `stages`, in processes of their own.

Loads begin with `wait_for_answer` and `introduce`. The first prompt that a pair of servers shares takes seconds,
because NIXL's handshake is lazy. A router picks pairs as it likes, so that warm-up requests through it leave some pairs
without one; a request straight to the decode server's routing sidecar names the prefill server.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from llmd_base.errors import KitError

from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.connections import CONNECT_TIMEOUT_S
from llmd_bench.load.records import Failure, RequestRecord
from llmd_bench.load.sending import ClosedDriver, Dialogues, Driver, OpenDriver, Sender
from llmd_bench.load.workload import ClosedLoop, LoadShape, PromptSource, RequestText, arrivals_s

__all__ = ["CONNECT_TIMEOUT_S", "CompletionsTarget", "GeneratedLoad", "run_load"]


@dataclass(frozen=True)
class GeneratedLoad:
    """Load that one program sends.

    `request_timeout_s` is wall time; rates of `shape` are in model time (`time_scale` wall seconds a second).
    """

    requests: int
    shape: LoadShape
    prompts: PromptSource
    output_tokens: int
    request_timeout_s: float = 300.0
    time_scale: float = 1.0
    label: str = ""
    """Name of this load within its run: loads with different labels have different prompts."""

    def question(self, index: int) -> RequestText:
        """Return the text and lengths of request `index`."""
        return RequestText(self.prompts.prompt(f"{self.label}{index}"), self.prompts.input_tokens, self.output_tokens)


async def run_load(
    target: CompletionsTarget,
    load: GeneratedLoad,
    *,
    limit_s: float,
    on_record: Callable[[RequestRecord], None] | None = None,
) -> list[RequestRecord]:
    """Send the load and return a record for each request that was sent, in the order in which they ended, in wall time.

    After `limit_s` of wall time no request is started and those in flight end as timed out, so there may be fewer
    records than requests.

    Raises:
        KitError: the target's URL is none.
    """
    records: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        records.append(record)
        if on_record:
            on_record(record)

    started_s = perf_counter()
    sender = Sender(
        target,
        Dialogues(load.question),
        keep,
        origin_s=started_s,
        deadline_s=started_s + limit_s,
        request_timeout_s=load.request_timeout_s,
    )
    if isinstance(load.shape, ClosedLoop):
        users = min(load.shape.concurrency, load.requests)
        driver: Driver = ClosedDriver(sender, iter(range(load.requests)), users, stop_s=sender.deadline_s)
    else:
        moments = itertools.islice(arrivals_s(load.shape), load.requests)
        driver = OpenDriver(sender, ((index, started_s + at * load.time_scale) for index, at in enumerate(moments)))
    try:
        await driver.run()
    finally:
        sender.abandon()
        await asyncio.sleep(0)
    return records


PAUSE_S = 1.0
"""Seconds between two attempts."""

ATTEMPT_TIMEOUT_S = 30.0
"""Seconds of model time for one attempt: the first prompt of a pair of servers takes those of their handshake."""

_HOPELESS = ("HTTP 400", "HTTP 401", "HTTP 403", "HTTP 422")
"""Answers that waiting won't change."""

_NO_SUCH_MODEL = ("does not exist", "NotFoundError")
"""Marks of vLLM's answer 404 for a model that it doesn't serve; a router without routes yet says 404 in other words."""

_TAKEN_UP = 10
"""Answers of that kind in a row after which waiting won't change it: while a Gateway takes a new route up, a server of
another model says it."""


async def wait_for_answer(
    target: CompletionsTarget, *, limit_s: float, time_scale: float = 1.0, pause_s: float = PAUSE_S
) -> None:
    """Ask for a completion of one token until there is one: only that shows that the router and a server work.

    Attempts have `time_scale` times their usual wall time where that is above 1.

    Raises `KitError` with the last answer after `limit_s` of wall time, or at once if the answer is one that waiting
    doesn't change.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    timeout_s = ATTEMPT_TIMEOUT_S * max(1.0, time_scale)
    probe = GeneratedLoad(1, ClosedLoop(1), PromptSource(16, 0, "probe"), output_tokens=1, request_timeout_s=timeout_s)
    last, others = "none was tried", 0
    while (left_s := deadline_s - loop.time()) > 0:
        for attempt in await run_load(target, probe, limit_s=left_s):
            if attempt.succeeded:
                return
            error = attempt.error or ""
            is_another_models = attempt.status == 404 and any(mark in error for mark in _NO_SUCH_MODEL)
            others = others + 1 if is_another_models else 0
            if attempt.failure is Failure.TLS or error.startswith(_HOPELESS) or others == _TAKEN_UP:
                raise KitError(f"{target.model} at {target.base_url} refuses a completion: {error}")
            last = f"{attempt.failure}: {error}"
        await asyncio.sleep(min(pause_s, left_s))
    raise KitError(
        f"{target.model} at {target.base_url} gave no completion within {limit_s:g} s; the last attempt: {last}"
    )


AT_A_TIME = 64
"""Handshakes of different pairs don't wait for each other."""

PROMPT_TOKENS = 256
"""A few blocks of cache, so that some are handed over."""


async def introduce(
    pairs: Sequence[CompletionsTarget], run: str, *, limit_s: float, on_done: Callable[[int], None]
) -> list[RequestRecord]:
    """Send one request of one token for each pair; `on_done` is told how many have ended. Failures are records."""
    prompts = PromptSource(PROMPT_TOKENS, 0, run)
    turns = asyncio.Semaphore(AT_A_TIME)
    records: list[RequestRecord] = []

    async def one(index: int, pair: CompletionsTarget) -> None:
        async with turns:
            load = GeneratedLoad(1, ClosedLoop(1), prompts, output_tokens=1, label=f"introduction {index} ")
            records.extend(await run_load(pair, load, limit_s=limit_s))
            on_done(len(records))

    async with asyncio.TaskGroup() as group:
        for index, pair in enumerate(pairs):
            group.create_task(one(index, pair))
    return records
