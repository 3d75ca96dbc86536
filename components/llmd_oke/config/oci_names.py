"""What OCI calls things, as far as a stack file can be judged without asking OCI."""

from typing import Annotated

from pydantic import StringConstraints

OCID = r"^ocid1\.[a-z0-9]+\.[a-z0-9-]+\.[a-z0-9-]*\.([a-z0-9-]*\.)?[A-Za-z0-9_-]+$"
REGION = r"^[a-z]+-[a-z]+-[0-9]+$"
KUBERNETES_VERSION = r"^v1\.[0-9]+\.[0-9]+$"
CIDR = r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+/[0-9]+$"
AVAILABILITY_DOMAIN = r"^[A-Za-z]+:[A-Z0-9-]+-AD-[1-3]$"
FAULT_DOMAIN = r"^FAULT-DOMAIN-[1-3]$"
CHECKSUM = r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$"
HTTPS = r"^https://"

WORDS = {
    OCID: "an OCID such as ocid1.compartment.oc1..aaaa",
    REGION: "a region such as us-ashburn-1",
    KUBERNETES_VERSION: "a Kubernetes version such as v1.34.2",
    CIDR: "an IPv4 range such as 10.0.0.0/16",
    AVAILABILITY_DOMAIN: "the whole name of an availability domain, such as Uocm:US-ASHBURN-AD-1",
    FAULT_DOMAIN: "FAULT-DOMAIN-1, FAULT-DOMAIN-2 or FAULT-DOMAIN-3",
    HTTPS: "an address that begins with https://",
    CHECKSUM: "md5: or sha256: and the checksum in lower-case hexadecimal digits",
}
"""The patterns in words."""

Ocid = Annotated[str, StringConstraints(pattern=OCID, max_length=255)]
"""An Oracle Cloud identifier."""

Region = Annotated[str, StringConstraints(pattern=REGION)]
"""A region's identifier."""

KubernetesVersion = Annotated[str, StringConstraints(pattern=KUBERNETES_VERSION)]
"""A version of Kubernetes as OKE writes it."""

Cidr = Annotated[str, StringConstraints(pattern=CIDR)]
"""An IPv4 range; whether it is a network of its own and large enough is judged by planning."""

AvailabilityDomain = Annotated[str, StringConstraints(pattern=AVAILABILITY_DOMAIN)]
"""An availability domain. Its prefix is the tenancy's own, so that it can't be made up from the region."""

FaultDomain = Annotated[str, StringConstraints(pattern=FAULT_DOMAIN)]
"""A fault domain of an availability domain."""

HttpsUrl = Annotated[str, StringConstraints(pattern=HTTPS)]
"""An address that is reached by HTTPS only."""

Checksum = Annotated[str, StringConstraints(pattern=CHECKSUM)]
"""The checksum of a file."""
