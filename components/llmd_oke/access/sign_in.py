"""Who signs in to OCI where a stack's `oci:` config says it: the same for OCI's resources, clusters and tunnels."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from llmd_oke.errors import KitError


class Auth(StrEnum):
    """How to sign in."""

    API_KEY = "api-key"
    INSTANCE_PRINCIPAL = "instance-principal"
    WORKLOAD_IDENTITY = "workload-identity"


_OF_PROVIDER = {
    "apikey": Auth.API_KEY,
    "securitytoken": Auth.API_KEY,
    "instanceprincipal": Auth.INSTANCE_PRINCIPAL,
    "okeworkloadidentity": Auth.WORKLOAD_IDENTITY,
}
"""Values of `oci:auth`, which the provider reads in any case; a profile has an API key or a security token."""

KEY_MATERIAL = ("userOcid", "fingerprint", "privateKey", "privateKeyPath")


@dataclass(frozen=True)
class SignIn:
    """A way to sign in and a profile of OCI's configuration file; what is None is left to who signs in."""

    auth: Auth | None = None
    profile: str | None = None

    @property
    def words(self) -> list[str]:
        """As options of the kit's commands."""
        auth = ["--auth", str(self.auth)] if self.auth else []
        return [*auth, *(["--profile", self.profile] if self.profile else [])]


def of_provider(config: Mapping[str, object]) -> SignIn:
    """The sign-in that the provider's config says (`auth`, `configFileProfile`, ...).

    Raises:
        KitError: it says one that clusters can't be reached with.
    """
    told, profile = config.get("auth"), config.get("configFileProfile")
    auth = _OF_PROVIDER.get(str(told).lower()) if told else None
    if told and auth is None:
        known = "ApiKey, SecurityToken, InstancePrincipal, OKEWorkloadIdentity"
        raise KitError(f"Clusters can't be reached with oci:auth {told}: `llmd-oke token` has no such sign-in.", known)
    given = [key for key in KEY_MATERIAL if config.get(key)]
    if given and not profile and auth in {None, Auth.API_KEY}:
        raise KitError(
            f"The stack's config has a key for OCI ({', '.join(f'oci:{key}' for key in given)}), but no profile:"
            " `llmd-oke token` would sign in to the cluster as somebody else.",
            "Put the key into a profile of OCI's configuration file, and name that: oci:configFileProfile.",
        )
    return SignIn(auth, str(profile) if profile else None)
