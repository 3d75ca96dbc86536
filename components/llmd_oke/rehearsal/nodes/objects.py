"""The Node and Lease objects of a simulated node, as a kubelet would register them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from llmd_oke.rehearsal.nodes.config import NodeConfig

LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40  # kubelet's own default (nodeLeaseDurationSeconds)
SIMULATED_LABEL = "rehearsal.llmd-oke/node"
_PRESSURES = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}
_KUBELET_VERSION = "v0.0.0-rehearsal"


def timestamp(moment: datetime) -> str:
    """Write a UTC time as Kubernetes' `Time`, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def node(config: NodeConfig, address: str, now: datetime, devices: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Give the whole Node object, status included, as it's first created; `devices` are those that show already."""
    labels = {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        SIMULATED_LABEL: "simulated",
        **config.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.name, "labels": labels},
        "spec": {"taints": taints(config), **({"providerID": config.provider_id} if config.provider_id else {})},
        "status": status(config, address, now, devices),
    }


def taints(config: NodeConfig) -> list[dict[str, str]]:
    """Give the node's own taints."""
    return [taint.model_dump(exclude_none=True) for taint in config.taints]


def status(config: NodeConfig, address: str, now: datetime, devices: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Give a Ready status with the shape's resources and the devices that show, all of them allocatable."""
    capacity = {**config.capacity, **(devices or {})}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [
            *(_condition(name, "False", reason, now) for name, reason in _PRESSURES.items()),
            _condition("Ready", "True", "KubeletReady", now),
        ],
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": config.name}],
        "nodeInfo": _node_info(config.name),
    }


def lease(node_name: str, node_uid: str, now: datetime) -> dict[str, Any]:
    """Give the node's Lease, owned by its Node so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node_name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": lease_spec(node_name, now),
    }


def lease_spec(node_name: str, now: datetime) -> dict[str, Any]:
    """Give what a renewal writes."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": node_name, "leaseDurationSeconds": LEASE_DURATION_S, "renewTime": renewed}


def _condition(name: str, value: str, reason: str, now: datetime) -> dict[str, str]:
    moment = timestamp(now)
    return {
        "type": name,
        "status": value,
        "reason": reason,
        "message": "simulated by the rehearsal",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }


def _node_info(name: str) -> dict[str, str]:
    return {
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": "llmd-oke rehearsal",
        "kernelVersion": "simulated",
        "containerRuntimeVersion": "processes://bubblewrap",
        "kubeletVersion": _KUBELET_VERSION,
        "kubeProxyVersion": "",
        "machineID": name,
        "systemUUID": name,
        "bootID": name,
    }
