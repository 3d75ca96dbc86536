"""One request and what has come back of it."""

from array import array
from asyncio import TimerHandle
from collections.abc import Callable
from http import HTTPStatus
from time import perf_counter

from llmd_oke.bench.deployment.streams import EventStream
from llmd_oke.bench.generator.answers import AnswerReader
from llmd_oke.bench.generator.connections import Connection
from llmd_oke.bench.records.request import Failure, RequestRecord

MAX_ERROR_CHARACTERS = 400


class Exchange:
    """A request under way; `on_end` is told once, whatever happens."""

    __slots__ = (
        "_error_text", "connection", "due_s", "index", "input_tokens",
        "on_end", "request", "started_s", "stream", "timer",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        request: bytes,
        stream: EventStream,
        *,
        input_tokens: int,
        due_s: float,
        on_end: Callable[["Exchange", Failure | None, str | None, AnswerReader | None], None],
    ) -> None:
        self.index = index
        self.request = request
        self.stream = stream
        self.input_tokens = input_tokens
        self.due_s = due_s
        self.on_end = on_end
        self.started_s = perf_counter()
        self.connection: Connection | None = None
        self.timer: TimerHandle | None = None
        self._error_text = b""

    def on_body(self, body: bytes, status: int, now_s: float) -> None:
        """Events of the stream, or the text of an error."""
        if status == HTTPStatus.OK:
            self.stream.feed(body, now_s - self.started_s)
        elif len(self._error_text) < MAX_ERROR_CHARACTERS:
            self._error_text += body

    def on_answer(self, answer: AnswerReader) -> None:
        """The answer is complete."""
        if answer.status != HTTPStatus.OK:
            text = self._error_text.decode(errors="replace").strip()[:MAX_ERROR_CHARACTERS]
            self.end(Failure.STATUS, f"HTTP {answer.status}: {text}", answer)
            return
        self.stream.end()
        self.end(*_judge(self.stream), answer)

    def on_lost(self, reason: str) -> None:
        """The connection has ended too early."""
        if self.stream.finished:
            self.stream.end()
            self.end(*_judge(self.stream))
            return
        events = len(self.stream.event_times_s)
        if events:
            self.end(Failure.CUT, f"{reason} after {events} events, before the stream's end mark")
        else:
            self.end(Failure.CONNECTION, f"{reason} before an answer came")

    def abandon(self) -> None:
        """Give up; nobody is told."""
        if self.timer:
            self.timer.cancel()
        if self.connection:
            self.connection.close()

    def end(self, failure: Failure | None, error: str | None, answer: AnswerReader | None = None) -> None:
        """The request has ended."""
        if self.timer:
            self.timer.cancel()
        self.on_end(self, failure, error, answer)

    def record(
        self, origin_s: float, failure: Failure | None, error: str | None, answer: AnswerReader | None
    ) -> RequestRecord:
        """What is known now, with times from `origin_s` on."""
        stream = self.stream
        return RequestRecord(
            index=self.index,
            started_s=self.started_s - origin_s,
            latency_s=perf_counter() - self.started_s,
            event_times_s=array("d", stream.event_times_s),
            input_tokens=self.input_tokens if stream.input_tokens is None else stream.input_tokens,
            output_tokens=len(stream.event_times_s) if stream.output_tokens is None else stream.output_tokens,
            counted_by_server=stream.output_tokens is not None,
            failure=failure,
            error=error,
            due_s=self.due_s - origin_s,
            status=answer.status if answer else None,
            retry_after_s=answer.retry_after_s if failure and answer else None,
        )


def _judge(stream: EventStream) -> tuple[Failure | None, str | None]:
    if stream.error:
        return Failure.SERVER, stream.error
    if not stream.finished:
        return Failure.CUT, f"the stream stopped after {len(stream.event_times_s)} events without its end mark"
    if not stream.event_times_s:
        return Failure.SERVER, "the stream ended without output"
    return None, None
