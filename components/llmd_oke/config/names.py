"""Names that Kubernetes accepts everywhere."""

from typing import Annotated

from pydantic import StringConstraints

DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
ENVIRONMENT_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

WORDS = {
    DNS_LABEL: "lower-case letters, digits and dashes, the first a letter and the last no dash",
    ENVIRONMENT_NAME: "letters, digits and underscores, the first no digit",
}
"""The patterns in words."""

DnsLabel = Annotated[str, StringConstraints(pattern=DNS_LABEL, max_length=36)]
"""A DNS label (RFC 1035, as Services want it), short enough that a unit's number, a version and a role still fit the 63
characters of a Service's name.
"""

EnvironmentName = Annotated[str, StringConstraints(pattern=ENVIRONMENT_NAME)]
"""Name of an environment variable."""
