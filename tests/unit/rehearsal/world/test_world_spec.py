import pytest
from llmd_oke.rehearsal.processes import FileReady, HttpReady, ProcessSpec, TcpReady, WorldSpec, differences

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


def test_what_makes_another_world_is_told_by_the_facts_that_differ():
    before, now = (WorldSpec((), facts={"time_scale": scale, "agent_digest": scale}) for scale in ("1.0", "3.0"))
    assert differences(before, now) == ["time scale 1.0 becomes 3.0"]


def test_what_no_fact_tells_is_told_in_general():
    assert differences(SPEC, WorldSpec(processes=SPEC.processes[:1])) == ["other programs, or other nodes"]
