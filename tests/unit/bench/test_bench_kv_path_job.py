"""The two pods of a path meet through ConfigMaps, with a stand-in of NIXL between them. Not run on hardware."""

import threading

import pytest
from llmd_pods import kv_path_job
from llmd_pods.errors import KitError
from llmd_pods.kv_path import KvPathRequest, PortShares, SideReport, Transfer, path_of
from llmd_pods.kv_path_job import Board, run
from nixl_stand_in import Memory, api_of, torch_of

REQUEST = KvPathRequest("llm-d", "kv-path-1", (Transfer(16, 1024, 4),), repeats=2, warm_ups=1, limit_s=60)


class Cluster:
    """The API server: ConfigMaps by name."""

    def __init__(self):
        self.applied = {}
        self.changed = threading.Condition()

    def apply(self, config_map):
        with self.changed:
            self.applied[config_map["metadata"]["name"]] = config_map
            self.changed.notify_all()

    def config_map(self, namespace, name):
        assert namespace == "llm-d"
        result = self.applied.get(name)
        return result and result["data"]

    def pause(self, seconds):
        with self.changed:
            self.changed.wait(seconds)


@pytest.fixture(name="pods")
def pods_fixture(monkeypatch):
    memory = Memory()
    monkeypatch.setattr(kv_path_job, "nixl", lambda: ("rixl", api_of(memory)))
    monkeypatch.setattr(kv_path_job, "pytorch", lambda: torch_of(memory))
    monkeypatch.setattr(kv_path_job, "read_counters", lambda: {"mlx5_3/1/counters/port_rcv_data": 7})
    torch = torch_of(memory)
    monkeypatch.setattr(kv_path_job, "pytorch", lambda: torch)
    return Cluster()


def pod(cluster, index):
    environment = {"JOB_COMPLETION_INDEX": str(index), "NODE_NAME": f"node-{index}"}
    run(REQUEST, environment, Board(REQUEST, cluster, "uid", pause=cluster.pause))


def test_two_pods_measure_their_path(pods):
    serving = threading.Thread(target=pod, args=(pods, 0))
    serving.start()
    pod(pods, 1)
    serving.join(10)
    sides = [
        SideReport.model_validate_json(pods.applied[REQUEST.report_name(s)]["data"]["json"])
        for s in ("prefill", "decode")
    ]
    result = path_of(REQUEST, *sides, PortShares(0.9, 1.2))
    assert (result.prefill_node, result.decode_node, result.package) == ("node-0", "node-1", "rixl")
    assert len(result.figures) == 1
    assert result.moved_bytes == 3 * 4096


def test_what_pods_write_belongs_to_the_job(pods):
    Board(REQUEST, pods, "uid").post("kv-path-1-meeting", "{}")
    (owner,) = pods.applied["kv-path-1-meeting"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "kv-path-1", "uid")


def test_a_pod_that_nobody_comes_to_gives_up(pods):
    moments = iter(range(0, 10_000, 100))
    board = Board(REQUEST, pods, "uid", pause=lambda _: None, clock=lambda: next(moments))
    with pytest.raises(KitError, match="Waited 900 s for the prefill side's buffer"):
        board.await_text(REQUEST.meeting_name, 900, "the prefill side's buffer")
