"""Kubeconfigs whose credentials are made when they are needed: by `llmd-oke token`, without OCI's command line."""

import json
from typing import Any

from llmd_oke.access.sign_in import SignIn
from llmd_oke.config.kubeconfig import Access, read

__all__ = ["Access", "assemble", "read"]

EXEC_API_VERSION = "client.authentication.k8s.io/v1beta1"


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
