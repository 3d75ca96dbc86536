"""What a created cluster's parts may do in OCI."""

from typing import Annotated, Literal

from pydantic import StringConstraints

from llmd_oke.config.base import Items, Part
from llmd_oke.config.oci_names import Ocid, Region

HTTPS_URL = r"^https://[A-Za-z0-9.-]+(:[0-9]+)?/?$"
DOMAIN_NAME = r"^[A-Za-z0-9_.-]+$"

WORDS = {
    HTTPS_URL: "the URL of an identity domain such as https://idcs-0a1b.identity.oraclecloud.com:443",
    DOMAIN_NAME: "letters, digits, underscores, dots and dashes",
}
"""The patterns in words."""

Grant = Literal[
    "ocir",
    "oci-metrics",
    "load-balancer-security-groups",
    "file-storage",
    "cluster-autoscaler",
    "cluster-autoscaler-instance-pools",
]


class DynamicGroups(Part):
    """Dynamic groups that are there already. One that is left out is created where a policy needs it."""

    nodes: Ocid | None = None
    """The nodes."""

    clusters: Ocid | None = None
    """The cluster."""


class Iam(Part):
    """Dynamic groups and policies: least privilege, only what the stack's choices need."""

    create: bool = True
    """Create them; otherwise an administrator has done so (`llmd-oke preflight` shows what is needed)."""

    style: Literal["identity-domain", "classic"] = "identity-domain"
    """Where dynamic groups live: in an identity domain, or in the root compartment of a tenancy without domains."""

    domain: Annotated[str, StringConstraints(pattern=DOMAIN_NAME, max_length=100)] = "Default"
    """Name of the identity domain."""

    domain_url: Annotated[str, StringConstraints(pattern=HTTPS_URL)] | None = None
    """URL of the identity domain; asked of OCI at preview if left out."""

    home_region: Region | None = None
    """The tenancy's home region, the only one where groups and policies can be made; asked of OCI at preview if left
    out."""

    dynamic_groups: DynamicGroups = DynamicGroups()
    """Dynamic groups that are there already."""

    image_compartment_id: Ocid | None = None
    """Compartment of images that are there already; the cluster's if left out."""

    key_compartment_id: Ocid | None = None
    """Compartment of the keys that Secrets and boot volumes are encrypted with; the cluster's if left out."""

    grants: Items[Grant] = ()
    """Rights beside those that the stack's choices need. `ocir`: nodes pull from private repositories. `oci-metrics`:
    nodes publish the health of GPUs and RDMA as OCI metrics. `load-balancer-security-groups`: Services manage rules in
    security groups. `file-storage`: the File Storage driver makes volumes on demand. `cluster-autoscaler`: one of your
    own changes the sizes of managed pools (pools with `scaling` need no grant), and with
    `cluster-autoscaler-instance-pools` those of cluster networks.
    """
