"""Life of one container of a pod: start, probes, restarts with back-off, and end."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.models.core_v1 import Probe
from llmd_base.errors import KitError

from llmd_rehearsal.pods.containers import Container, StartError
from llmd_rehearsal.pods.environment import MissingConfigError
from llmd_rehearsal.pods.probes import ProbeCount, Tally, run_probe, schedule
from llmd_rehearsal.pods.processes import start_task
from llmd_rehearsal.pods.status import ContainerRecord, RunningContainer, Terminated, Waiting

NOTICED_S = 6.0
"""Seconds within which all clients have noticed that a pod ends; stalls of clients of 4.1 s were observed on two busy
cores.
"""

_log = logging.getLogger(__name__)
_RETRY_START_S = 1.0
_RESET_AFTER_S = 600.0  # kubelet resets the back-off after a container ran for ten minutes

_STARTS_PER_PROCESSOR = 3
_LONGEST_START_S = 20.0


@dataclass(frozen=True)
class BackOff:
    """Delays in seconds before a container is restarted: none before the first restart, then doubling from `first_s` to
    `longest_s`.
    """

    first_s: float = 10.0
    longest_s: float = 300.0

    def delay_s(self, restarts: int) -> float:
        """Return the delay in seconds before a container's next restart, given the number of its previous restarts."""
        if restarts == 0:
            return 0.0
        return min(self.first_s * 2.0 ** min(restarts - 1, 30), self.longest_s)


class Starts:
    """Limit of programs that start at the same time on this machine, so that each answers before its liveness probe
    fails.

    All simulated nodes share the machine: 77 endpoint pickers that started together on two processors took longer than
    their limit of 35 s and were restarted again and again.
    """

    def __init__(self, most: int | None = None) -> None:
        self._free = asyncio.Semaphore(most or _STARTS_PER_PROCESSOR * len(os.sched_getaffinity(0)))

    async def turn(self, stopping: asyncio.Event) -> "Turn | None":
        """Wait until one more program may start and return its turn (`Turn`); None if its container is stopped
        before.
        """
        taken, stopped = asyncio.create_task(self._free.acquire()), asyncio.create_task(stopping.wait())
        await asyncio.wait({taken, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if taken.done():
            return Turn(self._free)
        taken.cancel()
        return None


class Turn:
    """Permission for one program to start; ends at the first successful probe, at the program's end, or after 20 s."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._limit = asyncio.get_running_loop().call_later(_LONGEST_START_S, self.end)
        self._over = False

    def end(self) -> None:
        """Let the next program start; do nothing if the turn has ended before."""
        if not self._over:
            self._over = True
            self._limit.cancel()
            self._free.release()


@dataclass(frozen=True)
class ContainerOptions:
    """Options of a container's runs, and functions that are called when its state changes."""

    pull: Callable[[], Awaitable[None]]
    """Function that gets the container's image; raises StartError if the node may not have it."""
    make: Callable[[], Container]
    restarts: Callable[[int], bool]
    """Function that tells whether the container is restarted after it ended with this exit code."""
    termination_message: Callable[[int], str | None]
    """Function that returns the container's termination message after it ended with this exit code."""
    changed: Callable[[], None]
    """Function that is called after each change of the container's record."""
    warn: Callable[[str, str], None]
    """Function that is called, with reason and message, for each warning event that a kubelet would create about the
    container.
    """
    address: str
    probes: ProbeCount
    starts: Starts
    time_scale: float
    back_off: BackOff
    grace_s: float


def pre_stop_sleep_s(seconds: float, time_scale: float) -> float:
    """Return the seconds of a `preStop` sleep multiplied by `time_scale`, but at least `NOTICED_S` (or the unscaled
    sleep, if that is shorter), so that clients notice the end on a slow machine.

    An endpoint picker that stalls for longer sends requests to a server that has ended.
    """
    return max(seconds * time_scale, min(seconds, NOTICED_S))


class ContainerWorker:
    """Worker that runs one container of a pod and keeps its record; `started` is set once the startup probe has
    succeeded.
    """

    def __init__(self, model: ContainerModel, record: ContainerRecord, options: ContainerOptions) -> None:
        self.record = record
        self.started = asyncio.Event()
        self._model = model
        self._options = options
        self._stopping = asyncio.Event()
        self._container: Container | None = None
        self._ending: asyncio.Task[None] | None = None
        self._turn: Turn | None = None

    @property
    def time_scale(self) -> float:
        """Wall seconds in which the container's program does one second of work on real hardware: the rehearsal's time
        scale for a simulated server; 1 if the container isn't running.
        """
        return self._container.time_scale if self._container else 1.0

    async def write_log(self) -> bool:
        """Write what the container's program has said so far to the container's log file; return False if no program
        runs.
        """
        if (container := self._container) is None:
            return False
        await container.write_log()
        return True

    async def run(self) -> None:
        """Run the container, with restarts, until it has ended and won't be restarted."""
        recent = 0
        while not self._stopping.is_set():
            started = datetime.now(UTC)
            code = await self._run_once()
            if self._stopping.is_set() or (code is not None and not self._options.restarts(code)):
                break
            if code is None:
                await self._pause(_RETRY_START_S)
                continue
            if (datetime.now(UTC) - started).total_seconds() > _RESET_AFTER_S:
                recent = 0
            await self._back_off(self._options.back_off.delay_s(recent))
            recent += 1
        self.record.over = True
        self.record.ready = False
        self._options.changed()

    async def stop(self, grace_s: float) -> None:
        """Stop the container without a restart: preStop hook, SIGTERM, and SIGKILL after the grace period."""
        self._stopping.set()
        if self._container is not None:
            await self._end(self._container, grace_s)

    async def _run_once(self) -> int | None:
        """Run the container from start to end and return the exit code; None if it couldn't be started."""
        container = await self._start()
        if container is None:
            return None
        self._container = container
        since = datetime.now(UTC)
        self.record.state = RunningContainer(since)
        self.record.container_id = container.identity
        probing = start_task(self._probe(container), f"probes of container {self.record.name}")
        self._options.changed()
        try:
            if self._stopping.is_set():
                await self._end(container, self._options.grace_s)
            code = await container.wait()
        finally:
            probing.cancel()
            self._end_turn()
            self._container = None
        reason = "Completed" if code == 0 else "Error"
        message = self._options.termination_message(code)
        self.record.state = Terminated(code, reason, since, datetime.now(UTC), container.identity, message)
        self.record.started = False
        self.record.ready = False
        self._options.changed()
        return code

    async def _start(self) -> Container | None:
        try:
            await self._options.pull()
            container = self._options.make()
            model = self._model
            if container.own_program and (model.startupProbe or model.readinessProbe or model.livenessProbe):
                self._turn = await self._options.starts.turn(self._stopping)
            if not self._stopping.is_set():
                await container.start()
                return container
        except StartError as error:
            self._waiting(error.reason, str(error))
        except MissingConfigError as error:
            self._waiting("CreateContainerConfigError", str(error))
        except (OSError, KitError) as error:
            self._waiting("CreateContainerError", str(error))
        self._end_turn()
        return None

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    def _waiting(self, reason: str, message: str) -> None:
        state = Waiting(reason, message)
        if self.record.state != state:
            self._options.warn("Failed", f"Error: {reason}: {message}")
        self.record.state = state
        self._options.changed()

    async def _back_off(self, delay_s: float) -> None:
        if isinstance(self.record.state, Terminated):
            self.record.last = self.record.state
        if delay_s:
            message = f"back-off {delay_s:g}s restarting failed container={self.record.name}"
            self.record.state = Waiting("CrashLoopBackOff", message)
            self._options.warn("BackOff", message)
            self._options.changed()
            await self._pause(delay_s)
        self.record.restarts += 1

    async def _pause(self, delay_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _end(self, container: Container, grace_s: float) -> None:
        started_s = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._before_stop(container, grace_s), grace_s)
        left_s = grace_s - (asyncio.get_running_loop().time() - started_s)
        await container.stop(max(left_s, 0.0))

    async def _before_stop(self, container: Container, grace_s: float) -> None:
        hook = self._model.lifecycle.preStop if self._model.lifecycle else None
        if hook and hook.sleep:
            slept_s = pre_stop_sleep_s(hook.sleep.seconds, self._options.time_scale)
            await asyncio.sleep(slept_s)
            if container.time_scale > 1:  # requests take longer too; without requests, the container stops sooner
                await container.finish_work(hook.sleep.seconds * container.time_scale - slept_s)
        elif hook and container.probed:
            question = Probe(exec=hook.exec, httpGet=hook.httpGet)
            await run_probe(question, self._model, container, self._options.address, grace_s)

    async def _probe(self, container: Container) -> None:
        """Update the container's record by its probes until cancelled."""
        model = self._model if container.probed else ContainerModel(name=self._model.name)
        startup = model.startupProbe
        if startup and not await self._verdict(container, startup, Tally(startup)):
            self._kill(container, startup, "startup")
            return
        self.record.started = True
        self.started.set()
        self.record.ready = model.readinessProbe is None
        self._options.changed()
        watches = [self._watch_readiness(container, model.readinessProbe)] if model.readinessProbe else []
        watches += [self._watch_liveness(container, model.livenessProbe)] if model.livenessProbe else []
        with self._options.probes.counted(len(watches)):
            await asyncio.gather(*watches)

    async def _watch_readiness(self, container: Container, probe: Probe) -> None:
        tally = Tally(probe, verdict=False)
        while True:
            self.record.ready = await self._verdict(container, probe, tally)
            if not self.record.ready:
                self._options.warn("Unhealthy", f"Readiness probe failed: container {self.record.name}")
            self._options.changed()

    async def _watch_liveness(self, container: Container, probe: Probe) -> None:
        tally = Tally(probe, verdict=True)
        while await self._verdict(container, probe, tally):
            pass
        self._kill(container, probe, "liveness")

    async def _verdict(self, container: Container, probe: Probe, tally: Tally) -> bool:
        """Run a probe on its schedule until the verdict changes, and return the new verdict."""
        times = schedule(probe, self._options.time_scale)
        probes = self._options.probes
        pause_s = times.initial_delay_s if tally.fresh else times.period_of(tally, probes.running)
        while True:
            await asyncio.sleep(pause_s)
            timeout_s = times.timeout_of(probes.running)
            passed = await run_probe(probe, self._model, container, self._options.address, timeout_s)
            if passed:
                self._end_turn()
            verdict = tally.record(passed=passed)
            if verdict is not None:
                return verdict
            pause_s = times.period_of(tally, probes.running)

    def _kill(self, container: Container, probe: Probe, kind: str) -> None:
        message = f"Container {self.record.name} failed {kind} probe, will be restarted"
        _log.info("%s", message)
        self._options.warn("Killing", message)
        probe_grace_s = probe.terminationGracePeriodSeconds
        grace_s = self._options.grace_s if probe_grace_s is None else probe_grace_s
        self._ending = start_task(self._end(container, grace_s), f"end of container {self.record.name}")
