"""The program of a pod that sends a load: how it waits for its start, and how it ends early."""

import asyncio
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_bench.jobs.load import LEAD_S, run, sigterm_as_interrupt, wait_for_start
from llmd_bench.load.pod_load import LoadRequest

REQUEST = LoadRequest("llm-d", "job", "http://gpt", "m", ("constant:4",), None, 5.0, "64", "8", 0, "r")


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
        asyncio.current_task().uncancel()
        return "what was measured"
    return "all"


def test_a_terminated_load_pod_ends_its_load_and_publishes_what_it_measured():
    with sigterm_as_interrupt():
        assert asyncio.run(load()) == "what was measured"
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_pod_that_waits_for_the_common_start_exits_on_sigterm():
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)


class Told:
    """A cluster in which the start is told at the third look, at 1000 s by the API server's clock."""

    def __init__(self, looks: int = 3) -> None:
        self.looks = looks

    def created_s(self, *_: object) -> float | None:
        self.looks -= 1
        return None if self.looks else 1000.0


async def at_once(_: float) -> None:
    """No pause."""


async def wait(cluster: Any, *, now_s: float = 0.0, **options: Any) -> float:
    return await wait_for_start(REQUEST, cluster, limit_s=10.0, pause=at_once, now=lambda: now_s, **options)


async def test_the_start_time_of_a_load_is_derived_from_the_api_servers_clock():
    assert await wait(Told(), now_s=1000.4) == 1000.0 + LEAD_S


async def test_a_start_time_far_from_the_pods_clock_is_refused_and_the_clock_blamed():
    with pytest.raises(KitError, match="the node's clock is 60 s behind"):
        await wait(Told(), now_s=940.0)


async def test_a_load_pod_that_gets_no_start_time_gives_up_after_a_time_limit():
    times = iter([0.0, 1.0, 11.0])
    with pytest.raises(KitError, match="nobody said within 10 s"):
        await wait(Told(looks=9), clock=lambda: next(times))


class Board(Told):
    """A cluster that tells the start once this pod has said that it is ready; a generator has to be there by then."""

    def __init__(self) -> None:
        super().__init__(looks=1)
        self.ready: list[str] = []
        self.generators = 0

    def apply(self, config_map: Any) -> None:
        self.ready.append(config_map["metadata"]["name"])
        self.generators = len(multiprocessing.active_children())

    def created_s(self, *_: object) -> float | None:
        return time.time() - LEAD_S if self.ready else None


def test_a_load_pod_reports_readiness_only_once_its_load_processes_are_ready():
    board = Board()
    user = replace(REQUEST, base_url="http://127.0.0.1:9", shapes=("closed:1",), requests=1)
    environment = {"JOB_COMPLETION_INDEX": "3", "JOB_UID": "u"}
    (stage,) = run(replace(user, parallelism=4, processes=2), environment, board)
    assert (board.ready, board.generators) == (["job-3-ready"], 2)
    assert stage.planned == 0
