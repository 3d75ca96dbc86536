"""Dynamic groups, in an identity domain or, in older tenancies, in the root compartment."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_oci as oci

from llmd_oke.catalogue import iam as facts
from llmd_oke.catalogue.iam import Group
from llmd_oke.cluster.questions import ask
from llmd_oke.planning.iam_statements import matching_rule

SCHEMA = "urn:ietf:params:scim:schemas:oracle:idcs:DynamicResourceGroup"
"""The SCIM schema of dynamic groups (oci-hpc-oke, terraform/iam.tf)."""


@dataclass(frozen=True)
class GroupSubject:
    """What dynamic groups have in common."""

    name: str
    display_name: str
    compartment_id: pulumi.Input[str]
    tenancy_id: pulumi.Input[str]
    classic: bool
    domain: str
    domain_url: pulumi.Input[str] | None
    tags: Mapping[str, pulumi.Input[str]]
    opts: pulumi.ResourceOptions


def dynamic_group(subject: GroupSubject, group: Group) -> pulumi.Output[str]:
    """Declares a dynamic group; the answer is how policies name it."""
    rule = pulumi.Output.from_input(subject.compartment_id).apply(lambda ocid: matching_rule(group, ocid))
    label = f"{subject.display_name}-{group}"
    description = f"{facts.policies().groups[group].description} of {subject.display_name}"
    if subject.classic:
        return oci.identity.DynamicGroup(
            f"{subject.name}-{group}",
            compartment_id=subject.tenancy_id,
            name=label,
            description=description,
            matching_rule=rule,
            freeform_tags=subject.tags,
            opts=subject.opts,
        ).name
    return _in_domain(subject, group, label, description, rule)


def _in_domain(
    subject: GroupSubject, group: Group, label: str, description: str, rule: pulumi.Output[str]
) -> pulumi.Output[str]:
    """What the domain answers otherwise than it was told is left alone: it adds a schema of its own for tags, and
    returns tags only when asked for them (terraform-provider-oci, issue 2418 and the test of this resource).
    """
    unanswered = pulumi.ResourceOptions(ignore_changes=["schemas", "tags"])
    made = oci.identity.DomainsDynamicResourceGroup(
        f"{subject.name}-{group}",
        idcs_endpoint=subject.domain_url if subject.domain_url is not None else _domain_url(subject),
        display_name=label,
        description=description,
        matching_rule=rule,
        schemas=[SCHEMA],
        tags=[{"key": key, "value": value} for key, value in subject.tags.items()],
        opts=pulumi.ResourceOptions.merge(subject.opts, unanswered),
    )
    return made.display_name.apply(lambda name: f"'{subject.domain}'/'{name}'")


def _domain_url(subject: GroupSubject) -> pulumi.Output[str]:
    found = ask(
        "oci:Identity/getDomains:getDomains",
        {"compartmentId": subject.tenancy_id, "displayName": subject.domain},
        pulumi.InvokeOutputOptions(parent=subject.opts.parent, provider=subject.opts.provider),
    )
    return found.apply(lambda answer: answer["domains"][0]["url"])
