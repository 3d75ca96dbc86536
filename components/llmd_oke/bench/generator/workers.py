"""One process of the load generator: it runs its share of each stage and tells what happened.

A process is forked, not started anew, because it has to have the target's TLS context, which can't be sent.
"""

import asyncio
import contextlib
import gc
import itertools
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time

from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.generator.channels import Channel
from llmd_oke.bench.generator.dialogues import Dialogues
from llmd_oke.bench.generator.driving import ClosedDriver, Driver, Due, OpenDriver, Share
from llmd_oke.bench.generator.precise_loop import new_loop
from llmd_oke.bench.generator.sending import Sender
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.workload.shapes import ClosedLoop, LoadShape, Trace, arrivals_s
from llmd_oke.bench.workload.workloads import Question, Workload

TICK_S = 0.02
"""Between two looks at how late the event loop is."""

TICKS_PER_NEWS = 5


@dataclass(frozen=True)
class Section:
    """One stage as a process needs it: times are wall seconds; prompts of sections with different labels differ."""

    label: str
    shape: LoadShape
    requests: int | None
    duration_s: float | None
    time_scale: float = 1.0

    def moments_s(self) -> Iterator[float]:
        """When its requests are due after its start, in an open loop; all indices in a closed one are due at 0."""
        moments = itertools.repeat(0.0) if isinstance(self.shape, ClosedLoop) else arrivals_s(self.shape)
        scaled = (moment * self.time_scale for moment in itertools.islice(moments, self.requests))
        limit_s = self.duration_s
        return scaled if limit_s is None else itertools.takewhile(lambda moment: moment < limit_s, scaled)


@dataclass(frozen=True)
class Assignment:
    """What does not change between stages."""

    target: Target
    workload: Workload
    share: Share
    request_timeout_s: float


@dataclass(frozen=True)
class Ready:
    """A process waits for orders: it has begun, or has tidied up after a section."""


@dataclass(frozen=True)
class Begin:
    """Run a section; both moments are of `perf_counter`, which all processes of a machine share."""

    section: Section
    start_s: float
    deadline_s: float


@dataclass(frozen=True)
class Stop:
    """Send no more and give up what is in flight."""


@dataclass(frozen=True)
class News:
    """How far a process is, with the requests that ended since the last news."""

    sent: int
    in_flight: int
    tokens: int
    records: Sequence[RequestRecord]


@dataclass(frozen=True)
class Done:
    """A section has ended."""

    cpu_share: float
    lags_s: Sequence[float] = field(default_factory=list[float])
    abandoned: int = 0


def work(end: socket.socket, others: Sequence[socket.socket], assignment: Assignment) -> None:
    """The whole life of a forked process; it ends when the other end of its socket does."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    _allow_many_connections()
    gc.freeze()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(end, assignment))


def _allow_many_connections() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(end: socket.socket, assignment: Assignment) -> None:
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
    """One section in this process."""

    def __init__(self, channel: Channel, assignment: Assignment, order: Begin) -> None:
        self._channel = channel
        self._assignment = assignment
        self._order = order
        self._ended: list[RequestRecord] = []
        self._lags_s: list[float] = []
        workload = assignment.workload
        self._sender = Sender(
            assignment.target,
            Dialogues(_questions(workload, order.section), workload.place if workload.conversations else None),
            self._ended.append,
            origin_s=order.start_s,
            deadline_s=order.deadline_s,
            request_timeout_s=assignment.request_timeout_s,
        )
        self._driver = _driver(self._sender, assignment, order)

    async def run(self) -> None:
        """Send everything and tell about it."""
        gc.disable()
        await asyncio.sleep(max(self._order.start_s - perf_counter() - TICK_S, 0.0))
        began_s, began_cpu_s = perf_counter(), process_time()
        watch = asyncio.create_task(self._watch())
        await self._driver.run()
        watch.cancel()
        abandoned = self._sender.abandon()
        cpu_share = (process_time() - began_cpu_s) / max(perf_counter() - began_s, TICK_S)
        self._tell()
        self._channel.send(Done(cpu_share, self._lags_s, abandoned))
        gc.enable()
        gc.collect()
        self._channel.send(Ready())

    def stop(self) -> None:
        """End it now."""
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
        self._channel.send(News(sender.sent, sender.in_flight, sender.tokens, ended))


def _questions(workload: Workload, section: Section) -> Callable[[int], Question]:
    label, shape = section.label, section.shape
    if isinstance(shape, Trace):
        return lambda index: workload.question(index, label=label, recorded=shape.entries[index])
    return lambda index: workload.question(index, label=label)


def _driver(sender: Sender, assignment: Assignment, order: Begin) -> Driver:
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


def _own(assignment: Assignment, count: int) -> Callable[[int], bool]:
    """Which requests are this process's of the `count` that send any: every n-th, with all turns of a conversation in
    one process. A closed loop has no more senders than users.
    """
    index, conversations = assignment.share.index, assignment.workload.conversations
    if conversations is None:
        return lambda request: request % count == index
    return lambda request: request % conversations.at_a_time % count == index
