"""The bastion of a network: the OCI Bastion service's way to a private API endpoint."""

from collections.abc import Sequence

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.network_parts import NetworkSubject

LONGEST_SESSION_S = 10_800
"""Three hours, the service's limit for a session (OCI documentation, Bastion)."""


def bastion(subject: NetworkSubject, subnet_id: pulumi.Input[str], client_cidrs: Sequence[str]) -> pulumi.Output[str]:
    """The OCID of a bastion that is made in a subnet, and goes before it.

    A subnet has one way to the service, so that a bastion that is made anew waits until the old one is gone.
    """
    return oci.bastion.Bastion(
        f"{subject.name}-bastion",
        bastion_type="STANDARD",
        compartment_id=subject.compartment_id,
        target_subnet_id=subnet_id,
        name=bastion_name(subject.display_name),
        client_cidr_block_allow_lists=list(client_cidrs),
        max_session_ttl_in_seconds=LONGEST_SESSION_S,
        freeform_tags=subject.tags,
        opts=subject.options(delete_before_replace=True),
    ).id


def bastion_name(network: str) -> str:
    """The name of a network's bastion: letters and digits only, which the service takes whatever the network's has."""
    return "".join(letter for letter in network if letter.isascii() and letter.isalnum()) + "Bastion"
