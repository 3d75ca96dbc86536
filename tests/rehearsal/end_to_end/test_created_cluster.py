"""A cluster that a stack creates: what can go wrong on the way, that it is served, and that nothing is left of it."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from llmd_rehearsal.engine_project import in_oci, journal_file
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "created"
CLUSTER = {
    "mode": "create",
    "name": "tiny",
    "region": "us-ashburn-1",
    "compartmentId": "ocid1.compartment.oc1..example",
    "tenancyId": "ocid1.tenancy.oc1..example",
    "kubernetesVersion": "v1.34.2",
}
POOL = {
    "name": "mi300x",
    "shape": "BM.GPU.MI300X.8",
    "size": 1,
    "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
    "image": {"ocid": "ocid1.image.oc1.iad.example"},
}
SYSTEM_POOL = {"shape": "VM.Standard.E5.Flex", "ocpus": 16, "memoryGib": 64, "size": 1}
BASE = {"cluster": CLUSTER, "gpuPools": [POOL], "systemPool": SYSTEM_POOL, "gpuStack": "oke-plugin", "rdma": "none"}
BASE["networkPolicies"] = {"engine": "calico"}

LAYER = {**BASE, "gpuPools": [POOL, {**POOL, "name": "more"}], "layer": "cluster", "models": None, "smoke": None}
"""A cluster with two pools of GPU nodes and nothing on it."""

OPERATED = {**LAYER, "gpuStack": "helm-operator"}
"""The same with AMD's GPU operator, which needs to be told of nodes with GPUs."""

FAULTS = {"Node/mi300x*:dead-gpu": "amd-smi sees 7 of 8 GPUs"}
"""A fault that an update meets, with the words of its cause."""

NIGHTLY_FAULTS = {
    "Vcn:too-many-requests": "429-TooManyRequests",
    "Vcn:answer-lost": "can not create Core Vcn",
    "Cluster:internal-error": "500-InternalError",
    "NodePool/mi300x*:out-of-host-capacity": "Out of host capacity",
    "NodePool/mi300x*:node-never-joins": "register timeout",
    "NodePool/mi300x*:late-failure": "Work Request error",
}
"""Others in the order in which an update meets them, which end it as that one does; how each comes about is tested with
the stand-in for OCI.
"""


@dataclass(frozen=True)
class Life:
    """Operations of a stack with a cluster of its own, in order."""

    failed: dict[str, Ended]
    served: Ended
    accounts_with_rights: list[str]
    refused: Ended
    destroyed: Ended
    deleted: list[str]
    left: list[str]
    left_in_oci: list[str]
    again: Ended


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    project.write(
        STACK, **BASE, models=[model(topology="1p-tp1-1d-tp1")], storage={"modelCache": {"kind": "node-disk"}}
    )
    failed = {fault: _rehearse(project, "--fault", fault, "--no-benchmark") for fault in FAULTS}
    served = _rehearse(project)
    accounts = _accounts_with_rights(project)
    refused = project.command("rehearse", "destroy", "--stack", STACK)
    destroyed = project.command("rehearse", "destroy", "--stack", STACK, "--unprotect", "--json")
    deleted, left = _deleted(project), _objects(project)
    left_in_oci = list(in_oci(journal_file(project.folder / ".rehearsal" / STACK)))
    project.write(STACK, **OPERATED)
    return Life(
        failed, served, accounts, refused, destroyed, deleted, left, left_in_oci, _rehearse(project, "--no-benchmark")
    )


def _accounts_with_rights(project: Project) -> list[str]:
    """Accounts in the namespace of acceptance that may do something in the whole cluster."""
    code = (
        "import json, os, lightkube; from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding\n"
        "config = lightkube.KubeConfig.from_file(os.environ['KUBECONFIG']).get()\n"
        "bindings = lightkube.Client(config, trust_env=False).list(ClusterRoleBinding)\n"
        "subjects = [item for binding in bindings for item in binding.subjects or []]\n"
        "print(json.dumps([item.name for item in subjects if item.namespace == 'llmd-oke-acceptance']))"
    )
    asked = project.inside(STACK, sys.executable, "-c", code)
    return json.loads(asked.output.splitlines()[-1])


def is_told(ended: Ended, cause: str) -> None:
    """Tell whether a fault ended the rehearsal with its cause and a remedy."""
    assert (ended.status, ended.document.keys()) == (1, {"error", "remedy"})
    assert cause in " ".join(ended.errors.split())
    assert "run it again" in " ".join(ended.errors.split()).lower()
    assert "Traceback" not in ended.errors


@pytest.mark.parametrize(("fault", "cause"), FAULTS.items())
def test_a_rehearsal_that_an_injected_fault_ends_reports_the_cause_and_a_remedy(
    life: Life, fault: str, cause: str
) -> None:
    is_told(life.failed[fault], cause)


@pytest.mark.nightly
def test_after_each_fault_of_the_nightly_run_a_rehearsal_without_faults_recovers(project: Project) -> None:
    stack = "otherwise-failed"
    project.write(stack, **LAYER)
    for fault, cause in NIGHTLY_FAULTS.items():
        is_told(_rehearse(project, "--fault", fault, "--no-benchmark", stack=stack), cause)
    created = _rehearse(project, "--no-benchmark", stack=stack)
    assert created.status == 0, created.errors
    project.command("rehearse", "down", "--stack", stack)


def test_a_rehearsal_after_a_failed_one_continues_and_serves_the_model(life: Life) -> None:
    assert life.served.status == 0, life.served.errors
    (smoke,) = life.served.document["smoke"]
    assert smoke["passed"]
    assert "same" in life.served.document["update"]["changes"]


def test_after_node_acceptance_no_service_account_may_taint_nodes(life: Life) -> None:
    assert life.accounts_with_rights == []


def test_the_rehearsal_reports_that_oci_and_the_weights_were_simulated(life: Life) -> None:
    simulated = " ".join(life.served.document["simulated"])
    assert "OCI" in simulated
    assert "weights" in simulated


def test_destroy_refuses_a_protected_cluster(life: Life) -> None:
    assert life.refused.status == 1
    assert "oke-cluster" in life.refused.errors
    assert "add --unprotect" in " ".join(life.refused.errors.split())


def test_destroying_a_rehearsed_stack_leaves_no_resource_in_the_simulated_oci(life: Life) -> None:
    assert life.destroyed.status == 0, life.destroyed.errors
    assert life.destroyed.document["changes"].keys() == {"delete"}
    assert life.left_in_oci == []
    assert [name for name in life.left if "llm-d" in name or "mi300x" in name] == []


def test_destroy_deletes_resources_in_the_reverse_order_of_their_dependencies(life: Life) -> None:
    deleted = life.deleted
    assert _last(deleted, "nodepool") < deleted.index("cluster") < deleted.index("subnet")
    assert _last(deleted, "subnet") < deleted.index("routetable") < deleted.index("natgateway")
    assert _last(deleted, "subnet") < deleted.index("securitylist")
    assert life.deleted[-1] == "vcn"


def test_a_destroyed_stack_can_be_created_again(life: Life) -> None:
    assert life.again.status == 0, life.again.errors
    assert life.again.document["update"]["changes"].keys() == {"create"}


def test_node_feature_discovery_finds_the_gpus_that_the_gpu_operator_then_advertises(
    life: Life, project: Project
) -> None:
    assert life.again.status == 0
    found = project.inside(STACK, sys.executable, "-c", _DISCOVERED)
    assert found.document == {"mi300x": ["true", "8"], "more": ["true", "8"], "system": [None, None]}


def test_kubernetes_upgrades_go_pool_by_pool_and_continue_after_a_failed_pool(life: Life, project: Project) -> None:
    assert life.again.status == 0
    project.write(STACK, **{**OPERATED, "cluster": {**CLUSTER, "kubernetesVersion": "v1.35.2"}})
    failed = _rehearse(project, "--no-benchmark", "--fault", "NodePool/mi300x*:internal-error")
    upgraded = {"tiny": "v1.35.2", "system": "v1.35.2", "mi300x": "v1.34.2"}
    is_told(failed, "500-InternalError")
    assert {**_versions(project), **upgraded} == _versions(project)
    again = _rehearse(project, "--no-benchmark")
    assert again.status == 0, again.errors
    order = ["tiny", "system", "mi300x", "more"]
    assert _versions(project) == dict.fromkeys(order, "v1.35.2")
    control_plane, system, *gpu_pools = dict.fromkeys(state["name"] for state in _updates(project))
    assert [control_plane, system, *sorted(gpu_pools)] == order
    assert _pools_under_way(project) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["file-storage", "lustre", "none"])
def test_a_stack_can_be_destroyed_with_every_kind_of_model_cache(project: Project, kind: str) -> None:
    cache = {"modelCache": {"kind": kind}, **({} if kind == "none" else {"prewarm": {"source": "none"}})}
    stack = f"on-{kind}"
    project.write(stack, **BASE, models=[model(topology="1p-tp1-1d-tp1")], storage=cache, smoke={"where": "none"})
    created = _rehearse(project, "--no-benchmark", stack=stack)
    assert created.status == 0, created.errors
    destroyed = project.command("rehearse", "destroy", "--stack", stack, "--unprotect", "--json")
    assert destroyed.status == 0, destroyed.errors
    assert destroyed.document["changes"].keys() == {"delete"}
    project.command("rehearse", "down", "--stack", stack)


def _journal(project: Project) -> list[dict[str, Any]]:
    """Clusters and pools as the stand-in for OCI wrote them down, one after the other."""
    journal = project.folder / ".rehearsal" / STACK / "oci" / "journal.jsonl"
    lines: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    return [line["state"] for line in lines if line.get("token", "").endswith((":Cluster", ":NodePool"))]


def _versions(project: Project) -> dict[str, str]:
    return {state["name"]: state["kubernetesVersion"] for state in _journal(project)}


def _updates(project: Project) -> list[dict[str, Any]]:
    """Return what has the new version, in the order in which it was accepted."""
    return [state for state in _journal(project) if state["kubernetesVersion"] == "v1.35.2"]


def _pools_under_way(project: Project) -> int:
    """Return how many pools were ever updated at the same time."""
    most, updating = 0, set[str]()
    for state in _updates(project):
        (updating.add if state.get("state") == "UPDATING" else updating.discard)(state["name"])
        most = max(most, len(updating))
    return most


def _rehearse(project: Project, *arguments: str, stack: str = STACK) -> Ended:
    return project.command("rehearse", "--stack", stack, "--json", "--time-scale", TIME_SCALE, *arguments)


def _deleted(project: Project) -> list[str]:
    """The types of what the stand-in for OCI deleted, in order; the rules of security groups are left out."""
    journal = project.folder / ".rehearsal" / STACK / "oci" / "journal.jsonl"
    lines: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    removed = [line["id"] for line in lines if "token" not in line]
    return [id_.split(".")[1] for id_ in removed if id_.startswith("ocid1.")]


def _objects(project: Project) -> list[str]:
    """Namespaces and nodes that are left in the API server."""
    return project.inside(STACK, sys.executable, "-c", _LIST).output.split()


_DISCOVERED = """
import json, time, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Node
client = lightkube.Client(KubeConfig.from_env(), trust_env=False)
ends_at = time.monotonic() + 60
while True:
    nodes = {
        node.metadata.name.partition("-")[0]: [
            node.metadata.labels.get("feature.node.kubernetes.io/amd-gpu"), node.status.allocatable.get("amd.com/gpu")
        ] for node in client.list(Node)
    }
    if nodes["mi300x"][1] == nodes["more"][1] == "8" or time.monotonic() > ends_at:
        break
    time.sleep(0.5)
print(json.dumps(nodes))
"""

_LIST = """
import os, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Namespace, Node
client = lightkube.Client(KubeConfig.from_env(), trust_env=False)
print(*[each.metadata.name for kind in (Namespace, Node) for each in client.list(kind)])
"""


def _last(names: list[str], name: str) -> int:
    return len(names) - 1 - names[::-1].index(name)
