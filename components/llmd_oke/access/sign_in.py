"""Identity that signs in to OCI as a stack's `oci:` config says: the same for OCI's resources, clusters and tunnels."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from llmd_base.errors import KitError


class Auth(StrEnum):
    """Way to sign in."""

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

_OF_OCI_CLI = {
    "api_key": "ApiKey",
    "security_token": "SecurityToken",
    "instance_principal": "InstancePrincipal",
    "oke_workload_identity": "OKEWorkloadIdentity",
}
"""Values of `OCI_CLI_AUTH`, which OCI's command line reads, as the provider calls them."""

KEY_MATERIAL = ("userOcid", "fingerprint", "privateKey", "privateKeyPath")


@dataclass(frozen=True)
class SignIn:
    """A way to sign in and a profile of OCI's configuration file; what is None is left to who signs in."""

    auth: Auth | None = None
    profile: str | None = None

    @property
    def words(self) -> list[str]:
        """Options of the kit's commands that sign in this way."""
        auth = ["--auth", str(self.auth)] if self.auth else []
        return [*auth, *(["--profile", self.profile] if self.profile else [])]


def of_provider(config: Mapping[str, object]) -> SignIn:
    """The sign-in that the provider's config says (`auth`, `configFileProfile`, ...).

    Raises:
        KitError: it says one that clusters can't be reached with.
    """
    name, profile = config.get("auth"), config.get("configFileProfile")
    auth = _OF_PROVIDER.get(str(name).lower()) if name else None
    if name and auth is None:
        known = "ApiKey, SecurityToken, InstancePrincipal, OKEWorkloadIdentity"
        raise KitError(f"Clusters can't be reached with oci:auth {name}: `llmd-oke token` has no such sign-in.", known)
    key_material = [key for key in KEY_MATERIAL if config.get(key)]
    if key_material and not profile and auth in {None, Auth.API_KEY}:
        raise KitError(
            f"The stack's config has a key for OCI ({', '.join(f'oci:{key}' for key in key_material)}), but no profile:"
            " `llmd-oke token` would sign in to the cluster as somebody else.",
            "Put the key into a profile of OCI's configuration file, and name that: oci:configFileProfile.",
        )
    return SignIn(auth, str(profile) if profile else None)


def of_environment(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable by which the environment says how to sign in, and the provider's word for it; None where none does.

    The provider reads `OCI_AUTH` and `TF_VAR_auth`; `OCI_CLI_AUTH` is for OCI's command line, and counts where neither
    of them is set. Empty ones, as a workflow makes of a variable that is not there, say nothing.

    Raises:
        KitError: they say different things: OCI's resources would be one identity's and the cluster another's.
    """
    values = {name: environment[name] for name in ("OCI_AUTH", "TF_VAR_auth", "OCI_CLI_AUTH") if environment.get(name)}
    words = {name: _OF_OCI_CLI.get(value, value) if name == "OCI_CLI_AUTH" else value for name, value in values.items()}
    if len({word.lower() for word in words.values()}) > 1:
        settings = " and ".join(f"{name}={value}" for name, value in values.items())
        raise KitError(f"{settings} are two ways to sign in to OCI.", "Set one of them, or all to the same.")
    return next(iter(words.items()), None)


def auth_of_environment(environment: Mapping[str, str]) -> Auth:
    """Read how to sign in from the environment alone: by API key where that says nothing.

    Raises:
        KitError: the environment says something else, or two things.
    """
    name, word = of_environment(environment) or ("", "ApiKey")
    if word.lower() not in _OF_PROVIDER:
        known = _OF_OCI_CLI if name == "OCI_CLI_AUTH" else _OF_OCI_CLI.values()
        raise KitError(f"{name}={word} is no way to sign in that this knows.", f"Known: {', '.join(known)}.")
    return _OF_PROVIDER[word.lower()]
