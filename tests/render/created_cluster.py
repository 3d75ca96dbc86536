"""A stack that creates its cluster as render tests want it: with the answers that OCI would give."""

from collections.abc import Mapping

import stack_files
from stack_files import DOMAIN, StackObject, created_pool, created_stack

LOOKUP_RESULTS = {
    "availabilityDomains": [DOMAIN, "Uocm:US-ASHBURN-AD-2"],
    "systemImageId": "ocid1.image.oc1.iad.system",
    "servicesGatewayId": "ocid1.service.oc1.iad.all",
    "servicesGatewayCidr": "all-iad-services-in-oracle-services-network",
}
_CLUSTER = {
    "iam": {"homeRegion": "us-ashburn-1", "domainUrl": "https://idcs-0a1b.identity.oraclecloud.com:443"},
    "lookupResults": LOOKUP_RESULTS,
}


def created(
    *, cluster: Mapping[str, object] | None = None, pool: Mapping[str, object] | None = None, **changes: object
) -> StackObject:
    """The stack with some keys of its cluster, of its pool and of itself changed."""
    return created_stack(created_pool(**(pool or {})), cluster={**_CLUSTER, **(cluster or {})}, **changes)


def cluster_layer(
    *, cluster: Mapping[str, object] | None = None, pool: Mapping[str, object] | None = None, **changes: object
) -> StackObject:
    """The same without models."""
    return stack_files.cluster_layer(created_pool(**(pool or {})), cluster={**_CLUSTER, **(cluster or {})}, **changes)
