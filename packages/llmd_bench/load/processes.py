"""Worker processes of the load generator, each of which sends its share of every stage.

The processes are forked, because they need the target's TLS context, which can't be pickled.
"""

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from select import select
from time import perf_counter, process_time
from types import TracebackType
from typing import Literal, Self

from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.records import RequestRecord
from llmd_bench.load.sending import ClosedDriver, Dialogues, Driver, Due, OpenDriver, Sender, Share
from llmd_bench.load.workload import ClosedLoop, LoadShape, RequestWorkload, Trace, arrivals_s

_LENGTH = struct.Struct("!Q")


class Channel:
    """One end of a socket pair for pickled messages. Both ends belong to this program, so unpickling is safe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Channel":
        """Return a channel for messages over one socket of a pair."""
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: object) -> None:
        """Queue a message without waiting; messages that the other end hasn't read yet are buffered."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def sent(self) -> None:
        """Wait until nearly all queued messages have been written to the socket."""
        await self._writer.drain()

    async def receive(self) -> object | None:
        """Wait for the next message and return it; None once the other end is closed."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - from our own fork
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """Close this end of the channel."""
        self._writer.close()


_MAX_SELECT_FD = 1024


class PreciseSelector(selectors.EpollSelector):
    """Selector with timeouts that are accurate to about ten microseconds.

    epoll waits in whole milliseconds, to which asyncio rounds timeouts up. `select` has a resolution of microseconds
    and can wait for the epoll file descriptor.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready file objects, after at most `timeout` seconds."""
        if timeout is not None and timeout > 0 and self.fileno() < _MAX_SELECT_FD:
            select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with precise timers."""
    return asyncio.SelectorEventLoop(PreciseSelector())


TICK_S = 0.02
"""Interval in seconds at which a process measures the lag of its event loop."""

TICKS_PER_NEWS = 5


@dataclass(frozen=True)
class ProcessStage:
    """Stage of a load for a worker process: `duration_s` is wall time; stages with different labels have different
    prompts.
    """

    label: str
    shape: LoadShape
    requests: int | None
    duration_s: float | None
    time_scale: float = 1.0

    def moments_s(self) -> Iterator[float]:
        """Yield the times at which requests are due, in wall seconds after the stage's start; 0 for each request of a
        closed loop.
        """
        moments = itertools.repeat(0.0) if isinstance(self.shape, ClosedLoop) else arrivals_s(self.shape)
        scaled = (moment * self.time_scale for moment in itertools.islice(moments, self.requests))
        limit_s = self.duration_s
        return scaled if limit_s is None else itertools.takewhile(lambda moment: moment < limit_s, scaled)


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of a worker process that are equal in all stages."""

    target: CompletionsTarget
    workload: RequestWorkload
    share: Share
    request_timeout_s: float


@dataclass(frozen=True)
class Ready:
    """Message of a worker process: it waits for a stage, at first or after the last one."""


@dataclass(frozen=True)
class Begin:
    """Message to a worker process: run a stage. Both times are on the clock of `perf_counter`, which all processes of a
    machine share.
    """

    section: ProcessStage
    start_s: float
    deadline_s: float


@dataclass(frozen=True)
class Stop:
    """Message to a worker process: send no more requests and abandon those in flight."""


@dataclass(frozen=True)
class WorkerProgress:
    """Message of a worker process: its counts, and the records of requests that ended since the last message."""

    sent: int
    in_flight: int
    tokens: int
    records: Sequence[RequestRecord]


@dataclass(frozen=True)
class Done:
    """Message of a worker process: the stage has ended.

    Attributes:
        cpu_share: CPU time of the process as a share of wall time (1 is one core).
        lags_s: measured lags of its event loop in seconds.
        abandoned: number of requests that were abandoned in flight.
    """

    cpu_share: float
    lags_s: Sequence[float] = field(default_factory=list[float])
    abandoned: int = 0


def work(end: socket.socket, others: Sequence[socket.socket], assignment: ProcessSettings) -> None:
    """Run a worker process until the other end of its socket is closed."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(end, assignment))


async def _serve(end: socket.socket, assignment: ProcessSettings) -> None:
    channel = await Channel.over(end)
    channel.send(Ready())
    running: _Run | None = None
    async with asyncio.TaskGroup() as tasks:
        while (order := await channel.receive()) is not None:
            if isinstance(order, Begin):
                running = _Run(channel, assignment, order)
                tasks.create_task(running.run())
            elif running:
                running.stop()
        if running:
            running.stop()


class _Run:
    """Execution of one stage in this process."""

    def __init__(self, channel: Channel, assignment: ProcessSettings, order: Begin) -> None:
        self._channel = channel
        self._assignment = assignment
        self._order = order
        self._ended: list[RequestRecord] = []
        self._lags_s: list[float] = []
        workload = assignment.workload
        label, shape = order.section.label, order.section.shape
        entries = shape.entries if isinstance(shape, Trace) else None
        self._sender = Sender(
            assignment.target,
            Dialogues(
                lambda index: workload.question(index, label=label, recorded=entries[index] if entries else None),
                workload.place if workload.conversations else None,
            ),
            self._ended.append,
            origin_s=order.start_s,
            deadline_s=order.deadline_s,
            request_timeout_s=assignment.request_timeout_s,
        )
        self._driver = _driver(self._sender, assignment, order)

    async def run(self) -> None:
        """Send all requests and report to the parent process."""
        gc.disable()
        await asyncio.sleep(max(self._order.start_s - perf_counter() - TICK_S, 0.0))
        started_s, started_cpu_s = perf_counter(), process_time()
        watch = asyncio.create_task(self._watch())
        await self._driver.run()
        watch.cancel()
        abandoned = self._sender.abandon()
        cpu_share = (process_time() - started_cpu_s) / max(perf_counter() - started_s, TICK_S)
        self._tell()
        self._channel.send(Done(cpu_share, self._lags_s, abandoned))
        gc.enable()
        gc.collect()
        self._channel.send(Ready())

    def stop(self) -> None:
        """Stop sending."""
        self._driver.stop()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for count in itertools.count(1):
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lags_s.append(max(loop.time() - due_s, 0.0))
            if count % TICKS_PER_NEWS == 0:
                self._tell()

    def _tell(self) -> None:
        ended = self._ended.copy()
        self._ended.clear()
        sender = self._sender
        self._channel.send(WorkerProgress(sender.sent, sender.in_flight, sender.tokens, ended))


def _driver(sender: Sender, assignment: ProcessSettings, order: Begin) -> Driver:
    section, share = order.section, assignment.share
    if isinstance(section.shape, ClosedLoop):
        every = min(section.shape.concurrency, section.requests or section.shape.concurrency)
        users, mine = share.of(every), _own(assignment, min(share.count, every))
        stop_s = order.start_s + section.duration_s if section.duration_s is not None else order.deadline_s
        indices = (index for index, _ in enumerate(section.moments_s()) if mine(index))
        return ClosedDriver(sender, indices, users, stop_s=stop_s)
    mine = _own(assignment, share.count)
    schedule: Iterator[Due] = (
        (index, order.start_s + moment_s) for index, moment_s in enumerate(section.moments_s()) if mine(index)
    )
    return OpenDriver(sender, schedule)


def _own(assignment: ProcessSettings, count: int) -> Callable[[int], bool]:
    """Return the predicate for the indices of this process's requests, if `count` processes send: every `count`-th
    request, or all turns of every `count`-th conversation. In a closed loop `count` is at most the number of users.
    """
    index, conversations = assignment.share.index, assignment.workload.conversations
    if conversations is None:
        return lambda request: request % count == index
    return lambda request: request % conversations.at_a_time % count == index


STOP_GRACE_S = 5.0
"""Seconds that processes have for their last reports after the latest possible end of a request."""

READY_LIMIT_S = 30.0
"""Maximum seconds until forked processes are ready; on an idle machine it takes milliseconds."""


class NotReady(Exception):
    """Error for worker processes that can't send; the text names them and the reason."""


@dataclass
class SectionResult:
    """Results of all worker processes for one stage; `lost` has a text for each process that died or hung."""

    records: list[RequestRecord] = field(default_factory=list[RequestRecord])
    lags_s: list[float] = field(default_factory=list[float])
    cpu_share: list[float] = field(default_factory=list[float])
    abandoned: int = 0
    lost: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Counts:
    """Numbers of sent requests, requests in flight and received output tokens, of one process or of all."""

    sent: int = 0
    in_flight: int = 0
    tokens: int = 0


class _Member:
    """Worker process as its parent sees it.

    `state` is `starting` until the process reports that it is ready, both at first and after each stage.
    """

    def __init__(self, number: int, own_end: socket.socket, process: BaseProcess) -> None:
        self.number = number
        self.name = f"process {number + 1}"
        self.end = own_end
        self.process = process
        self.channel: Channel | None = None
        self.reader: asyncio.Task[None] | None = None
        self.counts = Counts()
        self.state: Literal["starting", "ready", "running", "ended"] = "starting"
        self.lost = ""
        """Description of the unexpected end of the process; empty if there was none."""

    def dismiss(self) -> None:
        """Kill the process and close its channel."""
        self.state = "ended"
        if self.reader:
            self.reader.cancel()
        if self.channel:
            self.channel.close()
        self.process.kill()
        self.process.join()


class WorkerGroup:
    """Worker processes that share each stage of a load; an asynchronous context manager."""

    def __init__(self, assignment: ProcessSettings, processes: int) -> None:
        self.processes = processes
        self._assignment = assignment
        self._members: list[_Member] = []
        self._findings = SectionResult()
        self._on_records: Callable[[Sequence[RequestRecord]], None] = lambda _: None
        self._changed = asyncio.Event()

    def _fork(self, number: int) -> _Member:
        assignment = replace(self._assignment, share=self._assignment.share.part(number, self.processes))
        ours, theirs = socket.socketpair()
        others = [ours, *(member.end for member in self._members if member.number != number)]
        context = multiprocessing.get_context("fork")
        process = context.Process(target=work, args=(theirs, others, assignment), daemon=True)
        process.start()
        theirs.close()
        return _Member(number, ours, process)

    async def _listen(self, member: _Member) -> None:
        member.channel = await Channel.over(member.end)
        member.reader = asyncio.create_task(self._read(member, member.channel))
        member.reader.add_done_callback(lambda _: self._changed.set())

    async def __aenter__(self) -> Self:
        try:
            self._members.extend(self._fork(number) for number in range(self.processes))
            for member in self._members:
                await self._listen(member)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for member in self._members:
            member.dismiss()

    async def get_ready(self) -> None:
        """Wait until every process is ready, so that a stage can start in all of them at the same time. Processes that
        died are replaced.

        Raises:
            NotReady: a process dies or isn't ready within `READY_LIMIT_S`.
        """
        for number, member in enumerate(self._members):
            if member.state == "ended":
                member.dismiss()
                self._members[number] = self._fork(number)
                await self._listen(self._members[number])
        in_time = await self._until(lambda: all(member.state != "starting" for member in self._members), READY_LIMIT_S)
        lost = [member.lost for member in self._members if member.state == "ended"]
        if lost:
            raise NotReady(f"{', '.join(lost)} before it could send anything")
        if not in_time:
            late = [member for member in self._members if member.state == "starting"]
            for member in late:
                member.dismiss()
            raise NotReady(
                f"{', '.join(member.name for member in late)} of the load generator did not get ready within "
                f"{READY_LIMIT_S:g} s (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors)"
            )

    @property
    def counts(self) -> Counts:
        """Numbers of requests sent and in flight, and of output tokens received, in the current stage over all worker
        processes.
        """
        counts = [member.counts for member in self._members]
        return Counts(*(sum(getattr(count, name) for count in counts) for name in ("sent", "in_flight", "tokens")))

    def begin(self, order: Begin, on_records: Callable[[Sequence[RequestRecord]], None]) -> SectionResult:
        """Start a stage in all processes that are ready; the returned result is complete once `finish` has returned."""
        self._findings, self._on_records = SectionResult(), on_records
        for member in self._members:
            member.counts = Counts()
            if member.state == "ready" and member.channel:
                member.state = "running"
                member.channel.send(order)
            else:
                self._findings.lost.append(member.lost or f"{member.name} is not there")
        return self._findings

    def stop(self) -> None:
        """Make all worker processes abandon their requests in flight."""
        for member in self._members:
            if member.state == "running" and member.channel:
                member.channel.send(Stop())

    async def finish(self, limit_s: float) -> None:
        """Wait until all processes have reported the end of the stage; kill those that haven't after `limit_s` seconds.
        Exceptions of `on_records` are raised here.
        """
        if await self._until(lambda: all(member.state != "running" for member in self._members), limit_s):
            return
        for member in self._members:
            if member.state == "running":
                self._lose(member, f"{member.name} hung and was ended")
                member.process.kill()

    async def _until(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Wait until a report of a process makes `reached` true; return False after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
                    for member in self._members:
                        if member.reader and member.reader.done() and not member.reader.cancelled():
                            member.reader.result()
        except TimeoutError:
            return False
        return True

    async def _read(self, member: _Member, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            if isinstance(message, WorkerProgress):
                member.counts = Counts(message.sent, message.in_flight, message.tokens)
                self._findings.records.extend(message.records)
                self._on_records(message.records)
            elif isinstance(message, Done):
                self._findings.lags_s.extend(message.lags_s)
                self._findings.cpu_share.append(message.cpu_share)
                self._findings.abandoned += message.abandoned
                member.state = "starting"
            elif isinstance(message, Ready):
                member.state = "ready"
            self._changed.set()
        member.process.join(STOP_GRACE_S)
        self._lose(member, f"{member.name} ended with code {member.process.exitcode}")

    def _lose(self, member: _Member, text: str) -> None:
        if member.state == "ended":
            return
        if member.state == "running":
            self._findings.lost.append(text)
            self._findings.abandoned += member.counts.in_flight
        member.state, member.lost = "ended", text
        self._changed.set()
