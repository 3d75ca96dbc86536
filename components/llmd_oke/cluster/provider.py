"""The OCI provider of a cluster's region."""

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.iam_home import credentials
from llmd_oke.cluster.questions import ask


def region_provider(name: str, region: str) -> pulumi.ProviderResource:
    """A provider for that region, whatever region the user's own configuration names.

    Who signs in is still the user's configuration: the stack's `oci:` keys, the environment or `~/.oci/config`.
    """
    return oci.Provider(name, region=region, **credentials())


def availability_domains(
    compartment_id: pulumi.Input[str], opts: pulumi.InvokeOutputOptions
) -> pulumi.Output[list[str]]:
    """The names of the region's availability domains, as OCI gives them."""
    function = "oci:Identity/getAvailabilityDomains:getAvailabilityDomains"
    found = ask(function, {"compartmentId": compartment_id}, opts)
    return found.apply(lambda answer: [domain["name"] for domain in answer["availabilityDomains"]])
