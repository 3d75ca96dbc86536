"""`llmd-oke token`: tokens for a cluster's API server, as a credential plug-in of kubectl."""

import json
import os
from collections.abc import Mapping
from typing import Annotated

import typer
from llmd_base.errors import KitError

from llmd_oke.access import signing
from llmd_oke.access.oci_client import SignedOciClient
from llmd_oke.access.sign_in import Auth, SignIn, auth_of_environment, of_provider
from llmd_oke.access.signing import RequestSigner

VARIABLE = "LLMD_OKE_AUTH"


AuthOption = Annotated[
    Auth | None,
    typer.Option(
        "--auth",
        help="How to sign in to OCI; an API key or session of `~/.oci/config` if left out.",
        envvar=VARIABLE,
    ),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Profile of OCI's configuration file.")]


def token(
    cluster_id: Annotated[str, typer.Option(help="OCID of the cluster.")],
    region: Annotated[str, typer.Option(help="Region of the cluster.")],
    auth: AuthOption = None,
    profile: Profile = None,
) -> None:
    """Print a token for a cluster's API server, valid for four minutes. Kubeconfigs call this command automatically."""
    credential = signing.exec_credential(signer_of(auth, profile), cluster_id, region)
    typer.echo(json.dumps(credential))


def signer_of(auth: Auth | None, profile: str | None) -> RequestSigner:
    """Return the signer of OCI requests for a sign-in method and a profile of OCI's configuration file.

    Raises:
        KitError: the signer can't be created; the message says why.
    """
    if auth is None:
        named = os.environ.get(VARIABLE)
        if named and named not in set(Auth):
            raise KitError(f"{VARIABLE}={named} is no way to sign in that this knows.", f"Known: {', '.join(Auth)}.")
        auth = Auth(named) if named else auth_of_environment(os.environ)
    if auth is Auth.API_KEY:
        return signing.api_key_signer(profile=profile)
    from llmd_oke.access import principals  # noqa: PLC0415 - OCI's SDK, an extra, takes 0.25 s to load

    return principals.instance_principal() if auth is Auth.INSTANCE_PRINCIPAL else principals.workload_identity()


def sign_in_of(settings: Mapping[str, str], auth: Auth | None = None, profile: str | None = None) -> SignIn:
    """Return the sign-in to OCI that a command uses: by `auth` and `profile`, otherwise by the stack's `oci:` config,
    which is in `settings`.

    Raises:
        KitError: the kit doesn't support the way to sign in of the stack's config.
    """
    if auth or profile:
        return SignIn(auth, profile)
    return of_provider({key.removeprefix("oci:"): text for key, text in settings.items() if key.startswith("oci:")})


def client_of(who: SignIn, region: str) -> SignedOciClient:
    """Return a client of OCI for a region that signs in by `who`.

    Raises:
        KitError: the way to sign in isn't available; the message says why.
    """
    return SignedOciClient(signer_of(who.auth, who.profile), region)
