"""Model time."""

import asyncio

import pytest
from llmd_oke.rehearsal.vllm.clocks import WallClock
from virtual_clock import VirtualClock


def test_virtual_time_passes_in_order_of_the_planned_calls():
    """And not at all without them."""
    clock, seen = VirtualClock(), []
    clock.call_at(2.0, lambda: seen.append(clock.now()))
    clock.call_at(1.0, lambda: clock.call_at(1.5, lambda: seen.append(clock.now())))
    clock.call_at(1.2, lambda: seen.append("cancelled")).cancel()
    clock.run()
    assert seen == [1.5, 2.0]


class _Loop:
    """An event loop's clock, set by hand."""

    def __init__(self):
        self.now = 100.0
        self.planned = []

    def time(self):
        return self.now

    def call_at(self, when, callback):
        self.planned.append(when)


def test_a_model_second_takes_time_scale_wall_seconds():
    """0.5 is twice as fast."""
    loop = _Loop()
    clock = WallClock(loop, 0.5)
    clock.call_at(10.0, lambda: None)
    loop.now += 2.0
    assert loop.planned == [105.0]
    assert clock.now() == pytest.approx(4.0)


def test_steps_go_on_from_their_deadline_so_that_lateness_does_not_add_up():
    """A timer that fires late shortens the wait for the next one."""
    loop = _Loop()
    clock = WallClock(loop, 1.0)
    loop.now += 1.02
    assert clock.resume_at(1.0) == 1.0
    assert clock.lag.recent_s == pytest.approx(0.02)
    assert clock.lag.late_steps == 1


def test_a_hopeless_lag_is_given_up_and_counted():
    """More than a second behind: model time jumps to the present."""
    loop = _Loop()
    clock = WallClock(loop, 2.0)
    loop.now += 10.0
    assert clock.resume_at(1.0) == pytest.approx(5.0)
    assert clock.lag.slipped_s == pytest.approx(8.0)


async def test_a_wall_clock_keeps_its_average_on_a_real_loop():
    """100 steps of 1 ms end after 100 ms, although timers are coarser than that."""
    clock, done = WallClock(asyncio.get_running_loop(), 1.0), asyncio.Event()
    start_s, steps = clock.now(), 100

    def step(number, deadline_s):
        if number == steps:
            done.set()
            return
        following_s = clock.resume_at(deadline_s) + 0.001
        clock.call_at(following_s, lambda: step(number + 1, following_s))

    step(0, start_s)
    await asyncio.wait_for(done.wait(), 10)
    assert clock.now() - start_s >= 0.1
    assert clock.now() - start_s < 1 + clock.lag.recent_s
