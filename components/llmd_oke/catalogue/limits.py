"""Service limits of what a created cluster has one of."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class ServiceLimit(Entry):
    """A limit of a service, by the names that it goes by, the likelier first."""

    service: str
    names: tuple[str, ...]


class Limits(Entry):
    """The limits of clusters and of networks."""

    cluster: ServiceLimit
    network: ServiceLimit


@cache
def limits() -> Limits:
    """The limits of clusters and of networks."""
    return required_entry("limits", "oci", Limits)
