"""The program that leads an acceptance, with an API server of its own and pods that tell what a test says."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_pods.acceptance import (
    LABEL,
    RESULT_KEY,
    TAINT_KEY,
    CheckResult,
    LinkRate,
    NodeReport,
    NodeRequirements,
    NodeResult,
    PairMeasurement,
    result_name,
)
from llmd_pods.acceptance_run import AcceptanceRun, ConflictError, RunRequest, judge, judge_pool, request_from_json

LIMITS = NodeRequirements(8, 8, 3, 4220, 40.0, 350.0, 310.0, 0.9)
REQUEST = RunRequest(
    pool="mi300x",
    selector="pool=mi300x",
    namespace="llmd-oke-acceptance",
    needed=2,
    on_failure="spares",
    image="vllm:v1",
    devices={"amd.com/gpu": 8, "nvidia.com/sriov-rdma-vf": 8},
    checks=("gpus", "links", "all-reduce"),
    limits=LIMITS,
    pod={"metadata": {"labels": {}}, "spec": {"containers": [{"name": "node", "env": []}]}},
    node_request={"checks": ["gpus"]},
    most_rounds=8,
    placement_limit_s=15,
    start_limit_s=60,
    limit_s=120,
)
PASSED = CheckResult("gpus", "passed", "8 GPUs")
FAST = tuple(LinkRate(gpu, 44.0, 1.0) for gpu in range(8))
SLOW = (replace(FAST[0], gb_per_s=11.0), *FAST[1:])


def node(name, **allocatable):
    devices = {"amd.com/gpu": "8", "nvidia.com/sriov-rdma-vf": "8"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {**devices, **allocatable}},
    }


@dataclass
class Cluster:
    """Nodes, ConfigMaps and pods. Each pod tells at once what `reports` has for its node, or stays as `states` says.
    `bindings` has what is asked of role bindings; with `refusal`, nodes are not told."""

    names: tuple[str, ...] = ("a", "b", "c")
    reports: dict[str, NodeReport] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    bindings: list[Any] = field(default_factory=list)
    refusal: KitError | None = None
    conflicts: int = 0
    now_s: float = 0.0

    def __post_init__(self):
        self.nodes = {name: node(name) for name in self.names}

    def items(self, path):
        if self.refusal is not None:
            raise self.refusal
        if path.startswith("/api/v1/nodes"):
            return list(self.nodes.values())
        return [item for item in self.config_maps.values() if LABEL in item["metadata"].get("labels", {})]

    def ask(self, method, path, body=None, kind="application/json"):
        last = path.rpartition("/")[2].partition("?")[0]
        if "bindings/" in path:
            self.bindings.append((method, path.partition("v1/")[2], body))
            return {}
        if method == "POST":
            terms = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            self.pods[body["metadata"]["name"]] = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
            return body
        if "/nodes/" in path:
            return self._node(method, last, body)
        if "/pods/" in path:
            return self._pod(method, last)
        if method == "PATCH":
            self.config_maps[last] = body
            return body
        return self.config_maps.get(last) or self._report(last)

    def _node(self, method, name, body):
        if method == "PATCH":
            if self.conflicts:
                self.conflicts -= 1
                raise ConflictError("changed")
            self.nodes[name]["spec"] = body["spec"]
        return self.nodes[name]

    def _pod(self, method, name):
        if method == "DELETE":
            self.deleted.append(name)
            return {}
        return {"status": self.states.get(self.pods[name], {"phase": "Running"})}

    def _report(self, name):
        report = self.reports.get(self.pods.get(name, ""))
        return None if report is None else {"data": {"json": report.to_json()}}

    def tainted(self):
        return [
            name for name, item in self.nodes.items() if TAINT_KEY in {t["key"] for t in item["spec"].get("taints", ())}
        ]

    def pause(self, seconds):
        self.now_s += seconds

    def run(self, request=REQUEST):
        return AcceptanceRun(request, self, "job", "uid", self.pause, lambda: self.now_s)

    def lead(self, request=REQUEST):
        results, problems = self.run(request).lead()
        return {result.node: result for result in results}, problems


def report(name, *rounds, checks=(PASSED,)):
    return NodeReport(name, "10.0.0.1", ready=True, over=True, checks=checks, rounds=rounds)


def sound(names="abc"):
    return {
        name: report(name, *(PairMeasurement(other, FAST, 356.0) for other in names if other != name)) for name in names
    }


def test_acceptance_results_of_passed_nodes_are_stored_with_date_image_and_uid():
    cluster = Cluster(reports=sound())
    results, problems = cluster.lead()
    assert problems == []
    assert {result.verdict for result in results.values()} == {"passed"}
    kept = json.loads(cluster.config_maps[result_name("mi300x", "a")]["data"][RESULT_KEY])
    assert (kept["image"], kept["uid"], kept["date"][:2]) == ("vllm:v1", "uid-a", "20")
    assert cluster.tainted() == []


def test_of_nodes_that_have_passed_only_a_replaced_one_is_tested_again():
    cluster = Cluster(reports=sound())
    cluster.lead()
    assert cluster.deleted == ["job-0", "job-1", "job-2"]
    cluster.pods.clear()
    results, problems = cluster.lead()
    assert (len(results), problems, cluster.pods) == (3, [], {})
    cluster.nodes["b"]["metadata"]["uid"] = "another"
    cluster.lead()
    assert list(cluster.pods.values()) == ["b"]


WITH_SLOW_NODE = {
    "a": report("a", PairMeasurement("b", FAST, 356.0), PairMeasurement("c", SLOW, 90.0)),
    "b": report("b", PairMeasurement("a", FAST, 356.0), PairMeasurement("c", SLOW, 90.0)),
    "c": report("c", PairMeasurement("a", SLOW, 90.0), PairMeasurement("b", SLOW, 90.0)),
}


def test_a_failed_node_is_tainted_despite_conflicts_and_serving_goes_on_with_spares():
    cluster = Cluster(reports=WITH_SLOW_NODE, conflicts=2)
    results, problems = cluster.lead()
    assert (cluster.tainted(), problems) == (["c"], [])
    assert results["c"].reason.startswith("links: GPU 0: 11.0 of at least 40 GB/s at best, with ")


def test_failed_nodes_prevent_serving_if_on_failure_is_hold_or_too_few_passed():
    _, held = Cluster(reports=WITH_SLOW_NODE).lead(replace(REQUEST, on_failure="hold"))
    assert held[0].startswith("c failed (links: GPU 0")
    assert "onFailure is hold" in held[1]
    _, too_few = Cluster(reports=WITH_SLOW_NODE).lead(replace(REQUEST, needed=3))
    assert too_few[1] == "2 of 3 nodes may serve, the models need 3"
    stored = {"a": NodeResult("a", "u", "failed", "d", "i", reason="gpus: dead")}
    assert judge_pool(replace(REQUEST, needed=3), ["a", "b", "c"], stored)[0] == "a failed (gpus: dead)"


def test_a_node_that_passes_loses_the_acceptance_taint_and_keeps_others():
    cluster = Cluster(reports=sound())
    other = {"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}
    cluster.nodes["a"]["spec"]["taints"] = [other, {"key": TAINT_KEY, "value": "failed", "effect": "NoSchedule"}]
    cluster.lead()
    assert cluster.nodes["a"]["spec"]["taints"] == [other]


NO_TOOL = CheckResult("gpus", "no tool", "the image has no amd-smi")
NO_MANIFEST = {"waiting": {"reason": "ImagePullBackOff", "message": "no such manifest"}}
UNPULLED = {"phase": "Pending", "containerStatuses": [{"state": NO_MANIFEST}]}


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        (
            Cluster(reports={name: report(name, checks=(NO_TOOL,)) for name in "abc"}),
            r"vllm:v1: the image has no amd-smi\. Nothing was judged",
        ),
        (Cluster(states=dict.fromkeys("abc", UNPULLED)), "can't be pulled on a: no such manifest"),
    ],
    ids=["tool missing", "not pulled"],
)
def test_a_lacking_image_is_reported_in_time_and_taints_no_node(cluster, told):
    with pytest.raises(KitError, match=told):
        cluster.lead()
    assert (cluster.tainted(), len(cluster.deleted)) == ([], 3)
    assert cluster.now_s <= REQUEST.start_limit_s + 2


def test_a_node_whose_gpus_are_in_use_is_not_tested():
    unplaced = {"type": "PodScheduled", "status": "False", "message": "Insufficient amd.com/gpu"}
    cluster = Cluster(reports=sound("ab"), states={"c": {"phase": "Pending", "conditions": [unplaced]}})
    results, problems = cluster.lead()
    assert problems == []
    assert "c" not in cluster.tainted()
    assert json.loads(cluster.config_maps["job-untested"]["data"]["json"])["c"].endswith("Insufficient amd.com/gpu")
    assert results["c"].verdict == "not tested"


ENDED = {"state": {"terminated": {"message": "first\nno memory\n"}}}


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({}, "its pod did not report in time"),
        ({"c": {"phase": "Failed", "containerStatuses": [ENDED]}}, "its pod ended: no memory"),
    ],
    ids=["silent", "failed"],
)
def test_a_node_whose_test_pod_fails_or_does_not_report_in_time_fails_acceptance(states, reason):
    cluster = Cluster(reports=sound("ab"), states=states)
    results, _ = cluster.lead()
    assert (results["c"].reason, cluster.tainted()) == (reason, ["c"])


def test_a_node_without_devices_or_not_ready_fails_acceptance_without_a_test_pod():
    cluster = Cluster(reports=sound("a"))
    cluster.nodes["b"]["status"]["conditions"] = []
    cluster.nodes["c"] = node("c", **{"nvidia.com/sriov-rdma-vf": "7"})
    results, _ = cluster.lead()
    assert results["b"].reason == "the node is not Ready"
    assert results["c"].reason == "it has 7 of 8 nvidia.com/sriov-rdma-vf"
    assert list(cluster.pods.values()) == ["a"]


def test_a_node_with_a_missing_gpu_is_left_out_of_link_tests_between_nodes():
    dead = report("c", checks=(CheckResult("gpus", "failed", "amd-smi sees 7 of 8 GPUs"),))
    cluster = Cluster(reports={**sound("ab"), "c": dead})
    results, _ = cluster.lead()
    assert json.loads(cluster.config_maps["job-schedule"]["data"]["json"]) == [[[0, 1]]]
    assert results["c"].reason == "gpus: amd-smi sees 7 of 8 GPUs"


def test_only_nodes_named_in_the_acceptance_request_are_tested():
    cluster = Cluster(reports={"b": report("b", PairMeasurement("b", (), 320.0))})
    cluster.lead(replace(REQUEST, only=("b",)))
    assert list(cluster.pods.values()) == ["b"]
    with pytest.raises(KitError, match="The pool mi300x has no node z"):
        cluster.lead(replace(REQUEST, only=("z",)))


def test_a_hardware_acceptance_request_is_read_from_its_file():
    text = json.dumps({**{k: v for k, v in vars(REQUEST).items() if k != "limits"}, "limits": vars(LIMITS)})
    assert request_from_json(text) == REQUEST


def test_an_acceptance_jobs_service_account_loses_its_role_bindings_however_it_ends():
    bindings = ("namespaces/llmd-oke-acceptance/rolebindings/job", "clusterrolebindings/llmd-oke-job")
    passed = Cluster(reports=sound())
    assert judge(passed.run()) == []
    assert passed.bindings == [("PATCH", path, {"subjects": None}) for path in bindings]
    deleted = [("DELETE", path, None) for path in bindings]
    faulty = report("c", checks=(CheckResult("gpus", "failed", "7 GPUs"),))
    failed = Cluster(reports={**sound(), "c": faulty})
    assert judge(failed.run(replace(REQUEST, needed=3)))[-1] == "2 of 3 nodes may serve, the models need 3"
    assert failed.bindings == deleted
    without_verdict = Cluster(refusal=KitError("The API server does not answer."))
    with pytest.raises(KitError, match="does not answer"):
        judge(without_verdict.run())
    assert without_verdict.bindings == deleted
