"""OCI tags of the stack's resources, for the attribution of costs and for tags that a tenancy requires."""

from typing import Annotated

from pydantic import Field, StringConstraints

from llmd_oke.config.base import ConfigPart, Items, Ocid, matching

TagName = Annotated[str, matching(r"^[!-\-/-~]+$", "printable ASCII without blanks and dots", max_length=100)]
"""Tag key, or namespace of defined tags."""

TagValue = Annotated[str, StringConstraints(max_length=256)]

DefinedTagName = Annotated[
    str, matching(r"^[!-\-/-~]+\.[!-\-/-~]+$", "a namespace, a dot and a key, such as Oracle-Tags.CreatedBy")
]


class Tags(ConfigPart):
    """OCI tags of all resources that this stack creates and that OKE creates for it: instances, volumes, load
    balancers.
    """

    freeform: dict[TagName, TagValue] = Field(default_factory=dict[str, str])
    """Free-form tags by key, besides the kit's own `llmd-oke/stack`."""

    defined: dict[TagName, dict[TagName, TagValue]] = Field(default_factory=dict[str, dict[str, str]])
    """Defined tags by namespace and key, which must exist, such as `{Operations: {CostCenter: "42"}}`: tags that a
    tenancy requires, and cost-tracking tags.
    """

    ignored: Items[DefinedTagName] = ()
    """Defined tags, as `Namespace.Key`, that others add to resources, such as tag defaults of a compartment. Updates
    don't change them, nor `Oracle-Tags.CreatedBy` and `CreatedOn`. If `defined` is empty, updates don't change any
    defined tag.
    """

    namespace_compartment_id: Ocid | None = None
    """Compartment of the tag namespaces, in which the cluster gets permission to use them; the tenancy's root
    compartment if left out.
    """
