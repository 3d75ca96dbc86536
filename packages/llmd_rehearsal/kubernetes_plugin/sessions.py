"""Configured provider instances: their options, and their connections to API servers."""

import json
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from llmd_rehearsal.kubernetes_plugin.client import (
    Access,
    ApiError,
    Cluster,
    Unreachable,
    find_access,
    from_environment,
    load,
)
from llmd_rehearsal.kubernetes_plugin.inputs import Schemas
from llmd_rehearsal.kubernetes_plugin.objects import ObjectKind
from llmd_rehearsal.kubernetes_plugin.readiness import WaitLimits
from llmd_rehearsal.kubernetes_plugin.waits import Informers, Waiter
from llmd_rehearsal.plugin_values import UNKNOWN, OperationRefusal, Tree, without_secrets

SESSIONS: Final = 64
"""Limit of remembered provider instances of one plug-in process; an engine rarely has more than a few, and each run
creates its own.
"""
SETTING_TYPES: Final = {
    **dict.fromkeys(("cluster", "clusterIdentifier", "context", "kubeconfig", "namespace"), "string"),
    "renderYamlToDirectory": "string",
    **dict.fromkeys(("alwaysRender", "enablePatchForce", "enableServerSideApply", "upsertExistingObjects"), "boolean"),
    **dict.fromkeys(("deleteUnreachable", "skipUpdateUnreachable"), "boolean"),
    **dict.fromkeys(("enableConfigMapMutable", "enableSecretMutable"), "boolean"),
    **dict.fromkeys(("suppressDeprecationWarnings", "suppressHelmHookWarnings"), "boolean"),
}
"""Types of a provider's options by name, but for its two objects (`helmReleaseSettings`, `kubeClientSettings`)."""
_WHICH_CLUSTER: Final = ("kubeconfig", "context", "cluster")
_IDENTIFIER: Final = "clusterIdentifier"
_DELETE_UNREACHABLE: Final = (
    "If the cluster was deleted, you can remove this resource from Pulumi state by rerunning the operation with the "
    'PULUMI_K8S_DELETE_UNREACHABLE environment variable set to "true"'
)


@dataclass(frozen=True)
class ProviderSettings:
    """Options of one instance of the Kubernetes provider. `kubeconfig` is a path or the text of a kubeconfig."""

    kubeconfig: str
    context: str = ""
    cluster: str = ""
    namespace: str = ""
    flags: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def parse(cls, arguments: dict[str, Tree]) -> "ProviderSettings":
        """Return the provider's options from the arguments of a Configure call, where booleans are texts.

        Raises:
            OperationRefusal: an option isn't supported in rehearsals.
        """
        plain: dict[str, Any] = without_secrets({**arguments})
        flags = frozenset(key for key, value in plain.items() if str(value).lower() == "true")
        if str(plain.get("enableServerSideApply", "true")).lower() == "false":
            raise OperationRefusal(
                "the stand-in Kubernetes plug-in knows server-side apply only: enableServerSideApply=false"
            )
        if plain.get("renderYamlToDirectory"):
            raise OperationRefusal("the stand-in Kubernetes plug-in doesn't render YAML: renderYamlToDirectory")
        return cls(
            kubeconfig=plain.get("kubeconfig") or from_environment(),
            context=plain.get("context") or "",
            cluster=plain.get("cluster") or "",
            namespace=plain.get("namespace") or "",
            flags=flags,
        )

    def access(self) -> Access | None:
        """Return the API server and credentials of the kubeconfig; None if the kubeconfig has no server.

        Raises:
            OperationRefusal: the text isn't a kubeconfig.
        """
        return find_access(load(self.kubeconfig), self.context, self.cluster)


@dataclass(frozen=True)
class SettingsChange:
    """Changed options of a Kubernetes provider, and the changed options that require the provider's replacement."""

    changed: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()


def compare(olds: dict[str, Tree], news: dict[str, Tree]) -> SettingsChange:
    """Return the differences between a provider's old and new options; options that lead to another cluster require the
    replacement of all resources. An equal `clusterIdentifier` in both says that the cluster is the same.
    """
    before, after = without_secrets({**olds}), without_secrets({**news})
    changed = tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))
    if not changed:
        return SettingsChange()
    old_identifier, identifier = before.get(_IDENTIFIER), after.get(_IDENTIFIER)
    replaces: tuple[str, ...] = ()
    if old_identifier and identifier and old_identifier != identifier:
        replaces = (_IDENTIFIER,)
    unknown = next((key for key in _WHICH_CLUSTER if after.get(key) is UNKNOWN), None)
    if unknown:
        changed, replaces = (unknown,), (*replaces, unknown)
    else:
        old, new = _active_cluster(before), _active_cluster(after)
        if old is not None and new is not None and old != new:
            replaces += tuple(key for key in _WHICH_CLUSTER if key in changed)
    return SettingsChange(changed, () if identifier and identifier == old_identifier else replaces)


def _active_cluster(options: dict[str, Any]) -> dict[str, Any] | None:
    if not options.get("kubeconfig"):
        return None
    config = load(options["kubeconfig"])
    access = find_access(config, options.get("context") or "", options.get("cluster") or "")
    return access.cluster if access else None


@dataclass(frozen=True)
class ApiServerConnection:
    """Connection to one API server, with its schemas and informers; shared by all provider instances that use the
    server.
    """

    cluster: Cluster
    schemas: Schemas
    informers: Informers


@dataclass(frozen=True)
class KubernetesSession:
    """Configured instance of the Kubernetes provider. `connection` is None if no API server answers; `unreachable` is
    then the reason. `namespace` is the default namespace of objects.
    """

    settings: ProviderSettings
    limits: WaitLimits
    connection: ApiServerConnection | None = None
    unreachable: str = ""
    namespace: str = "default"
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def schemas(self) -> Schemas | None:
        """OpenAPI schemas of the API server, by which inputs are normalized; None if no API server answers."""
        return self.connection.schemas if self.connection else None

    @property
    def skips_unreachable(self) -> bool:
        """Tell whether objects count as deleted because no API server answers and the program set the provider's option
        `deleteUnreachable`.
        """
        return self.connection is None and "deleteUnreachable" in self.settings.flags

    def is_namespaced(self, kind: ObjectKind) -> bool:
        """Tell whether objects of the kind are namespaced."""
        if kind.built_in or self.connection is None:
            return kind.namespaced
        return self.connection.cluster.is_namespaced(kind)

    def serves(self, kind: ObjectKind) -> bool:
        """Tell whether an API server answers and serves the kind."""
        return self.connection is not None and self.connection.cluster.serves(kind)

    def for_write(self) -> Cluster:
        """Return the client of the API server by which objects are written.

        Raises:
            OperationRefusal: no API server answers.
        """
        return self._connected(f"configured Kubernetes cluster is unreachable: {self.unreachable}").cluster

    def for_delete(self) -> Cluster:
        """Return the client of the API server by which objects are deleted.

        Raises:
            OperationRefusal: no API server answers.
        """
        return self._connected(f"configured Kubernetes cluster is unreachable. {_DELETE_UNREACHABLE}").cluster

    def for_read(self) -> Cluster:
        """Return the client of the API server by which objects are read.

        Raises:
            OperationRefusal: no API server answers.
        """
        advice = f"failed to read resource state due to unreachable cluster. {_DELETE_UNREACHABLE}"
        return self._connected(advice).cluster

    def waiter(self) -> Waiter:
        """Return a waiter whose waits end when this provider instance is cancelled.

        Raises:
            OperationRefusal: no API server answers.
        """
        connection = self._connected(f"configured Kubernetes cluster is unreachable: {self.unreachable}")
        return Waiter(connection.cluster, connection.informers, self.limits, self.cancelled)

    def _connected(self, refusal: str) -> ApiServerConnection:
        if self.connection is None:
            raise OperationRefusal(refusal)
        return self.connection


class Sessions:
    """Configured provider instances of one plug-in process, by the gRPC peer address of the engine's connection."""

    def __init__(self, limits: WaitLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._connections: dict[str, ApiServerConnection] = {}
        self._sessions: dict[str, KubernetesSession] = {}
        self._latest: KubernetesSession | None = None

    def configure(self, peer: str, settings: ProviderSettings) -> None:
        """Create the provider instance of an engine's gRPC connection with these settings."""
        session = self._session(settings)
        with self._lock:
            self._sessions[peer] = self._latest = session
            while len(self._sessions) > SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))

    def of(self, peer: str) -> KubernetesSession:
        """Return the provider instance of an engine's gRPC connection; for an unknown connection, the latest configured
        instance.

        Raises:
            OperationRefusal: no instance was configured.
        """
        with self._lock:
            session = self._sessions.get(peer) or self._latest
        if session is None:
            raise OperationRefusal("the Kubernetes provider was not configured")
        return session

    def cancel(self, peer: str) -> None:
        """End all waits of the provider instance of an engine's gRPC connection."""
        with self._lock:
            session = self._sessions.get(peer)
        if session is not None:
            session.cancelled.set()

    def cancel_all(self) -> None:
        """End all waits of all provider instances of the stand-in Kubernetes plug-in."""
        with self._lock:
            for session in self._sessions.values():
                session.cancelled.set()

    def _session(self, settings: ProviderSettings) -> KubernetesSession:
        try:
            access = settings.access()
            if access is None:
                text = f"failed to read Kubernetes configuration: no cluster in {settings.kubeconfig[:80]!r}"
                return KubernetesSession(settings, self._limits, unreachable=text)
            key = json.dumps([access.cluster, access.user], sort_keys=True)
            with self._lock:
                connection = self._connections.get(key)
                if connection is None:
                    cluster = Cluster(access)
                    connection = ApiServerConnection(cluster, Schemas(cluster), Informers(cluster))
                    self._connections[key] = connection
            connection.cluster.probe()
        except Unreachable as error:
            request = f'Get "{error.server}/openapi/v2?timeout=32s"'
            text = f"unable to load schema information from the API server: {request}: {error.cause}"
            return KubernetesSession(settings, self._limits, unreachable=text)
        except (OperationRefusal, ApiError, OSError) as error:
            return KubernetesSession(settings, self._limits, unreachable=str(error))
        namespace = settings.namespace or access.namespace or "default"
        return KubernetesSession(settings, self._limits, connection, namespace=namespace)
