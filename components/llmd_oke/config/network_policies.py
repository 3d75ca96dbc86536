"""Network policies of a stack's cluster: what enforces them, and what its pods may reach beside the kit's own."""

from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Cidr, ConfigPart, Items

PolicyEngine = Literal["calico", "existing", "none"]

Port = Annotated[int, Field(ge=1, le=65_535)]

LINK_LOCAL = IPv4Network("169.254.0.0/16")
"""No pod gets there: OCI's instance metadata (169.254.169.254) signs whoever asks it in as the node."""


class Destination(ConfigPart):
    """Addresses that every pod of the stack's namespace may connect to."""

    cidr: Cidr
    """Block of IPv4 addresses. Of a block with OCI's instance metadata (169.254.169.254) that part stays closed,
    and a block of link-local addresses alone (169.254.0.0/16) is refused."""

    ports: Annotated[Items[Port], Field(max_length=50)] = ()
    """TCP ports; every port and protocol if left out."""


class NetworkPolicies(ConfigPart):
    """Engine that enforces NetworkPolicies, without which they do nothing, and what they open.

    Pods of the stack's namespace are reached by nobody and reach nobody but whom the kit's policies name.
    """

    engine: PolicyEngine = "none"
    """`calico`: the kit installs Calico's policy engine beside OKE's VCN-native pod network, in a cluster that it
    creates. `existing`: something in the cluster enforces policies. `none`: nothing does."""

    destinations: Annotated[Items[Destination], Field(max_length=50)] = ()
    """What model servers and other pods reach beside DNS, each other, the API server and HTTPS: a store of weights at
    another port, for example."""
