"""Requests that clients may make of a model, and the fields and headers that are the router's alone."""

from functools import cache
from typing import Literal

from llmd_oke.values import Entry, required_entry

Where = Literal["anywhere", "body", "place", "data-url"]
"""Where a field is refused: at any depth, as a field of the body itself, at one place (names from the body's field to
its own, with points), or there where its text isn't in the body (`data:…`)."""


class ClientPath(Entry):
    """A path that clients may ask. Its prefix cache can be `salted`, can't (`unsalted`), or isn't read (`uncached`);
    `outputs` are fields that bound its answers, none where nothing is generated.
    """

    path: str
    method: Literal["GET", "POST"]
    cache: Literal["salted", "unsalted", "uncached"]
    outputs: tuple[str, ...] = ()
    source: str


class RefusedFields(Entry):
    """Fields of one kind: what they decide, and who reads them. A name's `*` at its end stands for any text."""

    where: Where
    names: tuple[str, ...]
    decides: str
    source: str


class DroppedHeaders(Entry):
    """Headers of one kind: what they decide, and who reads them. A name's `*` at its end stands for any text. Those
    that name `sessions` stay where an endpoint picker goes by them.
    """

    names: tuple[str, ...]
    sessions: bool = False
    decides: str
    source: str


class ClientRequests(Entry):
    """The whole of `values/router/client-requests.yaml`. `deepest` are levels of objects and lists, `most_names`
    names of fields at all levels, that a body may have, and `longest_name` the bytes of one as it is written.
    """

    paths: tuple[ClientPath, ...]
    deepest: int
    most_names: int
    longest_name: int
    fields: tuple[RefusedFields, ...]
    headers: tuple[DroppedHeaders, ...]

    def refused(self, where: Where) -> list[str]:
        """Names of fields that are refused there."""
        return [name for row in self.fields if row.where == where for name in row.names]

    @property
    def dropped(self) -> list[str]:
        """Names of headers that are taken out of requests."""
        return [name for row in self.headers for name in row.names]

    @property
    def sessions(self) -> frozenset[str]:
        """Names of headers that may name a client's session."""
        return frozenset(name for row in self.headers if row.sessions for name in row.names)


@cache
def client_requests() -> ClientRequests:
    """The facts of `values/router/client-requests.yaml`."""
    return required_entry("router", "client-requests", ClientRequests)
