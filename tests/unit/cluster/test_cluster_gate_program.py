"""The program that waits for nodes."""

import argparse
import urllib.error
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest
from llmd_pods import gate_program
from llmd_pods.gate_program import judge, list_shared, wait


def node(name: str, gpus: int = 8, ready: bool = True) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "KubeletNotReady",
        "message": "no CNI",
    }
    allocatable = {"amd.com/gpu": str(gpus)} if gpus else {}
    return {"metadata": {"name": name}, "status": {"conditions": [condition], "allocatable": allocatable}}


def wanted(**changes: Any) -> argparse.Namespace:
    asked = {"selector": "a=b", "nodes": 2, "devices": [("amd.com/gpu", 8)], "timeout_s": 60.0, "pause_s": 0.0}
    return argparse.Namespace(**{**asked, **changes})


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node("a"), node("b")], []),
        ([node("a"), node("b"), node("c")], []),
        ([node("a"), node("b"), node("c", ready=False), node("d", gpus=0)], []),
        ([node("a")], ["1 of 2 nodes have joined"]),
        ([node("b"), node("a", ready=False)], ["a is not Ready (KubeletNotReady: no CNI)"]),
        ([node("a"), {"metadata": {"name": "b"}}], ["b is not Ready (no status: )"]),
        ([node("a"), node("b", 0)], ["b has 0 of 8 amd.com/gpu"]),
        ([node("a"), node("b", 7)], ["b has 7 of 8 amd.com/gpu"]),
    ],
    ids=["ready", "one more", "unready ones more", "missing", "unready", "no status", "no GPU", "too few GPUs"],
)
def test_the_node_gate_names_what_the_requested_number_of_nodes_lacks(nodes: list[dict[str, Any]], told: list[str]):
    assert judge(nodes, 2, [("amd.com/gpu", 8)]) == told


def test_the_node_gate_requires_every_kind_of_device_that_servers_request():
    devices = [("amd.com/gpu", 8), ("nvidia.com/sriov-rdma-vf", 8)]
    whole, late, bare = node("a"), node("b"), node("c", 6)
    whole["status"]["allocatable"]["nvidia.com/sriov-rdma-vf"] = "8"
    late["status"]["allocatable"]["nvidia.com/sriov-rdma-vf"] = "3"
    assert judge([whole], 1, devices) == []
    assert judge([whole, late], 2, devices) == ["b has 3 of 8 nvidia.com/sriov-rdma-vf"]
    assert judge([bare], 1, devices) == ["c has 6 of 8 amd.com/gpu and 0 of 8 nvidia.com/sriov-rdma-vf"]


def test_the_node_gate_reports_a_node_whose_rdma_devices_no_pod_can_get():
    assert judge([node("a"), node("b")], 2, [("amd.com/gpu", 8)], {"b"}) == [
        "b shares its RDMA devices between network namespaces, so that no pod gets one"
    ]


def test_the_node_gate_takes_rdma_devices_for_shared_only_if_the_api_reports_it(monkeypatch: pytest.MonkeyPatch):
    modes = {"a": {"rdmaMode": "shared"}, "b": {"rdmaMode": "exclusive"}, "c": {}}  # older operators tell no mode
    told = [{"metadata": {"name": name}, "status": {"system": system}} for name, system in modes.items()]
    asked: list[str] = []
    monkeypatch.setattr(gate_program, "_items", lambda path: asked.append(path) or told)
    assert list_shared("/apis/states") == {"a"}
    assert asked == ["/apis/states"]
    assert list_shared(None) == frozenset()


@pytest.mark.parametrize(("status", "known"), [(404, True), (403, False)])
def test_the_node_gate_passes_without_the_operators_api_and_reports_a_refusal(
    monkeypatch: pytest.MonkeyPatch, status: int, known: bool
):
    def refuse(path: str) -> None:
        raise urllib.error.HTTPError(path, status, "no", Message(), None)

    monkeypatch.setattr(gate_program, "_items", refuse)
    problems = wait(wanted(timeout_s=-1.0), lambda: [node("a"), node("b")], lambda: list_shared("/apis/states"))
    assert (problems == []) == known


def test_the_node_gate_waits_until_the_pool_is_complete_or_its_time_limit(capsys: pytest.CaptureFixture[str]):
    seen: Iterator[list[dict[str, Any]]] = iter([[], [node("a")], [node("a")], [node("a"), node("b")]])
    assert wait(wanted(), lambda: next(seen)) == []
    assert capsys.readouterr().out.splitlines() == ["0 of 2 nodes have joined", "1 of 2 nodes have joined"]
    assert wait(wanted(timeout_s=-1.0), lambda: [node("a")]) == ["1 of 2 nodes have joined"]


def test_the_node_gate_survives_a_short_outage_of_the_api_server():
    def away() -> list[dict[str, Any]]:
        raise urllib.error.URLError("connection refused")

    answers = iter([away, lambda: [node("a"), node("b")]])

    def matches() -> list[dict[str, Any]]:
        return next(answers)()

    assert wait(wanted(), matches) == []
    (problem,) = wait(wanted(timeout_s=-1.0), away)
    assert "connection refused" in problem


def test_the_termination_message_of_a_failed_node_gate_ends_with_the_cause(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(gate_program, "TERMINATION_LOG", log)
    monkeypatch.setattr(gate_program, "list_nodes", lambda selector: [node("a", 7)])
    arguments = ["gate", "--selector=a=b", "--nodes=1", "--device=amd.com/gpu=8", "--timeout-s=-1"]
    monkeypatch.setattr("sys.argv", arguments)
    assert gate_program.main() == 1
    assert log.read_text().endswith("a has 7 of 8 amd.com/gpu")
