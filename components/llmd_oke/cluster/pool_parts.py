"""What the pools of OKE have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import pulumi


class TaintArgs(TypedDict):
    """A taint that nodes register with."""

    key: str
    """Its key."""
    value: NotRequired[str]
    """Its value; none if left out."""
    effect: str
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`."""


class CyclingArgs(TypedDict):
    """How OKE replaces the nodes of a pool after a change."""

    mode: str
    """`replace-node` or `replace-boot-volume`."""
    max_surge: str
    """Nodes that may be added meanwhile: a number or a percentage."""
    max_unavailable: str
    """Nodes that may be missing meanwhile: a number or a percentage."""


class NodeNetworkArgs(TypedDict):
    """Where nodes and their pods are in the network."""

    worker_subnet_id: pulumi.Input[str]
    """Subnet of the nodes."""
    worker_nsg_ids: NotRequired[pulumi.Input[list[str]]]
    """Network security groups of the nodes."""
    pod_subnet_id: NotRequired[pulumi.Input[str]]
    """Subnet of the pods, with a VCN-native network; left out with flannel."""
    pod_nsg_ids: NotRequired[pulumi.Input[list[str]]]
    """Network security groups of the pods, with a VCN-native network."""


_CYCLE_MODES = {"replace-node": "INSTANCE_REPLACE", "replace-boot-volume": "BOOT_VOLUME_REPLACE"}


def cycling_details(cycling: CyclingArgs | None) -> dict[str, Any] | None:
    """How the nodes are replaced after a change; None if old nodes stay as they are."""
    if cycling is None:
        return None
    return {
        "is_node_cycling_enabled": True,
        "cycle_modes": [_CYCLE_MODES[cycling["mode"]]],
        "maximum_surge": cycling["max_surge"],
        "maximum_unavailable": cycling["max_unavailable"],
    }


def eviction_settings(grace_minutes: int) -> dict[str, Any]:
    """How a node is drained: so long, and then it goes, or is changed, whatever runs on it still."""
    return {
        "eviction_grace_duration": duration(grace_minutes),
        "is_force_action_after_grace_duration": True,
        "is_force_delete_after_grace_duration": True,
    }


def duration(minutes: int) -> str:
    """Minutes as OCI answers them: another text for the same time, `PT60M` or `PT0M`, would be changed by every update
    (terraform-provider-oci, containerengine_node_pool_test.go has `PT1H`; terraform-oci-oke, pull request 791, `PT0S`).
    """
    hours, rest = divmod(minutes, 60)
    return f"PT{f'{hours}H' if hours else ''}{f'{rest}M' if rest else ''}" if minutes else "PT0S"


def pod_network(network: NodeNetworkArgs, max_pods: int | None) -> dict[str, Any]:
    """The pods' part of a node pool."""
    if "pod_subnet_id" not in network:
        return {"cni_type": "FLANNEL_OVERLAY"}
    native: dict[str, Any] = {"cni_type": "OCI_VCN_IP_NATIVE", "pod_subnet_ids": [network["pod_subnet_id"]]}
    if "pod_nsg_ids" in network:
        native["pod_nsg_ids"] = network["pod_nsg_ids"]
    if max_pods is not None:
        native["max_pods_per_node"] = max_pods
    return native


def label_list(labels: Mapping[str, str]) -> list[dict[str, str]]:
    """Labels as a node pool has them."""
    return [{"key": key, "value": value} for key, value in sorted(labels.items())]


def kubelet_taints(taints: Sequence[TaintArgs]) -> list[str]:
    """Taints as the kubelet has them."""
    return [f"{taint['key']}={taint.get('value', '')}:{taint['effect']}" for taint in taints]
