"""One configured provider instance: its options and its way to the API server."""

import json
import threading
from dataclasses import dataclass, field
from typing import Final

from llmd_oke.rehearsal.kubernetes_plugin.client import Cluster
from llmd_oke.rehearsal.kubernetes_plugin.conditions import Limits
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, Unreachable
from llmd_oke.rehearsal.kubernetes_plugin.feeds import Feeds
from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind
from llmd_oke.rehearsal.kubernetes_plugin.kubeconfig import Access
from llmd_oke.rehearsal.kubernetes_plugin.schemas import Schemas
from llmd_oke.rehearsal.kubernetes_plugin.settings import Settings
from llmd_oke.rehearsal.kubernetes_plugin.waits import Waiter
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal

REMEMBERED: Final = 64
"""How many instances are kept; an engine seldom has more than a few, and each run has its own."""

_DELETE_UNREACHABLE: Final = (
    "If the cluster was deleted, you can remove this resource from Pulumi state by rerunning the operation with the "
    'PULUMI_K8S_DELETE_UNREACHABLE environment variable set to "true"'
)


@dataclass(frozen=True)
class Link:
    """The way to one API server, with what was learned of it; shared by all instances that go there."""

    cluster: Cluster
    schemas: Schemas
    feeds: Feeds

    @classmethod
    def to(cls, access: Access) -> "Link":
        """Builds the way; nothing is sent yet."""
        cluster = Cluster(access)
        return cls(cluster, Schemas(cluster), Feeds(cluster))


@dataclass(frozen=True)
class Session:
    """One provider instance. `link` is None where no API server answers; `unreachable` then says why.

    `namespace` is where objects go that name none.
    """

    settings: Settings
    limits: Limits
    link: Link | None = None
    unreachable: str = ""
    namespace: str = "default"
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def schemas(self) -> Schemas | None:
        """What there is to normalise inputs with."""
        return self.link.schemas if self.link else None

    def is_namespaced(self, kind: Kind) -> bool:
        """Whether objects of the kind lie in namespaces."""
        if kind.built_in or self.link is None:
            return kind.namespaced
        return self.link.cluster.is_namespaced(kind)

    def serves(self, kind: Kind) -> bool:
        """Whether an API server answers and knows the kind."""
        return self.link is not None and self.link.cluster.serves(kind)

    def to_write(self) -> Link:
        """The link, for a write. Raises Refusal where no API server answers."""
        return self._link(f"configured Kubernetes cluster is unreachable: {self.unreachable}")

    def to_delete(self) -> Link:
        """The link, for a delete."""
        return self._link(f"configured Kubernetes cluster is unreachable. {_DELETE_UNREACHABLE}")

    def to_read(self) -> Link:
        """The link, for a read."""
        return self._link(f"failed to read resource state due to unreachable cluster. {_DELETE_UNREACHABLE}")

    def waiter(self) -> Waiter:
        """Waits on this instance's behalf."""
        link = self.to_write()
        return Waiter(link.cluster, link.feeds, self.limits, self.cancelled)

    def _link(self, refusal: str) -> Link:
        if self.link is None:
            raise Refusal(refusal)
        return self.link


class Sessions:
    """All instances of one plug-in process, each known by the engine's connection for it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._sessions: dict[str, Session] = {}
        self._latest: Session | None = None

    def configure(self, peer: str, settings: Settings) -> None:
        """Makes the instance behind a connection what its options say."""
        session = self._connect(settings)
        with self._lock:
            self._sessions[peer] = self._latest = session
            while len(self._sessions) > REMEMBERED:
                self._sessions.pop(next(iter(self._sessions)))

    def of(self, peer: str) -> Session:
        """The instance behind a connection; the latest for a connection made anew."""
        with self._lock:
            session = self._sessions.get(peer) or self._latest
        if session is None:
            raise Refusal("the Kubernetes provider was not configured")
        return session

    def cancel(self, peer: str) -> None:
        """Ends all waits of the instance behind a connection."""
        with self._lock:
            session = self._sessions.get(peer)
        if session is not None:
            session.cancelled.set()

    def cancel_all(self) -> None:
        """Ends all waits."""
        with self._lock:
            for session in self._sessions.values():
                session.cancelled.set()

    def _connect(self, settings: Settings) -> Session:
        try:
            access = settings.access()
            if access is None:
                return Session(settings, self._limits, unreachable=_no_cluster(settings))
            link = self._link(access)
            link.cluster.probe()
        except Unreachable as error:
            return Session(settings, self._limits, unreachable=_no_answer(error))
        except (Refusal, ApiError, OSError) as error:
            return Session(settings, self._limits, unreachable=str(error))
        namespace = settings.namespace or access.namespace or "default"
        return Session(settings, self._limits, link, namespace=namespace)

    def _link(self, access: Access) -> Link:
        key = json.dumps([access.cluster, access.user], sort_keys=True)
        with self._lock:
            if key not in self._links:
                self._links[key] = Link.to(access)
            return self._links[key]


def _no_answer(error: Unreachable) -> str:
    request = f'Get "{error.server}/openapi/v2?timeout=32s"'
    return f"unable to load schema information from the API server: {request}: {error.cause}"


def _no_cluster(settings: Settings) -> str:
    return f"failed to read Kubernetes configuration: no cluster in {settings.kubeconfig[:80]!r}"
