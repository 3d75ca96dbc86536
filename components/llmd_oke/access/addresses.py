"""Region of a stack's cluster, and host, port and reachability of its API server.

This module must not import an HTTP client, because every preview imports it.
"""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

from llmd_base.errors import KitError

from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig

_REGIONS_BY_KEY = {
    "iad": "us-ashburn-1",
    "phx": "us-phoenix-1",
    "fra": "eu-frankfurt-1",
    "lhr": "uk-london-1",
}
"""Name of each region whose OCIDs contain a region key; OCIDs of other regions contain the region's name (OCI
documentation, Regions)."""

_REGION_PART = 3
_HTTPS_PORT = 443
CONNECT_TIMEOUT_S = 1.0


def region_of(config: StackConfig, region: str | None = None) -> str:
    """Return the region of a stack's cluster: the argument `region`, or else that of the stack file or of the cluster's
    OCID.

    Raises:
        KitError: none of them has a region.
    """
    if region:
        return region
    if isinstance(config.cluster, CreateCluster):
        return config.cluster.region
    identifier = config.cluster.identifier if isinstance(config.cluster, ExistingCluster) else ""
    if named := ocid_region(identifier):
        return named
    raise KitError("The stack does not say which region its cluster is in.", "Give --region.")


def ocid_region(identifier: str) -> str:
    """Return the region that an OCID contains, such as `us-ashburn-1`; empty if it contains none, or if the text is no
    OCID.
    """
    parts = identifier.split(".")
    named = parts[_REGION_PART] if identifier.startswith("ocid1.") and len(parts) > _REGION_PART else ""
    return _REGIONS_BY_KEY.get(named, named)


def host_and_port(api_server: str) -> tuple[str, int]:
    """Return the host and port of an API server's URL (`https://127.0.0.1:6443`); port 443 if left out.

    Raises:
        KitError: the text isn't an HTTPS URL.
    """
    with suppress(ValueError):  # the port isn't a number
        place = urlsplit(api_server)
        port = place.port or _HTTPS_PORT
        if place.scheme == "https" and place.hostname:
            return place.hostname, port
    raise KitError(
        f"{api_server} is no address of an API server.", "Such as llmd-oke:apiServer: https://127.0.0.1:6443"
    )


def is_reachable(host: str, port: int) -> bool:
    """Return True if a TCP connection to host and port succeeds within a second."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
