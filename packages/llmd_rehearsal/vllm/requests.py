"""Requests of the OpenAI API, checked as by vLLM and converted for the engine.

From vLLM v0.26.0 and v0.30.0: sampling_params.py and renderers/params.py. Only a prompt that ends
with a question of the kit's own accuracy set gets a meaningful answer, found without a model: a prompt whose KV cache
was corrupted between prefill and decode gets a wrong answer, as with real weights.
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from llmd_rehearsal.vllm import bodies
from llmd_rehearsal.vllm.bodies import (
    ChatBody,
    CompletionBody,
    ErrorAnswer,
    RequestValueError,
    ResponsesBody,
    SamplingBody,
    bad_request,
    malformed,
)
from llmd_rehearsal.vllm.sequences import Finish, Prompt, chat_prompt, completion_prompts, responses_prompt

_UNLIMITED_TOKENS = (64, 256)
_REMOTE_KEYS = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
_MAX_SEQUENCES = 16384
_MAX_LOGPROBS = 20
_GREEDY_BELOW = 1e-5
_BINS = re.compile(r"In which bins are ([^?]+)\?")
_CORRUPTED = str.maketrans("0123456789", "5678901234")


@dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests that a simulated server accepts. `harmony` tells whether the model speaks OpenAI's Harmony
    format, as gpt-oss does; `calls_tools` whether it may decide by itself to call a request's tools; `since_0_30`
    whether the API is vLLM 0.30's instead of 0.26's. `seed` determines the lengths of answers without a limit.
    """

    model_names: tuple[str, ...]
    max_model_len: int
    seed: int
    harmony: bool = False
    calls_tools: bool = False
    since_0_30: bool = False


@dataclass(frozen=True)
class Choice:
    """One answer that a request asks for to one prompt.

    `end` is the reason for its end after `max_tokens` tokens; `text` is its content, None for meaningless words.
    """

    prompt: Prompt
    max_tokens: int
    end: Finish
    text: str | None = None


@dataclass(frozen=True)
class Generation:
    """Valid request with all defaults filled in. `choices` has `n` choices for each prompt. `max_tokens` is the number
    of tokens that a chat asks for at most, None if it names none. `adapter` is the digest of the LoRA adapter that
    answers; None for the model itself.
    """

    model: str
    choices: tuple[Choice, ...]
    stream: bool
    transfer: Mapping[str, Any]
    chat: bool = False
    include_usage: bool = False
    responses: ResponsesBody | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    n: int = 1
    max_tokens: int | None = None

    @property
    def wants_remote_prefill(self) -> bool:
        """Tell whether the prompt's KV cache must be pulled from the prefill server in `kv_transfer_params`."""
        complete = all(self.transfer.get(key) is not None for key in _REMOTE_KEYS)
        return bool(self.transfer.get("do_remote_prefill")) and complete

    @property
    def ends_the_engine(self) -> bool:
        """Tell whether the request crashes the engine: if KV cache must be pulled but no blocks are given, an assertion
        of vLLM's NIXL connector fails (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py of v0.26.0),
        on a server of any role.
        """
        return bool(self.transfer.get("do_remote_prefill")) and not self.transfer.get("remote_block_ids")

    @property
    def wants_remote_decode(self) -> bool:
        """Tell whether the prompt's KV cache must be held for a decode server."""
        return bool(self.transfer.get("do_remote_decode"))


def json_object(body: bytes, content_type: str, *, since_0_30: bool = False) -> Mapping[str, Any]:
    """Return the JSON object in the body of a request.

    Args:
        body: the request's body.
        content_type: the request's `Content-Type`, which must be `application/json`.
        since_0_30: whether to answer as vLLM 0.30 and later versions do, which refuse a list or a number as body.

    Raises:
        ErrorAnswer: with status 400 for another type and for a body that isn't JSON; for JSON other than an object
            with status 400 if `since_0_30`, otherwise with 500, because vLLM fails there.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise malformed(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    try:
        value: object = json.loads(body)
    except json.JSONDecodeError as error:
        detail: dict[str, object] = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise malformed([repr(detail)], f"body.{error.pos}") from error
    except ValueError as error:
        raise bad_request(error) from error
    if not isinstance(value, dict) and since_0_30:
        detail = {"type": "dict_type", "loc": ("body",), "msg": "Input should be a valid dictionary", "input": value}
        raise malformed([repr(detail)], "body")
    if not isinstance(value, dict):
        raise ErrorAnswer(500, "InternalServerError", f"{type(value).__name__!r} object has no attribute 'get'")
    return cast("Mapping[str, Any]", value)


def completion(raw: Mapping[str, Any], limits: RequestLimits) -> Generation:
    """Return the checked request in a body of `/v1/completions`.

    Raises:
        ErrorAnswer: vLLM would refuse it.
    """
    body = bodies.parse(CompletionBody, raw, since_0_30=limits.since_0_30)
    model = _model(body.model, limits)
    if body.suffix is not None:
        raise bad_request(ValueError("suffix is not currently supported"))
    prompts = completion_prompts(body.prompt)
    if not prompts:
        raise bad_request(ValueError("You must pass at least one prompt"))
    for prompt in prompts:
        _check(body, limits, prompt, body.max_tokens, "max_tokens", body.logprobs)
    quiet = bool(body.stream) or body.ignore_eos
    choices = [_limited(prompt, body.max_tokens or 0, quiet=quiet) for prompt in prompts for _ in range(body.n)]
    return _generation(body, model, choices)


def chat(raw: Mapping[str, Any], limits: RequestLimits) -> Generation:
    """Return the checked request in a body of `/v1/chat/completions`.

    Raises:
        ErrorAnswer: vLLM would refuse it.
    """
    body = bodies.parse(ChatBody, raw, since_0_30=limits.since_0_30)
    model = _model(body.model, limits)
    _check_tools(body, limits)
    prompt = chat_prompt(body.messages)
    parameter = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    _check(body, limits, prompt, max_tokens, parameter, body.top_logprobs if body.logprobs else None)
    choice = _choice(body, limits, prompt, max_tokens, body.min_tokens)
    return replace(_generation(body, model, [choice] * (body.n or 1), chat=True), max_tokens=max_tokens)


def _check_tools(body: ChatBody, limits: RequestLimits) -> None:
    """Refuse a request with tools if the server has no parser of tool calls (vllm/renderers/online_renderer.py)."""
    choice = body.tool_choice
    if not body.tools or choice in (None, "none") or limits.calls_tools or limits.harmony:
        return
    if choice == "auto":
        needed = "--enable-auto-tool-choice and --tool-call-parser to be set"
        raise bad_request(ValueError(f'"auto" tool choice requires {needed}'))
    chosen = f'function "{choice["function"]["name"]}"' if isinstance(choice, dict) else f'"{choice}"'
    raise bad_request(ValueError(f"tool_choice={chosen} requires --tool-call-parser to be set"))


def responses(raw: Mapping[str, Any], limits: RequestLimits) -> Generation:
    """Return the checked request in a body of `/v1/responses`.

    Raises:
        ErrorAnswer: vLLM would refuse it.
    """
    body = bodies.parse(ResponsesBody, raw, since_0_30=limits.since_0_30)
    model = _model(body.model, limits)
    _check_responses(body, limits)
    prompt, max_tokens = responses_prompt(body.instructions, body.input), body.max_output_tokens
    if not limits.harmony:
        _check_length(limits, prompt.tokens, max_tokens, "max_output_tokens", is_text=True)
    if prompt.tokens >= limits.max_model_len:
        sizes = f"length {prompt.tokens} exceeds the max_model_len {limits.max_model_len}"
        raise _invalid_request(f"The engine prompt {sizes}. Please reduce prompt.", "input")
    _check_distribution(body)
    if max_tokens is not None and max_tokens < 1:
        error = RequestValueError(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
        raise bad_request(error)
    if isinstance(body.stop, list) and "" in body.stop:
        raise bad_request(ValueError("stop cannot contain an empty string."))
    if max_tokens is not None:
        max_tokens = min(max_tokens, limits.max_model_len - prompt.tokens)
    return Generation(
        model=model,
        choices=(_choice(body, limits, prompt, max_tokens, 0),),
        stream=bool(body.stream),
        transfer=body.kv_transfer_params or {},
        responses=body,
        request_id=body.request_id,
        cache_salt=body.cache_salt,
    )


def _check_responses(body: ResponsesBody, limits: RequestLimits) -> None:
    if limits.harmony and "message.output_text.logprobs" in (body.include or []):
        raise _invalid_request("logprobs are not supported with gpt-oss models", "logprobs")
    if body.store and body.background:
        raise _invalid_request(
            "This vLLM engine does not support `store=True` and therefore does not support the background mode. To "
            "enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching "
            "the vLLM server.",
            "background",
        )
    if body.previous_input_messages and body.previous_response_id:
        message = "Only one of `previous_input_messages` and `previous_response_id` can be set."
        raise _invalid_request(message, "previous_response_id")
    if body.previous_response_id is not None:
        raise no_response(body.previous_response_id)
    if limits.harmony and body.tool_choice not in ("auto", "none"):
        message = "Only 'auto' or 'none' tool_choice is supported in response API with Harmony"
        raise ErrorAnswer(501, "NotImplementedError", message)


def no_response(response_id: str) -> ErrorAnswer:
    """Return the error for a request for a response that isn't stored; vLLM stores responses only with
    VLLM_ENABLE_RESPONSES_API_STORE.
    """
    return ErrorAnswer(404, "invalid_request_error", f"Response with id '{response_id}' not found.", "response_id")


def _invalid_request(message: str, parameter: str) -> ErrorAnswer:
    return ErrorAnswer(400, "invalid_request_error", message, parameter)


def _model(name: str | None, limits: RequestLimits) -> str:
    model = name or limits.model_names[0]
    if model not in limits.model_names:
        raise ErrorAnswer(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    return model


def _generation(
    body: CompletionBody | ChatBody, model: str, choices: list[Choice], *, chat: bool = False
) -> Generation:
    return Generation(
        model=model,
        n=body.n or 1,
        choices=tuple(choices),
        stream=bool(body.stream),
        transfer=body.kv_transfer_params or {},
        chat=chat,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        request_id=body.request_id,
        cache_salt=body.cache_salt,
    )


def _choice(
    body: ChatBody | ResponsesBody, limits: RequestLimits, prompt: Prompt, max_tokens: int | None, min_tokens: int
) -> Choice:
    """Return a choice with the number of tokens and the reason for its end; without `max_tokens` the answer ends with
    `stop` after a number of tokens that depends on prompt and seed.
    """
    room = limits.max_model_len - prompt.tokens
    quiet = bool(body.stream) or body.ignore_eos
    if max_tokens is not None or body.ignore_eos:
        return _limited(prompt, room if max_tokens is None else max_tokens, quiet=quiet)
    shortest, spread = _UNLIMITED_TOKENS
    natural = shortest + zlib.crc32(repr(prompt.content).encode(), limits.seed) % spread
    if natural >= room:
        return _limited(prompt, room, quiet=quiet)
    return _limited(prompt, min(room, max(natural, min_tokens)), quiet=quiet, end=Finish.STOP)


def _limited(prompt: Prompt, max_tokens: int, *, quiet: bool, end: Finish = Finish.LENGTH) -> Choice:
    """Return a choice with the answer to the prompt's question, cut at `max_tokens`; without a question, a choice of
    `max_tokens` meaningless tokens.

    With `quiet` the tokens are always meaningless: streams and answers of a fixed length are load, which isn't read.
    """
    text = None if quiet or not isinstance(prompt.content, str) else answer_to_question(prompt.content)
    if text is not None and (tokens := Prompt(text).tokens) <= max_tokens:
        return Choice(prompt, tokens, Finish.STOP, text)
    return Choice(prompt, max_tokens, end, text)


def answer_to_question(prompt: str) -> str | None:
    """Return the right answer to a question of the kit's own set (`llmd_bench.evals`) at the end of a prompt, found
    without a model; None for any other prompt.
    """
    question = next(reversed(list(_BINS.finditer(prompt[-600:]))), None)
    if question is None:
        return None
    register = dict(re.findall(r"^(\S+): bin (\d+)$", prompt, re.MULTILINE))
    bins = [register.get(name) for name in question[1].split(", ")]
    return " ".join(place for place in bins if place) if all(bins) else None


def corrupt_answer(answer: str) -> str:
    """Return an answer as a server gives it after its KV cache arrived corrupted: of the same length, with every digit
    wrong.
    """
    return answer.translate(_CORRUPTED)


# What vLLM demands of a request beyond its form.


def _check(
    body: CompletionBody | ChatBody,
    limits: RequestLimits,
    prompt: Prompt,
    max_tokens: int | None,
    parameter: str,
    logprobs: int | None,
) -> None:
    _check_length(limits, prompt.tokens, max_tokens, parameter, is_text=isinstance(prompt.content, str))
    room = limits.max_model_len - prompt.tokens
    _check_sampling(body, room if max_tokens is None else min(room, max_tokens), logprobs)
    if not prompt.tokens:
        raise bad_request(ValueError("The decoder prompt cannot be empty"), late=True)


def _check_length(limits: RequestLimits, tokens: int, max_tokens: int | None, parameter: str, *, is_text: bool) -> None:
    """Check that prompt and answer fit the model's length. `max_tokens` is None if the request sets no limit;
    `parameter` is the name of this limit in the request; `is_text` tells whether the prompt must be tokenized.

    Raises:
        ErrorAnswer: prompt and answer are too long; 400.
    """
    requested, limit = max_tokens or 0, limits.max_model_len
    if requested > limit:
        message = (
            f"{parameter}={requested} cannot be greater than max_model_len=max_total_tokens={limit}. Please request "
            "fewer output tokens."
        )
        raise bad_request(RequestValueError(message, parameter, requested))
    if tokens > limit - requested:
        # A tokenizer stops at the first token too many, so nobody knows how many there are.
        counted = limit - requested + 1 if is_text else tokens
        least = "at least " if counted == limit - requested + 1 else ""
        message = (
            f"This model's maximum context length is {limit} tokens. However, you requested {requested} output tokens "
            f"and your prompt contains {least}{counted} input tokens, for a total of {least}{counted + requested} "
            "tokens. Please reduce the length of the input prompt or the number of requested output tokens."
        )
        raise bad_request(RequestValueError(message, "input_tokens", counted))


def _check_sampling(body: CompletionBody | ChatBody, max_tokens: int, logprobs: int | None) -> None:
    """Check the sampling parameters like vLLM's SamplingParams, with the same error texts.

    Raises:
        ErrorAnswer: a parameter is invalid; 400.
    """
    n = 1 if body.n is None else body.n
    presence, frequency = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
    raise_limit = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
    _refuse(
        (n >= 1, f"n must be at least 1, got {n}."),
        (n <= _MAX_SEQUENCES, f"n must be at most {_MAX_SEQUENCES}, got {n}. {raise_limit}"),
        (-2 <= presence <= 2, f"presence_penalty must be in [-2, 2], got {presence}."),
        (-2 <= frequency <= 2, f"frequency_penalty must be in [-2, 2], got {frequency}."),
    )
    _check_distribution(body)
    if not 0 <= _or(body.min_p, 0) <= 1:
        raise bad_request(ValueError(f"min_p must be in [0, 1], got {body.min_p}."))
    if max_tokens < 1:
        raise bad_request(
            RequestValueError(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
        )
    min_tokens, stops = body.min_tokens, body.stop if isinstance(body.stop, list) else [body.stop]
    _refuse(
        (min_tokens >= 0, f"min_tokens must be greater than or equal to 0, got {min_tokens}."),
        (
            min_tokens <= max_tokens,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
        ),
        ("" not in stops, "stop cannot contain an empty string."),
        ("" not in body.bad_words, f"bad_words cannot contain an empty string. Got bad_words={body.bad_words}"),
        (
            n == 1 or _or(body.temperature, 1) >= _GREEDY_BELOW,
            f"n must be 1 when using greedy sampling, got {n}.",
        ),
    )
    # Log probabilities and token ids are judged by the engine, once it has the request.
    for name, kind, count in (("logprobs", "sample", logprobs), ("prompt_logprobs", "prompt", body.prompt_logprobs)):
        if count is not None and (count > _MAX_LOGPROBS or count == -1):
            number = "of the whole vocabulary" if count == -1 else f"of {count}"
            message = f"Requested {kind} logprobs {number}, which is greater than max allowed: {_MAX_LOGPROBS}"
            raise bad_request(RequestValueError(message, name, count), late=True)
    if body.allowed_token_ids == []:
        error = RequestValueError("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
        raise bad_request(error, late=True)


def _check_distribution(body: SamplingBody | ResponsesBody) -> None:
    temperature, top_p = _or(body.temperature, 1), _or(body.top_p, 1)
    repetition, top_k = _or(body.repetition_penalty, 1), _or(body.top_k, 0)
    _refuse((repetition > 0, f"repetition_penalty must be greater than zero, got {float(repetition)}."))
    for met, demand, name, value in (
        (math.isfinite(temperature), "a finite number", "temperature", temperature),
        (temperature >= 0, "non-negative", "temperature", temperature),
        (temperature <= 2, "in [0, 2]", "temperature", temperature),
        (0 < top_p <= 1, "in (0, 1]", "top_p", top_p),
    ):
        if not met:
            raise bad_request(RequestValueError(f"{name} must be {demand}, got {float(value)}.", name, float(value)))
    _refuse((top_k >= -1, f"top_k must be 0 (disable), or at least 1, got {top_k}."))


def _refuse(*demands: tuple[bool, str]) -> None:
    for met, message in demands:
        if not met:
            raise bad_request(ValueError(message))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
