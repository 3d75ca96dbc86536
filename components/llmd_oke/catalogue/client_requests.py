"""Requests that clients may send to a model, and the fields and headers that are reserved for the router."""

from typing import Literal

from llmd_oke.values import Entry, entry_reader

Where = Literal["anywhere", "body", "place", "data-url"]
"""Position in a request's JSON body at which a field is refused: at any depth (`anywhere`), at the top level (`body`),
at one path with dots (`place`), or wherever its text isn't contained in the body as `data:…` (`data-url`).
"""


class ClientPath(Entry):
    """Path of a model's HTTP API that clients may request. `cache` tells whether its requests read the prefix cache:
    with an optional `cache_salt` (`salted`), always without one (`unsalted`), or not at all (`uncached`). `outputs` are
    the fields that limit the length of its answers, empty if it generates nothing.
    """

    path: str
    method: Literal["GET", "POST"]
    cache: Literal["salted", "unsalted", "uncached"]
    outputs: tuple[str, ...] = ()
    source: str


class RefusedFields(Entry):
    """Fields of request bodies that are refused for one reason: what they control, and the source. A `*` at the end of
    a name matches any text.
    """

    where: Where
    names: tuple[str, ...]
    decides: str
    source: str


class DroppedHeaders(Entry):
    """HTTP headers of requests that are removed for one reason: what they control, and the source. A `*` at the end of
    a name matches any text. Headers that identify `sessions` are kept if an endpoint picker uses them.
    """

    names: tuple[str, ...]
    sessions: bool = False
    decides: str
    source: str


class ClientRequests(Entry):
    """Rules for requests from clients (`values/router/client-requests.yaml`).

    Attributes:
        paths: permitted paths.
        deepest: maximum nesting depth of objects and lists in a body.
        most_names: maximum number of field names in a body, over all levels.
        longest_name: maximum length in bytes of a field name as written.
        fields: refused fields.
        headers: removed headers.
    """

    paths: tuple[ClientPath, ...]
    deepest: int
    most_names: int
    longest_name: int
    fields: tuple[RefusedFields, ...]
    headers: tuple[DroppedHeaders, ...]

    def refused(self, where: Where) -> list[str]:
        """Return the names of the fields that are refused at a position in a request's body."""
        return [name for row in self.fields if row.where == where for name in row.names]

    @property
    def dropped(self) -> list[str]:
        """Names of the headers that are removed from clients' requests."""
        return [name for row in self.headers for name in row.names]

    @property
    def sessions(self) -> frozenset[str]:
        """Names of the headers that may identify a client's session."""
        return frozenset(name for row in self.headers if row.sessions for name in row.names)


client_requests = entry_reader("router", "client-requests", ClientRequests)
"""Return the rules for requests from clients (`values/router/client-requests.yaml`)."""
