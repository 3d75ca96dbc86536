import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.models.core_v1 import ExecAction, Lifecycle, LifecycleHandler, Probe, SleepAction
from llmd_rehearsal.pods import containers
from llmd_rehearsal.pods.container_worker import BackOff, ContainerOptions, ContainerWorker, Starts, pre_stop_sleep_s
from llmd_rehearsal.pods.containers import (
    Container,
    PlaceholderContainer,
    ProcessContainer,
    SimulatorContainer,
    SimulatorSpec,
    StartError,
    empty_file,
    mount,
    termination_message,
)
from llmd_rehearsal.pods.images import ContainerContext, ContainerFactory, ImageEntry, ImageTable, Python
from llmd_rehearsal.pods.probes import ProbeCount
from llmd_rehearsal.pods.status import ContainerRecord, ContainerRole, RunningContainer, Terminated, Waiting

TABLE = ImageTable(
    [
        ImageEntry(
            repositories=("test/program",), program="program", path="/app/program", model_time={"--every": 0.05}
        ),
        ImageEntry(repositories=("test/absent",), program="absent", path="/app/absent"),
        ImageEntry(repositories=("test/vllm",), idle=True, commands=("sleep",), words=("infinity",)),
        ImageEntry(repositories=("test/vllm",), python="packages", commands=("python*",), unless=("vllm.*",)),
        ImageEntry(repositories=("test/vllm",), simulator="vllm", entrypoint=("vllm", "serve")),
    ]
)


async def no_pull() -> None:
    """Take the image from the node."""


@pytest.fixture
def setting(tmp_path: Path) -> ContainerContext:
    return ContainerContext(
        Path("/run/netns/x"), "host", [], {"A": "1"}, tmp_path / "log", tmp_path / "last-words", completes=False
    )


def model(image: str, **fields: Any) -> ContainerModel:
    return cast("ContainerModel", ContainerModel.from_dict({"name": "c", "image": image, **fields}))


def factory(simulator: httpx2.AsyncClient | None = None, time_scale: float = 1.0) -> ContainerFactory:
    programs = {"program": Path("/bin/sh"), "absent": Path("/nowhere/absent")}
    return ContainerFactory(TABLE, programs, Python(Path("/state/python"), {"B": "2"}), simulator, time_scale)


def argv_of(made: Container) -> list[str]:
    assert isinstance(made, ProcessContainer)
    return made._spec.argv


@pytest.mark.parametrize(
    ("time_scale", "arguments", "expected"),
    [(1.0, [], []), (0.5, [], []), (4.0, [], ["--every=0.2s"]), (4.0, ["--every=1s"], ["--every=1s"])],
    ids=["real time", "faster", "slower", "the manifest's own"],
)
def test_intervals_in_a_rehearsed_programs_arguments_follow_the_time_scale(
    setting: ContainerContext, time_scale: float, arguments: list[str], expected: list[str]
) -> None:
    created = factory(time_scale=time_scale).make(model("test/program:1", command=["/x"], args=arguments), setting)
    assert argv_of(created) == ["/x", *expected]


def test_a_container_without_a_path_in_its_command_runs_its_images_program(setting: ContainerContext) -> None:
    path = TABLE.entries[0].path
    assert isinstance(factory().make(model("test/program:1"), setting), ProcessContainer)
    assert argv_of(factory().make(model("test/program:1", command=["program"], args=["-v"]), setting)) == [path, "-v"]


def test_a_program_that_would_create_its_own_tls_key_gets_the_rehearsals_key(setting: ContainerContext) -> None:
    table = ImageTable([ImageEntry(repositories=("a",), program="a", path="/a", certificate_flag="--cert-path")])
    python, programs = Python(Path("/state/python"), {}), {"a": Path("/bin/sh")}
    certificate = (Path("/pki/a.crt"), Path("/pki/a.key"))
    created = ContainerFactory(table, programs, python, None, certificate=certificate).make(
        model("a", command=["/a"]), setting
    )
    assert argv_of(created) == ["/a", "--cert-path", "/etc/llmd-oke-rehearsal"]
    targets = {str(mount.source): mount.target for mount in created._spec.sandbox.mounts}
    assert targets["/pki/a.key"] == "/etc/llmd-oke-rehearsal/tls.key"


def test_a_containers_python_program_gets_a_file_for_its_termination_message(setting: ContainerContext) -> None:
    assert isinstance(factory().make(model("test/vllm:1", command=["/bin/python3", "x.py"]), setting), ProcessContainer)
    assert setting.termination_log.read_bytes() == b""


def test_the_rehearsals_python_is_first_on_path_but_a_containers_variables_win() -> None:
    python = Python(Path("/state/python"), {"B": "2", "C": "3"})
    values = python.variables({"A": "1", "C": "4", "PATH": "/usr/bin"})
    assert values == {"A": "1", "B": "2", "C": "4", "PATH": "/opt/python/bin:/usr/bin"}
    assert python.argv(["/usr/local/bin/python3", "-m", "x"]) == ["/opt/python/bin/python", "-m", "x"]


def test_a_python_program_can_import_packages_only_if_its_image_has_them() -> None:
    python = Python(Path("/state/python"), {})
    bare, whole = (python.mounts(packages=packages) for packages in (False, True))
    assert next(mount.target for mount in whole if mount not in bare).endswith("/site-packages")
    assert all(mount.read_only for mount in whole)


def test_a_container_whose_image_is_not_in_the_table_of_programs_is_simulated(setting: ContainerContext) -> None:
    assert factory().is_simulated(model("test/other:1"))
    assert isinstance(factory().make(model("test/other:1"), setting), PlaceholderContainer)


def test_a_container_that_only_sleeps_has_no_process_and_does_not_count_as_simulated(setting: ContainerContext) -> None:
    waiting = model("test/vllm:1", command=["sleep", "infinity"])
    assert isinstance(factory().make(waiting, setting), PlaceholderContainer)
    assert not factory().needs_process(waiting)
    assert not factory().is_simulated(waiting)
    assert factory().is_simulated(model("test/vllm:1", command=["sleep", "5"]))


def test_a_container_whose_program_is_not_installed_fails_with_the_programs_name(setting: ContainerContext) -> None:
    with pytest.raises(StartError, match='no program "absent" for test/absent:1') as caught:
        factory().make(model("test/absent:1"), setting)
    assert caught.value.reason == "ErrImageNeverPull"


def test_the_vllm_server_command_is_simulated_but_other_commands_of_its_image_run(setting: ContainerContext) -> None:
    simulator = httpx2.AsyncClient()
    assert isinstance(factory(simulator).make(model("test/vllm:1", args=["m"]), setting), SimulatorContainer)
    assert factory(simulator).is_simulated(model("test/vllm:1", command=["rocm-smi"]))
    assert factory(None).is_simulated(model("test/vllm:1", args=["m"]))


def test_a_containers_sandbox_mounts_outer_folders_first_and_drops_capabilities() -> None:
    mounts = [
        containers.Mount(Path("/tmp/b"), "/etc/app/inner"),
        containers.Mount(Path("/tmp/a"), "/etc/app", read_only=True),
    ]
    line = containers.command(containers.Sandbox(Path("/run/netns/x"), "host", mounts, "/work"), ["/app/x", "--flag"])
    assert line[-5:] == ["--chdir", "/work", "--", "/app/x", "--flag"]
    assert line.index("/etc/app") < line.index("/etc/app/inner")
    assert line[line.index("/etc/app") - 2] == "--ro-bind"
    assert "--die-with-parent" in line
    assert line[line.index("--cap-drop") + 1] == "ALL"


class ScriptedContainer:
    """A container that ends with the given code when told to, or when stopped."""

    probed = True
    own_program = True
    identity = "scripted://1"

    def __init__(self, code: int | None, answers: asyncio.Event | None = None, time_scale: float = 1.0) -> None:
        self.time_scale = time_scale
        self.waited_s: list[float] = []
        self._answers = answers or asyncio.Event()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if code is not None:
            self._ended.set_result(code)

    def processes(self) -> Sequence[int]:
        return ()

    async def start(self) -> None: ...

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        if not self._ended.done():
            self._ended.set_result(143)

    async def finish_work(self, limit_s: float) -> None:
        self.waited_s.append(limit_s)

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:
        return (0 if self._answers.is_set() else 1), ""


def container_options(**own: Any) -> ContainerOptions:
    """Return options of a container that is probed and restarted in no time, unless they are told otherwise."""
    usual: dict[str, Any] = {
        "pull": no_pull,
        "termination_message": lambda code: f"ended with {code}",
        "warn": lambda _reason, _message: None,
        "address": "127.0.0.1",
        "probes": ProbeCount(),
        "starts": Starts(),
        "time_scale": 1.0,
        "back_off": BackOff(),
        "grace_s": 1.0,
    }
    return ContainerOptions(**{**usual, **own})


class Watched:
    """A worker whose container ends with each of the codes in turn, with every state that it showed."""

    def __init__(self, codes: list[int | None], restarts: Callable[[int], bool], wait_s: float = 0.001) -> None:
        self.states: list[object] = []
        self.waits = asyncio.Event()
        self._codes = iter(codes)
        self.record = ContainerRecord("c", "x", ContainerRole.MAIN)
        back_off = BackOff(first_s=wait_s, longest_s=wait_s)
        self.options = container_options(make=self._make, restarts=restarts, changed=self._changed, back_off=back_off)
        self.worker = ContainerWorker(model("x"), self.record, self.options)

    def _changed(self) -> None:
        self.states.append(self.record.state)
        if isinstance(self.record.state, Waiting):
            self.waits.set()

    def _make(self) -> Container:
        return ScriptedContainer(next(self._codes))


async def test_a_failed_container_with_restart_policy_never_is_not_restarted() -> None:
    watched = Watched([3], restarts=lambda _code: False)
    await watched.worker.run()
    state = watched.record.state
    assert watched.record.failed
    assert isinstance(state, Terminated)
    assert (state.exit_code, state.message) == (3, "ended with 3")


async def test_a_failing_container_restarts_with_back_off_from_the_second_time_on() -> None:
    watched = Watched([1, 1, 1, 0], restarts=lambda code: code != 0)
    await watched.worker.run()
    assert watched.record.succeeded
    assert watched.record.restarts == 3
    assert watched.record.last is not None
    waits = [state for state in watched.states if isinstance(state, Waiting)]
    assert [state.reason for state in waits] == ["CrashLoopBackOff", "CrashLoopBackOff"]


async def test_a_container_without_probes_counts_as_started_and_ready_at_once() -> None:
    watched = Watched([None], restarts=lambda _code: True)
    running = asyncio.create_task(watched.worker.run())
    await asyncio.wait_for(watched.worker.started.wait(), 5)
    assert isinstance(watched.record.state, RunningContainer)
    assert watched.record.ready
    await watched.worker.stop(1.0)
    await asyncio.wait_for(running, 5)
    assert watched.record.over
    assert not watched.record.ready


async def test_stopping_a_container_cancels_its_pending_restart() -> None:
    watched = Watched([1, 1], restarts=lambda _code: True, wait_s=3600)
    running = asyncio.create_task(watched.worker.run())
    await asyncio.wait_for(watched.waits.wait(), 5)
    await watched.worker.stop(1.0)
    await asyncio.wait_for(running, 5)
    assert watched.record.over


class Starting:
    """A worker of a program that is asked for its answer by its start-up probe."""

    def __init__(self, name: str, starts: Starts) -> None:
        self.begun, self.answers = asyncio.Event(), asyncio.Event()
        self.record = ContainerRecord(name, "x", ContainerRole.MAIN)
        probe = Probe(exec=ExecAction(["ask"]), periodSeconds=1, failureThreshold=3600)
        options = container_options(
            make=lambda: ScriptedContainer(None, self.answers),
            restarts=lambda _code: False,
            changed=lambda: self.begun.set() if isinstance(self.record.state, RunningContainer) else None,
            starts=starts,
            time_scale=0.001,
        )
        self.worker = ContainerWorker(ContainerModel(name=name, startupProbe=probe), self.record, options)
        self.running = asyncio.create_task(self.worker.run())

    async def end(self) -> None:
        await asyncio.wait_for(self.worker.stop(1.0), 5)
        await asyncio.wait_for(self.running, 5)


@pytest.fixture
async def queue() -> tuple[Starts, Starting, Starting]:
    """A program that starts, and one that waits for it as one alone may start."""
    starts = Starts(most=1)
    first, second = Starting("first", starts), Starting("second", starts)
    await asyncio.wait_for(first.begun.wait(), 5)
    return starts, first, second


async def test_a_queued_program_starts_after_its_predecessor_has_answered_its_first_probe(queue: Any) -> None:
    _, first, second = queue
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.begun.is_set()
    first.answers.set()
    await asyncio.wait_for(second.begun.wait(), 5)
    await first.end()
    await second.end()


async def test_a_queued_program_starts_once_a_predecessor_that_never_answered_has_ended(queue: Any) -> None:
    _, first, second = queue
    await first.end()
    await asyncio.wait_for(second.begun.wait(), 5)
    await second.end()


async def test_a_program_that_is_queued_can_be_stopped(queue: Any) -> None:
    starts, first, second = queue
    await second.end()
    assert second.record.over
    assert not second.begun.is_set()
    await first.end()
    third = Starting("third", starts)
    await asyncio.wait_for(third.begun.wait(), 5)
    await third.end()


Answers = Callable[[httpx2.Request], httpx2.Response]


def simulator(answers: Answers) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url="http://simulator", transport=httpx2.MockTransport(answers))


def simulated(folder: Path, answers: Answers, time_scale: float = 1.0) -> SimulatorContainer:
    spec = SimulatorSpec(folder, [], {}, "i", folder / "log", time_scale=time_scale)
    return SimulatorContainer(spec, simulator(answers))


async def test_a_simulated_server_is_started_with_its_network_namespace_and_arguments(tmp_path: Path) -> None:
    seen: list[tuple[str, str, bytes]] = []

    def answers(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.method, request.url.path.split("/")[-1], request.content))
        if request.method == "POST":
            return httpx2.Response(201, json={"id": "x", "process": 7})
        if request.url.path.endswith("/wait"):
            return httpx2.Response(200, json={"state": "exited", "exit_code": 2})
        return httpx2.Response(200, text="error: unrecognized arguments: --foo")

    log, mounts = tmp_path / "pod" / "c.log", [containers.Mount(Path("/node/models"), "/model-cache", read_only=True)]
    spec = SimulatorSpec(Path("/run/netns/x"), ["vllm", "serve", "m"], {"A": "1"}, "test/vllm:1", log, mounts)
    container = SimulatorContainer(spec, simulator(answers))
    await container.start()
    assert b'"netns":"/run/netns/x"' in seen[0][2].replace(b" ", b"")
    assert b'"mounts":{"/model-cache":"/node/models"}' in seen[0][2].replace(b" ", b"")
    assert container.processes() == (7,)
    assert await container.wait() == 2
    assert spec.log.read_text() == "error: unrecognized arguments: --foo"


async def test_a_simulated_server_whose_start_got_no_answer_is_stopped(tmp_path: Path) -> None:
    requests: list[str] = []

    def answers(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.method)
        if request.method == "POST":
            raise httpx2.ReadTimeout("late", request=request)
        return httpx2.Response(204)

    container = simulated(tmp_path, answers)
    with pytest.raises(StartError):
        await container.start()
    assert requests == ["POST", "DELETE"]


async def test_a_request_to_the_vllm_simulator_is_repeated_if_its_answer_is_lost(tmp_path: Path) -> None:
    lost = iter([True, True, False])

    def answers(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/wait") and next(lost):
            raise httpx2.RemoteProtocolError("disconnected", request=request)
        return httpx2.Response(200, json={"exit_code": 0})

    container = simulated(tmp_path, answers)
    assert await container.wait() == 0


async def test_servers_of_a_crashed_vllm_simulator_count_as_killed(tmp_path: Path) -> None:
    def answers(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("gone", request=request)

    container = simulated(tmp_path, answers)
    assert await container.wait() == 137
    with pytest.raises(StartError, match="can't be reached"):
        await container.start()


FALLBACK = ContainerModel(name="c", terminationMessagePolicy="FallbackToLogsOnError")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "c.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    return log


def test_a_termination_message_is_reported_whatever_the_exit_code(tmp_path: Path, log: Path) -> None:
    file = empty_file(tmp_path / "words" / "c")
    file.write_text("node-3 never joined")
    assert termination_message(FALLBACK, 0, file, log) == "node-3 never joined"
    assert termination_message(FALLBACK, 1, file, log) == "node-3 never joined"


def test_without_a_termination_message_the_end_of_the_log_is_used_if_requested(tmp_path: Path, log: Path) -> None:
    file = empty_file(tmp_path / "c")
    text = termination_message(FALLBACK, 1, file, log)
    assert text is not None
    assert text.splitlines()[0] == "line 20"
    assert termination_message(FALLBACK, 0, file, log) is None
    assert termination_message(ContainerModel(name="c"), 1, file, log) is None


def test_a_restarted_container_begins_without_a_termination_message(tmp_path: Path, log: Path) -> None:
    empty_file(tmp_path / "c").write_text("of the run before")
    assert termination_message(ContainerModel(name="c"), 1, empty_file(tmp_path / "c"), log) is None


def test_the_termination_message_file_is_mounted_where_the_container_expects_it(tmp_path: Path) -> None:
    assert mount(ContainerModel(name="c"), tmp_path).target == "/dev/termination-log"
    assert mount(ContainerModel(name="c", terminationMessagePath="/tmp/words"), tmp_path).target == "/tmp/words"


@pytest.mark.parametrize(("seconds", "time_scale", "wall_s"), [(15, 0.1, 6), (120, 0.1, 12), (15, 1, 15), (2, 0.1, 2)])
def test_a_pre_stop_sleep_follows_the_time_scale_to_a_limit(seconds: float, time_scale: float, wall_s: float) -> None:
    assert pre_stop_sleep_s(seconds, time_scale) == wall_s


@pytest.mark.parametrize(
    ("time_scale", "waited_s"), [(0.5, []), (1.0, []), (3.0, [30.0])], ids=["faster", "real time", "slower"]
)
async def test_servers_slowed_by_the_time_scale_get_a_longer_termination_grace_period(
    monkeypatch: pytest.MonkeyPatch, time_scale: float, waited_s: list[float]
) -> None:
    container = ScriptedContainer(None, time_scale=time_scale)
    watched = Watched([], restarts=lambda _code: False)
    hook = ContainerModel(name="c", lifecycle=Lifecycle(preStop=LifecycleHandler(sleep=SleepAction(15))))
    options = replace(watched.options, make=lambda: container, time_scale=0.0)
    worker = ContainerWorker(hook, watched.record, options)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(worker.started.wait(), 5)
    monkeypatch.setattr("llmd_rehearsal.pods.container_worker.pre_stop_sleep_s", lambda seconds, time_scale: 0.0)
    await worker.stop(60.0)
    await asyncio.wait_for(running, 5)
    assert [seconds - 15 for seconds in container.waited_s] == waited_s
    assert worker.time_scale == 1.0


async def test_a_slowed_server_stops_once_it_has_no_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])

    def at_rest(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"at_rest": next(answers)})

    monkeypatch.setattr("llmd_rehearsal.pods.containers._WORK_PAUSE_S", 0.0)
    await asyncio.wait_for(simulated(tmp_path, at_rest, time_scale=3.0).finish_work(60.0), 5)
    assert next(answers, None) is None


async def test_a_slowed_server_that_is_never_idle_stops_after_its_termination_grace_period(tmp_path: Path) -> None:
    busy = simulated(tmp_path, lambda _request: httpx2.Response(200, json={"at_rest": False}), time_scale=3.0)
    await asyncio.wait_for(busy.finish_work(0.01), 5)
