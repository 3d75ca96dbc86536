"""What the API server can refuse, in its words."""

from typing import Any

from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig


class Unreachable(Exception):
    """No API server answers; `cause` is why."""

    def __init__(self, server: str, cause: str) -> None:
        super().__init__(f"no Kubernetes API server answers at {server}: {cause}")
        self.server = server
        self.cause = cause


class NoMatch(Exception):
    """The API server doesn't know the kind."""

    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(f'no matches for kind "{kind}" in version "{api_version}"')


class ApiError(Exception):
    """The API server refused a request; the text is the server's own."""

    def __init__(self, code: int, status: JsonObject) -> None:
        super().__init__(status.get("message") or f"the server answered {code}")
        self.code = code
        self.reason: str = status.get("reason") or ""
        self.details_kind: Any = dig(status, "details", "kind")

    @property
    def not_found(self) -> bool:
        """The object, its namespace or its kind isn't there."""
        return self.code == 404

    @property
    def namespace_not_found(self) -> bool:
        """The namespace to create in isn't there."""
        return self.not_found and self.details_kind == "namespaces"

    @property
    def kind_not_found(self) -> bool:
        """The path itself isn't served, as when a definition was removed: the server names no object."""
        return self.not_found and not self.details_kind

    @property
    def exists(self) -> bool:
        """An object to create is there already."""
        return self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Another field manager owns a field."""
        return self.reason == "Conflict"

    @property
    def forbidden(self) -> bool:
        """The credentials don't allow it."""
        return self.code == 403


class ApplyConflict(Exception):
    """Another manager owns a field that this one was to set."""

    def __init__(self, manager: str, error: ApiError) -> None:
        guide = "managing-resources-with-server-side-apply/#handle-field-conflicts-on-existing-resources"
        super().__init__(
            "server-side apply field conflict detected, see "
            f"https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/{guide} for troubleshooting help\n"
            f'The resource managed by field manager "{manager}" had an apply conflict: {error}'
        )
