"""The provider for the tenancy's home region, the only one in which groups and policies can be written, and who signs
in with it.
"""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_oci as oci

from llmd_oke.access.sign_in import SignIn, of_provider
from llmd_oke.cluster.questions import ask

CREDENTIALS = {
    "auth": "auth",
    "config_file_profile": "configFileProfile",
    "fingerprint": "fingerprint",
    "private_key": "privateKey",
    "private_key_password": "privateKeyPassword",
    "private_key_path": "privateKeyPath",
    "tenancy_ocid": "tenancyOcid",
    "user_ocid": "userOcid",
}
"""Who the provider is, by argument and by key of the stack's `oci:` config, which the default provider reads itself."""

SECRET = frozenset({"private_key", "private_key_password"})


def home_provider(component: pulumi.Resource, name: str, args: Mapping[str, Any]) -> oci.Provider | None:
    """A provider for the home region; None where the component's own is for that region already."""
    home = args.get("home_region")
    if args.get("provider_is_home") or (home is not None and home == args.get("region")):
        return None
    region = home if home is not None else _home_region(component, args["tenancy_id"])
    return oci.Provider(f"{name}-home", region=region, **credentials(), opts=pulumi.ResourceOptions(parent=component))


def credentials() -> dict[str, Any]:
    """Who signs in, for providers other than the default one, which reads the stack's `oci:` config itself."""
    config = pulumi.Config("oci")
    read = {
        argument: config.get_secret(key) if argument in SECRET else config.get(key)
        for argument, key in CREDENTIALS.items()
    }
    return {argument: value for argument, value in read.items() if value is not None}


def sign_in() -> SignIn:
    """How `llmd-oke token` signs in to be who the stack's `oci:` config says.

    Raises:
        KitError: it can't be that.
    """
    return of_provider({key: _told(argument, key) for argument, key in CREDENTIALS.items()})


def _told(argument: str, key: str) -> Any:
    """What the config has; of a secret only whether it is there."""
    config = pulumi.Config("oci")
    return config.get_secret(key) is not None if argument in SECRET else config.get(key)


def _home_region(component: pulumi.Resource, tenancy_id: pulumi.Input[str]) -> pulumi.Output[str]:
    function = "oci:Identity/getRegionSubscriptions:getRegionSubscriptions"
    opts = pulumi.InvokeOutputOptions(parent=component)
    found = ask(function, {"tenancyId": tenancy_id}, opts)
    return found.apply(lambda answer: next(r["regionName"] for r in answer["regionSubscriptions"] if r["isHomeRegion"]))
