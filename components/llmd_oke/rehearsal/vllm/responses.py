"""Answers to `/v1/responses`: the object `response`, or the events of its making.

Fields and order of events are those of vLLM v0.26.0 (entrypoints/openai/responses: protocol.py, serving.py,
streaming_events.py). The answer is one message; there is no reasoning before it and there are no tool calls in it.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from llmd_oke.rehearsal.vllm.answers import Answer, Stream, refuse_failed
from llmd_oke.rehearsal.vllm.bodies import ResponsesBody
from llmd_oke.rehearsal.vllm.protocol import Generation
from llmd_oke.rehearsal.vllm.sequences import Finish, Sequence

_ABSENT = (
    *("incomplete_details", "prompt", "top_logprobs", "usage", "kv_transfer_params", "ec_transfer_params"),
    *("input_messages", "output_messages"),
)
_FROM_REQUEST = (
    *("instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "background", "max_tool_calls"),
    *("previous_response_id", "reasoning", "service_tier", "text", "truncation", "user"),
)
_STATUS = {Finish.LENGTH: "incomplete", Finish.ABORT: "cancelled"}


def whole(answer: Answer, sequence: Sequence, transfer: Mapping[str, Any] | None, *, harmony: bool) -> dict[str, Any]:
    """The whole response.

    Raises:
        ApiError: the sequence failed; 500.
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
    """A response in events, which are numbered. Those before the first token are `opening`'s, the last `ending`'s."""

    def __init__(self, generation: Generation, index: int, response_id: str, fingerprint: str) -> None:
        self._number = 0
        self._item = uuid.uuid4().hex
        self._said: list[str] = []
        super().__init__(generation, index, response_id, fingerprint)

    def prepare_frame(self) -> None:
        """Nothing but the number and the word changes, but the number does so in length."""

    def opening(self) -> bytes:
        """What is sent as soon as the request is taken."""
        begun: dict[str, Any] = {**_frame(self), "output": [], "status": "in_progress"}
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def chunk(self, word: bytes) -> bytes:
        """The event of a token, as a chunk of a chunked body."""
        event = self._delta(word.decode())
        return b"%x\r\n%b\r\n" % (len(event), event)

    def events(self, sequence: Sequence, word: bytes) -> bytes:
        """The events of one call of the engine."""
        if sequence.finish in {Finish.ERROR, Finish.ABORT}:
            return b""
        first = self._first() if sequence.generated == 1 else b""
        return first + self._delta(word.decode())

    def ending(self, sequence: Sequence, transfer: Mapping[str, Any] | None, *, harmony: bool) -> bytes:
        """The events after the last token. A failed request has none: the connection ends."""
        text, place = "".join(self._said), {"output_index": 0, "content_index": 0, "item_id": self._item}
        part = _part(text)
        return (
            self._event("response.output_text.done", **place, text=text, logprobs=[])
            + self._event("response.content_part.done", **place, part=part)
            + self._event("response.output_item.done", output_index=0, item=_message(self._item, [part], "completed"))
            + self._event("response.completed", response=whole(self, sequence, transfer, harmony=harmony))
        )

    def _first(self) -> bytes:
        part: dict[str, Any] = {**_part(""), "logprobs": []}
        added = self._event("response.output_item.added", output_index=0, item=_message(self._item, [], "in_progress"))
        place = {"output_index": 0, "content_index": 0, "item_id": self._item}
        return added + self._event("response.content_part.added", **place, part=part)

    def _delta(self, word: str) -> bytes:
        self._said.append(word)
        place = {"output_index": 0, "content_index": 0, "item_id": self._item}
        return self._event("response.output_text.delta", **place, delta=word, logprobs=[])

    def _event(self, kind: str, **fields: Any) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        text = json.dumps({"type": kind, "sequence_number": self._number, **fields}, separators=(",", ":"))
        self._number += 1
        return f"event: {kind}\ndata: {text}\n\n".encode()


def _frame(answer: Answer) -> dict[str, Any]:
    """All that is known before the first token."""
    body = answer.generation.responses
    if body is None:
        raise AssertionError("only requests to /v1/responses are answered so")
    return {
        **dict.fromkeys(_ABSENT),
        **{name: getattr(body, name) for name in _FROM_REQUEST},
        **_sampling(body),
        "id": answer.response_id,
        "object": "response",
        "created_at": answer.created,
        "model": answer.generation.model,
        "max_output_tokens": answer.asked.max_tokens,
    }


def _sampling(body: ResponsesBody) -> dict[str, float]:
    defaults = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {name: default if getattr(body, name) is None else getattr(body, name) for name, default in defaults.items()}


def _message(item_id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": "assistant", "content": content, "status": status}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _usage(sequence: Sequence, *, harmony: bool) -> dict[str, Any]:
    """Token counts. Harmony's are told turn by turn as well, and there is one turn."""
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
