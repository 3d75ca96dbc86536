"""How this machine reaches the Services and pods of a cluster.

Straight, where it is inside; otherwise through the API server's proxy.
"""

import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any

import httpx2
import lightkube
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.core_v1 import PodStatus, ServiceSpec
from lightkube.resources.core_v1 import Pod, Service
from llmd_oke.access.addresses import is_reachable
from llmd_oke.operations.kubeconfig import kubeconfig_context
from llmd_pods.deployment import HttpEndpoint, PodAddress
from llmd_pods.errors import KitError

RENEW_S = 60.0
"""How long a token of the kubeconfig's program serves; OKE's live four minutes (`access/signing.py`)."""

FAILURES = (ApiError, httpx2.HTTPError, ConfigError, OSError, ValueError, LookupError)
"""Of the API server, of the way there, and of the kubeconfig's program."""


class ClusterAccess:
    """A cluster as the environment's kubeconfig gives it.

    Raises:
        KitError: there is no kubeconfig, or not that context.
    """

    def __init__(self, context: str | None = None) -> None:
        kubeconfig = kubeconfig_context(context)
        self._config = kubeconfig
        self._client = lightkube.Client(config=kubeconfig)
        self._authorization = Authorization(kubeconfig)

    @property
    def client(self) -> lightkube.Client:
        """A client of the cluster's API server."""
        return self._client

    def service(self, namespace: str, name: str) -> HttpEndpoint:
        """The way to port 80 of a Service. One that stands for another (ExternalName) is asked for by its host name.

        Raises:
            KitError: there is no such Service, or the cluster doesn't answer.
        """
        spec = self._service(namespace, name)
        if not spec.externalName:
            return self._way(spec, namespace, name)
        host = f"{name}.{namespace}.svc.cluster.local"
        name, namespace = spec.externalName.split(".")[:2]
        return self._way(self._service(namespace, name), namespace, name, {"host": host})

    def _service(self, namespace: str, name: str) -> ServiceSpec:
        try:
            service = self._client.get(Service, name, namespace=namespace)
        except FAILURES as error:
            raise KitError(
                f"The Service {namespace}/{name} can't be read: {error}", "Is the stack deployed?"
            ) from error
        return service.spec or ServiceSpec()

    def _way(
        self, spec: ServiceSpec, namespace: str, name: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> HttpEndpoint:
        if spec.clusterIP and is_reachable(spec.clusterIP, 80):
            return HttpEndpoint(f"http://{spec.clusterIP}", headers)
        return self.api(f"/api/v1/namespaces/{namespace}/services/{name}:80/proxy", headers)

    def pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[PodAddress]:
        """The pods with these labels that have an address, sorted by name.

        Raises:
            KitError: the cluster doesn't answer.
        """
        try:
            pods = list(self._client.list(Pod, namespace=namespace, labels=dict(labels)))
        except FAILURES as error:
            raise KitError(f"The pods of {namespace} can't be listed: {error}") from error
        running = [
            PodAddress(pod.metadata.name or "", pod.status.podIP, _restarts(pod.status))
            for pod in pods
            if pod.metadata and pod.status and pod.status.podIP and pod.metadata.deletionTimestamp is None
        ]
        return sorted(running, key=lambda pod: pod.name)

    def pod(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:
        """The way to a port of a pod."""
        if is_reachable(pod.address, port):
            return HttpEndpoint(f"http://{pod.address}:{port}")
        return self.proxied(namespace, pod, port)

    def proxied(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:
        """The way to a port of a pod through the API server, which takes no attempt to find."""
        return self.api(f"/api/v1/namespaces/{namespace}/pods/{pod.name}:{port}/proxy")

    def expires(self, way: HttpEndpoint) -> bool:
        """Whether a program of the kubeconfig gives the token for this way, so that it serves a few minutes only."""
        user = self._config.user
        return isinstance(way.headers, Authorization) and user is not None and user.exec is not None

    def api(self, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> HttpEndpoint:
        """The way to a path of the API server, with `headers` beside those that sign in.

        Raises:
            KitError: the kubeconfig's user can't sign in.
        """
        self._authorization.renew()
        own = self._authorization.with_headers(headers) if headers else self._authorization
        return HttpEndpoint(self._config.cluster.server.rstrip("/") + path, own, self._verify)

    @cached_property
    def _verify(self) -> ssl.SSLContext | bool:
        """How the API server is known: reading authorities takes tens of milliseconds."""
        config, user = self._config, self._config.user
        return verify_cluster(config.cluster, user, config.abs_file) if user else True


def _restarts(status: PodStatus) -> int:
    containers = [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())]
    return sum(container.restartCount for container in containers)


class Authorization(Mapping[str, str]):
    """The header that the kubeconfig's user authenticates with, if that is how it does, fresh whenever it is read; and
    `more` beside it.

    Exec plug-ins are run for it, again once a token is older than `RENEW_S`. A copy keeps the token that it was made
    with, and so does a process that sends a load, which a plug-in would hold up.

    Raises:
        KitError: on reading, where a plug-in fails.
    """

    def __init__(
        self,
        config: SingleConfig,
        clock: Callable[[], float] = time.monotonic,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._clock = clock
        self._more = more
        self._process = os.getpid()
        self._read_s = -inf
        self._header: Mapping[str, str] = {}

    def with_headers(self, more: Mapping[str, str]) -> "Authorization":
        """The same with further headers."""
        return Authorization(self._config, self._clock, more)

    def renew(self) -> Mapping[str, str]:
        """The header, read again where it is too old."""
        if os.getpid() == self._process and self._clock() - self._read_s >= RENEW_S:
            self._header = {**self._more, **_authorization(self._config)}
            self._read_s = self._clock()
        return self._header

    def __getitem__(self, name: str) -> str:
        return self.renew()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.renew())

    def __len__(self) -> int:
        return len(self.renew())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.renew()),)


def _authorization(config: SingleConfig) -> dict[str, str]:
    try:
        auth = user_auth(config.user)
        if auth is None:
            return {}
        request = httpx2.Request("GET", config.cluster.server)
        next(auth.sync_auth_flow(request))
    except FAILURES as error:
        raise KitError(f"The kubeconfig's user can't sign in: {error}", "Does `kubectl get pods` work?") from error
    return {"Authorization": request.headers["Authorization"]}
