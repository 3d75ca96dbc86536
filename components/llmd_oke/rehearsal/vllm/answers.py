"""Answers to completions and chats: one JSON object, or server-sent events that go straight to the transport.

Fields are those of vLLM v0.26.0 (entrypoints/openai/completion and chat_completion: protocol.py, serving.py). An event
differs from the one before by its word only, and all words are equally long, so its frame is put together from three
pieces.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llmd_oke.rehearsal.vllm.errors import ApiError
from llmd_oke.rehearsal.vllm.prompts import CHARACTERS_PER_TOKEN
from llmd_oke.rehearsal.vllm.protocol import Choice, Generation
from llmd_oke.rehearsal.vllm.reading import misread
from llmd_oke.rehearsal.vllm.sequences import Finish
from llmd_oke.rehearsal.vllm.sequences import Sequence as EngineSequence

_LETTERS = ("any boy can day did far for get had has her him his how its let man may new now old one our out put "
            "run say see sun the too two use was way who why you")  # fmt: skip
# Four characters each, so that an answer that comes back in a prompt counts as many tokens as it had.
WORDS = tuple(f" {word}" for word in _LETTERS.split())
ENCODED_WORDS = tuple(word.encode() for word in WORDS)
_SLOT = "<<slot>>"
DONE = b"data: [DONE]\n\n"


class Answer:
    """What one choice of a request gets. `done` is set when its sequence ended."""

    def __init__(self, generation: Generation, index: int, response_id: str, fingerprint: str) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.generation = generation
        self.index = index
        self.response_id = response_id
        self.fingerprint = fingerprint
        self.created = int(time.time())

    @property
    def asked(self) -> Choice:
        """What was asked for."""
        return self.generation.choices[self.index]

    def emit(self, sequence: EngineSequence) -> None:
        """The engine has a new token, or the end."""
        if sequence.finish is not None and not self.done.done():
            self.done.set_result(None)

    def text(self, sequence: EngineSequence) -> str:
        """All that was said."""
        said = self.asked.text
        if said is None:
            return "".join(WORDS[index % len(WORDS)] for index in range(sequence.generated))
        return (misread(said) if sequence.corrupted else said)[: sequence.generated * CHARACTERS_PER_TOKEN]

    def frame(self, kind: str) -> dict[str, Any]:
        """What every answer and every event begins with."""
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.generation.model}


def body(
    answers: Sequence[Answer],
    sequences: Sequence[EngineSequence],
    transfer: Mapping[str, Any] | None,
    *,
    cached: bool,
) -> dict[str, Any]:
    """The whole answer to a completion or chat.

    Raises:
        ApiError: a sequence failed; 500.
    """
    refuse_failed(sequences)
    first, chat = answers[0] if answers else None, bool(answers) and answers[0].generation.chat
    choices = [_choice(answer, sequence, chat=chat) for answer, sequence in zip(answers, sequences, strict=True)]
    own = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if chat else {}
    return {
        **({} if first is None else first.frame("chat.completion" if chat else "text_completion")),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None if first is None else first.fingerprint,
        "usage": usage(sequences, cached=cached),
        **own,
        "kv_transfer_params": transfer,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _choice(answer: Answer, sequence: EngineSequence, *, chat: bool) -> dict[str, Any]:
    text = answer.text(sequence)
    ends = {"finish_reason": sequence.finish, "stop_reason": None}
    rest = {"logprobs": None, **ends, "token_ids": None, "routed_experts": None}
    if not chat:
        return {"index": answer.index, "text": text, **rest, "prompt_logprobs": None, "prompt_token_ids": None}
    absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    return {"index": answer.index, "message": {"role": "assistant", "content": text, **absent}, **rest}


class Stream(Answer):
    """A choice in server-sent events. `started` is set at the first; what comes before `attach` is kept for `take`."""

    def __init__(self, generation: Generation, index: int, response_id: str, fingerprint: str) -> None:
        super().__init__(generation, index, response_id, fingerprint)
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self.prepare_frame()

    def prepare_frame(self) -> None:
        """Put together what the events of all tokens have in common."""
        event = self._event(_SLOT, None)
        self._head, _, self._tail = event.rpartition(_SLOT.encode())
        size = len(event) - len(_SLOT) + len(WORDS[0])
        self._chunk_head, self._chunk_tail = f"{size:x}\r\n".encode() + self._head, self._tail + b"\r\n"

    def emit(self, sequence: EngineSequence) -> None:
        """The engine has a new token, or the end."""
        word = ENCODED_WORDS[sequence.generated % len(WORDS) - 1]
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
        """The events that wait to be sent."""
        taken, self._pending = b"".join(self._pending), []
        return taken

    def attach(self, transport: asyncio.WriteTransport) -> None:
        """From now on events go to this transport, each as a chunk of a chunked body."""
        self._transport = transport

    def chunk(self, word: bytes) -> bytes:
        """The event of a token that is neither first nor last, as a chunk of a chunked body."""
        return self._chunk_head + word + self._chunk_tail

    def events(self, sequence: EngineSequence, word: bytes) -> bytes:
        """The events of one call of the engine; the first of a chat names the role before anything else."""
        role = self._role() if self.generation.chat and sequence.generated == 1 else b""
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
        said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        choice: dict[str, Any] = {"index": self.index, **said, "logprobs": None, "finish_reason": finish}
        if not chat:
            choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
        elif finish is None:
            choice |= {"token_ids": None}
        else:
            choice |= {"stop_reason": None, "token_ids": None}
        last = {"system_fingerprint": self.fingerprint} if finish and not self.generation.include_usage else {}
        return data({**self.frame(_event_kind(self.generation)), "choices": [choice], **last})

    def _role(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return data({**self.frame("chat.completion.chunk"), "choices": [choice]})


def closing(streams: Sequence[Stream], sequences: Sequence[EngineSequence], *, cached: bool) -> bytes:
    """The events after the last token of all choices."""
    failed = any(sequence.finish is Finish.ERROR for sequence in sequences)
    if failed or not streams or not streams[0].generation.include_usage:
        return DONE
    first = streams[0]
    counts = {name: count for name, count in usage(sequences, cached=cached).items() if count is not None}
    frame = first.frame(_event_kind(first.generation))
    return data({**frame, "choices": [], "usage": counts, "system_fingerprint": first.fingerprint}) + DONE


def _event_kind(generation: Generation) -> str:
    return "chat.completion.chunk" if generation.chat else "text_completion"


def refuse_failed(sequences: Sequence[EngineSequence]) -> None:
    """Tell what the engine gave up on.

    Raises:
        ApiError: a sequence failed; 500.
    """
    if any(sequence.finish is Finish.ERROR for sequence in sequences):
        raise failure()


def failure() -> ApiError:
    """What vLLM answers where the engine gave up on a request."""
    return ApiError(500, "InternalServerError", "Internal server error")


def usage(sequences: Sequence[EngineSequence], *, cached: bool) -> dict[str, Any]:
    """Token counts; a prompt counts once, however many answers it gets. With `cached`, how many were not computed."""
    prompts = {id(sequence.hashes): sequence.prompt_tokens for sequence in sequences}
    read, said = sum(prompts.values()), sum(sequence.generated for sequence in sequences)
    details = {"cached_tokens": max(0, sequences[-1].cached_tokens)} if cached and sequences else None
    if details is not None:
        details |= dict.fromkeys(("created_cache_tokens", "multimodal_tokens"))
    return {
        "prompt_tokens": read,
        "total_tokens": read + said,
        "completion_tokens": said,
        "prompt_tokens_details": details,
    }


def data(value: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
