"""Several processes of the load generator, run as one."""

import asyncio
import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Literal, Self

from llmd_oke.bench.generator.channels import Channel
from llmd_oke.bench.generator.workers import Assignment, Begin, Done, News, Ready, Stop, work
from llmd_oke.bench.records.request import RequestRecord

STOP_GRACE_S = 5.0
"""For processes to tell the rest after the last moment at which anything may be under way."""

READY_LIMIT_S = 30.0
"""For forked processes to wait for orders; milliseconds on a machine that has time for them."""


class NotReady(Exception):
    """A process of the generator can't send; the text says which and why."""


@dataclass
class Findings:
    """What all processes told about one section; `lost` says which of them did not end by themselves."""

    records: list[RequestRecord] = field(default_factory=list[RequestRecord])
    lags_s: list[float] = field(default_factory=list[float])
    cpu_share: list[float] = field(default_factory=list[float])
    abandoned: int = 0
    lost: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Counts:
    """How far all processes are together."""

    sent: int = 0
    in_flight: int = 0
    tokens: int = 0


class _Member:
    """One process, seen from the program that started it.

    It is `starting` until it waits for orders, runs a section, and has to say that it is ready again.
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
        """Why it has ended, where nobody ended it."""

    def dismiss(self) -> None:
        """End it, whatever it does."""
        self.state = "ended"
        if self.reader:
            self.reader.cancel()
        if self.channel:
            self.channel.close()
        self.process.kill()
        self.process.join()


class Crew:
    """Processes that share each section of a load; use it as an asynchronous context."""

    def __init__(self, assignment: Assignment, processes: int) -> None:
        self.processes = processes
        self._assignment = assignment
        self._members: list[_Member] = []
        self._findings = Findings()
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
        """Have every process wait for orders, so that the start of a section can be the same for all of them.

        One that ended in an earlier section is started anew.

        Raises:
            NotReady: one of them ends, or does not wait for orders within `READY_LIMIT_S`.
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
        """How far the section is."""
        every = [member.counts for member in self._members]
        return Counts(*(sum(getattr(each, name) for each in every) for name in ("sent", "in_flight", "tokens")))

    def begin(self, order: Begin, on_records: Callable[[Sequence[RequestRecord]], None]) -> Findings:
        """Start a section in all processes, which are ready; what is found is complete when `finish` returns."""
        self._findings, self._on_records = Findings(), on_records
        for member in self._members:
            member.counts = Counts()
            if member.state == "ready" and member.channel:
                member.state = "running"
                member.channel.send(order)
            else:
                self._findings.lost.append(member.lost or f"{member.name} is not there")
        return self._findings

    def stop(self) -> None:
        """Ask all processes to give up what is in flight."""
        for member in self._members:
            if member.state == "running" and member.channel:
                member.channel.send(Stop())

    async def finish(self, limit_s: float) -> None:
        """Wait until all processes have told everything; those that haven't after `limit_s` are ended.

        Raises what the listener of the records raised.
        """
        if await self._until(lambda: all(member.state != "running" for member in self._members), limit_s):
            return
        for member in self._members:
            if member.state == "running":
                self._lose(member, f"{member.name} hung and was ended")
                member.process.kill()

    async def _until(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Wait for something that processes tell; False if it doesn't come in time."""
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
            if isinstance(message, News):
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
