"""Concurrent requests to one target; each ends with a record, never with an exception."""

import asyncio
from array import array
from asyncio import TimerHandle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter

from llmd_bench.load.completions import CompletionsTarget, EventStream, RequestWriter, Turn, address_of
from llmd_bench.load.connections import AnswerReader, Connection, ConnectionPool, NotConnected
from llmd_bench.load.records import Failure, RequestRecord
from llmd_bench.load.workload import Position, RequestText

QuestionInContext = tuple[RequestText, Sequence[Turn], int]
"""Question, earlier turns of its conversation, and the number of tokens in these turns."""


class Dialogues:
    """Source of a load's questions; `place` assigns requests to conversations, None if the load has no conversations.

    One instance handles all turns of a conversation, and delays each turn until the turn before it is answered.
    """

    def __init__(self, question: Callable[[int], RequestText], place: Callable[[int], Position] | None = None) -> None:
        self.remember = place is not None
        self._question = question
        self._place = place
        self._turns: dict[int, list[Turn]] = {}
        self._tokens: dict[int, int] = {}
        self._asked: dict[int, RequestText] = {}
        self._ended: set[int] = set()
        self._held: dict[int, Callable[[], None]] = {}

    def hold(self, index: int, go: Callable[[], None]) -> bool:
        """Return whether request `index` must wait because the turn before it isn't answered; `go` is then called after
        that answer.
        """
        previous = self._place(index).previous if self._place else None
        if previous is None:
            return False
        if previous in self._ended:
            self._ended.remove(previous)
            return False
        self._held[previous] = go
        return True

    def ask(self, index: int) -> QuestionInContext:
        """Return the question of a request, with the earlier turns of its conversation."""
        question = self._question(index)
        if self._place is None:
            return question, (), 0
        place = self._place(index)
        self._asked[index] = question
        turns = self._turns.setdefault(place.conversation, [])
        return question, turns, self._tokens.get(place.conversation, 0)

    def note_answer(self, index: int, text: str, tokens: int) -> None:
        """Store the answer to request `index` (empty after a failure), and send the turn that waits for it."""
        if self._place is None:
            return
        place, question = self._place(index), self._asked.pop(index)
        if place.is_last:
            self._turns.pop(place.conversation, None)
            self._tokens.pop(place.conversation, None)
            return
        self._turns[place.conversation].append((question.text, text))
        before = self._tokens.get(place.conversation, 0)
        self._tokens[place.conversation] = before + question.input_tokens + tokens
        go = self._held.pop(index, None)
        if go:
            go()
        else:
            self._ended.add(index)

    def forget(self) -> int:
        """Discard the requests that wait for an earlier turn of their conversation, and return their number."""
        held = len(self._held)
        self._held.clear()
        return held


MAX_ERROR_CHARACTERS = 400


class Exchange:
    """Request in flight on a connection, with its response; `on_end` is called once when it ends, unless it is
    abandoned.
    """

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
        """Process a part of the response's body: events of the stream, or the text of an error response."""
        if status == HTTPStatus.OK:
            self.stream.feed(body, now_s - self.started_s)
        elif len(self._error_text) < MAX_ERROR_CHARACTERS:
            self._error_text += body

    def on_answer(self, answer: AnswerReader) -> None:
        """End the request after its response is complete: successfully, or with the failure that the response shows."""
        if answer.status != HTTPStatus.OK:
            text = self._error_text.decode(errors="replace").strip()[:MAX_ERROR_CHARACTERS]
            self.end(Failure.STATUS, f"HTTP {answer.status}: {text}", answer)
            return
        self.stream.end()
        self.end(*_judge(self.stream), answer)

    def on_lost(self, reason: str) -> None:
        """End the request with a failure after its connection was lost."""
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
        """Stop the request's timer and close its connection, without a call to `on_end`."""
        if self.timer:
            self.timer.cancel()
        if self.connection:
            self.connection.close()

    def end(self, failure: Failure | None, error: str | None, answer: AnswerReader | None = None) -> None:
        """Stop the request's timer, and call `on_end` with the failure, if any."""
        if self.timer:
            self.timer.cancel()
        self.on_end(self, failure, error, answer)

    def record(
        self, origin_s: float, failure: Failure | None, error: str | None, answer: AnswerReader | None
    ) -> RequestRecord:
        """Return the record of the request, with times relative to `origin_s`."""
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


OnEnd = Callable[[bool], None]
"""Callback for the end of a request, with whether the request succeeded."""


class Sender:
    """Sender of the requests of `dialogues`; each record is passed to `on_record`.

    All times are on the clock of `perf_counter`; records count from `origin_s`. Requests end at `deadline_s` at the
    latest.
    """

    def __init__(
        self,
        target: CompletionsTarget,
        dialogues: Dialogues,
        on_record: Callable[[RequestRecord], None],
        *,
        origin_s: float,
        deadline_s: float,
        request_timeout_s: float,
    ) -> None:
        address = address_of(target)
        self.origin_s = origin_s
        self.deadline_s = deadline_s
        self.sent = 0
        self._target = target
        self._writer = RequestWriter(target, address)
        self._pool = ConnectionPool(address)
        self._dialogues = dialogues
        self._on_record = on_record
        self._request_timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, tuple[Exchange, OnEnd]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._prepared: tuple[int, bytes, int] | None = None
        self._ended_tokens = 0

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent and have not ended."""
        return len(self._running)

    @property
    def tokens(self) -> int:
        """Number of stream events with output that have arrived so far."""
        return self._ended_tokens + sum(len(exchange.stream.event_times_s) for exchange, _ in self._running.values())

    def prepare(self, index: int) -> None:
        """Serialize the next request in advance, so that serializing doesn't delay its sending."""
        if not self._dialogues.remember:
            self._prepared = (index, *self._write(index))

    def send(self, index: int, due_s: float, on_end: OnEnd) -> None:
        """Send request `index`, and call `on_end` when it has ended.

        A turn of a conversation waits for the answer before it, and is dropped if that answer comes after the deadline.
        """

        def go() -> None:
            now_s = perf_counter()
            if now_s < self.deadline_s:
                self._send(index, now_s, on_end)
            else:
                on_end(False)

        if not self._dialogues.hold(index, go):
            self._send(index, due_s, on_end)

    def abandon(self) -> int:
        """Abandon the requests in flight and close all connections; return the number of abandoned requests."""
        given_up = len(self._running) + self._dialogues.forget()
        for task in self._connecting:
            task.cancel()
        for exchange, _ in self._running.values():
            exchange.abandon()
        self._running.clear()
        self._pool.close()
        return given_up

    def _write(self, index: int) -> tuple[bytes, int]:
        question, earlier, earlier_tokens = self._dialogues.ask(index)
        request = self._writer.write(question.text, question.output_tokens, earlier)
        return request, question.input_tokens + earlier_tokens

    def _send(self, index: int, due_s: float, on_end: OnEnd) -> None:
        prepared, self._prepared = self._prepared, None
        request, input_tokens = prepared[1:] if prepared and prepared[0] == index else self._write(index)
        stream = EventStream(self._target.api, keep_text=self._dialogues.remember)
        exchange = Exchange(index, request, stream, input_tokens=input_tokens, due_s=due_s, on_end=self._end)
        self._running[index] = exchange, on_end
        self.sent += 1
        self._arm(exchange)
        connection = self._pool.take()
        if connection:
            self._hand_over(exchange, connection)
        else:
            task = self._loop.create_task(self._connect(exchange))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _arm(self, exchange: Exchange) -> None:
        left_s = max(self.deadline_s - exchange.started_s, 0.0)
        limit_s, why = self._request_timeout_s, f"the answer did not end within {self._request_timeout_s:g} s"
        if left_s < limit_s:
            limit_s, why = left_s, f"the load's limit ended it after {left_s:.1f} s"

        def on_timeout() -> None:
            if exchange.connection:
                exchange.connection.close()
            exchange.end(Failure.TIMEOUT, why)

        exchange.timer = self._loop.call_later(limit_s, on_timeout)

    async def _connect(self, exchange: Exchange) -> None:
        try:
            connection = await self._pool.connect()
        except NotConnected as error:
            if self._is_running(exchange):
                exchange.end(error.failure, str(error))
            return
        if self._is_running(exchange):
            self._hand_over(exchange, connection)
        else:
            self._pool.give_back(connection)

    def _hand_over(self, exchange: Exchange, connection: Connection) -> None:
        exchange.connection = connection
        connection.send(exchange.request, exchange)
        exchange.request = b""

    def _is_running(self, exchange: Exchange) -> bool:
        return self._running.get(exchange.index, (None,))[0] is exchange

    def _end(self, exchange: Exchange, failure: Failure | None, error: str | None, answer: AnswerReader | None) -> None:
        _, on_end = self._running.pop(exchange.index)
        self._ended_tokens += len(exchange.stream.event_times_s)
        shown = error and self._target.without_credentials(error)
        self._on_record(exchange.record(self.origin_s, failure, shown, answer))
        self._dialogues.note_answer(exchange.index, exchange.stream.text, len(exchange.stream.event_times_s))
        on_end(failure is None)


@dataclass(frozen=True)
class Share:
    """Share of a load for one of `count` generators that send the load together; `index` is the generator's number from
    0.
    """

    index: int = 0
    count: int = 1

    def of(self, amount: int) -> int:
        """Return this share of an integer amount, such as users; the shares of all generators add up to the amount."""
        return amount // self.count + (self.index < amount % self.count)

    def part(self, index: int, count: int) -> "Share":
        """Return part number `index` of `count` equal parts into which this share of the load is divided."""
        return Share(self.index * count + index, self.count * count)


WHOLE = Share()

PAUSE_AFTER_FAILURE_S = 0.1
"""Seconds that a user of a closed loop waits after a failure: without it, a server that refuses requests immediately
would consume all of them at once.
"""

Due = tuple[int, float]
"""Index of a request, and the time at which it is due on the clock of `perf_counter`."""


class OpenDriver:
    """Driver of an open loop, which sends requests at their due times, independently of earlier answers."""

    def __init__(self, sender: Sender, schedule: Iterator[Due]) -> None:
        self._sender = sender
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._next = next(schedule, None)
        self._pending = 0
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Send all requests at their due times, and return when all have ended."""
        self._await_next()
        await self._done.wait()

    def stop(self) -> None:
        """Send no more requests and let `run` return; requests in flight are not ended."""
        self._next = None
        self._done.set()

    def _await_next(self) -> None:
        if self._next is None or max(self._next[1], perf_counter()) >= self._sender.deadline_s:
            self._next = None
            self._check_done()
            return
        index, due_s = self._next
        self._sender.prepare(index)
        wait_s = due_s - perf_counter()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._send)
        else:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._next is None:
            return
        index, due_s = self._next
        self._next = next(self._schedule, None)
        self._pending += 1
        self._sender.send(index, due_s, self._on_end)
        self._await_next()

    def _on_end(self, _: bool) -> None:
        self._pending -= 1
        self._check_done()

    def _check_done(self) -> None:
        if self._next is None and not self._pending:
            self._done.set()


class ClosedDriver:
    """Driver of a closed loop, in which each of `users` users sends the next request when the answer to the last one
    ends.
    """

    def __init__(self, sender: Sender, indices: Iterator[int], users: int, *, stop_s: float) -> None:
        self._sender = sender
        self._indices = indices
        self._users = users
        self._stop_s = min(stop_s, sender.deadline_s)
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Let all users send their requests, and return when all requests have ended."""
        await asyncio.sleep(self._sender.origin_s - perf_counter())
        for _ in range(self._users):
            self._go_on(max(self._sender.origin_s, perf_counter()))
        if self._users:
            await self._done.wait()

    def stop(self) -> None:
        """Send no more requests and let `run` return; requests in flight are not ended."""
        self._stop_s = 0.0
        self._done.set()

    def _go_on(self, due_s: float) -> None:
        index = next(self._indices, None) if due_s < self._stop_s else None
        if index is None:
            self._users -= 1
            if not self._users:
                self._done.set()
            return
        self._sender.send(index, due_s, self._on_end)

    def _on_end(self, succeeded: bool) -> None:
        if succeeded:
            self._go_on(perf_counter())
        else:
            self._loop.call_later(PAUSE_AFTER_FAILURE_S, lambda: self._go_on(perf_counter()))


Driver = OpenDriver | ClosedDriver
