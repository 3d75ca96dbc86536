"""The program of a pod that sends a load: how it waits for its start, and how it ends early."""

import asyncio
import os
import signal

import pytest
from llmd_oke.bench.in_cluster.load_job import ending_early


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def load() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        return "what was measured"
    return "all"


def test_the_end_of_a_pod_ends_its_load_and_keeps_what_was_measured():
    with ending_early():
        assert asyncio.run(load()) == "what was measured"


def test_publishing_is_not_ended():
    with ending_early():
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_pod_that_waits_for_its_start_just_ends():
    with pytest.raises(KeyboardInterrupt), ending_early():
        os.kill(os.getpid(), signal.SIGTERM)
