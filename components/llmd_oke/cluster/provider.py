"""Providers and their credentials, provider functions, tags and resource timeouts that all OCI components share."""

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
"""Credential settings: argument of `oci.Provider` to key of the stack's `oci:` config, which only Pulumi's default
provider reads by itself."""

SECRET = frozenset({"private_key", "private_key_password"})

# Resource timeouts: those of Oracle's Terraform modules where a source is named. The provider's defaults are shorter.

CLUSTER = pulumi.CustomTimeouts(create="60m", update="120m", delete="60m")
"""Timeouts of a cluster; updates take up to 120 minutes (terraform-oci-oke, modules/cluster)."""

ADD_ON = pulumi.CustomTimeouts(create="30m", update="30m", delete="30m")
"""Timeouts of an add-on (terraform-oci-oke, modules/cluster-addons)."""

IMAGE = pulumi.CustomTimeouts(create="120m", update="20m", delete="20m")
"""Timeouts of an image import, which copies tens of GB from Object Storage."""

COMPUTE_CLUSTER = pulumi.CustomTimeouts(create="20m", update="20m", delete="20m")

CPU_POOL = pulumi.CustomTimeouts(create="60m", update="120m", delete="60m")

GPU_POOL = pulumi.CustomTimeouts(create="120m", update="240m", delete="120m")
"""Timeouts of a GPU pool: two hours for the creation of a cluster network (terraform-oci-oke, modules/workers), four
hours for updates, as cycling replaces one node after the other."""

GPU_INSTANCE = pulumi.CustomTimeouts(create="120m", update="60m", delete="60m")

Answer = Mapping[str, Any]
"""Result of a provider function; its keys are in camel case, such as `regionSubscriptions`."""


def invoke(function: str, args: Mapping[str, Any], opts: pulumi.InvokeOutputOptions) -> pulumi.Output[Answer]:
    """Call a function of the OCI provider; return the result as plain data.

    The functions of `pulumi_oci` import the result classes of their whole package, which adds 0.1 s to each preview.

    Args:
        function: token of the function, such as `oci:Core/getServices:getServices`.
        args: arguments, with keys in camel case.
        opts: parent and provider. The plug-in's version is that of `pulumi_oci` if left out.
    """
    defaults = pulumi.InvokeOutputOptions(version=plugin_version("pulumi_oci"))
    return pulumi.runtime.invoke_output(function, dict(args), pulumi.InvokeOutputOptions.merge(defaults, opts))


def region_provider(name: str, region: str, ignored_tags: Sequence[str] = ()) -> pulumi.ProviderResource:
    """Declare an OCI provider for `region`, which overrides the region of the user's own configuration.

    Credentials still come from the stack's `oci:` keys, the environment or `~/.oci/config`. `ignored_tags` are the
    defined tags, as `Namespace.Key`, that other programs set and updates don't change.
    """
    return oci.Provider(name, region=region, ignore_defined_tags=list(ignored_tags) or None, **credentials())


def home_provider(component: pulumi.Resource, name: str, args: Mapping[str, Any]) -> oci.Provider | None:
    """Declare a provider for the tenancy's home region, where alone OCI accepts changes of groups and policies.

    `args` are `IamArgs`. Returns None if the component's own provider is for the home region already.
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
    """Return the credential arguments of the stack's `oci:` config, for explicit providers: Pulumi's default provider
    reads that config by itself.
    """
    config = pulumi.Config("oci")
    settings = {
        argument: config.get_secret(key) if argument in SECRET else config.get(key)
        for argument, key in CREDENTIALS.items()
    }
    return {argument: value for argument, value in settings.items() if value is not None}


def sign_in() -> SignIn:
    """Return the sign-in method by which `llmd-oke token` acts as the user of the stack's `oci:` config. Of secret
    settings only their presence is read.

    Raises:
        KitError: `llmd-oke token` has no sign-in method for these settings.
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
    """Return the names of the region's availability domains, in OCI's order."""
    function = "oci:Identity/getAvailabilityDomains:getAvailabilityDomains"
    domains = invoke(function, {"compartmentId": compartment_id}, opts)
    return domains.apply(lambda answer: [domain["name"] for domain in answer["availabilityDomains"]])


class TagArgs(TypedDict):
    """Tags of the OCI resources that a component creates, and of those that OKE and OCI create for them."""

    freeform_tags: NotRequired[dict[str, pulumi.Input[str]] | None]
    """Freeform tags, in addition to the stack's own tag."""
    defined_tags: NotRequired[dict[str, str] | None]
    """Defined tags by `Namespace.Key`. If left out, updates ignore all defined tags that OCI adds; if given, updates
    ignore only those of the provider's `ignore_defined_tags`."""


def tag_args(args: TagArgs, further: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the tag arguments of an OCI resource: the stack's own tag, the component's tags (`args`) and the freeform
    tags `further`.
    """
    own = {STACK_TAG: f"{pulumi.get_project()}/{pulumi.get_stack()}"}
    freeform: dict[str, pulumi.Input[str]] = {**own, **(args.get("freeform_tags") or {}), **(further or {})}
    tags: dict[str, Any] = {"freeform_tags": freeform, "defined_tags": args.get("defined_tags") or None}
    return present(tags)


def foreign_tags(args: TagArgs) -> list[str]:
    """Return the properties for `ignore_changes` that keep tags of a tenancy's tag defaults from being seen as drift.

    Empty if the component has defined tags of its own: then the provider's `ignore_defined_tags` names the others.
    """
    return [] if args.get("defined_tags") else ["definedTags"]
