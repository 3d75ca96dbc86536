"""What `testing`'s mocks answer where a program needs more of OCI or Kubernetes than its own inputs."""

import json
from typing import Any

from llmd_oke.errors import KitError

KUBECONFIG = json.dumps(
    {
        "clusters": [
            {
                "name": "cluster",
                "cluster": {"server": "https://10.140.0.5:6443", "certificate-authority-data": "Q0EgQ0VSVElGSUNBVEU="},
            }
        ],
        "users": [{"name": "user", "user": {"exec": {"command": "oci", "args": ["ce", "cluster", "generate-token"]}}}],
    }
)
"""What OKE gives for a cluster: its address and authority, and a user that asks OCI's command line."""

_CALLS: dict[str, dict[str, Any]] = {
    "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig": {"content": KUBECONFIG},
    "oci:ContainerEngine/getNodePoolOption:getNodePoolOption": {
        "sources": [
            {
                "sourceName": f"Oracle-Linux-8.10-2026.07.31-0-OKE-{version}-1330",
                "imageId": f"ocid1.image.oc1..{version}",
                "sourceType": "IMAGE",
            }
            for version in ("1.33.1", "1.34.2", "1.36.1")
        ]
    },
    "oci:Core/getServices:getServices": {
        "services": [
            {
                "id": "ocid1.service.oc1.iad.all",
                "cidrBlock": "all-iad-services-in-oracle-services-network",
                "name": "All IAD Services In Oracle Services Network",
                "description": "",
            }
        ]
    },
    "oci:Identity/getAvailabilityDomains:getAvailabilityDomains": {
        "availabilityDomains": [
            {"id": f"ocid1.availabilitydomain.oc1..{number}", "name": f"Uocm:US-ASHBURN-AD-{number}"}
            for number in (1, 2, 3)
        ]
    },
    "oci:Identity/getDomains:getDomains": {
        "domains": [{"displayName": "Default", "url": "https://idcs-0.identity.oraclecloud.com:443"}]
    },
    "oci:Identity/getRegionSubscriptions:getRegionSubscriptions": {
        "regionSubscriptions": [{"isHomeRegion": True, "regionName": "us-ashburn-1"}]
    },
}


COMPUTED: dict[str, dict[str, Any]] = {
    "pulumi:pulumi:StackReference": {"outputs": {}},  # of a stack that is new
    "oci:Core/vcn:Vcn": {"defaultSecurityListId": "ocid1.securitylist.oc1.iad.default"},
    "oci:FileStorage/mountTarget:MountTarget": {
        "ipAddress": "10.140.0.100",
        "exportSetId": "ocid1.exportset.oc1.iad.1",
    },
    "oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem": {"managementServiceAddress": "10.140.2.2"},
}


def call(token: str) -> dict[str, Any]:
    """The answer to a provider function.

    Raises:
        KitError: there is none.
    """
    if token not in _CALLS:
        raise KitError(f"The program calls {token}, which these mocks have no answer to.")
    return _CALLS[token]


def outputs(type_: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """A resource's outputs: its inputs, what OCI makes up beside them, a Helm release's status, a Stash's value."""
    if type_ == "kubernetes:helm.sh/v3:Release":
        return {**inputs, "status": {"name": inputs.get("name"), "namespace": inputs.get("namespace")}}
    if type_ == "pulumi:index:Stash":
        return {**inputs, "output": inputs.get("input")}
    return {**inputs, **COMPUTED.get(type_, {})}
