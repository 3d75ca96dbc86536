"""The gate between nodes and models, run in a pod against a real API server."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
import yaml
from pod_cluster import Object, PodCluster, container, phase_is

pytestmark = pytest.mark.rehearsal

RIGHTS = """
metadata: {name: gate}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [get, list]}
  - {apiGroups: [sriovnetwork.openshift.io], resources: [sriovnetworknodestates], verbs: [list]}
"""
BINDING = """
metadata: {name: gate}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gate}
subjects: [{kind: ServiceAccount, name: default, namespace: gate}]
"""
POD = """
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  containers:
    - name: gate
      image: test/bare-python:1
      command: [python, -B, /opt/gate/gate.py]
      args:
        - --selector=node.kubernetes.io/instance-type=BM.GPU.MI300X.8
        - --nodes={nodes}
        - --device=amd.com/gpu={gpus}
        - --rdma-states=/apis/sriovnetwork.openshift.io/v1/namespaces/gate/sriovnetworknodestates
        - --timeout-s=1
        - --pause-s=0.2
      volumeMounts: [{{name: program, mountPath: /opt/gate}}]
  volumes: [{{name: program, configMap: {{name: gate}}}}]
"""


STATES = """
metadata: {name: sriovnetworknodestates.sriovnetwork.openshift.io}
spec:
  group: sriovnetwork.openshift.io
  names: {kind: SriovNetworkNodeState, plural: sriovnetworknodestates}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
SHARED = """
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodeState
metadata: {name: gpu-0}
status: {system: {rdmaMode: shared}}
"""


@pytest.fixture(scope="module")
def pods(pod_cluster: PodCluster) -> Iterator[str]:
    """The collection of pods in the namespace of an account that may read nodes."""
    with pod_cluster.ending_namespaces():
        core = pod_cluster.namespace("gate")
        program = (resources.files("llmd_pods") / "gate_program.py").read_text()
        body: dict[str, Any] = {"metadata": {"name": "gate"}, "data": {"gate.py": program}}
        assert pod_cluster.api.post(f"{core}/configmaps", json=body).is_success
        pod_cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", RIGHTS)
        pod_cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", BINDING)
        yield f"{core}/pods"


def _ended(pod_cluster: PodCluster, pods: str, name: str, phase: str, **wanted: int) -> Object:
    pod_cluster.create(pods, POD.format(name=name, **wanted))
    return container(pod_cluster.wait(pods, name, phase_is(phase)), "gate")["state"]["terminated"]


def test_the_node_gate_passes_a_pool_whose_nodes_have_all_devices(pod_cluster: PodCluster, pods: str) -> None:
    _ended(pod_cluster, pods, "whole", "Succeeded", nodes=1, gpus=8)
    assert pod_cluster.log("gate", "whole", "gate") == "1 nodes are Ready with 8 amd.com/gpu each\n"


def test_the_node_gate_fails_and_names_a_node_that_never_joins(pod_cluster: PodCluster, pods: str) -> None:
    ended = _ended(pod_cluster, pods, "missing", "Failed", nodes=2, gpus=8)
    assert (ended["exitCode"], ended["message"]) == (1, "after 1 s: 1 of 2 nodes have joined")


def test_the_node_gate_fails_and_names_a_node_without_all_its_gpus(pod_cluster: PodCluster, pods: str) -> None:
    ended = _ended(pod_cluster, pods, "few", "Failed", nodes=1, gpus=16)
    assert ended["message"] == "after 1 s: gpu-0 has 8 of 16 amd.com/gpu"


def test_the_node_gate_fails_for_a_node_whose_network_namespaces_share_rdma_devices(
    pod_cluster: PodCluster, pods: str
) -> None:
    pod_cluster.define(yaml.safe_load(STATES))
    pod_cluster.create("/apis/sriovnetwork.openshift.io/v1/namespaces/gate/sriovnetworknodestates", SHARED)
    ended = _ended(pod_cluster, pods, "shared", "Failed", nodes=1, gpus=8)
    assert ended["message"] == (
        "after 1 s: gpu-0 shares its RDMA devices between network namespaces, so that no pod gets one"
    )
