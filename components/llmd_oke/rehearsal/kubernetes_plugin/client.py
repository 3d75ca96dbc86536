"""The API server's REST interface, with its own words where it refuses."""

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from llmd_oke.errors import causes
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, NoMatch, Unreachable
from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind, kind_of_object
from llmd_oke.rehearsal.kubernetes_plugin.kubeconfig import Access
from llmd_oke.rehearsal.kubernetes_plugin.objects import name_of, namespace_of
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig

FIRST_WRITER: Final = "pulumi-kubernetes"
REQUEST_LIMIT_S: Final = 60.0
CONNECT_LIMIT_S: Final = 30.0
CONFLICT_RETRIES: Final = 5


@dataclass(frozen=True)
class Resource:
    """Where the API server keeps objects of a kind: `prefix` as `/apis/apps/v1`, `plural` as `deployments`."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """The path of the collection in a namespace, or of one object in it."""
        inside = f"/namespaces/{namespace or 'default'}" if self.namespaced else ""
        return f"{self.prefix}{inside}/{self.plural}" + (f"/{name}" if name else "")


class Cluster:
    """One API server, asked with one set of credentials. For use by many threads at once."""

    def __init__(self, access: Access) -> None:
        self.server = access.server
        self._http = httpx2.Client(
            base_url=access.server,
            verify=access.tls(),
            headers=access.headers(),
            timeout=httpx2.Timeout(REQUEST_LIMIT_S, connect=CONNECT_LIMIT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=32),
            trust_env=False,
        )
        self._custom: dict[tuple[str, str], Resource] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends the connections."""
        self._http.close()

    def probe(self) -> None:
        """Raises Unreachable where no API server answers."""
        self.get_path("/version")

    def resource(self, kind: Kind) -> Resource:
        """Where objects of the kind lie. Raises NoMatch for a kind that isn't served (yet)."""
        if kind.built_in:
            return Resource(_prefix(kind.api_version), kind.plural, kind.namespaced)
        key = (kind.api_version, kind.kind)
        with self._lock:
            found = self._custom.get(key)
        return found or self._discover(kind)

    def _discover(self, kind: Kind) -> Resource:
        prefix = _prefix(kind.api_version)
        try:
            served = self.get_path(prefix)["resources"]
        except ApiError as error:
            if error.not_found:
                raise NoMatch(kind.api_version, kind.kind) from None
            raise
        for entry in served:
            if entry["kind"] == kind.kind and "/" not in entry["name"]:
                resource = Resource(prefix, entry["name"], entry["namespaced"])
                with self._lock:
                    self._custom[kind.api_version, kind.kind] = resource
                return resource
        raise NoMatch(kind.api_version, kind.kind)

    def serves(self, kind: Kind) -> bool:
        """Whether the API server knows the kind."""
        try:
            self.resource(kind)
        except NoMatch:
            return False
        return True

    def is_namespaced(self, kind: Kind) -> bool:
        """Whether objects of the kind lie in namespaces; a kind that isn't there yet is taken to."""
        try:
            return self.resource(kind).namespaced
        except (NoMatch, Unreachable):
            return True

    def get(self, kind: Kind, namespace: str, name: str) -> JsonObject:
        """The live object."""
        return self._on_object("GET", kind, namespace, name)

    def create(self, obj: JsonObject, *, dry_run: bool) -> JsonObject:
        """Makes an object. The first writer's name is the same everywhere, so that the first update can take over."""
        params = {"fieldManager": FIRST_WRITER, **_dry_run(dry_run)}
        return self._on_object("POST", kind_of_object(obj), namespace_of(obj), "", params, obj)

    def replace(self, obj: JsonObject, *, manager: str, dry_run: bool) -> JsonObject:
        """Puts a whole object in the place of the live one."""
        params = {"fieldManager": manager, **_dry_run(dry_run)}
        return self._on_object("PUT", kind_of_object(obj), namespace_of(obj), name_of(obj), params, obj)

    def apply(self, obj: JsonObject, *, manager: str, force: bool, dry_run: bool) -> JsonObject:
        """Server-side apply."""
        params = {"fieldManager": manager, "force": str(force).lower(), **_dry_run(dry_run)}
        kind, type_ = kind_of_object(obj), "application/apply-patch+yaml"
        return self._on_object("PATCH", kind, namespace_of(obj), name_of(obj), params, obj, type_)

    def patch(self, obj: JsonObject, operations: list[JsonObject]) -> JsonObject:
        """A JSON patch of the live object."""
        kind, type_ = kind_of_object(obj), "application/json-patch+json"
        return self._on_object("PATCH", kind, namespace_of(obj), name_of(obj), {}, operations, type_)

    def delete(self, kind: Kind, namespace: str, name: str, propagation: str) -> None:
        """Asks for an object to be deleted; it may stay for a while."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        self._on_object("DELETE", kind, namespace, name, {}, body)

    def on_latest(self, live: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
        """What a change comes to that only this version of an object takes; with newer ones where others write too."""
        for _ in range(CONFLICT_RETRIES):
            try:
                return change(live)
            except ApiError as error:
                if not error.conflict:
                    raise
            live = self.get(kind_of_object(live), namespace_of(live), name_of(live))
        return change(live)

    def get_path(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """What the API server says at a path."""
        return self._request("GET", path, params or {}, None, "application/json")

    def watch(self, resource: Resource, namespace: str, version: str, limit_s: int) -> Iterator[str]:
        """The lines of a watch from a resource version on, until the server ends it after `limit_s` seconds."""
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(limit_s)}
        timeout = httpx2.Timeout(CONNECT_LIMIT_S, read=limit_s + 10)
        with self._http.stream("GET", resource.path(namespace), params=params, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise _api_error(response)
            yield from response.iter_lines()

    def _on_object(
        self,
        method: str,
        kind: Kind,
        namespace: str,
        name: str,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        path = self.resource(kind).path(namespace, name)
        try:
            return self._request(method, path, params or {}, body, content_type)
        except ApiError as error:
            if error.kind_not_found and not kind.built_in:
                with self._lock:
                    self._custom.pop((kind.api_version, kind.kind), None)
                raise NoMatch(kind.api_version, kind.kind) from None
            raise

    def _request(self, method: str, path: str, params: Mapping[str, str], body: object, content_type: str) -> Any:
        headers = {"Content-Type": content_type}
        try:
            response = self._http.request(method, path, params=dict(params), json=body, headers=headers)
        except httpx2.TransportError as error:
            raise Unreachable(self.server, self._cause(error)) from error
        if response.is_error:
            raise _api_error(response)
        return response.json()

    def _cause(self, error: httpx2.TransportError) -> str:
        """Why no answer came; a refused connection in the words of the real plug-in."""
        if isinstance(error, httpx2.ConnectError) and _has_errno(error, errno.ECONNREFUSED):
            return f"dial tcp {urlsplit(self.server).netloc}: connect: connection refused"
        return str(error) or type(error).__name__


def _prefix(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _dry_run(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _has_errno(error: BaseException, number: int) -> bool:
    return any(isinstance(each, OSError) and each.errno == number for each in causes(error))


def _api_error(response: httpx2.Response) -> ApiError:
    try:
        status = response.json()
    except ValueError:
        status = {"message": response.text.strip()}
    return ApiError(response.status_code, status if dig(status, "message") else {})
