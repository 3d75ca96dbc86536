"""The program of a node's pod: its own checks, reads from a partner, and what it says where something is missing."""

import json
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from llmd_base.errors import KitError
from llmd_pods import all_reduce
from llmd_pods.acceptance import CheckResult, NodeReport, NodeRequirements
from llmd_pods.acceptance_node import Board, Links, NodeRequest, amd_smi_gpus, meet, own_checks, request_from_json
from nixl_stand_in import Memory, api_of, torch_of

REQUEST = NodeRequest(
    namespace="llmd-oke-acceptance",
    run="job",
    job="job",
    uid="uid",
    index=0,
    nodes=2,
    checks=("gpus", "rdma", "locality", "links"),
    limits=NodeRequirements(1, 1, 3, 4220, 40.0, 350.0, 310.0, 0.9),
    link_bytes=4096,
    reduce_bytes=4096,
    repeats=2,
    warm_ups=1,
    round_limit_s=5,
    limit_s=60,
)


def amd_smi(tmp_path, script):
    file = tmp_path / "amd-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_a_nodes_gpus_are_those_that_amd_smi_lists(tmp_path):
    listed = json.dumps([{"gpu": 0, "bdf": "0000:11:00.0"}])
    (gpu,) = amd_smi_gpus([amd_smi(tmp_path, f"case $1 in list) echo '{listed}';; *) echo '[]';; esac")])
    assert gpu.address == "0000:11:00.0"


def test_an_image_may_lack_amd_smi_and_a_failing_one_is_a_fault_of_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr(amd_smi_gpus, "__defaults__", ((str(tmp_path / "amd-smi"),),))
    absent = next(iter(own_checks(REQUEST, tmp_path)))
    assert absent == CheckResult("gpus", "no tool", "the image has no amd-smi")
    amd_smi(tmp_path, "echo 'no driver' >&2\nexit 3")
    failing = next(iter(own_checks(REQUEST, tmp_path)))
    assert failing.outcome == "failed"
    assert failing.text.endswith("list --json ended with 3: no driver")


def test_an_image_without_nixl_is_reported_as_lacking_the_tool(tmp_path):
    report = Links(REQUEST, tmp_path).prepare(NodeReport("a"))
    assert report.checks == (CheckResult("links", "no tool", "The image has no NIXL: none of "
                             "nixl_rocm, rixl, nixl is installed."),)  # fmt: skip


@pytest.fixture(name="libraries")
def libraries_fixture(monkeypatch):
    memory = Memory()
    package, api = ModuleType("rixl"), ModuleType("rixl._api")
    package.__path__ = []
    vars(api).update(vars(api_of(memory)))
    monkeypatch.setitem(sys.modules, "rixl", package)
    monkeypatch.setitem(sys.modules, "rixl._api", api)
    torch = ModuleType("torch")
    vars(torch).update(vars(torch_of(memory)))
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_the_link_test_reads_from_the_partner_nodes_gpu(libraries, tmp_path):
    first, second = Links(REQUEST, tmp_path), Links(replace(REQUEST, index=1), tmp_path)
    other = second.prepare(NodeReport("b"))
    first.prepare(NodeReport("a"))
    (link,) = first.read(other, 0)
    assert link.gb_per_s > 0
    assert (link.gpu, link.carried_share) == (0, None)


class Cluster:
    """ConfigMaps of one namespace."""

    def __init__(self):
        self.texts = {}

    def apply(self, config_map):
        self.texts[config_map["metadata"]["name"]] = config_map["data"]

    def config_map(self, namespace, name):
        assert namespace == REQUEST.namespace
        return self.texts.get(name)


def test_a_partner_node_that_never_connects_is_reported_after_a_time_limit():
    moments = iter(range(1000))
    board = Board(REQUEST, Cluster(), lambda _: None, lambda: next(moments))
    measured = meet(REQUEST, board, NodeReport("a"), None, 0, (0, 1))
    assert measured.problem == "waited 5 s for it"


def test_a_request_of_an_acceptance_pod_is_read_back_from_json():
    assert request_from_json(REQUEST.to_json()) == REQUEST


WORK = all_reduce.AllReduce("10.0.0.1", 29500, 16, 8, 2, 8 * 2**30, 10, 3, 5.0)


def test_bus_bandwidth_is_computed_as_in_nccl_tests():
    """doc/PERFORMANCE.md: 2 (n - 1) / n of what each rank has, by the second."""
    assert WORK.bus_gb_per_s(0.045) == pytest.approx(8 * 2**30 / 0.045 * 2 * 15 / 16 / 1e9)


def test_the_bandwidth_of_a_collective_is_that_of_its_slowest_rank():
    work = f"json.loads(os.environ['{all_reduce.VARIABLE}'])"
    code = f"import json, os; print(json.dumps({{'seconds': 0.04 + {work}['gpu']}}))"
    program = [sys.executable, "-c", code]
    assert all_reduce.run(WORK, program) == pytest.approx(WORK.bus_gb_per_s(1.04))


def test_a_rank_of_the_all_reduce_test_that_fails_or_hangs_is_reported():
    with pytest.raises(KitError, match="ended with 3: no RCCL"):
        all_reduce.run(WORK, [sys.executable, "-c", "print('no RCCL'); raise SystemExit(3)"])
    with pytest.raises(KitError, match="did not end in time"):
        all_reduce.run(replace(WORK, limit_s=0.1), ["sleep", "60"])
