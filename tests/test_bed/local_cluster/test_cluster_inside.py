import subprocess

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.locks import until
from llmd_rehearsal.cluster_spec import ClusterSpec

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def inside(cluster):
    """Run a shell command in a local cluster that has no processes of its own; return its output."""
    cluster.start(ClusterSpec(processes=()))

    def run(command: str, **settings) -> str:
        done = cluster.run_inside(["sh", "-c", command], **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_local_cluster_cannot_reach_the_outside_network(inside, python):
    assert [line.split()[0] for line in inside("ip -brief link").splitlines()] == ["lo"]
    assert inside("ip route") == ""
    code = "import socket; print(socket.socket().connect_ex(('192.0.2.1', 443)))"
    assert inside(f'{python} -c "{code}"') == "101\n"


def test_a_local_cluster_resolves_host_names_with_its_own_dns_server(inside):
    assert inside("cat /etc/resolv.conf").startswith("nameserver 10.96.0.10\n")


def test_a_local_cluster_hides_the_machines_sockets_and_processes(inside):
    assert set(inside("ls /run").split()) <= {"netns", "mount"}  # `mount` keeps notes of its own there
    assert inside("cat /proc/1/comm").startswith("python")


def test_a_command_in_a_local_cluster_has_a_clean_environment_and_its_own_folder(inside, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/home/user/.kube/config")
    assert inside("echo $KUBECONFIG$EXTRA; pwd", env={"EXTRA": "set"}, folder=tmp_path) == f"set\n{tmp_path}\n"


def test_a_pods_network_namespace_can_be_created_and_is_removed_with_the_cluster(inside):
    assert inside(
        "ip netns add pod && ip link add a type veth peer name b && ip link set b netns pod; ls /run/netns"
    ) == ("pod\n")


def test_a_command_in_a_local_cluster_that_times_out_is_killed_with_its_children(inside, cluster):
    with pytest.raises(KitError, match="did not end within 0 s"):
        cluster.run_inside(["sh", "-c", "sleep 1000 & wait"], timeout_s=0.2)
    assert "sleep" not in inside("ps -eo comm")


def test_a_process_in_a_local_cluster_ends_with_the_with_block_that_started_it(inside, cluster):
    with cluster.process_inside(["sleep", "1000"]) as process:
        assert until(lambda: "sleep" in inside("ps -eo comm"), 10)
    assert process.returncode is not None
    assert "sleep" not in inside("ps -eo comm")


def test_orphaned_processes_in_a_local_cluster_leave_no_zombies(inside):
    inside("(sh -c 'sleep 0.01' & ) ; exit 0")
    assert until(lambda: inside("ps -eo stat,comm | grep -c -e ^Z -e sleep || true") == "0\n", 10)


def test_processes_that_were_started_inside_a_local_cluster_end_with_it(inside, cluster):
    held = subprocess.Popen(cluster.enter_command(["sleep", "1000"]), env=cluster.environment())
    assert until(lambda: "sleep" in inside("ps -eo comm"), 10)
    cluster.stop()
    assert held.wait(10) != 0
