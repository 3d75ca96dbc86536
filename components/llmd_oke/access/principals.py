"""Signers of OCI requests by instance principal or workload identity, with OCI's SDK (the extra `oci`).

An instance presents the certificate of its metadata service to OCI's authentication service, a pod its service
account's token to the proxy beside the API server. Both receive a token that is bound to a key of this process; the SDK
renews the token before it expires.
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
"""Longest time of retries of the metadata service in seconds. The SDK's default is three minutes, too long on a machine
that isn't an OCI instance."""


@dataclass(frozen=True)
class PrincipalSigner:
    """Signer of OCI requests by a principal. `sign`, a signer of OCI's SDK, adds headers to a request object in place;
    `failure` and `remedy` are the message and the advice of the error if it gets no token.
    """

    sign: Callable[[Any], object] = field(repr=False)
    failure: str
    remedy: str

    def headers(
        self, method: str, url: str, *, now: datetime | None = None, body: bytes | None = None
    ) -> dict[str, str]:
        """Return the headers of a signed request: `date`, `authorization`, and those of the body if there is one.

        Raises:
            KitError: the token has expired, and OCI doesn't issue another.
        """
        parts = urlsplit(url)
        request = SimpleNamespace(
            method=method,
            url=url,
            path_url=parts.path + (f"?{parts.query}" if parts.query else ""),
            body=(body or b"").decode(),  # the SDK computes content-length for text only
            headers={"date": http_date(now or datetime.now(UTC))},
        )
        with _exchange(self.failure, self.remedy):
            self.sign(request)
        return {name.lower(): text for name, text in request.headers.items() if name.lower() != "host"}


def instance_principal(federation_url: str | None = None) -> PrincipalSigner:
    """Return the signer of the OCI instance that this process runs on.

    Args:
        federation_url: URL of the service that issues tokens; OCI's in the instance's region if left out.

    Raises:
        KitError: this machine isn't an OCI instance, or OCI doesn't issue a token.
    """
    failure = "OCI gives this machine no token of an instance"
    remedy = "It has to be an OCI instance in a dynamic group that a policy gives rights; or choose another --auth."
    retries = RetryStrategyBuilder(
        service_error_check=True,
        service_error_retry_config={-1: [], 404: [], 429: []},
        service_error_retry_on_any_5xx=True,
    ).add_max_attempts(METADATA_ATTEMPTS)
    authorities = ssl.get_default_verify_paths()  # the system's, as for all connections of the kit
    with _exchange(failure, remedy):
        signer = signers.InstancePrincipalsSecurityTokenSigner(
            retry_strategy=retries.add_total_elapsed_time(METADATA_RETRY_S).get_retry_strategy(),
            federation_endpoint=federation_url,
            federation_client_cert_bundle_verify=authorities.cafile or authorities.capath,
        )
    return PrincipalSigner(signer, failure, remedy)


def workload_identity(token: Path = SERVICE_ACCOUNT_TOKEN) -> PrincipalSigner:
    """Return the signer of the pod that this process runs in; `token` is the file with the service account's token.

    Raises:
        KitError: this process runs in no pod of an enhanced OKE cluster, or OCI doesn't issue a token.
    """
    failure = "OCI gives this machine no token of a pod"
    remedy = "It has to be a pod of an enhanced OKE cluster, with a service account; or choose another --auth."
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise KitError("This is no pod: KUBERNETES_SERVICE_HOST is not set.", remedy)
    with _exchange(failure, remedy):
        signer = signers.get_oke_workload_identity_resource_principal_signer(str(token))

    def sign(request: object) -> None:
        signer.get_security_token()  # renews the token in the second half of its lifetime
        signer(request)

    return PrincipalSigner(sign, failure, remedy)


@contextmanager
def _exchange(failure: str, remedy: str) -> Generator[None]:
    """Convert errors of the SDK into KitErrors without their texts, which may contain tokens. The SDK's errors have no
    common base class.
    """
    try:
        yield
    except ServiceError as error:
        raise KitError(f"{failure}: {error.status} {error.code}.", remedy) from error
    except Exception as error:
        raise KitError(f"{failure}: {type(error).__name__}.", remedy) from error
