"""Answers of the OpenAI API: one JSON object, or server-sent events that go straight to the transport.

An event differs from the one before by its word only, and all words are equally long, so its frame is put together
from three pieces.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from llmd_oke.rehearsal.vllm.prompts import CHARACTERS_PER_TOKEN
from llmd_oke.rehearsal.vllm.protocol import ApiError, Generation
from llmd_oke.rehearsal.vllm.reading import misread
from llmd_oke.rehearsal.vllm.sequences import Finish, Sequence

_LETTERS = ("any boy can day did far for get had has her him his how its let man may new now old one our out put "
            "run say see she sun the too two use was way who why you")  # fmt: skip
# Four characters each, so that an answer that comes back in a prompt counts as many tokens as it had.
_WORDS = tuple(f" {word}" for word in _LETTERS.split())
_ENCODED_WORDS = tuple(word.encode() for word in _WORDS)
_SLOT = "<<slot>>"
DONE = b"data: [DONE]\n\n"


class Answer:
    """What a request gets. `done` is set when the sequence ended."""

    def __init__(self, generation: Generation, response_id: str) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.generation = generation
        self.response_id = response_id
        self.created = int(time.time())

    def emit(self, sequence: Sequence) -> None:
        """The engine has a new token, or the end."""
        if sequence.finish is not None and not self.done.done():
            self.done.set_result(None)

    def body(self, sequence: Sequence, transfer: Mapping[str, Any] | None, *, cached: bool) -> dict[str, Any]:
        """The whole answer.

        Raises:
            ApiError: the sequence failed.
        """
        if sequence.finish is Finish.ERROR:
            raise failure()
        text = self._text(sequence)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": sequence.finish, "stop_reason": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self.generation.chat else {"text": text}
        return {
            **self._frame("chat.completion" if self.generation.chat else "text_completion"),
            "choices": [choice],
            "usage": usage(sequence, cached=cached),
            "kv_transfer_params": transfer,
        }

    def _text(self, sequence: Sequence) -> str:
        said = self.generation.text
        if said is None:
            return "".join(_WORDS[index % len(_WORDS)] for index in range(sequence.generated))
        return (misread(said) if sequence.corrupted else said)[: sequence.generated * CHARACTERS_PER_TOKEN]

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.generation.model}


class Stream(Answer):
    """An answer in server-sent events. `started` is set at the first; what comes before `attach` is kept for `take`."""

    def __init__(self, generation: Generation, response_id: str) -> None:
        super().__init__(generation, response_id)
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        event = self._event(_SLOT, None)
        self._head, _, self._tail = event.rpartition(_SLOT.encode())
        size = len(event) - len(_SLOT) + len(_WORDS[0])
        self._chunk_head, self._chunk_tail = f"{size:x}\r\n".encode() + self._head, self._tail + b"\r\n"

    def emit(self, sequence: Sequence) -> None:
        """The engine has a new token, or the end."""
        word = _ENCODED_WORDS[sequence.generated % len(_WORDS) - 1]
        if self._transport is None:
            self._pending.append(self._events(sequence, word))
            if not self.started.done():
                self.started.set_result(None)
        elif sequence.finish is None:
            self._transport.write(self._chunk_head + word + self._chunk_tail)
        else:
            events = self._events(sequence, word)
            self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))
        super().emit(sequence)

    def take(self) -> bytes:
        """The events that wait to be sent."""
        taken, self._pending = b"".join(self._pending), []
        return taken

    def attach(self, transport: asyncio.WriteTransport) -> None:
        """From now on events go to this transport, each as a chunk of a chunked body."""
        self._transport = transport

    def closing(self, sequence: Sequence, *, cached: bool) -> bytes:
        """The events after the last token."""
        if not self.generation.include_usage:
            return DONE
        kind = "chat.completion.chunk" if self.generation.chat else "text_completion"
        return _data({**self._frame(kind), "choices": [], "usage": usage(sequence, cached=cached)}) + DONE

    def _events(self, sequence: Sequence, word: bytes) -> bytes:
        """The events of one call of the engine; the first of a chat names the role before anything else."""
        role = self._role() if self.generation.chat and sequence.generated == 1 else b""
        match sequence.finish:
            case None:
                return role + self._head + word + self._tail
            case Finish.ERROR:
                return _data(failure().body)
            case Finish.ABORT:
                return self._event("", sequence.finish)
            case finish:
                return role + self._event(word.decode(), finish)

    def _event(self, text: str, finish: Finish | None) -> bytes:
        if self.generation.chat:
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
            return _data({**self._frame("chat.completion.chunk"), "choices": [choice]})
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return _data({**self._frame("text_completion"), "choices": [choice]})

    def _role(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return _data({**self._frame("chat.completion.chunk"), "choices": [choice]})


def failure() -> ApiError:
    """What vLLM answers where the engine gave up on a request."""
    return ApiError(500, "InternalServerError", "Internal server error")


def usage(sequence: Sequence, *, cached: bool) -> dict[str, Any]:
    """Token counts; with `cached`, how many of the prompt's were not computed."""
    details = {"cached_tokens": max(0, sequence.cached_tokens)} if cached else None
    return {
        "prompt_tokens": sequence.prompt_tokens,
        "total_tokens": sequence.tokens,
        "completion_tokens": sequence.generated,
        "prompt_tokens_details": details,
    }


def _data(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
