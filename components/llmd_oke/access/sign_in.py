"""Sign-in method of a stack's `oci:` config or of the environment, the same for OCI's provider,
clusters and tunnels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from llmd_base.errors import KitError


class Auth(StrEnum):
    """Method of signing in to OCI, such as an API key or an instance principal."""

    API_KEY = "api-key"
    INSTANCE_PRINCIPAL = "instance-principal"
    WORKLOAD_IDENTITY = "workload-identity"


_OF_PROVIDER = {
    "apikey": Auth.API_KEY,
    "securitytoken": Auth.API_KEY,
    "instanceprincipal": Auth.INSTANCE_PRINCIPAL,
    "okeworkloadidentity": Auth.WORKLOAD_IDENTITY,
}
"""Sign-in method by value of `oci:auth` in lower case, as the provider ignores case. Both `ApiKey` and `SecurityToken`
are the method `api-key`, because a profile's signer uses whichever of the two the profile has."""

_OF_OCI_CLI = {
    "api_key": "ApiKey",
    "security_token": "SecurityToken",
    "instance_principal": "InstancePrincipal",
    "oke_workload_identity": "OKEWorkloadIdentity",
}
"""Provider's value of `oci:auth` by value of `OCI_CLI_AUTH`, the variable of OCI's command line."""

KEY_MATERIAL = ("userOcid", "fingerprint", "privateKey", "privateKeyPath")


@dataclass(frozen=True)
class SignIn:
    """Sign-in to OCI: a method and a profile of OCI's configuration file. Where one is None, the OCI configuration of
    the user who signs in decides.
    """

    auth: Auth | None = None
    profile: str | None = None

    @property
    def words(self) -> list[str]:
        """Command-line options by which the kit's commands use this sign-in, as a list of words."""
        auth = ["--auth", str(self.auth)] if self.auth else []
        return [*auth, *(["--profile", self.profile] if self.profile else [])]


def of_provider(config: Mapping[str, object]) -> SignIn:
    """Return the sign-in that the provider's config (`auth`, `configFileProfile`, …) selects.

    Raises:
        KitError: `llmd-oke token` doesn't support that sign-in, so that clusters can't be reached.
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
    """Return the environment variable that selects a sign-in method, and its value in the provider's spelling; None if
    no such variable is set.

    The provider reads `OCI_AUTH` and `TF_VAR_auth`; `OCI_CLI_AUTH` is for OCI's command line, and is used if neither
    `OCI_AUTH` nor `TF_VAR_auth` is set. Empty variables, which workflows make of undefined ones, count as not set.

    Raises:
        KitError: the variables select different methods, so that OCI's resources and the cluster would be reached with
            different identities.
    """
    values = {name: environment[name] for name in ("OCI_AUTH", "TF_VAR_auth", "OCI_CLI_AUTH") if environment.get(name)}
    words = {name: _OF_OCI_CLI.get(value, value) if name == "OCI_CLI_AUTH" else value for name, value in values.items()}
    if len({word.lower() for word in words.values()}) > 1:
        settings = " and ".join(f"{name}={value}" for name, value in values.items())
        raise KitError(f"{settings} are two ways to sign in to OCI.", "Set one of them, or all to the same.")
    return next(iter(words.items()), None)


def auth_of_environment(environment: Mapping[str, str]) -> Auth:
    """Return the sign-in method that the environment selects; API key if no variable is set.

    Raises:
        KitError: the method isn't supported, or variables select different methods.
    """
    name, word = of_environment(environment) or ("", "ApiKey")
    if word.lower() not in _OF_PROVIDER:
        known = _OF_OCI_CLI if name == "OCI_CLI_AUTH" else _OF_OCI_CLI.values()
        raise KitError(f"{name}={word} is no way to sign in that this knows.", f"Known: {', '.join(known)}.")
    return _OF_PROVIDER[word.lower()]
