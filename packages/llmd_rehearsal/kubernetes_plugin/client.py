"""Client of the Kubernetes API server: kubeconfig, REST requests, and the server's errors."""

import base64
import errno
import os
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import yaml
from llmd_base.errors import causes

from llmd_rehearsal.kubernetes_plugin.objects import ObjectKind, kind_of_object, name_of, namespace_of
from llmd_rehearsal.plugin_values import JsonObject, OperationRefusal, dig, dig_list, dig_map

FIRST_WRITER: Final = "pulumi-kubernetes"
REQUEST_LIMIT_S: Final = 60.0
CONNECT_LIMIT_S: Final = 30.0
CONFLICT_RETRIES: Final = 5


class Unreachable(Exception):
    """No Kubernetes API server answers at the address; `cause` is the reason."""

    def __init__(self, server: str, cause: str) -> None:
        super().__init__(f"no Kubernetes API server answers at {server}: {cause}")
        self.server = server
        self.cause = cause


class NoMatch(Exception):
    """The API server doesn't serve a kind of objects."""

    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(f'no matches for kind "{kind}" in version "{api_version}"')


class ApiError(Exception):
    """The API server refused a request; the message is the server's own."""

    def __init__(self, code: int, status: JsonObject) -> None:
        super().__init__(status.get("message") or f"the server answered {code}")
        self.code = code
        self.reason: str = status.get("reason") or ""
        self.details_kind: Any = dig(status, "details", "kind")

    @property
    def not_found(self) -> bool:
        """Tell whether the request failed because the object, its namespace or its kind doesn't exist."""
        return self.code == 404

    @property
    def exists(self) -> bool:
        """Tell whether the request failed because the object to create exists already."""
        return self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Tell whether the request failed because another field manager owns a field that it sets, or because its
        version of the object is outdated.
        """
        return self.reason == "Conflict"

    @property
    def forbidden(self) -> bool:
        """Tell whether the request failed because the credentials don't permit it."""
        return self.code == 403


class ApplyConflict(Exception):
    """Another field manager owns a field that a server-side apply sets."""

    def __init__(self, manager: str, error: ApiError) -> None:
        guide = "managing-resources-with-server-side-apply/#handle-field-conflicts-on-existing-resources"
        super().__init__(
            "server-side apply field conflict detected, see "
            f"https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/{guide} for troubleshooting help\n"
            f'The resource managed by field manager "{manager}" had an apply conflict: {error}'
        )


@dataclass(frozen=True)
class Access:
    """Address and credentials with which a client reaches an API server: `cluster` and `user` are entries of a
    kubeconfig.
    """

    cluster: JsonObject
    user: JsonObject
    namespace: str = ""

    @property
    def server(self) -> str:
        """URL of the API server, `https://host:port`."""
        return str(self.cluster["server"]).rstrip("/")

    def tls(self) -> ssl.SSLContext:
        """Return a TLS context with the cluster's certificate authority and the user's client certificate."""
        authority = _text(self.cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority)
        if self.cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _text(self.user, "client-certificate"), _text(self.user, "client-key")
        if certificate and key:
            with tempfile.NamedTemporaryFile(
                "w", suffix=".pem"
            ) as file:  # OpenSSL loads client certificates only from files
                file.write(certificate + "\n" + key)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that authenticate the client."""
        if "exec" in self.user:
            raise OperationRefusal(
                "the stand-in Kubernetes plug-in runs no credential programs: a kubeconfig with `exec`"
            )
        token_file = self.user.get("tokenFile")
        token = Path(token_file).read_text().strip() if token_file else self.user.get("token")
        return {"Authorization": f"Bearer {token}"} if token else {}


def load(text_or_path: str) -> JsonObject:
    """Return the parsed kubeconfig from a text or from the file at a path.

    Raises:
        OperationRefusal: the text isn't a kubeconfig; the message is client-go's.
    """
    content = text_or_path
    if "\n" not in content and not content.lstrip().startswith("{"):
        path = Path(content).expanduser()
        content = path.read_text() if path.is_file() else content
    try:
        parsed = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise OperationRefusal(f"failed to parse kubeconfig: yaml: {error}") from None
    if not isinstance(parsed, dict):
        raise OperationRefusal(
            "failed to parse kubeconfig: couldn't get version/kind; json parse error: json: cannot unmarshal string "
            'into Go value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
    return {**parsed}


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the kubeconfig in `KUBECONFIG`, or else the default path `~/.kube/config`."""
    return environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def find_access(config: JsonObject, context_name: str = "", cluster_name: str = "") -> Access | None:
    """Return the server and credentials of a kubeconfig's context (by default the current one); None if the kubeconfig
    has no server for the context. `cluster_name` overrides the context's cluster.
    """
    context: Any = _entry(config, "contexts", "context", context_name or config.get("current-context")) or {}
    cluster = _entry(config, "clusters", "cluster", cluster_name or context.get("cluster"))
    if cluster is None or not cluster.get("server"):
        return None
    user = _entry(config, "users", "user", context.get("user")) or {}
    return Access(cluster, user, context.get("namespace") or "")


def _entry(config: JsonObject, section: str, field: str, name: object) -> JsonObject | None:
    entries = dig_list(config, section)
    return next((dig_map(entry, field) for entry in entries if dig(entry, "name") == name), None)


def _text(entry: JsonObject, field: str) -> str | None:
    data, path = entry.get(f"{field}-data"), entry.get(field)
    if data:
        return base64.b64decode(data).decode()
    return Path(path).read_text() if path else None


@dataclass(frozen=True)
class ApiResource:
    """REST path of a kind's objects: `prefix`, for example `/apis/apps/v1`, and `plural`, for example `deployments`."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Return the REST path of the kind's collection in a namespace, or, with `name`, the path of one object."""
        inside = f"/namespaces/{namespace or 'default'}" if self.namespaced else ""
        return f"{self.prefix}{inside}/{self.plural}" + (f"/{name}" if name else "")


class Cluster:
    """Client of one API server with one set of credentials, for concurrent use by many threads."""

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
        self._custom: dict[tuple[str, str], ApiResource] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the client's connections."""
        self._http.close()

    def probe(self) -> None:
        """Check that the API server answers, by requesting its version.

        Raises:
            Unreachable: no API server answers.
        """
        self.get_path("/version")

    def resource(self, kind: ObjectKind) -> ApiResource:
        """Return the REST path of a kind's objects.

        Raises:
            NoMatch: the API server doesn't serve the kind at present.
        """
        if kind.built_in:
            return ApiResource(_prefix(kind.api_version), kind.plural, kind.namespaced)
        key = (kind.api_version, kind.kind)
        with self._lock:
            resource = self._custom.get(key)
        return resource or self._discover(kind)

    def _discover(self, kind: ObjectKind) -> ApiResource:
        prefix = _prefix(kind.api_version)
        try:
            entries = self.get_path(prefix)["resources"]
        except ApiError as error:
            if error.not_found:
                raise NoMatch(kind.api_version, kind.kind) from None
            raise
        for entry in entries:
            if entry["kind"] == kind.kind and "/" not in entry["name"]:
                resource = ApiResource(prefix, entry["name"], entry["namespaced"])
                with self._lock:
                    self._custom[kind.api_version, kind.kind] = resource
                return resource
        raise NoMatch(kind.api_version, kind.kind)

    def serves(self, kind: ObjectKind) -> bool:
        """Tell whether the API server serves the kind."""
        try:
            self.resource(kind)
        except NoMatch:
            return False
        return True

    def is_namespaced(self, kind: ObjectKind) -> bool:
        """Tell whether objects of the kind are namespaced; True for a kind that the API server doesn't serve yet."""
        try:
            return self.resource(kind).namespaced
        except (NoMatch, Unreachable):
            return True

    def get(self, kind: ObjectKind, namespace: str, name: str) -> JsonObject:
        """Return the object of this kind with this name as the API server has it."""
        return self._on_object("GET", kind, namespace, name)

    def create(self, obj: JsonObject, *, dry_run: bool) -> JsonObject:
        """Create an object and return the API server's answer. The field manager's name is always the same, so that the
        first update can take over its fields.
        """
        params = {"fieldManager": FIRST_WRITER, **_dry_run(dry_run)}
        return self._on_object("POST", kind_of_object(obj), namespace_of(obj), "", params, obj)

    def replace(self, obj: JsonObject, *, manager: str, dry_run: bool) -> JsonObject:
        """Replace a whole object at the API server and return the API server's answer."""
        params = {"fieldManager": manager, **_dry_run(dry_run)}
        return self._on_object("PUT", kind_of_object(obj), namespace_of(obj), name_of(obj), params, obj)

    def apply(self, obj: JsonObject, *, manager: str, force: bool, dry_run: bool) -> JsonObject:
        """Apply an object by server-side apply and return the API server's answer."""
        params = {"fieldManager": manager, "force": str(force).lower(), **_dry_run(dry_run)}
        kind, type_ = kind_of_object(obj), "application/apply-patch+yaml"
        return self._on_object("PATCH", kind, namespace_of(obj), name_of(obj), params, obj, type_)

    def patch(self, obj: JsonObject, operations: list[JsonObject]) -> JsonObject:
        """Apply the operations of a JSON patch to an object and return the API server's answer."""
        kind, type_ = kind_of_object(obj), "application/json-patch+json"
        return self._on_object("PATCH", kind, namespace_of(obj), name_of(obj), {}, operations, type_)

    def delete(self, kind: ObjectKind, namespace: str, name: str, propagation: str) -> None:
        """Request the deletion of an object, which may exist for a while longer, until its finalizers are done."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        self._on_object("DELETE", kind, namespace, name, {}, body)

    def on_latest(self, live: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
        """Return the result of the write `change` on the object `live`; on a conflict with another writer, retry with
        the newest version of the object, at most `CONFLICT_RETRIES` times.
        """
        for _ in range(CONFLICT_RETRIES):
            try:
                return change(live)
            except ApiError as error:
                if not error.conflict:
                    raise
            live = self.get(kind_of_object(live), namespace_of(live), name_of(live))
        return change(live)

    def get_path(self, path: str) -> Any:
        """Return the API server's answer to a GET of a path."""
        return self._request("GET", path, {}, None, "application/json")

    def watch(self, resource: ApiResource, namespace: str, version: str, limit_s: int) -> Iterator[str]:
        """Yield the lines of a watch of a collection, from a resource version on, until the API server ends it after
        `limit_s` seconds.
        """
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
        kind: ObjectKind,
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
            # An answer that names no object: the API server doesn't serve the path, as after a definition's deletion.
            if error.not_found and not error.details_kind and not kind.built_in:
                with self._lock:
                    self._custom.pop((kind.api_version, kind.kind), None)
                raise NoMatch(kind.api_version, kind.kind) from None
            raise

    def _request(self, method: str, path: str, params: Mapping[str, str], body: object, content_type: str) -> Any:
        headers = {"Content-Type": content_type}
        try:
            response = self._http.request(method, path, params=dict(params), json=body, headers=headers)
        except httpx2.TransportError as error:
            cause = str(error) or type(error).__name__
            refused = any(isinstance(item, OSError) and item.errno == errno.ECONNREFUSED for item in causes(error))
            if isinstance(error, httpx2.ConnectError) and refused:  # the real plug-in's wording
                cause = f"dial tcp {urlsplit(self.server).netloc}: connect: connection refused"
            raise Unreachable(self.server, cause) from error
        if response.is_error:
            raise _api_error(response)
        return response.json()


def _prefix(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _dry_run(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _api_error(response: httpx2.Response) -> ApiError:
    try:
        status = response.json()
    except ValueError:
        status = {"message": response.text.strip()}
    return ApiError(response.status_code, status if dig(status, "message") else {})
