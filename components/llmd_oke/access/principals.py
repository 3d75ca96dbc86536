"""Signers of OCI's requests for the instance or the pod that this runs in, by OCI's SDK (the extra `oci`).

An instance shows the certificate of its metadata service to OCI's authentication service, a pod shows its service
account's token to the proxy beside the API server. Both get a token for a key that never leaves this process; the SDK
gets the next one before it ends.
"""

import os
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from llmd_base.errors import KitError
from llmd_base.extras import extra

from llmd_oke.access.signing import http_date

with extra("oci", "Signing in as an instance or a workload of OCI"):
    from oci.auth import signers
    from oci.exceptions import ServiceError
    from oci.retry import RetryStrategyBuilder

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

METADATA_ATTEMPTS = 3
METADATA_RETRY_S = 20
"""How long a metadata service is asked again. The SDK's own three minutes are long where this is no instance."""


@dataclass(frozen=True)
class PrincipalSigner:
    """Signs by a signer of OCI's SDK, which changes a request of `requests` in its place."""

    sign: Callable[[Any], object] = field(repr=False)
    failure: str
    remedy: str

    def headers(
        self, method: str, url: str, *, now: datetime | None = None, body: bytes | None = None
    ) -> dict[str, str]:
        """Return the headers of a signed request: `date`, `authorization`, and those of the body where there is one.

        Raises:
            KitError: the token has ended, and OCI gives no other one.
        """
        parts = urlsplit(url)
        request = SimpleNamespace(
            method=method,
            url=url,
            path_url=parts.path + (f"?{parts.query}" if parts.query else ""),
            body=(body or b"").decode(),  # of a text the SDK works out the length, of bytes `requests` would
            headers={"date": http_date(now or datetime.now(UTC))},
        )
        with _exchange(self.failure, self.remedy):
            self.sign(request)
        return {name.lower(): text for name, text in request.headers.items() if name.lower() != "host"}


def instance_principal(federation_url: str | None = None) -> PrincipalSigner:
    """Return the signer of the instance that this runs on.

    Args:
        federation_url: where tokens are given; OCI's authentication service of the instance's region if left out.

    Raises:
        KitError: this is no OCI instance, or OCI does not accept it.
    """
    failure = "OCI gives this machine no token of an instance"
    remedy = "It has to be an OCI instance in a dynamic group that a policy gives rights; or choose another --auth."
    retries = RetryStrategyBuilder(
        service_error_check=True,
        service_error_retry_config={-1: [], 404: [], 429: []},
        service_error_retry_on_any_5xx=True,
    ).add_max_attempts(METADATA_ATTEMPTS)
    authorities = ssl.get_default_verify_paths()  # the system's, as all connections of the kit
    with _exchange(failure, remedy):
        signer = signers.InstancePrincipalsSecurityTokenSigner(
            retry_strategy=retries.add_total_elapsed_time(METADATA_RETRY_S).get_retry_strategy(),
            federation_endpoint=federation_url,
            federation_client_cert_bundle_verify=authorities.cafile or authorities.capath,
        )
    return PrincipalSigner(signer, failure, remedy)


def workload_identity(token: Path = SERVICE_ACCOUNT_TOKEN) -> PrincipalSigner:
    """Return the signer of the pod that this runs in, which shows the token of its service account in that file.

    Raises:
        KitError: this is no pod of an enhanced OKE cluster, or OCI does not accept it.
    """
    failure = "OCI gives this machine no token of a pod"
    remedy = "It has to be a pod of an enhanced OKE cluster, with a service account; or choose another --auth."
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise KitError("This is no pod: KUBERNETES_SERVICE_HOST is not set.", remedy)
    with _exchange(failure, remedy):
        signer = signers.get_oke_workload_identity_resource_principal_signer(str(token))

    def sign(request: object) -> None:
        signer.get_security_token()  # a new one where half of the old one's life is over
        signer(request)

    return PrincipalSigner(sign, failure, remedy)


@contextmanager
def _exchange(failure: str, remedy: str) -> Generator[None]:
    """Raise what the SDK raises as a KitError. Its errors have no common class, and their texts may hold tokens."""
    try:
        yield
    except ServiceError as error:
        raise KitError(f"{failure}: {error.status} {error.code}.", remedy) from error
    except Exception as error:
        raise KitError(f"{failure}: {type(error).__name__}.", remedy) from error
