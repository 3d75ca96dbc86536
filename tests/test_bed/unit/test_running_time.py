"""Time that leaves out what a process missed, on a clock that passes only when it is told to."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_rehearsal.running_time import MIN_S, TICK_S, RunningLoop, RunningTime, Starvation, within
from virtual_clock import VirtualClock

COUNTED_S = TICK_S + MIN_S
"""What of a standstill counts at most."""


@pytest.fixture(name="clock")
def clock_fixture() -> VirtualClock:
    return VirtualClock()


def pass_time(clock: VirtualClock, running: RunningTime, until_s: float) -> None:
    """Let a process run."""
    while clock.now() + TICK_S < until_s:
        clock.run(until_s=clock.now() + TICK_S)
        running.tick()
    clock.run(until_s=until_s)


def test_running_time_excludes_time_in_which_a_process_gets_no_processor(clock: VirtualClock) -> None:
    running = RunningTime(clock.now)
    pass_time(clock, running, 10)
    clock.run(until_s=70)
    assert running.now() == pytest.approx(10, abs=COUNTED_S)
    assert running.stood_still_s == pytest.approx(60, abs=COUNTED_S)
    running.tick()
    pass_time(clock, running, 80)
    assert running.now() == pytest.approx(20, abs=COUNTED_S)


def test_a_thread_that_wakes_slightly_late_counts_as_running(clock: VirtualClock) -> None:
    running = RunningTime(clock.now)
    for _ in range(100):
        clock.run(until_s=clock.now() + COUNTED_S)
        running.tick()
    assert running.now() == clock.now()
    assert running.stood_still_s == 0


@given(st.lists(st.tuples(st.floats(0, 1000), st.booleans()), max_size=30))
def test_running_time_never_goes_back_and_never_exceeds_the_clock(steps: list[tuple[float, bool]]) -> None:
    clock = VirtualClock()
    running, before_s = RunningTime(clock.now), 0.0
    for seconds, ticks in steps:
        clock.run(until_s=clock.now() + seconds)
        if ticks:
            running.tick()
        now_s = running.now()
        assert before_s <= now_s + 1e-9
        assert now_s - before_s <= seconds + 1e-9
        before_s = now_s


def waited(proc: Path, pid: int, thread: int, seconds: float) -> None:
    """A thread that has waited for a processor for so long since it began."""
    folder = proc / str(pid) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"77 {int(seconds * 1e9)} 5\n")


def test_the_starved_time_of_a_process_is_that_of_its_longest_waiting_thread(tmp_path: Path) -> None:
    waited(tmp_path, 7, 7, 100)
    waited(tmp_path, 7, 8, 1)
    starvation = Starvation((7, 9), tmp_path)
    assert starvation.seconds == 0
    waited(tmp_path, 7, 7, 100.5)
    waited(tmp_path, 7, 8, 4)
    waited(tmp_path, 9, 9, 60)  # began later
    assert starvation.seconds == pytest.approx(3)


def test_the_kernel_reports_how_long_a_process_waited_for_a_processor() -> None:
    assert 0 <= Starvation((os.getpid(),)).seconds < 60


async def test_work_that_exceeds_its_running_time_limit_is_cancelled_with_a_timeout() -> None:
    forever = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await within(forever, 0.01)
    assert forever.cancelled()
    assert await within(asyncio.sleep(0, "done"), 5) == "done"


def test_timeouts_of_an_event_loop_use_running_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute without a tick is less than a second to each wait of the loop."""
    clock = VirtualClock()
    running = RunningTime(clock.now)
    monkeypatch.setattr("llmd_rehearsal.running_time.of_process", lambda: running)

    async def stands_still() -> str:
        clock.run(until_s=60)
        return "done"

    with asyncio.Runner(loop_factory=RunningLoop) as runner:
        assert runner.run(asyncio.wait_for(stands_still(), 5)) == "done"
        assert runner.get_loop().time() == pytest.approx(0, abs=COUNTED_S)


class _Starved:
    """Processes that got no processor until now."""

    def __init__(self, _: object) -> None:
        self._started_s = asyncio.get_running_loop().time()

    @property
    def seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._started_s


async def test_starved_time_of_a_process_does_not_count_against_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer after twenty times the limit is in time."""
    monkeypatch.setattr("llmd_rehearsal.running_time.Starvation", _Starved)
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    loop.call_later(0.1, answer.set_result, "done")
    assert await within(answer, 0.005, lambda: (7,)) == "done"


async def test_work_that_ends_at_once_examines_no_processes() -> None:
    assert await within(asyncio.sleep(0, "done"), 5, lambda: pytest.fail("examined")) == "done"
