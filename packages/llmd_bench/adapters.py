"""Detection of LoRA adapters that a server has loaded but doesn't apply: they answer exactly as the base model does.

vLLM logs such an adapter as loaded and answers with status 200, because it skips matrices whose names match no layer of
the model (vllm/lora/worker_manager.py).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import httpx
from llmd_base.errors import KitError

from llmd_bench.evidence import AdapterAnswers
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.queries import open_client

PROMPTS = (
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

OUTPUT_TOKENS = 32
_CONNECTIONS = 8


async def compare_adapters(
    target: CompletionsTarget, names: Sequence[str], limit_s: float
) -> tuple[AdapterAnswers, ...]:
    """Send the same prompts to the base model and to each adapter with temperature 0, and return for each adapter how
    many answers differ from the base model's, or an error.

    The base model gets each prompt twice. A prompt with two different answers is left out, since the rounding of sums
    depends on the other requests of a batch. `limit_s` limits the whole comparison, in seconds of wall time.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await _compare(target, names)
    except (TimeoutError, KitError) as error:
        why = str(error) or f"not all was answered within {limit_s:.0f} s"
        return tuple(AdapterAnswers(name, error=why) for name in names)


async def _compare(target: CompletionsTarget, names: Sequence[str]) -> tuple[AdapterAnswers, ...]:
    first, second = await _texts(target), await _texts(target)
    compared = [i for i, text in enumerate(first) if text == second[i]]
    answers: list[AdapterAnswers] = []
    for name in names:
        try:
            texts = await _texts(replace(target, model=name))
        except KitError as error:
            answers.append(AdapterAnswers(name, error=str(error)))
            continue
        different = sum(texts[i] != first[i] for i in compared)
        answers.append(AdapterAnswers(name, len(compared), different))
    return tuple(answers)


async def _texts(target: CompletionsTarget) -> list[str]:
    """Return the answers of `target.model` to all of `PROMPTS`.

    Raises:
        KitError: a request fails or its answer is not a completion.
    """
    asked = {"model": target.model, "temperature": 0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    async with open_client(
        target.base_url,
        verify=target.verify,
        headers=target.headers,
        timeout=httpx.Timeout(None),
        connections=_CONNECTIONS,
    ) as client:

        async def text(prompt: str) -> str:
            try:
                answer = await client.post("/v1/completions", json={**asked, "prompt": prompt})
                answer.raise_for_status()
                return str(answer.json()["choices"][0]["text"])
            except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
                raise KitError(f"{target.model} does not answer: {error}") from error

        return list(await asyncio.gather(*(text(prompt) for prompt in PROMPTS)))
