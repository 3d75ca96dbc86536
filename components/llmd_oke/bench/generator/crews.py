"""Several processes of the load generator, run as one."""

import asyncio
import multiprocessing
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from llmd_oke.bench.generator.channels import Channel
from llmd_oke.bench.generator.workers import Assignment, Begin, Done, News, Ready, Stop, work
from llmd_oke.bench.records.request import RequestRecord

STOP_GRACE_S = 5.0
"""For processes to tell the rest after the last moment at which anything may be under way."""

READY_LIMIT_S = 30.0
"""For forked processes to wait for orders; milliseconds on a machine that has time for them."""


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
    """One process, seen from the program that started it."""

    def __init__(self, number: int, own_end: socket.socket, process: BaseProcess) -> None:
        self.name = f"process {number + 1}"
        self.end = own_end
        self.process = process
        self.channel: Channel | None = None
        self.counts = Counts()
        self.busy = True
        """Whether it is getting ready, or running a section."""


class Crew:
    """Processes that share each section of a load; use it as an asynchronous context."""

    def __init__(self, assignment: Assignment, processes: int) -> None:
        self._assignment = assignment
        self._processes = processes
        self._members: list[_Member] = []
        self._readers: list[asyncio.Task[None]] = []
        self._findings = Findings()
        self._on_records: Callable[[Sequence[RequestRecord]], None] = lambda _: None
        self._changed = asyncio.Event()

    def _fork(self, number: int) -> _Member:
        assignment = replace(self._assignment, share=self._assignment.share.part(number, self._processes))
        ours, theirs = socket.socketpair()
        others = [ours, *(member.end for member in self._members)]
        context = multiprocessing.get_context("fork")
        process = context.Process(target=work, args=(theirs, others, assignment), daemon=True)
        process.start()
        theirs.close()
        return _Member(number, ours, process)

    async def __aenter__(self) -> Self:
        try:
            self._members.extend(self._fork(number) for number in range(self._processes))
            for member in self._members:
                member.channel = await Channel.over(member.end)
                reader = asyncio.create_task(self._read(member, member.channel))
                reader.add_done_callback(lambda _: self._changed.set())
                self._readers.append(reader)
            await self.finish(READY_LIMIT_S)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for reader in self._readers:
            reader.cancel()
        for member in self._members:
            if member.channel:
                member.channel.close()
            member.process.kill()
            member.process.join()

    @property
    def counts(self) -> Counts:
        """How far the section is."""
        every = [member.counts for member in self._members]
        return Counts(*(sum(getattr(each, name) for each in every) for name in ("sent", "in_flight", "tokens")))

    def begin(self, order: Begin, on_records: Callable[[Sequence[RequestRecord]], None]) -> Findings:
        """Start a section; what is found is complete when `finish` returns."""
        self._findings, self._on_records = Findings(), on_records
        for member in self._members:
            member.counts = Counts()
            member.busy = member.process.is_alive()
            if member.busy and member.channel:
                member.channel.send(order)
            else:
                self._findings.lost.append(f"{member.name} is not there")
        return self._findings

    def stop(self) -> None:
        """Ask all processes to give up what is in flight."""
        for member in self._members:
            if member.busy and member.channel:
                member.channel.send(Stop())

    async def finish(self, limit_s: float) -> None:
        """Wait until all processes have told everything; those that haven't after `limit_s` are ended.

        Raises what the listener of the records raised.
        """
        try:
            async with asyncio.timeout(limit_s):
                while any(member.busy for member in self._members):
                    self._changed.clear()
                    await self._changed.wait()
                    for reader in self._readers:
                        if reader.done():
                            reader.result()
        except TimeoutError:
            for member in self._members:
                if member.busy:
                    self._lose(member, f"{member.name} hung and was ended")
                    member.process.kill()

    async def _read(self, member: _Member, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            if isinstance(message, News):
                member.counts = Counts(message.sent, message.in_flight, message.tokens)
                self._findings.records.extend(message.records)
                self._on_records(message.records)
            elif isinstance(message, Done | Ready):
                self._note(message)
                member.busy = False
                self._changed.set()
        if member.busy:
            member.process.join(STOP_GRACE_S)
            self._lose(member, f"{member.name} ended with code {member.process.exitcode}")

    def _note(self, done: Done | Ready) -> None:
        if isinstance(done, Ready):
            return
        self._findings.lags_s.extend(done.lags_s)
        self._findings.cpu_share.append(done.cpu_share)
        self._findings.abandoned += done.abandoned

    def _lose(self, member: _Member, text: str) -> None:
        self._findings.lost.append(text)
        self._findings.abandoned += member.counts.in_flight
        member.busy = False
        self._changed.set()
