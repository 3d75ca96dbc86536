"""Answers of vLLM's HTTP API: one JSON object, or server-sent events written directly to the connection's transport.

Fields are those of vLLM v0.26.0 (entrypoints/openai/completion and chat_completion: protocol.py, serving.py), fields
and order of events of `/v1/responses` too (entrypoints/openai/responses: protocol.py, serving.py, streaming_events.py).
An event of a completion or chat differs from the one before by its word only, and all words are equally long, so its
frame is put together from three pieces. A response is one message, without reasoning before it or tool calls in it.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from llmd_rehearsal.vllm.bodies import ErrorAnswer
from llmd_rehearsal.vllm.requests import Choice, Generation, corrupt_answer
from llmd_rehearsal.vllm.sequences import CHARACTERS_PER_TOKEN, Finish, Sequence

_LETTERS = ("any boy can day did far for get had has her him his how its let man may new now old one our out put "
            "run say see sun the too two use was way who why you")  # fmt: skip
# Four characters each, so that an answer that comes back in a prompt counts as many tokens as it had.
WORDS = tuple(f" {word}" for word in _LETTERS.split())
ENCODED_WORDS = tuple(word.encode() for word in WORDS)
_SLOT = "<<slot>>"
DONE = b"data: [DONE]\n\n"
_NULL_FIELDS = (
    *("incomplete_details", "prompt", "top_logprobs", "usage", "kv_transfer_params", "ec_transfer_params"),
    *("input_messages", "output_messages"),
)
_REQUEST_FIELDS = (
    *("instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "background", "max_tool_calls"),
    *("previous_response_id", "reasoning", "service_tier", "text", "truncation", "user"),
)
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_STATUS = {Finish.LENGTH: "incomplete", Finish.ABORT: "cancelled"}


class ChoiceAnswer:
    """Answer, not streamed, to one choice of a request. `done` is set when the choice's sequence has ended."""

    def __init__(self, generation: Generation, index: int, response_id: str, fingerprint: str) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.generation = generation
        self.index = index
        self.response_id = response_id
        self.fingerprint = fingerprint
        self.created = int(time.time())
        # An adapter has other words than the model itself, the same ones each time.
        self.shift = int(generation.adapter, 16) % (len(WORDS) - 1) + 1 if generation.adapter else 0

    @property
    def choice(self) -> Choice:
        """Choice of the request that this answers: its prompt and limits."""
        return self.generation.choices[self.index]

    def emit(self, sequence: Sequence) -> None:
        """Set `done` if the sequence has ended; the simulated engine calls this after each step that gave the sequence
        tokens or ended it.
        """
        if sequence.finish is not None and not self.done.done():
            self.done.set_result(None)

    def text(self, sequence: Sequence) -> str:
        """Return the text of all tokens that were generated for the choice so far."""
        text = self.choice.text
        if text is None:
            return "".join(WORDS[(index + self.shift) % len(WORDS)] for index in range(sequence.generated))
        return (corrupt_answer(text) if sequence.corrupted else text)[: sequence.generated * CHARACTERS_PER_TOKEN]

    def frame(self, kind: str) -> dict[str, Any]:
        """Return the first fields of the JSON object of every answer and every event, with `kind` as the field
        `object`.
        """
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.generation.model}


def body(
    answers: list[ChoiceAnswer],
    sequences: list[Sequence],
    transfer: Mapping[str, Any] | None,
    *,
    cached: bool,
    since_0_30: bool = False,
) -> dict[str, Any]:
    """Return the body of an answer to a completion or chat that isn't streamed.

    Raises:
        ErrorAnswer: a sequence failed (status 500).
    """
    refuse_failed(sequences)
    first, chat = answers[0] if answers else None, bool(answers) and answers[0].generation.chat
    choices = [_choice(answer, sequence, chat=chat) for answer, sequence in zip(answers, sequences, strict=True)]
    prompt_fields = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if chat else {}
    return {
        **({} if first is None else first.frame("chat.completion" if chat else "text_completion")),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None if first is None else first.fingerprint,
        "usage": {**usage(sequences, cached=cached), **({"completion_tokens_details": None} if since_0_30 else {})},
        **prompt_fields,
        "kv_transfer_params": transfer,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _choice(answer: ChoiceAnswer, sequence: Sequence, *, chat: bool) -> dict[str, Any]:
    text = answer.text(sequence)
    ends = {"finish_reason": sequence.finish, "stop_reason": None}
    rest = {"logprobs": None, **ends, "token_ids": None, "routed_experts": None}
    if not chat:
        return {"index": answer.index, "text": text, **rest, "prompt_logprobs": None, "prompt_token_ids": None}
    absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    return {"index": answer.index, "message": {"role": "assistant", "content": text, **absent}, **rest}


class Stream(ChoiceAnswer):
    """Answer to one choice of a request as server-sent events. `started` is set at the first event; events before
    `attach` are kept for `take`.
    """

    def __init__(self, generation: Generation, index: int, response_id: str, fingerprint: str) -> None:
        super().__init__(generation, index, response_id, fingerprint)
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self.prepare_frame()

    def prepare_frame(self) -> None:
        """Build once the bytes that the events of all the choice's tokens have in common."""
        event = self._event(_SLOT, None)
        self._head, _, self._tail = event.rpartition(_SLOT.encode())
        size = len(event) - len(_SLOT) + len(WORDS[0])
        self._chunk_head, self._chunk_tail = f"{size:x}\r\n".encode() + self._head, self._tail + b"\r\n"

    def emit(self, sequence: Sequence) -> None:
        """Send an event with the new tokens of the simulated engine, or the events at the end of the sequence."""
        generated = range(sequence.generated - sequence.latest, sequence.generated)
        word = b"".join(ENCODED_WORDS[(index + self.shift) % len(WORDS)] for index in generated)
        if self._transport is None:
            self._pending.append(self.events(sequence, word))
            if not self.started.done():
                self.started.set_result(None)
        elif sequence.finish is None:
            self._transport.write(self.chunk(word))
        else:
            events = self.events(sequence, word)
            if events:
                self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))
        super().emit(sequence)

    def take(self) -> bytes:
        """Return the events that were kept since the last call, and forget them."""
        events, self._pending = b"".join(self._pending), []
        return events

    def attach(self, transport: asyncio.WriteTransport) -> None:
        """Write all further events to this transport, each as one chunk of a chunked HTTP body."""
        self._transport = transport

    def chunk(self, word: bytes) -> bytes:
        """Return the event of a step's tokens that are neither first nor last, with the text `word`, as one chunk of a
        chunked HTTP body.
        """
        if len(word) == len(ENCODED_WORDS[0]):
            return self._chunk_head + word + self._chunk_tail
        event = self._head + word + self._tail
        return b"%x\r\n%b\r\n" % (len(event), event)

    def events(self, sequence: Sequence, word: bytes) -> bytes:
        """Return the server-sent events for one step of the engine, with the text `word`; the first event of a chat has
        the role.
        """
        role = b""
        if self.generation.chat and sequence.generated == 1:
            delta = {"role": "assistant", "content": ""}
            choice = {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}
            role = data({**self.frame("chat.completion.chunk"), "choices": [choice]})
        match sequence.finish:
            case None:
                return role + self._head + word + self._tail
            case Finish.ERROR:
                return data(failure().body)
            case Finish.ABORT:
                return self._event("", sequence.finish)
            case finish:
                return role + self._event(word.decode(), finish)

    def _event(self, text: str, finish: Finish | None) -> bytes:
        chat = self.generation.chat
        content: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        choice: dict[str, Any] = {"index": self.index, **content, "logprobs": None, "finish_reason": finish}
        if not chat:
            choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
        elif finish is None:
            choice |= {"token_ids": None}
        else:
            choice |= {"stop_reason": None, "token_ids": None}
        last = {"system_fingerprint": self.fingerprint} if finish and not self.generation.include_usage else {}
        return data({**self.frame(_event_kind(self.generation)), "choices": [choice], **last})


def closing(streams: list[Stream], sequences: list[Sequence], *, cached: bool) -> bytes:
    """Return the server-sent events after the last token of all choices, the last being `[DONE]`, after the request's
    token counts if it asked for them.
    """
    failed = any(sequence.finish is Finish.ERROR for sequence in sequences)
    if failed or not streams or not streams[0].generation.include_usage:
        return DONE
    first = streams[0]
    counts = {name: count for name, count in usage(sequences, cached=cached).items() if count is not None}
    frame = first.frame(_event_kind(first.generation))
    return data({**frame, "choices": [], "usage": counts, "system_fingerprint": first.fingerprint}) + DONE


def _event_kind(generation: Generation) -> str:
    return "chat.completion.chunk" if generation.chat else "text_completion"


def refuse_failed(sequences: list[Sequence]) -> None:
    """Raise an error if the engine gave up on one of the sequences.

    Raises:
        ErrorAnswer: a sequence failed (status 500).
    """
    if any(sequence.finish is Finish.ERROR for sequence in sequences):
        raise failure()


def failure() -> ErrorAnswer:
    """Return the error with which vLLM answers a request that the engine gave up on."""
    return ErrorAnswer(500, "InternalServerError", "Internal server error")


def usage(sequences: list[Sequence], *, cached: bool) -> dict[str, Any]:
    """Return the token counts of a request; a prompt with several choices counts once. With `cached`, include the
    number of prompt tokens that came from a cache.
    """
    prompts = {id(sequence.hashes): sequence.prompt_tokens for sequence in sequences}
    prompt_tokens, generated = sum(prompts.values()), sum(sequence.generated for sequence in sequences)
    details = {"cached_tokens": max(0, sequences[-1].cached_tokens)} if cached and sequences else None
    if details is not None:
        details |= dict.fromkeys(("created_cache_tokens", "multimodal_tokens"))
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": details,
    }


def data(value: Mapping[str, Any]) -> bytes:
    """Return a server-sent event whose data is a JSON object, as bytes."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def rendered(
    generation: Generation, choice: Choice, request: Mapping[str, Any], limit: int, *, since_0_30: bool = False
) -> dict[str, Any]:
    """Return the answer of `/v1/completions/render` or `/v1/chat/completions/render` for one prompt of the JSON
    `request`: its tokens, and the fields of a request for these tokens
    (vllm/entrypoints/scale_out/token_in_token_out/protocol.py, GenerateRequest). `limit` is the maximum number of
    tokens of a sequence.
    """
    absent = ("assistant_tokens_mask", "token_offsets", "features", "kv_transfer_params", "ec_transfer_params")
    added = ("content_parts", "return_token_ids") if since_0_30 else ()
    sampling: dict[str, Any] = {"stop": [], "stop_token_ids": [], "bad_words": [], "skip_reading_prefix_cache": False}
    room = limit - choice.prompt.tokens
    asked = generation.max_tokens or room
    return {
        "request_id": f"{'chatcmpl' if generation.chat else 'cmpl'}-{uuid.uuid4().hex}",
        "token_ids": list(choice.prompt.token_ids),
        "sampling_params": {**sampling, "max_tokens": min(asked, room) if generation.chat else choice.max_tokens},
        "model": request.get("model"),
        "stream": generation.stream,
        "stream_options": request.get("stream_options") if generation.stream else None,
        "cache_salt": generation.cache_salt,
        "priority": request.get("priority", 0),
        **dict.fromkeys((*absent, *added)),
    }


def response_body(
    answer: ChoiceAnswer, sequence: Sequence, transfer: Mapping[str, Any] | None, *, harmony: bool
) -> dict[str, Any]:
    """Return the body of a response of `/v1/responses` that isn't streamed.

    Raises:
        ErrorAnswer: the sequence failed (status 500).
    """
    refuse_failed([sequence])
    status = _STATUS.get(sequence.finish or Finish.STOP, "completed")
    return {
        **_frame(answer),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": [_message(f"msg_{uuid.uuid4().hex}", [_part(answer.text(sequence))], "completed")],
        "status": status,
        "usage": _usage(sequence, harmony=harmony),
        "kv_transfer_params": transfer,
    }


class ResponsesStream(Stream):
    """Answer of `/v1/responses` as numbered server-sent events. `opening` returns the events before the first token,
    `ending` those after the last token.
    """

    def __init__(self, generation: Generation, index: int, response_id: str, fingerprint: str) -> None:
        self._number = 0
        self._place = {"output_index": 0, "content_index": 0, "item_id": uuid.uuid4().hex}
        self._words: list[str] = []
        super().__init__(generation, index, response_id, fingerprint)

    def prepare_frame(self) -> None:
        """Do nothing: each event contains its number, whose length changes, so that no bytes can be prepared."""

    def opening(self) -> bytes:
        """Return the events that are sent once the request is accepted."""
        response: dict[str, Any] = {**_frame(self), "output": [], "status": "in_progress"}
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._numbered(kind, response=response) for kind in kinds)

    def chunk(self, word: bytes) -> bytes:
        """Return the event of a token with the text `word` as one chunk of a chunked HTTP body."""
        event = self._delta(word.decode())
        return b"%x\r\n%b\r\n" % (len(event), event)

    def events(self, sequence: Sequence, word: bytes) -> bytes:
        """Return the server-sent events for one step of the engine, with the text `word`; empty if the sequence failed
        or was aborted.
        """
        if sequence.finish in {Finish.ERROR, Finish.ABORT}:
            return b""
        if sequence.generated > 1:
            return self._delta(word.decode())
        part: dict[str, Any] = {**_part(""), "logprobs": []}
        return (
            self._numbered("response.output_item.added", output_index=0, item=self._message([], "in_progress"))
            + self._numbered("response.content_part.added", **self._place, part=part)
            + self._delta(word.decode())
        )

    def ending(self, sequence: Sequence, transfer: Mapping[str, Any] | None, *, harmony: bool) -> bytes:
        """Return the server-sent events after the last token. A failed request has none: its connection is closed."""
        text = "".join(self._words)
        part = _part(text)
        return (
            self._numbered("response.output_text.done", **self._place, text=text, logprobs=[])
            + self._numbered("response.content_part.done", **self._place, part=part)
            + self._numbered("response.output_item.done", output_index=0, item=self._message([part], "completed"))
            + self._numbered("response.completed", response=response_body(self, sequence, transfer, harmony=harmony))
        )

    def _delta(self, word: str) -> bytes:
        self._words.append(word)
        return self._numbered("response.output_text.delta", **self._place, delta=word, logprobs=[])

    def _message(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        return _message(str(self._place["item_id"]), content, status)

    def _numbered(self, kind: str, **fields: Any) -> bytes:
        text = json.dumps({"type": kind, "sequence_number": self._number, **fields}, separators=(",", ":"))
        self._number += 1
        return f"event: {kind}\ndata: {text}\n\n".encode()


def _frame(answer: ChoiceAnswer) -> dict[str, Any]:
    """Return the fields of a response that are known before the first token."""
    body = answer.generation.responses
    if body is None:
        raise AssertionError("only requests to /v1/responses are answered so")
    return {
        **dict.fromkeys(_NULL_FIELDS),
        **{name: getattr(body, name) for name in _REQUEST_FIELDS},
        **{name: default if (value := getattr(body, name)) is None else value for name, default in _SAMPLING.items()},
        "id": answer.response_id,
        "object": "response",
        "created_at": answer.created,
        "model": answer.generation.model,
        "max_output_tokens": answer.choice.max_tokens,
    }


def _message(item_id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": "assistant", "content": content, "status": status}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _usage(sequence: Sequence, *, harmony: bool) -> dict[str, Any]:
    """Return the token counts of a response; with Harmony they are listed by turn too, and there is one turn."""
    cached = max(0, sequence.cached_tokens)

    def turns(count: int) -> list[int]:
        return [count] if harmony else []

    return {
        "input_tokens": sequence.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": cached,
            "input_tokens_per_turn": turns(sequence.prompt_tokens),
            "cached_tokens_per_turn": turns(cached),
        },
        "output_tokens": sequence.generated,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": turns(sequence.generated),
            "tool_output_tokens_per_turn": turns(0),
        },
        "total_tokens": sequence.tokens,
    }
