"""Sign-in of a CI job to OCI and to Pulumi Cloud by the job's own token."""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import httpx2

from llmd_oke.access import federation
from llmd_oke.operations.backend import PASSPHRASE, environment, signed_in_to_cloud

ORGANIZATION, LIFETIME = "LLMD_OKE_PULUMI_ORGANIZATION", "LLMD_OKE_PULUMI_TOKEN_LIFETIME"
"""Environment variables: the organization of Pulumi Cloud that trusts the job's token, and the lifetime of Pulumi's
access token (`6h`)."""

_MAY_BE_EMPTY = (
    *("PULUMI_ACCESS_TOKEN", "PULUMI_BACKEND_URL", PASSPHRASE, "OCI_AUTH"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
)
"""Environment variables that a workflow sets to an empty string if the repository lacks the variable or secret. They
are unset then, since Pulumi would use an empty passphrase, for example."""


@contextmanager
def job_signed_in(report: Callable[[str], None], *, oci: bool = True, backend: bool = True) -> Generator[None]:
    """Sign in with the job's own token during the block, to OCI and to Pulumi Cloud, if environment variables configure
    it. Variables that are empty count as missing. `report` is called with a message for each renewal that fails.

    Raises:
        KitError: the configuration is incomplete, or OCI or Pulumi Cloud refuses the token.
    """
    empty = {name: None for name in _MAY_BE_EMPTY if os.environ.get(name) == ""}
    organization = os.environ.get(ORGANIZATION) if backend else None
    exchange = federation.exchange_of(os.environ) if oci else None

    with environment(empty), ExitStack() as stack:
        if exchange:
            stack.enter_context(federation.signed_in(exchange, report))
        if organization:
            with httpx2.Client(timeout=federation.TIMEOUT_S) as http:
                # The audience that Pulumi Cloud expects (pulumi.com, OIDC issuers).
                token = federation.job_token(f"urn:pulumi:org:{organization}", os.environ, http)
            stack.enter_context(signed_in_to_cloud(organization, token, os.environ.get(LIFETIME) or None))
        yield
