"""The APIs of a model beside the one that is measured: each is asked once, and counters say where its prompt was
computed.

Endpoint pickers decide by API whether a prompt may be prefilled remotely: llm-d-inference-scheduler v0.7.1 and v0.8.0
know completions and chat alone, so that `/v1/responses`, the main API of gpt-oss, is computed by decode servers
(prefix_based_pd_decider.go).
"""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

import httpx
from pydantic import BaseModel, ValidationError

from llmd_oke.bench.deployment import streams
from llmd_oke.bench.deployment.clients import open_client
from llmd_oke.bench.deployment.metrics import MetricsEndpoint
from llmd_oke.bench.deployment.scraping import scrape
from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.smoke.evidence import (
    ApiAnswer,
    EvidenceSettings,
    OtherApi,
    OtherApiName,
    Sent,
    prove_remote_prefill,
)

PATHS: dict[OtherApiName, str] = {"chat": streams.PATHS["chat"], "responses": "/v1/responses"}

OUTPUT_TOKENS = 16
"""Asked of each API: the least that the Responses API takes (OpenAI's reference, `max_output_tokens`)."""

_MAX_ERROR_CHARACTERS = 200


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    input_tokens: int | None = None


class _Choice(BaseModel):
    finish_reason: str


class _Answer(BaseModel):
    """What answers of both APIs have in common, and what says that one of them was given."""

    usage: _Usage
    choices: list[_Choice] = []
    status: str | None = None


async def ask_other_api(
    target: Target,
    api: OtherApi,
    prompt: str,
    *,
    limit_s: float,
    metrics: Sequence[MetricsEndpoint],
    evidence: EvidenceSettings | None,
) -> ApiAnswer:
    """Send `prompt` to one API and read the counters at `metrics` before and after.

    `limit_s` is wall time for the answer. Whatever goes wrong with the request is in the answer's `error`.
    """
    path = PATHS[api.name]
    before = await scrape(metrics)
    try:
        async with asyncio.timeout(limit_s):
            answer = await _post(target, path, _body(target.model, api.name, prompt), limit_s)
        prompt_tokens = _prompt_tokens(api.name, answer)
    except TimeoutError:
        return ApiAnswer(api, path, f"no answer within {limit_s:g} s")
    except (httpx.HTTPError, ValueError) as error:
        return ApiAnswer(api, path, str(error) or type(error).__name__)
    if evidence is None:
        return ApiAnswer(api, path, None, prompt_tokens)
    proof = prove_remote_prefill(before, await scrape(metrics), Sent(1, prompt_tokens, attempted=1), evidence)
    return ApiAnswer(api, path, None, prompt_tokens, proof)


def _body(model: str, name: OtherApiName, prompt: str) -> dict[str, object]:
    if name == "responses":
        return {"model": model, "input": prompt, "max_output_tokens": OUTPUT_TOKENS, "temperature": 0}
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": OUTPUT_TOKENS, "temperature": 0}


async def _post(target: Target, path: str, body: dict[str, object], limit_s: float) -> bytes:
    """The body of an answer 200. Raises `ValueError` for another one."""
    timeout = httpx.Timeout(limit_s)
    async with open_client(
        target.base_url, verify=target.verify, headers=target.headers, timeout=timeout, connections=1
    ) as client:
        answer = await client.post(path, json=body)
    if answer.status_code != HTTPStatus.OK:
        raise ValueError(f"HTTP {answer.status_code}: {' '.join(answer.text[:_MAX_ERROR_CHARACTERS].split())}")
    return answer.content


def _prompt_tokens(name: OtherApiName, content: bytes) -> int:
    """The server's count. Raises `ValueError` where the body isn't what the API promises."""
    try:
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        raise ValueError("the answer has no usage, or isn't JSON") from error
    count = answer.usage.input_tokens if name == "responses" else answer.usage.prompt_tokens
    ended = answer.status in {"completed", "incomplete"} if name == "responses" else bool(answer.choices)
    if count is None or not ended:
        raise ValueError("the answer is not one of this API")
    return count
