"""A stack that creates its cluster, as render tests want it, and its parts alone."""

import copy
from typing import Any

LOOKUP_RESULTS = {
    "availabilityDomains": ["Uocm:US-ASHBURN-AD-1", "Uocm:US-ASHBURN-AD-2"],
    "systemImageId": "ocid1.image.oc1.iad.system",
    "servicesGatewayId": "ocid1.service.oc1.iad.all",
    "servicesGatewayCidr": "all-iad-services-in-oracle-services-network",
}

STACK: dict[str, Any] = {
    "cluster": {
        "mode": "create",
        "name": "prod",
        "region": "us-ashburn-1",
        "compartmentId": "ocid1.compartment.oc1..c",
        "tenancyId": "ocid1.tenancy.oc1..t",
        "kubernetesVersion": "v1.34.2",
        "iam": {"homeRegion": "us-ashburn-1", "domainUrl": "https://idcs-0a1b.identity.oraclecloud.com:443"},
        "lookupResults": LOOKUP_RESULTS,
    },
    "gpuPools": [
        {
            "name": "mi300x",
            "shape": "BM.GPU.MI300X.8",
            "size": 9,
            "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
            "image": {"ocid": "ocid1.image.oc1.iad.gpu"},
        }
    ],
    "release": "llm-d-0.9.0",
    "models": [
        {
            "model": "gpt-oss-120b",
            "topology": "8p-tp1-4d-tp2",
            "workload": {"inputTokens": 4096, "outputTokens": 256},
        }
    ],
}


def created(*, cluster: Any = None, pool: Any = None, **changes: Any) -> dict[str, Any]:
    """The stack with some keys of its cluster, of its pool and of itself changed; None takes one away."""
    made = copy.deepcopy(STACK)
    made["cluster"] |= cluster or {}
    made["gpuPools"][0] |= pool or {}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def cluster_layer(**changes: Any) -> dict[str, Any]:
    """The same without models."""
    return created(layer="cluster", models=None, **changes)
