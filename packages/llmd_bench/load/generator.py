"""A load that one process sends, with a record of each request.

A failed request doesn't raise an exception; its record has the kind and the text of the failure. Long or fast loads
should run as `stages`, in processes of their own.

A load begins with `wait_for_answer` and `introduce`. The first prompt of a pair of a prefill and a decode server takes
seconds, because NIXL's handshake happens on first use. Warm-up requests through the router miss pairs; `introduce`
sends a request for each pair to the decode server's routing sidecar, which names the prefill server.
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
    """Load that one process sends. `request_timeout_s` is wall time. `time_scale` is wall seconds for each simulated
    second: rates of `shape` are per simulated second.
    """

    requests: int
    shape: LoadShape
    prompts: PromptSource
    output_tokens: int
    request_timeout_s: float = 300.0
    time_scale: float = 1.0
    label: str = ""
    """Name of this load within a run; loads with different labels have different prompts."""

    def question(self, index: int) -> RequestText:
        """Return the text and the lengths of request number `index`."""
        return RequestText(self.prompts.prompt(f"{self.label}{index}"), self.prompts.input_tokens, self.output_tokens)


async def run_load(
    target: CompletionsTarget,
    load: GeneratedLoad,
    *,
    limit_s: float,
    on_record: Callable[[RequestRecord], None] | None = None,
) -> list[RequestRecord]:
    """Send the load and return a record per sent request, with times in wall time, in the order in which the requests
    ended.

    After `limit_s` of wall time no request is started and requests in flight end as timed out, so there may be fewer
    records than `requests`.

    Raises:
        KitError: the target's URL is invalid.
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
"""Seconds between two attempts of `wait_for_answer`."""

ATTEMPT_TIMEOUT_S = 30.0
"""Time limit of an attempt in simulated seconds (wall seconds / `time_scale`), long enough for the NIXL handshake in
the first prompt of a pair of servers.
"""

_HOPELESS = ("HTTP 400", "HTTP 401", "HTTP 403", "HTTP 422")
"""Beginnings of errors that don't disappear by waiting."""

_NO_SUCH_MODEL = ("does not exist", "NotFoundError")
"""Texts in vLLM's 404 answer for a model that it doesn't serve; a router without routes answers 404 with other texts.
"""

_TAKEN_UP = 10
"""Number of consecutive answers with a text of `_NO_SUCH_MODEL` after which waiting ends: while a Gateway programs a
new route, a server of another model may give some of these answers.
"""


async def wait_for_answer(
    target: CompletionsTarget, *, limit_s: float, time_scale: float = 1.0, pause_s: float = PAUSE_S
) -> None:
    """Repeat a completion of one token until it succeeds, which shows that the router and a server work.

    The time limit of an attempt is multiplied by `time_scale` if that is above 1.

    Raises:
        KitError: no attempt succeeded within `limit_s` of wall time, or an answer shows that waiting is useless; the
            message has the last answer.
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
"""Maximum number of concurrent warm-up requests, since handshakes of different pairs are independent."""

PROMPT_TOKENS = 256
"""Length of a warm-up prompt in tokens: a few blocks of KV cache, so that some are transferred."""


async def introduce(
    pairs: Sequence[CompletionsTarget], run: str, *, limit_s: float, on_done: Callable[[int], None]
) -> list[RequestRecord]:
    """Send one request for one token to each target in `pairs`, so that its servers do their NIXL handshake, and return
    the records, which include failures. `on_done` is called with the number of ended requests.
    """
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
