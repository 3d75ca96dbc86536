"""Servers over nodes in a cluster that a stack makes: the real scheduler keeps each group of pods to one pool."""

import json
import sys
from collections import defaultdict

import pytest
from user_project import TIME_SCALE, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "pooled"
CLUSTER = {
    "mode": "create",
    "name": "pooled",
    "region": "us-ashburn-1",
    "compartmentId": "ocid1.compartment.oc1..example",
    "tenancyId": "ocid1.tenancy.oc1..example",
    "kubernetesVersion": "v1.34.2",
}
POOL = {
    "shape": "BM.GPU.MI300X.8",
    "size": 2,
    "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
    "image": {"ocid": "ocid1.image.oc1.iad.example"},
}
SYSTEM_POOL = {"shape": "VM.Standard.E5.Flex", "ocpus": 16, "memoryGib": 64, "size": 1}
PODS = """
import json, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Node, Pod

client = lightkube.Client(KubeConfig.from_env(), namespace="llm-d", trust_env=False)
pools = {item.metadata.name: item.metadata.labels.get("oke.oraclecloud.com/pool.name") for item in client.list(Node)}
key = "leaderworkerset.sigs.k8s.io/group-key"
for pod in client.list(Pod, labels={key: None}):
    (term,) = pod.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution
    own = [item.key for item in term.labelSelector.matchExpressions or () if item.values == [pod.metadata.labels[key]]]
    print(json.dumps({"group": pod.metadata.labels[key], "pool": pools[pod.spec.nodeName], "keys": own}))
"""


@pytest.fixture(scope="module")
def pods(project: Project) -> list[dict[str, object]]:
    """Each pod of the servers: its group, the pool of its node, and the keys by which it is told from other groups."""
    pools = [{"name": name, **POOL} for name in ("east", "west")]
    stack = {"cluster": CLUSTER, "gpuPools": pools, "systemPool": SYSTEM_POOL, "leaderWorkerSets": "install"}
    project.write(STACK, models=[model(topology="agg-tp1dp16ep-2r")], gpuStack="oke-plugin", **stack)
    rehearsed = project.command("rehearse", "--stack", STACK, "--json", "--time-scale", TIME_SCALE, "--no-benchmark")
    assert rehearsed.status == 0, rehearsed.errors
    asked = project.inside(STACK, sys.executable, "-c", PODS)
    return [json.loads(line) for line in asked.output.splitlines() if line.startswith("{")]


def test_the_pods_of_a_server_that_spans_nodes_are_on_nodes_of_one_pool(pods: list[dict[str, object]]):
    pools = defaultdict[object, list[object]](list)
    for pod in pods:
        pools[pod["group"]].append(pod["pool"])
    assert sorted(sorted(map(str, names)) for names in pools.values()) == [["east", "east"], ["west", "west"]]


def test_kubernetes_groups_the_pods_of_a_server_by_their_leaderworkersets_label(pods: list[dict[str, object]]):
    assert [pod["keys"] for pod in pods] == [["leaderworkerset.sigs.k8s.io/group-key"]] * 4
