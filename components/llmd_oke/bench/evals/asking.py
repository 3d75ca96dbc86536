"""Asking a deployment the questions of a set."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import httpx

from llmd_oke.bench.deployment.clients import open_client
from llmd_oke.bench.deployment.streams import PATHS
from llmd_oke.bench.evals.grading import right
from llmd_oke.bench.evals.items import BuiltinSet, Item, builtin_items, fingerprint
from llmd_oke.bench.evals.result import Examined
from llmd_oke.bench.load.load import CONNECT_TIMEOUT_S, Target
from llmd_oke.errors import KitError

ATTEMPTS = 3
"""For a question that gets no answer; only after that does it count as wrong."""

NO_TIME = "there was no time left"

_MAX_SHOWN_CHARACTERS = 300

_EXAMPLES = 3


@dataclass(frozen=True)
class Answered:
    """What became of one question; `said` is the end of the answer, `error` why there was none."""

    id: str
    kind: str
    right: bool
    said: str = ""
    error: str | None = None


async def examine(
    target: Target, figures: BuiltinSet, *, concurrency: int, limit_s: float, on_answer: Callable[[int, int], None]
) -> Examined:
    """Asks the kit's own questions through the router; `on_answer` is told how many are answered, and of how many.

    Raises:
        KitError: see `ask_all`.
    """
    items, started, began_s = builtin_items(figures), datetime.now(UTC), asyncio.get_running_loop().time()
    answered = await ask_all(
        replace(target, api="chat"),
        items,
        concurrency=concurrency,
        max_output_tokens=figures.max_output_tokens,
        limit_s=limit_s,
        on_answer=lambda done: on_answer(done, len(items)),
    )
    wrong = [answer for answer in answered if not answer.right]
    return Examined(
        question_set=fingerprint(items),
        started=started,
        wall_s=asyncio.get_running_loop().time() - began_s,
        answers="".join("1" if answer.right else "0" for answer in answered),
        unanswered=sum(answer.error is not None for answer in wrong),
        examples=tuple(f"{answer.id}: {answer.error or repr(answer.said)}" for answer in wrong[:_EXAMPLES]),
    )


async def ask_all(
    target: Target,
    items: Sequence[Item],
    *,
    concurrency: int,
    max_output_tokens: int,
    limit_s: float,
    on_answer: Callable[[int], None],
) -> list[Answered]:
    """Asks all questions, some at a time, and judges the answers, in the order of the questions.

    A question without an answer after `ATTEMPTS`, or within `limit_s` of the whole, is wrong: evaluations fail closed.

    Raises:
        KitError: `limit_s` was over before all of them were asked, or none was answered: that evaluates nothing.
    """
    deadline_s = asyncio.get_running_loop().time() + limit_s
    gate, done = asyncio.Semaphore(concurrency), 0
    timeout = httpx.Timeout(limit_s, connect=CONNECT_TIMEOUT_S)
    async with open_client(
        target.base_url, verify=target.verify, headers=target.headers, timeout=timeout, connections=concurrency
    ) as client:

        async def ask(item: Item) -> Answered:
            nonlocal done
            async with gate:
                answered = await _ask(client, target, _body(target, item, max_output_tokens), item, deadline_s)
            done += 1
            on_answer(done)
            return answered

        answered = list(await asyncio.gather(*map(ask, items)))
    errors = [each.error for each in answered if each.error is not None]
    if unasked := errors.count(NO_TIME):
        raise KitError(
            f"{unasked} of {len(items)} questions were not asked: the limit of {limit_s:g} s was over.",
            "Give it more time (--timeout; smoke.timeoutS where an update asks), or more at a time (--concurrency).",
        )
    if len(errors) == len(items):
        raise KitError(f"None of {len(items)} questions was answered; the last: {errors[-1]}")
    return answered


async def _ask(
    client: httpx.AsyncClient, target: Target, body: Mapping[str, Any], item: Item, deadline_s: float
) -> Answered:
    error = NO_TIME
    for _ in range(ATTEMPTS):
        if (left_s := deadline_s - asyncio.get_running_loop().time()) <= 0:
            break
        try:
            async with asyncio.timeout(left_s):
                answer = await client.post(PATHS["chat"], json=body)
            if answer.status_code == HTTPStatus.OK:
                said = _said(answer.json())
                return Answered(item.id, item.kind, right(item, said), said[-_MAX_SHOWN_CHARACTERS:])
            text = target.without_credentials(answer.text)
            error = f"HTTP {answer.status_code}: {text[:_MAX_SHOWN_CHARACTERS]}"
        except (httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError) as failure:
            error = f"{type(failure).__name__}: {failure}"
    return Answered(item.id, item.kind, right=False, error=error)


def _body(target: Target, item: Item, max_output_tokens: int) -> Mapping[str, Any]:
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": item.prompt}],
        "max_tokens": max_output_tokens,
        "temperature": 0,
        "reasoning_effort": "low",
    }


def _said(answer: Any) -> str:
    return answer["choices"][0]["message"]["content"] or ""
