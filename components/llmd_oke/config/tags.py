"""Tags of what a stack creates in OCI: what costs are attributed by, and what tenancies ask for."""

from typing import Annotated

from pydantic import Field, StringConstraints

from llmd_oke.config.base import ConfigPart, Items, Ocid, matching

TagName = Annotated[str, matching(r"^[!-\-/-~]+$", "printable ASCII without blanks and dots", max_length=100)]
"""A key, or a namespace of defined tags."""

TagValue = Annotated[str, StringConstraints(max_length=256)]

DefinedTagName = Annotated[
    str, matching(r"^[!-\-/-~]+\.[!-\-/-~]+$", "a namespace, a dot and a key, such as Oracle-Tags.CreatedBy")
]


class Tags(ConfigPart):
    """Tags of all that this stack creates in OCI and of what OKE creates for it: instances, volumes, load balancers."""

    freeform: dict[TagName, TagValue] = Field(default_factory=dict[str, str])
    """Free-form tags by key, beside the kit's own `llmd-oke/stack`."""

    defined: dict[TagName, dict[TagName, TagValue]] = Field(default_factory=dict[str, dict[str, str]])
    """Defined tags by namespace and key, which an administrator has set up, such as `{Operations: {CostCenter: "42"}}`:
    those that a tenancy requires, and those that costs are tracked by.
    """

    ignored: Items[DefinedTagName] = ()
    """Defined tags that others add, such as tag defaults of a compartment, as `Namespace.Key`: updates leave them
    alone, as they do `Oracle-Tags.CreatedBy` and `CreatedOn`. Without `defined` ones all are left alone.
    """

    namespace_compartment_id: Ocid | None = None
    """Compartment of the namespaces, where the cluster gets the right to use them; the tenancy's root if left out."""
