import pytest
from llmd_oke.rehearsal.processes import FileReady, HttpReady, ProcessSpec, TcpReady, WorldSpec

SPEC = WorldSpec(
    processes=(
        ProcessSpec("etcd", ("etcd", "--name=x"), readiness=HttpReady("http://127.0.0.1:2379/health")),
        ProcessSpec("plug-in", ("python",), {"A": "1"}, ("etcd",), TcpReady(50051), ready_timeout_s=5),
        ProcessSpec("agent", ("python",), after=("etcd", "plug-in"), readiness=FileReady("/tmp/ready")),
        ProcessSpec("idle", ("sleep", "9")),
    ),
    facts={"port": "50051"},
)


def test_a_spec_survives_being_written_and_read():
    assert WorldSpec.from_json(SPEC.to_json()) == SPEC


def test_the_digest_tells_specs_apart():
    assert WorldSpec.from_json(SPEC.to_json()).digest() == SPEC.digest()
    assert WorldSpec(processes=SPEC.processes[:1]).digest() != SPEC.digest()


def test_two_processes_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two processes are named a"):
        WorldSpec(processes=(ProcessSpec("a", ("x",)), ProcessSpec("a", ("y",))))


def test_a_process_can_only_start_after_one_listed_before_it():
    with pytest.raises(ValueError, match="a starts after b, which must be listed before it"):
        WorldSpec(processes=(ProcessSpec("a", ("x",), after=("b",)), ProcessSpec("b", ("y",))))
