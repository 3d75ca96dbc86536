"""A local cluster seen from the host: its spec, its record, the ends of its processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import running_file_server
from llmd_base.errors import KitError
from llmd_rehearsal import namespaces
from llmd_rehearsal.cluster_spec import (
    ClusterRecord,
    ClusterSpec,
    FileReady,
    HttpReady,
    ProcessRecord,
    ProcessSpec,
    StateFolder,
    TcpReady,
    end_of_log,
    fact_differences,
)
from llmd_rehearsal.local_cluster import LocalCluster, end_group
from llmd_rehearsal.namespaces import identity_of, stat_fields
from llmd_rehearsal.supervisor import is_ready


@pytest.fixture
def record():
    """A ready cluster whose first process is this one."""
    supervisor = identity_of(os.getpid())
    assert supervisor is not None
    return ClusterRecord(
        phase="ready",
        supervisor=supervisor,
        launcher_pid=1,
        user_namespace=False,
        namespaces={"net": "net:[1]"},
        spec_digest="abc",
        started_at="2026-11-21T06:00:00+00:00",
        processes={"etcd": ProcessRecord(9, 0.1)},
        facts={"port": "1"},
    )


def test_a_clusters_record_is_read_back_as_it_was_written(tmp_path, record):
    StateFolder(tmp_path).write_record(record)
    assert LocalCluster(tmp_path).status() == record


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "ready"}', '{"supervisor": {}, "processes": {}}'])
def test_a_damaged_cluster_record_counts_as_no_cluster(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text)
    assert LocalCluster(tmp_path).status() is None


@pytest.mark.parametrize("change", [{"start_ticks": 0}, {"boot_id": "another"}], ids=["reused id", "before a reboot"])
def test_a_cluster_record_with_a_process_that_ended_counts_as_no_cluster(tmp_path, record, change):
    StateFolder(tmp_path).write_record(replace(record, supervisor=replace(record.supervisor, **change)))
    assert LocalCluster(tmp_path).status() is None
    LocalCluster(tmp_path).stop()
    assert not (tmp_path / "cluster.json").exists()


def test_a_failed_local_cluster_still_reports_the_cause_of_its_failure(tmp_path, record):
    removed = replace(record.supervisor, start_ticks=0)
    StateFolder(tmp_path).write_record(replace(record, supervisor=removed, phase="failed", failure="etcd ended"))
    status = LocalCluster(tmp_path).status()
    assert status is not None
    assert status.failure == "etcd ended"
    with pytest.raises(KitError, match="is not running: etcd ended"):
        LocalCluster(tmp_path).enter_command(["true"])


def test_a_state_folder_in_run_is_refused_because_a_local_cluster_hides_it():
    with pytest.raises(KitError, match="lies in /run, which a local cluster hides"):
        LocalCluster(Path("/run/rehearsal")).start(SPEC)


def test_a_process_name_with_blanks_and_brackets_in_proc_stat_is_parsed(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c)) S 3 7 7\n")
    assert stat_fields(7, tmp_path) == ["S", "3", "7", "7"]


def test_the_shown_end_of_a_cluster_process_log_has_the_requested_number_of_lines(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert end_of_log(log, lines=2) == "  line 4998\n  line 4999"
    assert end_of_log(tmp_path / "missing") == "  (no log)"


SPEC = ClusterSpec(
    processes=(
        ProcessSpec("etcd", ("etcd", "--name=x"), readiness=HttpReady("http://127.0.0.1:2379/health")),
        ProcessSpec("plug-in", ("python",), {"A": "1"}, ("etcd",), TcpReady(50051), ready_timeout_s=5),
        ProcessSpec("agent", ("python",), after=("etcd", "plug-in"), readiness=FileReady("/tmp/ready")),
        ProcessSpec("idle", ("sleep", "9")),
    ),
    facts={"port": "50051"},
)


def test_a_cluster_spec_is_read_back_as_it_was_written_and_others_differ_in_digests():
    read = ClusterSpec.from_json(SPEC.to_json())
    assert (read, read.digest()) == (SPEC, SPEC.digest())
    assert ClusterSpec(processes=SPEC.processes[:1]).digest() != SPEC.digest()


@pytest.mark.parametrize(
    ("second", "after", "reason"),
    [("a", (), "two processes are named a"), ("b", ("b",), "a starts after b, which must be listed before it")],
)
def test_a_clusters_processes_have_different_names_and_an_order(second, after, reason):
    with pytest.raises(ValueError, match=reason):
        ClusterSpec(processes=(ProcessSpec("a", ("x",), after=after), ProcessSpec(second, ("y",))))


def test_the_reason_for_another_local_cluster_is_in_its_settings_programs_or_nodes():
    before, now = (ClusterSpec((), facts={"time_scale": scale, "agent_digest": scale}) for scale in ("1.0", "3.0"))
    assert fact_differences(before.facts, now.facts) == ["time scale 1.0 becomes 3.0"]
    assert fact_differences(SPEC.facts, SPEC.facts) == ["other programs, or other nodes"]


WAITS = """
import signal, sys

number = int(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {number})
print("ready", flush=True)
signal.sigwait({number})
print("heard")
sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_local_clusters_command_gets_sigterm_or_sigint_before_it_is_killed(number: signal.Signals) -> None:
    command = [sys.executable, "-S", "-c", WAITS, str(number.value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        end_group(process, 10, number)
        assert (process.stdout.read(), process.wait()) == ("heard\n", 7)


def test_no_environment_variable_for_oci_kubernetes_or_proxies_reaches_a_rehearsal(monkeypatch):
    for name in ("OCI_CLI_PROFILE", "KUBECONFIG", "PULUMI_ACCESS_TOKEN", "HTTPS_PROXY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "real")
    monkeypatch.setenv("PATH", "/home/user/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = namespaces.environment(Path("/state/home"))
    assert set(environment) <= {"HOME", "LANG", "LC_ALL", "PATH", "PYTHONUNBUFFERED", "TZ"}
    assert environment["HOME"] == "/state/home"
    assert environment["PATH"] == namespaces.PATH


def test_a_local_cluster_that_is_started_without_root_gets_a_user_namespace():
    assert "--user" not in namespaces.create_command(["true"], user_namespace=False)
    assert "--map-root-user" in namespaces.create_command(["true"], user_namespace=True)
    assert "--user" in namespaces.enter_command(7, ["true"], Path("/"), user_namespace=True)


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server that answers 200 for `/healthz`, and otherwise 404."""
    with running_file_server() as served:
        served.files["/healthz"] = b""
        yield int(served.address.rpartition(":")[2])


def test_an_http_server_is_ready_when_it_answers_200(port):
    assert is_ready(HttpReady(f"http://127.0.0.1:{port}/healthz"))
    assert not is_ready(HttpReady(f"http://127.0.0.1:{port}/starting"))
    assert not is_ready(HttpReady(f"https://127.0.0.1:{port}/healthz"))


def test_a_tcp_server_is_ready_when_it_accepts_connections(port):
    assert is_ready(TcpReady(port))
    assert not is_ready(TcpReady(1))
    assert not is_ready(HttpReady("http://127.0.0.1:1/healthz"))


def test_a_process_with_a_readiness_file_is_ready_when_the_file_exists(tmp_path):
    assert not is_ready(FileReady(str(tmp_path / "ready")))
    (tmp_path / "ready").touch()
    assert is_ready(FileReady(str(tmp_path / "ready")))
