"""NetworkPolicies of a stack: the engine that enforces them, and additional destinations of pods."""

from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Cidr, ConfigPart, Items

PolicyEngine = Literal["calico", "existing", "none"]

Port = Annotated[int, Field(ge=1, le=65_535)]

LINK_LOCAL = IPv4Network("169.254.0.0/16")
"""Link-local range that pods can't connect to: OCI's instance metadata service (169.254.169.254) gives whoever calls it
the node's own credentials.
"""


class Destination(ConfigPart):
    """IP range that every pod of the stack's namespace may connect to."""

    cidr: Cidr
    """IPv4 range. A range may contain OCI's instance metadata service (169.254.169.254), which then stays blocked; a
    range within 169.254.0.0/16 is refused.
    """

    ports: Annotated[Items[Port], Field(max_length=50)] = ()
    """TCP ports; every port and protocol if left out."""


class NetworkPolicies(ConfigPart):
    """Engine that enforces NetworkPolicies, and additional destinations that they open.

    Without an engine NetworkPolicies have no effect. With one, pods of the stack's namespace can connect, and accept
    connections, only as the kit's policies allow.
    """

    engine: PolicyEngine = "none"
    """`calico`: the kit installs Calico's policy engine besides OKE's VCN-native pod network, in a cluster that it
    creates. `existing`: the cluster already has an engine. `none`: nothing enforces NetworkPolicies.
    """

    destinations: Annotated[Items[Destination], Field(max_length=50)] = ()
    """Additional destinations of model servers and other pods, besides DNS, each other, the API server and HTTPS: for
    example a store of weights on another port.
    """
