"""Base class of the stack file's parts, and the forms of names."""

import re
from typing import Annotated, TypeVar

from llmd_base.documents import PATTERNS_IN_WORDS
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(strict=False)]
"""A list in the stack file. (`strict` would want a Python tuple; the items themselves stay strict.)"""


class ConfigPart(BaseModel):
    """A part of the stack file: camelCase keys, no unknown keys, no value taken for another type, never changed.

    Code may give the fields under their Python names; a stack file may not (`load.validate`).
    """

    model_config = ConfigDict(
        defer_build=True,  # the whole stack file's is made once, and not one for each of its parts besides
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


def is_absent(value: object) -> bool:
    """Tell whether a stack file doesn't say a key. It then leaves no trace in `Plan.config_hash`, which
    results have.
    """
    return value is None


def is_zero(value: object) -> bool:
    """Tell whether a number has its default of 0. It then leaves no trace in `Plan.config_hash`."""
    return value == 0


def is_one(value: object) -> bool:
    """Tell whether a number has its default of 1. It then leaves no trace in `Plan.config_hash`."""
    return value == 1


def is_none(value: object) -> bool:
    """Tell whether a choice has its default `none`. It then leaves no trace in `Plan.config_hash`."""
    return value == "none"


def matching(pattern: str, in_words: str, max_length: int | None = None) -> StringConstraints:
    """The constraints of a text that matches a pattern, and how a problem says so."""
    PATTERNS_IN_WORDS[pattern] = in_words
    return StringConstraints(pattern=pattern, max_length=max_length)


Commit = Annotated[str, matching(r"^[0-9a-f]{40}$", "a commit of 40 hexadecimal digits; branches and tags move")]
"""A commit, whole."""

Repository = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$", "a repository of Hugging Face such as owner/model"
    ),
]
"""A repository of Hugging Face."""

_DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DNS_LABEL_FORM = "lower-case letters, digits and dashes, the first a letter and the last no dash"
DNS_LABEL_LENGTH = 36

DnsLabel = Annotated[str, matching(_DNS_LABEL, DNS_LABEL_FORM, max_length=DNS_LABEL_LENGTH)]
"""A DNS label (RFC 1035, as Services want it), short enough that a unit's number, a version and a role still fit the 63
characters of a Service's name.
"""


def is_dns_label(name: str) -> bool:
    """Tell whether a name that nobody wrote is such a label."""
    return len(name) <= DNS_LABEL_LENGTH and re.fullmatch(_DNS_LABEL, name) is not None


HostName = Annotated[
    str,
    matching(
        r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+$",
        "a host name of lower-case letters, digits, dashes and dots, such as llm.example.com",
        max_length=253,
    ),
]
"""A name in the DNS with at least one dot."""

EnvironmentName = Annotated[
    str, matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and underscores, the first no digit")
]
"""Name of an environment variable."""

LabelKey = Annotated[
    str,
    matching(
        r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "a Kubernetes label key such as example.com/team",
        max_length=253,
    ),
]
LabelValue = Annotated[
    str,
    matching(
        r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "a Kubernetes label value: letters, digits, dashes, dots and underscores",
        max_length=63,
    ),
]

Ocid = Annotated[
    str,
    matching(
        r"^ocid1\.[a-z0-9]+\.[a-z0-9-]+\.[a-z0-9-]*\.([a-z0-9-]*\.)?[A-Za-z0-9_-]+$",
        "an OCID such as ocid1.compartment.oc1..aaaa",
        max_length=255,
    ),
]
"""An Oracle Cloud identifier."""

Region = Annotated[str, matching(r"^[a-z]+-[a-z]+-[0-9]+$", "a region such as us-ashburn-1")]
"""A region's identifier."""

KubernetesVersion = Annotated[str, matching(r"^v1\.[0-9]+\.[0-9]+$", "a Kubernetes version such as v1.34.2")]
"""A version of Kubernetes as OKE writes it."""

Cidr = Annotated[str, matching(r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+/[0-9]+$", "an IPv4 range such as 10.0.0.0/16")]
"""An IPv4 range; whether it is a network of its own and large enough is judged by planning."""

AvailabilityDomain = Annotated[
    str,
    matching(
        r"^[A-Za-z]+:[A-Z0-9-]+-AD-[1-3]$",
        "the whole name of an availability domain, such as Uocm:US-ASHBURN-AD-1",
    ),
]
"""An availability domain. Its prefix is the tenancy's own, so that it can't be made up from the region."""

FaultDomain = Annotated[str, matching(r"^FAULT-DOMAIN-[1-3]$", "FAULT-DOMAIN-1, FAULT-DOMAIN-2 or FAULT-DOMAIN-3")]
"""A fault domain of an availability domain."""

HttpsUrl = Annotated[str, matching(r"^https://", "an address that begins with https://")]
"""An address that is reached by HTTPS only."""

Checksum = Annotated[
    str,
    matching(
        r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$",
        "md5: or sha256: and the checksum in lower-case hexadecimal digits",
    ),
]
"""The checksum of a file."""
