"""Many requests at a time to one target, each of which ends as a record and never as an exception."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from llmd_oke.bench.deployment.streams import EventStream
from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.generator.addresses import address_of
from llmd_oke.bench.generator.answers import AnswerReader
from llmd_oke.bench.generator.connections import Connection, NotConnected, Pool
from llmd_oke.bench.generator.dialogues import Dialogues
from llmd_oke.bench.generator.exchanges import Exchange
from llmd_oke.bench.generator.requests import RequestWriter
from llmd_oke.bench.records.request import Failure, RequestRecord

Ended = Callable[[bool], None]
"""Is told whether the request succeeded."""


class Sender:
    """Sends what `dialogues` ask, and gives each record to `on_record`.

    All times are those of `perf_counter`; records count from `origin_s`. No request outlasts `deadline_s`.
    """

    def __init__(
        self,
        target: Target,
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
        self._pool = Pool(address)
        self._dialogues = dialogues
        self._on_record = on_record
        self._request_timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, tuple[Exchange, Ended]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._prepared: tuple[int, bytes, int] | None = None
        self._ended_tokens = 0

    @property
    def in_flight(self) -> int:
        """Requests that have been sent and not ended."""
        return len(self._running)

    @property
    def tokens(self) -> int:
        """Stream events with output so far."""
        return self._ended_tokens + sum(len(exchange.stream.event_times_s) for exchange, _ in self._running.values())

    def prepare(self, index: int) -> None:
        """Write the request now that will be sent soon, so that this doesn't delay it."""
        if not self._dialogues.remember:
            self._prepared = (index, *self._write(index))

    def send(self, index: int, due_s: float, on_end: Ended) -> None:
        """Send request `index` and tell `on_end` of its end.

        A turn of a conversation waits for the answer before it, and is dropped if that comes after the deadline.
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
        """Give up what is in flight and close all connections; the number of requests that were given up."""
        given_up = len(self._running) + self._dialogues.forget()
        for task in self._connecting:
            task.cancel()
        for exchange, _ in self._running.values():
            exchange.abandon()
        self._running.clear()
        self._pool.close()
        return given_up

    def _write(self, index: int) -> tuple[bytes, int]:
        asked, earlier, earlier_tokens = self._dialogues.ask(index)
        return self._writer.write(asked.text, asked.output_tokens, earlier), asked.input_tokens + earlier_tokens

    def _send(self, index: int, due_s: float, on_end: Ended) -> None:
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
