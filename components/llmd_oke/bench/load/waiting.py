"""Waiting until a model answers."""

import asyncio

from llmd_oke.bench.load.load import Load, Target, run_load
from llmd_oke.bench.records.request import Failure, RequestRecord
from llmd_oke.bench.workload.prompts import PromptSource
from llmd_oke.bench.workload.shapes import ClosedLoop
from llmd_oke.errors import KitError

PAUSE_S = 1.0
"""Between two attempts."""

ATTEMPT_TIMEOUT_S = 30.0
"""Of model time, for one attempt: the first prompt of a pair of servers takes the seconds of their handshake."""

_HOPELESS = ("HTTP 400", "HTTP 401", "HTTP 403", "HTTP 422")

_NO_SUCH_MODEL = ("does not exist", "NotFoundError")
"""In vLLM's answer 404 for a model that it doesn't serve; a router without routes yet says 404 in other words."""


async def wait_for_answer(target: Target, *, limit_s: float, time_scale: float = 1.0, pause_s: float = PAUSE_S) -> None:
    """Ask for a completion of one token until there is one: only that shows that the router and a server work.

    Attempts have `time_scale` times their usual wall time where that is above 1.

    Raises `KitError` with the last answer after `limit_s` of wall time, or at once if the answer is one that waiting
    doesn't change.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    last = "none was tried"
    while (left_s := deadline_s - loop.time()) > 0:
        attempt = await _ask(target, left_s, ATTEMPT_TIMEOUT_S * max(1.0, time_scale))
        if attempt and attempt.succeeded:
            return
        if attempt and _is_hopeless(attempt):
            raise KitError(f"{target.model} at {target.base_url} refuses a completion: {attempt.error}")
        last = f"{attempt.failure}: {attempt.error}" if attempt else last
        await asyncio.sleep(min(pause_s, left_s))
    raise KitError(
        f"{target.model} at {target.base_url} gave no completion within {limit_s:g} s; the last attempt: {last}"
    )


def _is_hopeless(attempt: RequestRecord) -> bool:
    """Whether waiting won't change the answer."""
    text = attempt.error or ""
    if attempt.failure is Failure.TLS:
        return True
    return text.startswith(_HOPELESS) or (attempt.status == 404 and any(mark in text for mark in _NO_SUCH_MODEL))


async def _ask(target: Target, left_s: float, timeout_s: float) -> RequestRecord | None:
    probe = Load(1, ClosedLoop(1), PromptSource(16, 0, "probe"), output_tokens=1, request_timeout_s=timeout_s)
    records = await run_load(target, probe, limit_s=max(left_s, 0))
    return records[0] if records else None
