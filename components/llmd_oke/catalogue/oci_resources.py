"""How OCI lists the resources that the kit creates, by the types of Pulumi's OCI provider."""

from collections.abc import Mapping
from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class OciResource(Entry):
    """A type of resource: where OCI lists it, and how OCI's command line calls it.

    `again` is the reason why one of them may be created a second time without harm; all else is None or unused then.
    """

    service: str = ""
    path: str = ""
    name: str = "displayName"
    listed_name: str | None = None
    query: tuple[str, ...] = ()
    items: str | None = None
    tagged: bool = True
    id: str | None = None
    command: str = ""
    list: str = "list --all --compartment-id {compartmentId}"
    delete: str = "delete"
    costs: bool = False
    again: str | None = None

    def show_command(self, inputs: Mapping[str, str]) -> str:
        """The command that lists what there is."""
        return f"oci {self.command} {self.list.format_map(_Known(inputs))}"

    def delete_command(self, identifier: str) -> str:
        """The command that deletes one of them."""
        return f"oci {self.command} {self.delete} --{self.command.rsplit(' ', 1)[-1]}-id {identifier}"


class OciResources(Entry):
    """All types; `gone` are the lifecycle states of what is no longer there."""

    gone: tuple[str, ...]
    resources: dict[str, OciResource]


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


@cache
def oci_resources() -> OciResources:
    """The types that the kit creates."""
    return required_entry("operations", "oci-resources", OciResources)
