import os
import signal
import subprocess
from dataclasses import replace

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.operations.locks import until
from llmd_rehearsal.cluster_spec import ClusterSpec, ProcessSpec, TcpReady

pytestmark = pytest.mark.rehearsal


def failed(cluster):
    record = cluster.status()
    return record is not None and record.phase == "failed" and not record.supervisor.alive()


class Impatient(Listener):
    """A user who presses Ctrl-C at the first news of a start."""

    def detail(self, text):
        raise KeyboardInterrupt


def test_cluster_processes_start_in_order_and_stop_in_reverse(cluster, small):
    cluster.start(ClusterSpec(processes=(small("a"), small("b", "a"), small("c", "b"))))
    cluster.stop()
    events = (cluster.folder.path / "events").read_text().splitlines()
    assert events == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    assert cluster.status() is None


def test_a_running_local_cluster_is_reused_and_one_of_another_spec_restarted(cluster, small):
    data = cluster.folder.path / "data"
    first = cluster.start(ClusterSpec(processes=(small("a"),)))
    data.mkdir()
    assert cluster.start(ClusterSpec(processes=(small("a"),)), discard=[data]) == first
    assert data.is_dir()
    listener = Listener()
    changed = cluster.start(ClusterSpec(processes=(small("a"), small("b"))), listener, discard=[data])
    assert "without what was deployed in the one before: other programs" in listener.steps[0]
    assert changed.supervisor != first.supervisor
    assert not first.supervisor.alive()
    assert not data.exists()


def test_a_local_cluster_outlives_the_program_that_started_it(cluster, python, tmp_path):
    code = (
        "import sys, pathlib; from llmd_rehearsal.local_cluster import LocalCluster; "
        "from llmd_rehearsal.cluster_spec import ClusterSpec; "
        "LocalCluster(pathlib.Path(sys.argv[1])).start(ClusterSpec(processes=()))"
    )
    subprocess.run([python, "-c", code, str(cluster.folder.path)], cwd=tmp_path, timeout=30, check=True)
    record = cluster.status()
    assert record is not None
    assert record.phase == "ready"


def test_the_start_of_a_local_cluster_fails_with_the_log_of_a_process_that_exits(cluster, small):
    broken = ProcessSpec("broken", ("sh", "-c", "echo no such flag; exit 3"), after=("a",), readiness=TcpReady(1))
    with pytest.raises(KitError, match=r"(?s)broken ended with status 3 before it was ready.*no such flag"):
        cluster.start(ClusterSpec(processes=(small("a"), broken)))
    assert failed(cluster)
    assert cluster.folder.log_file("a").read_text() == "hello from a\n"


def test_starting_a_local_cluster_fails_and_names_the_process_that_is_never_ready(cluster):
    idle = ProcessSpec("idle", ("sleep", "1000"), readiness=TcpReady(1), ready_timeout_s=0.2)
    with pytest.raises(KitError, match=r"idle was not ready after 0 s \(TcpReady\(port=1"):
        cluster.start(ClusterSpec(processes=(idle,)))
    assert failed(cluster)


def test_ctrl_c_during_the_start_of_a_cluster_removes_it_and_says_so(cluster, small):
    listener = Impatient()
    with pytest.raises(KeyboardInterrupt):
        cluster.start(ClusterSpec(processes=(small("a"),)), listener)
    assert cluster.status() is None
    assert listener.steps[-1] == "interrupted: what was started of the local cluster ends"


def test_starting_a_local_cluster_with_a_missing_program_fails_and_names_the_program(cluster):
    with pytest.raises(KitError, match=r"ghost could not be started: .*No such file.*'/no/ghost'"):
        cluster.start(ClusterSpec(processes=(ProcessSpec("ghost", ("/no/ghost",)),)))


def test_a_process_that_dies_in_a_running_local_cluster_stops_it_and_is_named(cluster, small):
    cluster.start(ClusterSpec(processes=(small("a"), small("b"))))
    cluster.run_inside(["pkill", "-KILL", "-f", "process.sh a"])
    assert until(lambda: failed(cluster), 10)
    failure = cluster.status().failure
    assert failure.startswith("a was ended by SIGKILL; the end of ")
    assert "hello from a" in failure
    assert "stop b" in (cluster.folder.path / "events").read_text()


def test_a_restartable_cluster_process_is_restarted_until_it_exits_too_often(cluster, small):
    cluster.start(ClusterSpec(processes=(replace(small("a"), restarts=1), small("b", "a"))))
    first = cluster.status().processes["a"]
    cluster.run_inside(["pkill", "-KILL", "-f", "process.sh a"])
    assert until(lambda: cluster.status().processes["a"].restarts == 1, 10)
    assert until(lambda: cluster.status().processes["a"].ready_after_s is not None, 10)
    assert cluster.status().phase == "ready"
    assert cluster.status().processes["a"].pid != first.pid
    assert cluster.folder.log_file("a").read_text() == "hello from a\nhello from a\n"
    text = cluster.folder.log_file("supervisor").read_text()
    assert "a was ended by SIGKILL and is started again, 1 of at most 1 times within 300 s" in text
    cluster.run_inside(["pkill", "-KILL", "-f", "process.sh a"])
    assert until(lambda: failed(cluster), 10)
    assert cluster.status().failure.startswith("a was ended by SIGKILL after 1 restarts within 300 s; the end of ")


def test_a_local_cluster_whose_supervisor_was_killed_can_be_started_again(cluster, small):
    spec = ClusterSpec(processes=(small("a"),))
    first = cluster.start(spec)
    os.kill(first.supervisor.pid, signal.SIGKILL)
    assert until(lambda: cluster.status() is None, 10)
    assert cluster.start(spec).supervisor != first.supervisor


def test_a_cluster_process_that_ignores_sigterm_is_killed(cluster):
    stubborn = ProcessSpec("stubborn", ("sh", "-c", "trap '' TERM; while :; do sleep 1; done"), stop_timeout_s=0.1)
    cluster.start(ClusterSpec(processes=(stubborn,)))
    cluster.stop(timeout_s=10)
    assert cluster.status() is None


def test_stopping_a_cluster_that_does_not_run_does_nothing(cluster):
    cluster.stop()
    cluster.start(ClusterSpec(processes=()))
    cluster.stop()
    cluster.stop()
