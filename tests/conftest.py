"""Settings of all tests, and programs from the user's cache or PATH in one folder that tests look in."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from llmd_oke.cli import console
from llmd_oke.values import open_project
from llmd_rehearsal.cluster_spec import SELDOM_COLLECTED
from llmd_rehearsal.downloads import MIRROR, NO_DOWNLOADS
from llmd_rehearsal.inventory import CHARTS, CONTROL_PLANE, ENGINE, IN_PODS, WATCHING
from llmd_rehearsal.programs import locate
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_FOLDER = "LLMD_OKE_PROGRAMS"
_NEED_ALL = "LLMD_OKE_TESTS_NEED_VLLM"
"""Variable with which a skipped test fails, whatever it lacks; `scripts/real-vllm` sets it."""

# A machine that others use may stall for any time; how long an example takes says nothing.
settings.register_profile("kit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kit")

SHARED = ("tests/test_bed/kubernetes_plugin", "tests/test_bed/pods")
"""Folders whose tests share a control plane; side by side, each of them runs in one process."""
_SHARED_PROGRAMS = pytest.StashKey[ExitStack]()

END_TO_END = "tests/rehearsal/end_to_end"
LONGEST = (
    f"{END_TO_END}/test_rehearse.py",
    f"{END_TO_END}/test_rollouts.py",
    f"{END_TO_END}/test_created_cluster.py",
    f"{END_TO_END}/test_one_address.py",
    "tests/test_bed/oci_plugin/test_oci_engine.py",
    *SHARED,
    f"{END_TO_END}/test_watched_stack.py",
    f"{END_TO_END}/test_tuning_loop.py",
    f"{END_TO_END}/test_real_plugin.py",
)
"""What takes longest. Side by side it begins first, so that none of it is left for the end."""


def _unit(nodeid: str) -> str:
    """Return what runs in one process: a test's file, or the folder that shares a control plane."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in SHARED if file.startswith(f"{folder}/")), file)


class _Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Hand out units with `--dist loadfile`."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    places = {unit: place for place, unit in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_unit(item.nodeid), len(places)))


def pytest_collection_finish() -> None:
    """Objects of loaded modules live as long as the tests: looking for garbage took a quarter of what tests cost."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


def pytest_configure(config: pytest.Config) -> None:
    """Link the programs that are there; tests that need others skip. `scripts/test` builds everything first."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests press Ctrl-C
    gc.disable()  # until tests are collected
    for name, value in SELDOM_COLLECTED.items():  # of engines and control planes that tests start
        os.environ.setdefault(name, value)
    os.environ[MIRROR] = NO_DOWNLOADS
    if _FOLDER in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="llmd-oke-programs-"))
    config.add_cleanup(lambda: shutil.rmtree(folder))
    for name in (*CONTROL_PLANE, *ENGINE, *CHARTS, *IN_PODS, *WATCHING):
        if program := locate(name):
            (folder / name).symlink_to(program.path)
    os.environ[_FOLDER] = str(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let skipped tests fail where none may be skipped."""
    report = yield
    if _NEED_ALL in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, though {_NEED_ALL} is set: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def shared_by_folder(pytestconfig: pytest.Config) -> ExitStack:
    """Programs that the tests of a folder of `SHARED` run together. They end with the folder's last test, as control
    planes, endpoint pickers and model servers take processor time even when nobody asks them.
    """
    return pytestconfig.stash.setdefault(_SHARED_PROGRAMS, ExitStack())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what a folder's tests share after its last test."""
    if _SHARED_PROGRAMS in item.config.stash and (nextitem is None or _unit(nextitem.nodeid) != _unit(item.nodeid)):
        item.config.stash[_SHARED_PROGRAMS].close()


@pytest.fixture(autouse=True)
def _own_consoles() -> None:
    """Each test sees consoles of its own width: those of a process are kept from the first command on."""
    console.output.cache_clear()
    console.errors.cache_clear()


@pytest.fixture(autouse=True)
def _no_open_project() -> Iterator[None]:
    """Close a test's own project, whose `values/` no later test may see."""
    yield
    open_project(None)


@pytest.fixture(scope="session", autouse=True)
def no_cloud() -> Iterator[None]:
    """No test may find credentials or a cluster of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("OCI_", "PULUMI_")) or name == "KUBECONFIG"]:
            patch.delenv(name)
        yield
