"""What a cluster's parts may do in OCI: policy statements by the need that they serve."""

from functools import cache
from typing import Literal

from llmd_oke.values import Entry, required_entry

Group = Literal["nodes", "clusters"]
Phase = Literal["cluster", "nodes"]
Scope = Literal["compartment", "network", "images", "keys", "tenancy"]
Need = Literal[
    "cluster-encryption",
    "self-managed-nodes",
    "managed-compute-cluster",
    "host-groups",
    "capacity-reservations",
    "custom-images",
    "boot-volume-encryption",
    "boot-volume-encryption-of-managed-pools",
    "load-balancer-security-groups",
    "network-elsewhere",
    "file-storage",
    "lustre",
    "cluster-autoscaler",
    "cluster-autoscaler-network-elsewhere",
    "cluster-autoscaler-instance-pools",
    "ocir",
    "oci-metrics",
]


class DynamicGroup(Entry):
    """A dynamic group; `matching_rule` is a template."""

    description: str
    matching_rule: str
    source: str


class Statement(Entry):
    """A policy statement, a template; repeated for each value of its `variable` if there is one.

    `scope` says which compartment its policy is attached to: the cluster's, that of the network, of images or of keys,
    or the tenancy's root.
    """

    scope: Scope = "compartment"
    text: str
    variable: str | None = None
    source: str


class NeedEntry(Entry):
    """Why something is granted, when, and what."""

    phase: Phase
    why: str
    statements: tuple[Statement, ...]


class Policies(Entry):
    """All that may be granted. `principals` are parts of conditions that many statements share."""

    groups: dict[Group, DynamicGroup]
    needs: dict[Need, NeedEntry]
    principals: dict[str, str]


@cache
def policies() -> Policies:
    """All that may be granted."""
    return required_entry("iam", "policies", Policies)
