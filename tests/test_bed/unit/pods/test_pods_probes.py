"""Probe times, verdicts, back-off and the hand-written gRPC health messages."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Iterable

import pytest
from free_ports import free_port
from lightkube.models.core_v1 import Container, ContainerPort, HTTPGetAction, Probe
from llmd_rehearsal.pods.container_worker import BackOff
from llmd_rehearsal.pods.containers import PlaceholderContainer
from llmd_rehearsal.pods.probes import ProbeCount, Tally, port_number, request, run_probe, schedule


def verdicts(tally: Tally, answers: str) -> list[bool | None]:
    return [tally.record(passed=answer == "y") for answer in answers]


def test_probe_timings_are_scaled_but_not_below_a_limit_for_small_machines() -> None:
    probe = Probe(initialDelaySeconds=5, periodSeconds=10, timeoutSeconds=3)
    scaled = schedule(probe, 0.1)
    assert (scaled.initial_delay_s, scaled.period_s) == (0.5, 1.0)
    assert schedule(probe, 0.001).period_s == 0.2
    assert schedule(probe, 0.001).settled_period_s == 1.0


def test_a_probe_is_repeated_at_its_unscaled_period_after_a_first_failure() -> None:
    times = schedule(Probe(periodSeconds=10, timeoutSeconds=3), 0.1)
    tally = Tally(Probe(failureThreshold=2), verdict=True)
    assert (times.timeout_s, times.period_of(tally)) == (3.0, 1.0)
    tally.record(passed=False)
    assert times.period_of(tally) == 10.0
    tally.record(passed=False)
    assert times.period_of(tally) == 1.0


def test_probe_timeouts_are_longer_if_many_probes_share_a_machine():
    assert [schedule(Probe(timeoutSeconds=1), 1.0).timeout_of(probes) for probes in (0, 100, 1000)] == [5.0, 5.0, 10.0]
    assert schedule(Probe(timeoutSeconds=20), 1.0).timeout_of(1) == 20.0


def test_successful_probes_are_repeated_less_often_if_there_are_many_on_the_machine() -> None:
    times, tally = schedule(Probe(periodSeconds=10), 0.1), Tally(Probe(), verdict=True)
    assert [times.period_of(tally, probes) for probes in (0, 40, 200, 4000)] == [1.0, 1.0, 5.0, 10.0]
    verdicts(tally, "nnn")
    assert times.period_of(tally, 4000) == 1.0
    often = schedule(Probe(periodSeconds=2), 0.1)
    assert [often.period_of(Tally(Probe(), verdict=True), probes) for probes in (80, 4000)] == [2.0, 10.0]


def test_probes_run_only_while_their_container_runs() -> None:
    count = ProbeCount()
    with count.counted(2):
        assert count.running == 2
    assert count.running == 0


def test_unset_probe_timings_have_kubernetes_defaults() -> None:
    times = schedule(Probe(), 1.0)
    assert (times.initial_delay_s, times.period_s, times.timeout_s) == (0.0, 10.0, 1.0)


def test_a_probe_result_is_reported_when_it_changes_at_a_threshold_of_answers() -> None:
    tally = Tally(Probe(failureThreshold=3, successThreshold=2), verdict=False)
    assert verdicts(tally, "ynyy") == [None, None, None, True]
    assert verdicts(tally, "nnynnn") == [None, None, None, None, None, False]
    assert verdicts(Tally(Probe(failureThreshold=1), verdict=True), "yyny") == [None, None, False, True]


def test_a_probe_is_unsettled_as_soon_as_an_answer_contradicts_its_current_result() -> None:
    tally = Tally(Probe(), verdict=True)
    assert tally.settled
    tally.record(passed=False)
    assert not tally.settled


def test_a_containers_first_restart_is_immediate_and_later_delays_double_up_to_300_s() -> None:
    back_off = BackOff(first_s=10, longest_s=300)
    assert [back_off.delay_s(restarts) for restarts in (0, 1, 2, 3, 20)] == [0, 10, 20, 40, 300]


def test_probe_ports_can_be_names() -> None:
    model = Container(name="c", ports=[ContainerPort(containerPort=8000, name="http")])
    assert (port_number("http", model), port_number(9, model), port_number("9", model)) == (8000, 9, 9)
    with pytest.raises(ValueError, match="nope"):
        port_number("nope", model)


def test_a_grpc_health_request_contains_the_service_name() -> None:
    assert request("") == b""
    assert request("ab") == b"\x0a\x02ab"
    with pytest.raises(ValueError, match="200 bytes"):
        request("x" * 200)


@contextlib.asynccontextmanager
async def answering(line: bytes, after_s: float = 0) -> AsyncGenerator[Probe]:
    """Answer a probe's requests with this status line."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(after_s)
        writer.write(line + b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Probe(httpGet=HTTPGetAction(port=server.sockets[0].getsockname()[1], path="/health"))


@pytest.mark.parametrize(
    ("line", "passes"), [(b"HTTP/1.1 204 No Content", True), (b"HTTP/1.1 503 No", False), (b"x", False)]
)
async def test_an_http_probe_passes_on_status_200_to_399(line: bytes, passes: bool) -> None:
    async with answering(line) as probe:
        container = PlaceholderContainer(completes=False)
        assert await run_probe(probe, Container(name="c"), container, "127.0.0.1", 5.0) is passes


async def test_an_http_probe_fails_if_its_connection_is_refused() -> None:
    probe = Probe(httpGet=HTTPGetAction(port=free_port()))
    assert not await run_probe(probe, Container(name="c"), PlaceholderContainer(completes=False), "127.0.0.1", 5.0)


async def test_a_probe_passes_if_its_late_answer_is_due_to_a_server_without_cpu_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server's own processes are looked at, beside the one that asks."""
    server_pid = 4711

    class Starved:
        def __init__(self, pids: Iterable[int]) -> None:
            self.pids = set(pids)
            self._started_s = asyncio.get_running_loop().time()

        @property
        def seconds(self) -> float:
            """All the time since, where the server is among the processes."""
            if self.pids != {os.getpid(), server_pid}:
                return 0.0
            return asyncio.get_running_loop().time() - self._started_s

    monkeypatch.setattr("llmd_rehearsal.running_time.Starvation", Starved)
    container = PlaceholderContainer(completes=False)
    async with answering(b"HTTP/1.1 200 OK", after_s=0.5) as probe:
        assert not await run_probe(probe, Container(name="c"), container, "127.0.0.1", 0.05)
        monkeypatch.setattr(container, "processes", lambda: (server_pid,))
        assert await run_probe(probe, Container(name="c"), container, "127.0.0.1", 0.05)
