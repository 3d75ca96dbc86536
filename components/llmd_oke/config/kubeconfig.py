"""What a kubeconfig says of its cluster, whoever wrote it: OKE, or a user into a stack file."""

import base64
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import yaml
from llmd_pods.documents import require_bounded
from llmd_pods.errors import KitError

CREDENTIALS = frozenset({"token", "password", "client-key-data", "auth-provider"})
"""Keys of a kubeconfig's user that let in whoever reads them."""


@dataclass(frozen=True)
class Access:
    """Where an API server is and what its certificate is checked against (base64 of PEM text)."""

    server: str
    certificate_authority: str
    user: dict[str, Any]

    @property
    def host(self) -> str:
        """The server's host without its port."""
        return urlsplit(self.server).hostname or ""


def read(text: str) -> Access:
    """The way to the API server in the kubeconfig that OKE gives for a cluster.

    Raises:
        KitError: it is no kubeconfig of one cluster. The text itself, which may hold credentials, is not in its words.
    """
    try:
        require_bounded(text)
        document = cast("dict[str, Any]", yaml.safe_load(text))
        cluster = document["clusters"][0]["cluster"]
        user = dict(document["users"][0]["user"].items())
        access = Access(cluster["server"], cluster.get("certificate-authority-data", ""), user)
        _require_usable(access)
    except (yaml.YAMLError, KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise KitError("The kubeconfig of the cluster can't be read.", "OKE gave something unexpected.") from error
    return access


def _require_usable(access: Access) -> None:
    """A server's address and an authority in base 64, in objects of the right kinds; ValueError otherwise."""
    base64.b64decode(access.certificate_authority.encode(), validate=True)
    if urlsplit(access.server).scheme != "https" or not access.host:
        raise ValueError("no address of an API server")
