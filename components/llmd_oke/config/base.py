"""Base class of the stack file's parts, and string types with patterns for names, OCIDs, addresses and checksums."""

import re
from typing import Annotated, TypeVar

from llmd_base.documents import PATTERNS_IN_WORDS
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(strict=False)]
"""Type of a list in the stack file, which pydantic converts to a tuple (`strict=False`); its items stay strict."""


class ConfigPart(BaseModel):
    """Base class of the stack file's objects: camelCase keys, no unknown keys, no conversion of values to other types,
    immutable.

    Python code may pass fields by their Python names; a stack file may not (`load.validate`).
    """

    model_config = ConfigDict(
        defer_build=True,  # build one validator for the whole stack file, rather than also one per part
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


def is_absent(value: object) -> bool:
    """Tell whether an optional key is missing in the stack file (its value is None). `Plan.config_hash` then leaves the
    key out, so that the hash in earlier results still matches.
    """
    return value is None


def matching(pattern: str, in_words: str, max_length: int | None = None) -> StringConstraints:
    """Return pydantic's constraints for a text that matches `pattern`. Errors describe the pattern by `in_words`;
    `max_length` is in characters.
    """
    PATTERNS_IN_WORDS[pattern] = in_words
    return StringConstraints(pattern=pattern, max_length=max_length)


Commit = Annotated[str, matching(r"^[0-9a-f]{40}$", "a commit of 40 hexadecimal digits; branches and tags move")]
"""Full commit hash of Git."""

Repository = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$", "a repository of Hugging Face such as owner/model"
    ),
]
"""Repository on Hugging Face, as owner/name."""

_DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DNS_LABEL_FORM = "lower-case letters, digits and dashes, the first a letter and the last no dash"
DNS_LABEL_LENGTH = 36

DnsLabel = Annotated[str, matching(_DNS_LABEL, DNS_LABEL_FORM, max_length=DNS_LABEL_LENGTH)]
"""DNS label (RFC 1035, as for names of Services) of at most 36 characters: the names of Services, of at most 63
characters, append the number of a copy, a version and a role.
"""


def is_dns_label(name: str) -> bool:
    """Tell whether a name that the kit derived, rather than read from the stack file, is a `DnsLabel`."""
    return len(name) <= DNS_LABEL_LENGTH and re.fullmatch(_DNS_LABEL, name) is not None


HostName = Annotated[
    str,
    matching(
        r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+$",
        "a host name of lower-case letters, digits, dashes and dots, such as llm.example.com",
        max_length=253,
    ),
]
"""DNS name with at least one dot."""

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
        "an OCID: ocid1.<kind of resource>.oc1.…",
        max_length=255,
    ),
]
"""Oracle Cloud identifier (OCID)."""

Region = Annotated[str, matching(r"^[a-z]+-[a-z]+-[0-9]+$", "a region such as us-ashburn-1")]
"""Identifier of an OCI region."""

KubernetesVersion = Annotated[str, matching(r"^v1\.[0-9]+\.[0-9]+$", "a Kubernetes version such as v1.34.2")]
"""Kubernetes version as OKE writes it."""

Cidr = Annotated[str, matching(r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+/[0-9]+$", "an IPv4 range such as 10.0.0.0/16")]
"""IPv4 range in CIDR notation. `planning` checks its host bits and its size."""

AvailabilityDomain = Annotated[
    str,
    matching(
        r"^[A-Za-z]+:[A-Z0-9-]+-AD-[1-3]$",
        "the whole name of an availability domain, such as Uocm:US-ASHBURN-AD-1",
    ),
]
"""Full name of an availability domain. The prefix differs between tenancies, so the name doesn't follow from the
region.
"""

FaultDomain = Annotated[str, matching(r"^FAULT-DOMAIN-[1-3]$", "FAULT-DOMAIN-1, FAULT-DOMAIN-2 or FAULT-DOMAIN-3")]
"""Fault domain within an availability domain."""

HttpsUrl = Annotated[str, matching(r"^https://", "an address that begins with https://")]
"""URL with the scheme https."""

Checksum = Annotated[
    str,
    matching(
        r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$",
        "md5: or sha256: and the checksum in lower-case hexadecimal digits",
    ),
]
"""Checksum of a file, with its algorithm."""
