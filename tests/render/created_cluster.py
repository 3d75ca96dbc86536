"""A stack that creates its cluster as render tests want it: with the answers that OCI would give."""

from collections.abc import Mapping
from typing import Any

from stack_files import DOMAIN, StackObject, created_pool, created_stack, ocid

LOOKUP_RESULTS = {
    "availabilityDomains": [DOMAIN, "Uocm:US-ASHBURN-AD-2"],
    "systemImageId": "ocid1.image.oc1.iad.system",
    "servicesGatewayId": "ocid1.service.oc1.iad.all",
    "servicesGatewayCidr": "all-iad-services-in-oracle-services-network",
}
_ROLES = ("api", "workers", "pods", "loadBalancers", "bastion")
NETWORK: StackObject = {
    "vcnId": ocid("vcn"),
    "cidr": "10.140.0.0/16",
    "subnets": {role: ocid("subnet", role) for role in _ROLES},
    "securityGroups": {role: ocid("networksecuritygroup", role) for role in _ROLES[:-1]},
}
"""A network that is there already: one that the stack creates is half of all resources."""

_CLUSTER = {
    "network": NETWORK,
    "iam": {"homeRegion": "us-ashburn-1", "domainUrl": "https://idcs-0a1b.identity.oraclecloud.com:443"},
    "lookupResults": LOOKUP_RESULTS,
}


def created(
    *, cluster: Mapping[str, object] | None = None, pool: Mapping[str, object] | None = None, **changes: object
) -> StackObject:
    """The stack with some keys of its cluster, of its pool and of itself changed."""
    return created_stack(created_pool(**(pool or {})), cluster={**_CLUSTER, **(cluster or {})}, **changes)


def with_network(*, cluster: Mapping[str, object] | None = None, **changes: Any) -> StackObject:
    """The same with a network that the stack creates."""
    return created(cluster={"network": {}, **(cluster or {})}, **changes)


def layer_of(stack: StackObject) -> StackObject:
    """The cluster layer of a stack: the same without models."""
    return {key: part for key, part in stack.items() if key != "models"} | {"layer": "cluster"}


def cluster_layer(**changes: Any) -> StackObject:
    """The cluster layer of `created`."""
    return layer_of(created(**changes))


def network_layer(**changes: Any) -> StackObject:
    """The cluster layer of `with_network`."""
    return layer_of(with_network(**changes))
