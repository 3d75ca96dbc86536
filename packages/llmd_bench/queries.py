"""HTTP requests beside a load: scrapes of metrics, questions of an evaluation, and requests to other APIs of the model
and to its LoRA adapters.

A failed scrape is reported, never raised: the benchmark continues, and figures that need the counter are unknown.

Endpoint pickers decide by API whether a prompt may be prefilled remotely: llm-d-inference-scheduler v0.7.1 and v0.8.0
parse only completions and chat completions, so decode servers compute the prompts of `/v1/responses`, the main API of
gpt-oss (prefix_based_pd_decider.go).
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import httpx
from llmd_base.errors import KitError
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ValidationError

from llmd_bench.deployment import MetricSample, MetricsEndpoint, Reading, Snapshot
from llmd_bench.evals import BuiltinResult, BuiltinSet, Item, builtin_items, fingerprint, right
from llmd_bench.evidence import (
    AdapterAnswers,
    ApiAnswer,
    EvidenceSettings,
    OtherApi,
    OtherApiName,
    Sent,
    prove_remote_prefill,
)
from llmd_bench.load import completions
from llmd_bench.load.completions import PATHS, CompletionsTarget
from llmd_bench.load.connections import CONNECT_TIMEOUT_S


def open_client(
    url: str,
    *,
    verify: ssl.SSLContext | bool,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    connections: int | None = None,
) -> httpx.AsyncClient:
    """Return an HTTP client with base URL `url` and at most `connections` connections (None: no limit).

    Proxies from the environment are ignored, since they would be measured too. Without TLS no CA certificates are
    loaded, which would take tens of milliseconds.
    """
    return httpx.AsyncClient(
        base_url=url,
        headers={"accept-encoding": "identity", **headers},
        verify=verify if httpx.URL(url).scheme == "https" else False,
        timeout=timeout,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        trust_env=False,
    )


SCRAPE_TIMEOUT_S = 10.0


def parse(text: str) -> dict[str, tuple[MetricSample, ...]]:
    """Parse Prometheus text into samples by metric name, with the names as exposed."""
    series: dict[str, list[MetricSample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(MetricSample(sample.labels, sample.value))
    return {name: tuple(samples) for name, samples in series.items()}


async def scrape(endpoints: Iterable[MetricsEndpoint], *, timeout_s: float = SCRAPE_TIMEOUT_S) -> Snapshot:
    """Scrape all endpoints concurrently, each within `timeout_s` seconds."""
    return Snapshot(tuple(await asyncio.gather(*(_read(endpoint, timeout_s) for endpoint in endpoints))))


async def _read(endpoint: MetricsEndpoint, timeout_s: float) -> Reading:
    try:
        async with (
            asyncio.timeout(timeout_s),
            open_client(
                endpoint.url, verify=endpoint.verify, headers=endpoint.headers, timeout=httpx.Timeout(timeout_s)
            ) as client,
        ):
            answer = await client.get(endpoint.url)
        if answer.status_code != HTTPStatus.OK:
            return Reading(endpoint, error=f"HTTP {answer.status_code}")
        return Reading(endpoint, parse(answer.text))
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        return Reading(endpoint, error=f"{type(error).__name__}: {error}".rstrip(": "))


ATTEMPTS = 3
"""Maximum number of attempts per question; a question that stays unanswered counts as wrong."""

NO_TIME = "there was no time left"

_MAX_SHOWN_CHARACTERS = 300

_EXAMPLES = 3


@dataclass(frozen=True)
class GradedAnswer:
    """Grade of one answer to a question of an evaluation; `text` is the end of the answer, `error` the reason why there
    is none.
    """

    id: str
    right: bool
    text: str = ""
    error: str | None = None


async def ask_builtin_set(
    target: CompletionsTarget,
    figures: BuiltinSet,
    *,
    concurrency: int,
    limit_s: float,
    on_answer: Callable[[int, int], None],
) -> BuiltinResult:
    """Send the built-in questions through the router and return their grades; `on_answer` is called with the number of
    answered questions and the number of all questions.

    Raises:
        KitError: see `ask_all`.
    """
    items, started, started_s = builtin_items(figures), datetime.now(UTC), asyncio.get_running_loop().time()
    answered = await ask_all(
        replace(target, api="chat"),
        items,
        concurrency=concurrency,
        max_output_tokens=figures.max_output_tokens,
        limit_s=limit_s,
        on_answer=lambda done: on_answer(done, len(items)),
    )
    wrong = [answer for answer in answered if not answer.right]
    return BuiltinResult(
        question_set=fingerprint(items),
        started=started,
        wall_s=asyncio.get_running_loop().time() - started_s,
        answers="".join("1" if answer.right else "0" for answer in answered),
        unanswered=sum(answer.error is not None for answer in wrong),
        examples=tuple(f"{answer.id}: {answer.error or repr(answer.text)}" for answer in wrong[:_EXAMPLES]),
    )


async def ask_all(
    target: CompletionsTarget,
    items: Sequence[Item],
    *,
    concurrency: int,
    max_output_tokens: int,
    limit_s: float,
    on_answer: Callable[[int], None],
) -> list[GradedAnswer]:
    """Send all questions, at most `concurrency` at once, and return the grades in the order of the questions.

    A question that has no answer after `ATTEMPTS`, or when `limit_s` seconds are over, counts as wrong.

    Raises:
        KitError: some questions were never sent within `limit_s`, or none was answered, which evaluates nothing.
    """
    deadline_s = asyncio.get_running_loop().time() + limit_s
    gate, done = asyncio.Semaphore(concurrency), 0
    timeout = httpx.Timeout(limit_s, connect=CONNECT_TIMEOUT_S)
    async with open_client(
        target.base_url, verify=target.verify, headers=target.headers, timeout=timeout, connections=concurrency
    ) as client:

        async def ask(item: Item) -> GradedAnswer:
            nonlocal done
            body = {
                "model": target.model,
                "messages": [{"role": "user", "content": item.prompt}],
                "max_tokens": max_output_tokens,
                "temperature": 0,
                "reasoning_effort": "low",
            }
            async with gate:
                answered = await _ask(client, target, body, item, deadline_s)
            done += 1
            on_answer(done)
            return answered

        answered = list(await asyncio.gather(*map(ask, items)))
    errors = [answer.error for answer in answered if answer.error is not None]
    if unasked := errors.count(NO_TIME):
        raise KitError(
            f"{unasked} of {len(items)} questions were not asked: the limit of {limit_s:g} s was over.",
            "Give it more time (--timeout; smoke.timeoutS where an update asks), or more at a time (--concurrency).",
        )
    if len(errors) == len(items):
        raise KitError(f"None of {len(items)} questions was answered; the last: {errors[-1]}")
    return answered


async def _ask(
    client: httpx.AsyncClient, target: CompletionsTarget, body: Mapping[str, Any], item: Item, deadline_s: float
) -> GradedAnswer:
    error = NO_TIME
    for _ in range(ATTEMPTS):
        if (left_s := deadline_s - asyncio.get_running_loop().time()) <= 0:
            break
        try:
            async with asyncio.timeout(left_s):
                answer = await client.post(PATHS["chat"], json=body)
            if answer.status_code == HTTPStatus.OK:
                text = answer.json()["choices"][0]["message"]["content"] or ""
                return GradedAnswer(item.id, right(item, text), text[-_MAX_SHOWN_CHARACTERS:])
            text = target.without_credentials(answer.text)
            error = f"HTTP {answer.status_code}: {text[:_MAX_SHOWN_CHARACTERS]}"
        except (httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError) as failure:
            error = f"{type(failure).__name__}: {failure}"
    return GradedAnswer(item.id, right=False, error=error)


OTHER_API_PATHS: dict[OtherApiName, str] = {"chat": completions.PATHS["chat"], "responses": "/v1/responses"}

OUTPUT_TOKENS = 16
"""Number of output tokens that the request to each API asks for: the minimum of the Responses API (OpenAI's reference,
`max_output_tokens`).
"""

_MAX_ERROR_CHARACTERS = 200


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    input_tokens: int | None = None


class _Choice(BaseModel):
    finish_reason: str


class _Answer(BaseModel):
    """Fields of the answers of both APIs, including those that show that an answer was generated."""

    usage: _Usage
    choices: list[_Choice] = []
    status: str | None = None


async def ask_other_api(
    target: CompletionsTarget,
    api: OtherApi,
    prompt: str,
    *,
    limit_s: float,
    metrics: Sequence[MetricsEndpoint],
    evidence: EvidenceSettings | None,
) -> ApiAnswer:
    """Send `prompt` to one API, and read the counters at `metrics` before and after. `limit_s` is wall time for the
    answer. Every failure of the request becomes the result's `error`.
    """
    path = OTHER_API_PATHS[api.name]
    question = {"messages": [{"role": "user", "content": prompt}], "max_tokens": OUTPUT_TOKENS}
    if api.name == "responses":
        question = {"input": prompt, "max_output_tokens": OUTPUT_TOKENS}
    before = await scrape(metrics)
    try:
        async with asyncio.timeout(limit_s):
            answer = await _post(target, path, {"model": target.model, **question, "temperature": 0}, limit_s)
        prompt_tokens = _prompt_tokens(api.name, answer)
    except TimeoutError:
        return ApiAnswer(api, path, f"no answer within {limit_s:g} s")
    except (httpx.HTTPError, ValueError) as error:
        return ApiAnswer(api, path, str(error) or type(error).__name__)
    if evidence is None:
        return ApiAnswer(api, path, None, prompt_tokens)
    proof = prove_remote_prefill(before, await scrape(metrics), Sent(1, prompt_tokens, attempted=1), evidence)
    return ApiAnswer(api, path, None, prompt_tokens, proof)


async def _post(target: CompletionsTarget, path: str, body: dict[str, object], limit_s: float) -> bytes:
    """Return the body of an answer with status 200.

    Raises:
        ValueError: the status is another one.
    """
    timeout = httpx.Timeout(limit_s)
    async with open_client(
        target.base_url, verify=target.verify, headers=target.headers, timeout=timeout, connections=1
    ) as client:
        answer = await client.post(path, json=body)
    if answer.status_code != HTTPStatus.OK:
        raise ValueError(f"HTTP {answer.status_code}: {' '.join(answer.text[:_MAX_ERROR_CHARACTERS].split())}")
    return answer.content


def _prompt_tokens(name: OtherApiName, content: bytes) -> int:
    """Return the server's count of prompt tokens.

    Raises:
        ValueError: the body doesn't conform to the API.
    """
    try:
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        raise ValueError("the answer has no usage, or isn't JSON") from error
    count = answer.usage.input_tokens if name == "responses" else answer.usage.prompt_tokens
    ended = answer.status in {"completed", "incomplete"} if name == "responses" else bool(answer.choices)
    if count is None or not ended:
        raise ValueError("the answer is not one of this API")
    return count


ADAPTER_PROMPTS = (
    "The three largest cities of the country are",
    "Translate to French: the meeting was moved to Thursday.",
    "SELECT name FROM customers WHERE",
    "Dear Sir or Madam, I am writing to",
    "Summary of the contract: the supplier shall",
    "def mean(values):",
    "Patient presents with",
    "Q: What should I do first?\nA:",
)
"""Prompts with beginnings of texts of several kinds, since an adapter need not change the answers to all kinds."""

ADAPTER_OUTPUT_TOKENS = 32
_ADAPTER_CONNECTIONS = 8


async def compare_adapters(
    target: CompletionsTarget, names: Sequence[str], limit_s: float
) -> tuple[AdapterAnswers, ...]:
    """Send the same prompts to the base model and to each adapter with temperature 0, and return for each adapter how
    many answers differ from the base model's, or an error.

    An adapter that is loaded but not applied answers exactly as the base model does. vLLM logs such an adapter as
    loaded and answers with status 200, because it skips matrices whose names match no layer of the model
    (vllm/lora/worker_manager.py).

    The base model gets each prompt twice. A prompt with two different answers is left out, since the rounding of sums
    depends on the other requests of a batch. `limit_s` limits the whole comparison, in seconds of wall time.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await _compare_adapters(target, names)
    except (TimeoutError, KitError) as error:
        why = str(error) or f"not all was answered within {limit_s:.0f} s"
        return tuple(AdapterAnswers(name, error=why) for name in names)


async def _compare_adapters(target: CompletionsTarget, names: Sequence[str]) -> tuple[AdapterAnswers, ...]:
    first, second = await _prompted_texts(target), await _prompted_texts(target)
    compared = [i for i, text in enumerate(first) if text == second[i]]
    answers: list[AdapterAnswers] = []
    for name in names:
        try:
            texts = await _prompted_texts(replace(target, model=name))
        except KitError as error:
            answers.append(AdapterAnswers(name, error=str(error)))
            continue
        different = sum(texts[i] != first[i] for i in compared)
        answers.append(AdapterAnswers(name, len(compared), different))
    return tuple(answers)


async def _prompted_texts(target: CompletionsTarget) -> list[str]:
    """Return the answers of `target.model` to all of `ADAPTER_PROMPTS`.

    Raises:
        KitError: a request fails or its answer is not a completion.
    """
    asked = {"model": target.model, "temperature": 0, "max_tokens": ADAPTER_OUTPUT_TOKENS, "ignore_eos": True}
    async with open_client(
        target.base_url,
        verify=target.verify,
        headers=target.headers,
        timeout=httpx.Timeout(None),
        connections=_ADAPTER_CONNECTIONS,
    ) as client:

        async def text(prompt: str) -> str:
            try:
                answer = await client.post("/v1/completions", json={**asked, "prompt": prompt})
                answer.raise_for_status()
                return str(answer.json()["choices"][0]["text"])
            except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
                raise KitError(f"{target.model} does not answer: {error}") from error

        return list(await asyncio.gather(*(text(prompt) for prompt in ADAPTER_PROMPTS)))
