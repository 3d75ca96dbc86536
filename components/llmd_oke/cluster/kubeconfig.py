"""Kubeconfigs whose credentials are made when they are needed: by `llmd-oke token`, without OCI's command line."""

import json
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import yaml

from llmd_oke.access.sign_in import SignIn
from llmd_oke.errors import KitError

EXEC_API_VERSION = "client.authentication.k8s.io/v1beta1"


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
        KitError: it is no kubeconfig of one cluster.
    """
    try:
        document = cast("dict[str, Any]", yaml.safe_load(text))
        cluster = document["clusters"][0]["cluster"]
        user = cast("dict[str, Any]", document["users"][0]["user"])
        return Access(cluster["server"], cluster.get("certificate-authority-data", ""), user)
    except (yaml.YAMLError, KeyError, IndexError, TypeError) as error:
        raise KitError("The kubeconfig of the cluster can't be read.", "OKE gave something unexpected.") from error


ANYBODY = SignIn()


def assemble(
    access: Access, cluster_id: str, region: str, api_server: str | None = None, sign_in: SignIn = ANYBODY
) -> str:
    """A kubeconfig for that cluster, as JSON (which is YAML).

    A user that asks a program for credentials is replaced by one that asks `llmd-oke token`, which signs in as told, or
    else as whoever uses the kubeconfig does; any other user is kept. With
    `api_server` (a tunnel's `https://127.0.0.1:6443`) that address is used, and the certificate is still checked
    against the cluster's own.
    """
    cluster = {"server": access.server, "certificate-authority-data": access.certificate_authority}
    if api_server:
        cluster |= {"server": api_server, "tls-server-name": access.host}
    user = _token_user(cluster_id, region, sign_in) if "exec" in access.user else access.user
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "context",
        }
    )


def _token_user(cluster_id: str, region: str, sign_in: SignIn) -> dict[str, Any]:
    return {
        "exec": {
            "apiVersion": EXEC_API_VERSION,
            "command": "llmd-oke",
            "args": ["token", "--cluster-id", cluster_id, "--region", region, *sign_in.words],
            "interactiveMode": "Never",
            "provideClusterInfo": False,
            "installHint": "llmd-oke must be on PATH: it is the command of this kit's package.",
        }
    }
