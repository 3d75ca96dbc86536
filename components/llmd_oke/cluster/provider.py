"""OCI as the components meet it: providers and who signs in with them, functions, tags, and limits of waits."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.access.sign_in import SignIn, of_provider
from llmd_oke.objects import present
from llmd_oke.planning.tags import STACK_TAG
from llmd_oke.sdk_modules import plugin_version

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

# Limits of waits for OCI: those of Oracle's own modules where a source is named. The plug-in's are shorter.

CLUSTER = pulumi.CustomTimeouts(create="60m", update="120m", delete="60m")
"""terraform-oci-oke, modules/cluster: updates of up to 120 minutes."""

ADD_ON = pulumi.CustomTimeouts(create="30m", update="30m", delete="30m")
"""terraform-oci-oke, modules/cluster-addons."""

IMAGE = pulumi.CustomTimeouts(create="120m", update="20m", delete="20m")
"""An image of tens of GB is copied from Object Storage."""

COMPUTE_CLUSTER = pulumi.CustomTimeouts(create="20m", update="20m", delete="20m")

CPU_POOL = pulumi.CustomTimeouts(create="60m", update="120m", delete="60m")

GPU_POOL = pulumi.CustomTimeouts(create="120m", update="240m", delete="120m")
"""terraform-oci-oke, modules/workers: creation of a cluster network within two hours. Cycling replaces node by node."""

GPU_INSTANCE = pulumi.CustomTimeouts(create="120m", update="60m", delete="60m")

Answer = Mapping[str, Any]
"""Keys as the OCI provider spells them, such as `regionSubscriptions`."""


def invoke(function: str, args: Mapping[str, Any], opts: pulumi.InvokeOutputOptions) -> pulumi.Output[Answer]:
    """Call a function of the OCI provider; return its answer as plain data.

    Pulumi's own functions load the classes of all answers of their package with them, a tenth of a second in each
    preview.

    Args:
        function: its token, `oci:Core/getServices:getServices`.
        args: its arguments, by the provider's spelling.
        opts: parent and provider. The plug-in's version is that of `pulumi_oci`, as in Pulumi's own functions.
    """
    defaults = pulumi.InvokeOutputOptions(version=plugin_version("pulumi_oci"))
    return pulumi.runtime.invoke_output(function, dict(args), pulumi.InvokeOutputOptions.merge(defaults, opts))


def region_provider(name: str, region: str, ignored_tags: Sequence[str] = ()) -> pulumi.ProviderResource:
    """A provider for that region, whatever region the user's own configuration names.

    Who signs in is still the user's configuration: the stack's `oci:` keys, the environment or `~/.oci/config`.
    `ignored_tags` are defined tags of others, by `Namespace.Key`, that updates leave as they are.
    """
    return oci.Provider(name, region=region, ignore_defined_tags=list(ignored_tags) or None, **credentials())


def home_provider(component: pulumi.Resource, name: str, args: Mapping[str, Any]) -> oci.Provider | None:
    """A provider for the tenancy's home region, the only one in which groups and policies can be written; None where
    the component's own is for that region already. `args` are `IamArgs`.
    """
    home = args.get("home_region")
    if args.get("provider_is_home") or (home is not None and home == args.get("region")):
        return None
    if home is None:
        subscriptions = invoke(
            "oci:Identity/getRegionSubscriptions:getRegionSubscriptions",
            {"tenancyId": args["tenancy_id"]},
            pulumi.InvokeOutputOptions(parent=component),
        )
        home = subscriptions.apply(
            lambda answer: next(row["regionName"] for row in answer["regionSubscriptions"] if row["isHomeRegion"])
        )
    ignored = args.get("ignored_tags") or None
    opts = pulumi.ResourceOptions(parent=component)
    return oci.Provider(f"{name}-home", region=home, ignore_defined_tags=ignored, **credentials(), opts=opts)


def credentials() -> dict[str, Any]:
    """Return who signs in, for providers other than the default one, which reads the stack's `oci:` config itself."""
    config = pulumi.Config("oci")
    settings = {
        argument: config.get_secret(key) if argument in SECRET else config.get(key)
        for argument, key in CREDENTIALS.items()
    }
    return {argument: value for argument, value in settings.items() if value is not None}


def sign_in() -> SignIn:
    """Return how `llmd-oke token` signs in to be who the stack's `oci:` config says. Of a secret only whether it is
    there counts.

    Raises:
        KitError: it can't be that.
    """
    config = pulumi.Config("oci")
    return of_provider(
        {
            key: config.get_secret(key) is not None if argument in SECRET else config.get(key)
            for argument, key in CREDENTIALS.items()
        }
    )


def availability_domains(
    compartment_id: pulumi.Input[str], opts: pulumi.InvokeOutputOptions
) -> pulumi.Output[list[str]]:
    """The names of the region's availability domains, as OCI gives them."""
    function = "oci:Identity/getAvailabilityDomains:getAvailabilityDomains"
    domains = invoke(function, {"compartmentId": compartment_id}, opts)
    return domains.apply(lambda answer: [domain["name"] for domain in answer["availabilityDomains"]])


class TagArgs(TypedDict):
    """Tags of all that a component creates in OCI, and of what OKE and OCI create for it."""

    freeform_tags: NotRequired[dict[str, pulumi.Input[str]] | None]
    """Further freeform tags, beside the stack's own."""
    defined_tags: NotRequired[dict[str, str] | None]
    """Defined tags by `Namespace.Key`. Without them updates leave alone whatever defined tags OCI adds; beside them the
    provider's `ignore_defined_tags` says which."""


def tag_args(args: TagArgs, further: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The arguments of what has tags in OCI: the stack's own, those of a component (`TagArgs`), and `further` ones."""
    own = {STACK_TAG: f"{pulumi.get_project()}/{pulumi.get_stack()}"}
    freeform: dict[str, pulumi.Input[str]] = {**own, **(args.get("freeform_tags") or {}), **(further or {})}
    tags: dict[str, Any] = {"freeform_tags": freeform, "defined_tags": args.get("defined_tags") or None}
    return present(tags)


def foreign_tags(args: TagArgs) -> list[str]:
    """Return the tags that an update leaves alone, for `ignore_changes`: those that OCI adds by a tenancy's tag
    defaults are nobody's drift. Beside tags of a component's own it is the provider that knows which are others'.
    """
    return [] if args.get("defined_tags") else ["definedTags"]
