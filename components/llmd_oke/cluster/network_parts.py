"""What the parts of a network have in common: names, tags, options, and which subnets lead where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi

from llmd_oke.catalogue.network import GroupRole, SubnetRole
from llmd_oke.planning.network import NetworkChoices


@dataclass(frozen=True)
class Services:
    """All services of the region in the Oracle Services Network: their OCID, and what rules and routes call them."""

    service_id: pulumi.Input[str]
    cidr_label: pulumi.Input[str]


@dataclass(frozen=True)
class Existing:
    """OCIDs of what is there already."""

    vcn_id: pulumi.Input[str] | None
    subnets: Mapping[str, pulumi.Input[str]]
    groups: Mapping[str, pulumi.Input[str]]
    route_tables: Mapping[str, pulumi.Input[str]]


@dataclass(frozen=True)
class NetworkSubject:
    """A network that is declared: its component, its choices, and the subnets that are created for it."""

    component: pulumi.Resource
    name: str
    display_name: str
    compartment_id: pulumi.Input[str]
    tags: Mapping[str, pulumi.Input[str]]
    protect: bool
    choices: NetworkChoices
    vcn: IPv4Network
    created: Mapping[SubnetRole, IPv4Network]
    existing: Existing
    cidrs: Mapping[str, Sequence[str]]
    services: Services

    def options(
        self,
        *,
        protect: bool = False,
        deleted_with: pulumi.Resource | None = None,
        delete_before_replace: bool | None = None,
        ignore: Sequence[str] = (),
    ) -> pulumi.ResourceOptions:
        """Options of a part. Tags that OCI adds by a tenancy's tag defaults are nobody's drift."""
        return pulumi.ResourceOptions(
            parent=self.component,
            protect=protect and self.protect,
            deleted_with=deleted_with,
            delete_before_replace=delete_before_replace,
            ignore_changes=["definedTags", *ignore],
        )

    def label(self, part: str) -> str:
        """The display name of a part."""
        return f"{self.display_name}-{part}"

    def is_public(self, role: SubnetRole) -> bool:
        """Whether machines in that subnet may have public addresses."""
        return role in self.choices.public_roles

    @property
    def created_groups(self) -> tuple[GroupRole, ...]:
        """The security groups that are not there already."""
        return tuple(role for role in self.choices.group_roles if role not in self.existing.groups)


def dashed(role: str) -> str:
    """A role as part of a name."""
    return role.replace("_", "-")


def dns_label(name: str) -> str:
    """A DNS label for a VCN: at most fifteen letters and digits, a letter first (OCI documentation, DNS in VCNs)."""
    letters = "".join(letter for letter in name.lower() if letter.isascii() and letter.isalnum())
    return letters.lstrip("0123456789")[:15] or "vcn"
