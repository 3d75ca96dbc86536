"""Requests of the OpenAI API, judged as vLLM judges them and told in what the engine needs."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from llmd_oke.rehearsal.vllm import bodies, reading, sampling
from llmd_oke.rehearsal.vllm.bodies import ChatBody, CompletionBody, ResponsesBody
from llmd_oke.rehearsal.vllm.errors import ApiError, bad_request, malformed
from llmd_oke.rehearsal.vllm.prompts import Prompt, chat_prompt, completion_prompts, responses_prompt
from llmd_oke.rehearsal.vllm.sequences import Finish

_UNLIMITED_TOKENS = (64, 256)
_REMOTE_KEYS = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


@dataclass(frozen=True)
class Limits:
    """What a server accepts. `harmony` says that the model speaks OpenAI's Harmony format, as gpt-oss does."""

    model_names: tuple[str, ...]
    max_model_len: int
    seed: int
    harmony: bool = False


@dataclass(frozen=True)
class Choice:
    """One answer to one prompt.

    `end` is how it ends after `max_tokens`; `text` is what it says, None for words that mean nothing.
    """

    prompt: Prompt
    max_tokens: int
    end: Finish
    text: str | None = None


@dataclass(frozen=True)
class Generation:
    """A request that was judged and is complete. `choices` has `n` of them for each prompt."""

    model: str
    choices: tuple[Choice, ...]
    stream: bool
    transfer: Mapping[str, Any]
    chat: bool = False
    include_usage: bool = False
    responses: ResponsesBody | None = None
    request_id: str | None = None

    @property
    def wants_remote_prefill(self) -> bool:
        """The KV cache of the prompt is to be pulled from a prefill server that these parameters name."""
        complete = all(self.transfer.get(key) is not None for key in _REMOTE_KEYS)
        return bool(self.transfer.get("do_remote_prefill")) and complete

    @property
    def wants_remote_decode(self) -> bool:
        """The KV cache of the prompt is to be kept for a decode server."""
        return bool(self.transfer.get("do_remote_decode"))


def json_object(body: bytes, content_type: str) -> Mapping[str, Any]:
    """The request's body.

    Raises:
        ApiError: it isn't a JSON object; 400.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise malformed(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    try:
        value: object = json.loads(body)
    except json.JSONDecodeError as error:
        told: dict[str, object] = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
        }
        raise malformed([repr({**told, "ctx": {"error": error.msg}})], f"body.{error.pos}") from error
    except ValueError as error:
        raise bad_request(error) from error
    if not isinstance(value, dict):
        told = {"type": "model_attributes_type", "loc": ("body",)}
        message = "Input should be a valid dictionary or object to extract fields from"
        raise malformed([repr({**told, "msg": message, "input": value})], "body")
    return cast("Mapping[str, Any]", value)


def completion(raw: Mapping[str, Any], limits: Limits) -> Generation:
    """What `/v1/completions` is asked for.

    Raises:
        ApiError: vLLM would refuse it.
    """
    body = bodies.parse(CompletionBody, raw)
    model = _model(body.model, limits)
    if body.suffix is not None:
        raise bad_request(ValueError("suffix is not currently supported"))
    prompts = completion_prompts(body.prompt)
    for prompt in prompts:
        _check(body, limits, prompt, body.max_tokens, "max_tokens", body.logprobs)
    quiet = bool(body.stream) or body.ignore_eos
    choices = [_limited(prompt, body.max_tokens or 0, quiet=quiet) for prompt in prompts for _ in range(body.n)]
    return _generation(body, model, choices)


def chat(raw: Mapping[str, Any], limits: Limits) -> Generation:
    """What `/v1/chat/completions` is asked for.

    Raises:
        ApiError: vLLM would refuse it.
    """
    body = bodies.parse(ChatBody, raw)
    model = _model(body.model, limits)
    prompt = chat_prompt(body.messages)
    parameter = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    _check(body, limits, prompt, asked, parameter, body.top_logprobs if body.logprobs else None)
    choice = _choice(body, limits, prompt, asked, body.min_tokens)
    return _generation(body, model, [choice] * (body.n or 1), chat=True)


def responses(raw: Mapping[str, Any], limits: Limits) -> Generation:
    """What `/v1/responses` is asked for.

    Raises:
        ApiError: vLLM would refuse it.
    """
    body = bodies.parse(ResponsesBody, raw)
    model = _model(body.model, limits)
    _check_responses(body, limits)
    prompt, asked = responses_prompt(body.instructions, body.input), body.max_output_tokens
    if not limits.harmony:
        sampling.Room(limits.max_model_len, prompt.tokens, True, asked, "max_output_tokens").check()
    if prompt.tokens >= limits.max_model_len:
        sizes = f"length {prompt.tokens} exceeds the max_model_len {limits.max_model_len}"
        raise _invalid_request(f"The engine prompt {sizes}. Please reduce prompt.", "input")
    sampling.check_responses(body)
    asked = None if asked is None else min(asked, limits.max_model_len - prompt.tokens)
    return Generation(
        model=model,
        choices=(_choice(body, limits, prompt, asked, 0),),
        stream=bool(body.stream),
        transfer=body.kv_transfer_params or {},
        responses=body,
        request_id=body.request_id,
    )


def no_response(response_id: str) -> ApiError:
    """Nothing is stored: vLLM keeps responses only where VLLM_ENABLE_RESPONSES_API_STORE says so."""
    return ApiError(404, "invalid_request_error", f"Response with id '{response_id}' not found.", "response_id")


def _check_responses(body: ResponsesBody, limits: Limits) -> None:
    if limits.harmony and body.wants_logprobs:
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
        raise ApiError(501, "NotImplementedError", message)


def _invalid_request(message: str, parameter: str) -> ApiError:
    return ApiError(400, "invalid_request_error", message, parameter)


def _model(name: str | None, limits: Limits) -> str:
    model = name or limits.model_names[0]
    if model not in limits.model_names:
        raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    return model


def _check(
    body: CompletionBody | ChatBody,
    limits: Limits,
    prompt: Prompt,
    asked: int | None,
    parameter: str,
    logprobs: int | None,
) -> None:
    is_text = isinstance(prompt.content, str)
    sampling.Room(limits.max_model_len, prompt.tokens, is_text, asked, parameter).check()
    room = limits.max_model_len - prompt.tokens
    sampling.check_sampling(body, room if asked is None else min(room, asked), logprobs)
    if not prompt.tokens:
        raise bad_request(ValueError("The decoder prompt cannot be empty"), late=True)


def _generation(
    body: CompletionBody | ChatBody, model: str, choices: list[Choice], *, chat: bool = False
) -> Generation:
    return Generation(
        model=model,
        choices=tuple(choices),
        stream=bool(body.stream),
        transfer=body.kv_transfer_params or {},
        chat=chat,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        request_id=body.request_id,
    )


def _choice(body: ChatBody | ResponsesBody, limits: Limits, prompt: Prompt, asked: int | None, least: int) -> Choice:
    """How many tokens an answer has, and how it ends; without a limit it ends by itself."""
    room = limits.max_model_len - prompt.tokens
    quiet = bool(body.stream) or body.ignore_eos
    if asked is not None or body.ignore_eos:
        return _limited(prompt, room if asked is None else asked, quiet=quiet)
    shortest, spread = _UNLIMITED_TOKENS
    natural = shortest + zlib.crc32(repr(prompt.content).encode(), limits.seed) % spread
    if natural >= room:
        return _limited(prompt, room, quiet=quiet)
    return _limited(prompt, min(room, max(natural, least)), quiet=quiet, end=Finish.STOP)


def _limited(prompt: Prompt, max_tokens: int, *, quiet: bool, end: Finish = Finish.LENGTH) -> Choice:
    """An answer of that length, or a shorter one that says something unless it is `quiet`.

    Streams and answers of a fixed length are for load, where nobody reads.
    """
    text = None if quiet or not isinstance(prompt.content, str) else reading.read(prompt.content)
    if text is not None and (tokens := Prompt(text).tokens) <= max_tokens:
        return Choice(prompt, tokens, Finish.STOP, text)
    return Choice(prompt, max_tokens, end, text)
