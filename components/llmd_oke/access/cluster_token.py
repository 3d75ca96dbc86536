"""Tokens for the API servers of OKE: a signed request that OKE itself sends on, in base64."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from llmd_oke.access.signing import Signer

EXEC_API_VERSION = "client.authentication.k8s.io/v1beta1"

LIFETIME = timedelta(minutes=4)
"""What OCI's own tools say of these tokens (terraform-provider-oci, OCI's command line)."""


def cluster_token(signer: Signer, cluster_id: str, region: str, now: datetime) -> str:
    """The token for a cluster."""
    url = f"https://containerengine.{region}.oraclecloud.com/cluster_request/{cluster_id}"
    signed = signer.headers("GET", url, now=now)
    query = urlencode({"authorization": signed["authorization"], "date": signed["date"]})
    return base64.urlsafe_b64encode(f"{url}?{query}".encode()).decode()


def exec_credential(signer: Signer, cluster_id: str, region: str, now: datetime | None = None) -> dict[str, Any]:
    """The token as kubectl and client-go want it of a credential program."""
    now = now or datetime.now(UTC)
    return {
        "apiVersion": EXEC_API_VERSION,
        "kind": "ExecCredential",
        "status": {
            "token": cluster_token(signer, cluster_id, region, now),
            "expirationTimestamp": (now + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    }
