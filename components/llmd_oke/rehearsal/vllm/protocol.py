"""Requests of the OpenAI API as vLLM takes them, and its errors."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from llmd_oke.rehearsal.vllm import reading
from llmd_oke.rehearsal.vllm.prompts import Prompt, chat_prompt, completion_prompt
from llmd_oke.rehearsal.vllm.sequences import Finish

DEFAULT_COMPLETION_TOKENS = 16
_UNLIMITED_CHAT_TOKENS = (64, 256)
_REMOTE_KEYS = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


class ApiError(Exception):
    """An answer in vLLM's error shape. `kind` is the error's type: BadRequestError, NotFoundError and the like."""

    def __init__(self, status: int, kind: str, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


@dataclass(frozen=True)
class Limits:
    """What a server accepts."""

    model_names: tuple[str, ...]
    max_model_len: int
    seed: int


@dataclass(frozen=True)
class Generation:
    """A completion or chat that was asked for, judged and complete. `end` is how it ends after `max_tokens`.

    `text` is what it says, None for words that mean nothing.
    """

    chat: bool
    model: str
    prompt: Prompt
    max_tokens: int
    end: Finish
    stream: bool
    include_usage: bool
    transfer: Mapping[str, Any]
    text: str | None = None

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
        ApiError: it isn't a JSON object.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise bad_request("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        value: object = json.loads(body)
    except ValueError as error:
        raise bad_request(f"JSON decode error: {error}") from error
    if not isinstance(value, dict):
        raise bad_request("Input should be a valid dictionary")
    return cast("Mapping[str, Any]", value)


def bad_request(message: str, parameter: str | None = None) -> ApiError:
    """A request that vLLM refuses."""
    return ApiError(400, "BadRequestError", message, parameter)


def completion(body: Mapping[str, Any], limits: Limits) -> Generation:
    """What `/v1/completions` is asked for.

    Raises:
        ApiError: vLLM would refuse it, or it isn't simulated.
    """
    prompt = completion_prompt(body.get("prompt"))
    if prompt is None:
        raise bad_request("prompt: text, token ids or a list with one of these is what the simulation takes", "prompt")
    return _generation(body, limits, prompt, chat=False)


def chat(body: Mapping[str, Any], limits: Limits) -> Generation:
    """What `/v1/chat/completions` is asked for.

    Raises:
        ApiError: vLLM would refuse it, or it isn't simulated.
    """
    messages: object = body.get("messages")
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) for message in cast("list[object]", messages)
    ):
        raise bad_request("messages: Field required, a list of objects", "messages")
    return _generation(body, limits, chat_prompt(cast("list[Mapping[str, Any]]", messages)), chat=True)


def _generation(body: Mapping[str, Any], limits: Limits, prompt: Prompt, *, chat: bool) -> Generation:
    model = body.get("model") or limits.model_names[0]
    if model not in limits.model_names:
        raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    if body.get("n") not in {None, 1}:
        raise bad_request("n: only 1 is simulated", "n")
    max_tokens, end = _output(body, limits, prompt, chat=chat)
    text = _text(body, prompt)
    if text is not None and (tokens := Prompt(text).tokens) <= max_tokens:
        max_tokens, end = tokens, Finish.STOP
    options: Mapping[str, Any] = body.get("stream_options") or {}
    return Generation(
        chat=chat,
        model=str(model),
        prompt=prompt,
        max_tokens=max_tokens,
        end=end,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        transfer=body.get("kv_transfer_params") or {},
        text=text,
    )


def _text(body: Mapping[str, Any], prompt: Prompt) -> str | None:
    """What the answer says. Streams and answers of a fixed length are for load, where nobody reads."""
    if body.get("stream") or body.get("ignore_eos") or not isinstance(prompt.content, str):
        return None
    return reading.read(prompt.content)


def _output(body: Mapping[str, Any], limits: Limits, prompt: Prompt, *, chat: bool) -> tuple[int, Finish]:
    """How many tokens the answer has, and how it ends."""
    room = limits.max_model_len - prompt.tokens
    if not prompt.tokens:
        raise bad_request("The decoder prompt cannot be empty", "prompt")
    asked = _asked_tokens(body, chat=chat)
    if room < max(1, asked or 0):
        raise _too_long(limits.max_model_len, prompt.tokens, asked or 1)
    if asked is not None:
        return asked, Finish.LENGTH
    if body.get("ignore_eos"):
        return room, Finish.LENGTH
    least, spread = _UNLIMITED_CHAT_TOKENS
    natural = least + zlib.crc32(repr(prompt.content).encode(), limits.seed) % spread
    return min(room, max(natural, int(body.get("min_tokens") or 0))), Finish.STOP


def _asked_tokens(body: Mapping[str, Any], *, chat: bool) -> int | None:
    value = body.get("max_completion_tokens") if chat else None
    value = body.get("max_tokens") if value is None else value
    if value is None:
        return None if chat else DEFAULT_COMPLETION_TOKENS
    if not isinstance(value, int) or value < 1:
        raise bad_request(f"max_tokens must be at least 1, got {value}.", "max_tokens")
    return value


def _too_long(max_model_len: int, prompt_tokens: int, asked: int) -> ApiError:
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested {asked} output tokens "
        f"and your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
        f"{prompt_tokens + asked} tokens. Please reduce the length of the input prompt or the number of requested "
        "output tokens.",
        "input_tokens",
    )
