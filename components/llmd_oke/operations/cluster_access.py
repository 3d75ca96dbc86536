"""HTTP access from this machine to the Services and pods of a cluster.

Directly if this machine can reach their addresses, otherwise through the API server's proxy, or, like a model's
clients, by address, listener and host name of the Gateway.
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
from lightkube import generic_resource
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.core_v1 import PodStatus, ServiceSpec
from lightkube.resources.core_v1 import Pod, Service
from llmd_base.addresses import HttpEndpoint, PodAddress
from llmd_base.documents import explain
from llmd_base.errors import KitError
from pydantic import BaseModel, ValidationError

from llmd_oke.access.addresses import is_reachable
from llmd_oke.operations.kubeconfig import kubeconfig_context
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.plan import GatewayPlan

RENEW_S = 60.0
"""Seconds that a token of the kubeconfig's exec plug-in is used; OKE's tokens live 240 s (`access/signing.py`)."""

FAILURES = (ApiError, httpx2.HTTPError, ConfigError, OSError, ValueError, LookupError)
"""Exceptions of requests to the API server: its refusals, network errors, and errors of the kubeconfig's exec plug-in.
"""


GATEWAY_OPTION = "--through-gateway"

_DEFAULT_PORTS = {"HTTP": 80, "HTTPS": 443}
"""Listener protocols that requests can use, with the default port of their URLs."""

_generic: Any = generic_resource
_GATEWAY = _generic.create_namespaced_resource("gateway.networking.k8s.io", "v1", "Gateway", "gateways")


class ClusterAccess:
    """Access to the cluster of a context of the environment's kubeconfig; the current context if left out.

    Raises:
        KitError: there is no kubeconfig, or it doesn't have that context.
    """

    def __init__(self, context: str | None = None) -> None:
        kubeconfig = kubeconfig_context(context)
        self._config = kubeconfig
        self._client = lightkube.Client(config=kubeconfig)
        self._authorization = Authorization(kubeconfig)

    @property
    def client(self) -> lightkube.Client:
        """Client of the cluster's API server (lightkube)."""
        return self._client

    def service(self, namespace: str, name: str) -> HttpEndpoint:
        """Return the endpoint of port 80 of a Service. For a Service of type ExternalName that is the endpoint of the
        Service behind it, with the former's DNS name as header `host`.

        Raises:
            KitError: the Service doesn't exist, or the cluster doesn't answer.
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
        """Return the pods with these labels that have an IP address and aren't being deleted, sorted by name.

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
        """Return the endpoint of a pod's port: direct if reachable, else through the API server's proxy."""
        if is_reachable(pod.address, port):
            return HttpEndpoint(f"http://{pod.address}:{port}")
        return self.proxied(namespace, pod, port)

    def proxied(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:
        """Return the endpoint of a pod's port through the API server's proxy, without an attempt to
        connect directly.
        """
        return self.api(f"/api/v1/namespaces/{namespace}/pods/{pod.name}:{port}/proxy")

    def expires(self, way: HttpEndpoint) -> bool:
        """Tell whether an endpoint uses a token of the kubeconfig's exec plug-in, which expires after minutes."""
        user = self._config.user
        return isinstance(way.headers, Authorization) and user is not None and user.exec is not None

    def api(self, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> HttpEndpoint:
        """Return the endpoint of a path of the API server, with the kubeconfig user's header of authentication and the
        additional `headers`.

        Raises:
            KitError: the kubeconfig's exec plug-in fails.
        """
        self._authorization.renew()
        own = self._authorization.with_headers(headers) if headers else self._authorization
        return HttpEndpoint(self._config.cluster.server.rstrip("/") + path, own, self._verify)

    @cached_property
    def _verify(self) -> ssl.SSLContext | bool:
        """TLS context with the kubeconfig's certificate authority; cached, as its creation takes
        tens of milliseconds.
        """
        config, user = self._config, self._config.user
        return verify_cluster(config.cluster, user, config.abs_file) if user else True


def _restarts(status: PodStatus) -> int:
    containers = [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())]
    return sum(container.restartCount for container in containers)


class Authorization(Mapping[str, str]):
    """HTTP headers of requests to the API server: the header `Authorization` of the kubeconfig's user, if that user
    authenticates by a header, and the additional headers `more`.

    A read of the mapping runs the kubeconfig's exec plug-in again once the token is older than `RENEW_S`. A pickled
    copy keeps its token, and so does a forked process, since the plug-in would delay the load that such a process
    sends.

    Raises:
        KitError: (on read) the exec plug-in fails.
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
        """Return the authorization of the same user with the additional headers `more`."""
        return Authorization(self._config, self._clock, more)

    def renew(self) -> Mapping[str, str]:
        """Return the headers, with a new token if the current one is older than `RENEW_S`."""
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


class _Listener(BaseModel):
    name: str
    port: int
    protocol: str
    hostname: str | None = None


class _Spec(BaseModel):
    listeners: tuple[_Listener, ...] = ()


class _Address(BaseModel):
    value: str = ""


class _Status(BaseModel):
    addresses: tuple[_Address, ...] = ()


class _Gateway(BaseModel):
    spec: _Spec = _Spec()
    status: _Status = _Status()


def way_through_gateway(
    access: ClusterAccess, plan: Plan, model: ModelPlan, verify: ssl.SSLContext | bool = True, token: str = ""
) -> HttpEndpoint:
    """Return the endpoint of a model at its Gateway, for clients outside the cluster. For a TLS listener, the URL has
    the host name of the listener's certificate.

    Args:
        access: the cluster, whose API server knows the Gateway's address.
        plan: the stack's plan.
        model: a model of the stack that is behind the Gateway.
        verify: verification of the Gateway's certificate, as httpx's argument of that name.
        token: bearer token that the Gateway requires of clients; none if empty.

    Raises:
        KitError: the model isn't behind a Gateway, or the Gateway has no such listener, no address, or can't be
            reached.
    """
    if plan.gateway is None or not model.behind_gateway:
        raise KitError(
            f"{model.name} is behind no Gateway.", f"Leave out {GATEWAY_OPTION}, or set router.mode: gateway."
        )
    gateway, name = _read_gateway(access, plan.gateway), f"{plan.gateway.namespace}/{plan.gateway.name}"
    listener = _listener(gateway, plan.gateway, name)
    address = next((item.value for item in gateway.status.addresses if item.value), None)
    if address is None:
        remedy = f"kubectl describe gateway {plan.gateway.name} --namespace {plan.gateway.namespace} says why."
        raise KitError(f"The Gateway {name} has no address.", remedy)
    route = model.router.route
    host = next(iter(route.hosts), listener.hostname)
    tls = listener.protocol == "HTTPS"
    if (host is None and tls) or (host or "").startswith("*"):
        why = f"Nothing says by which host name the Gateway {name} is asked for {model.name}."
        raise KitError(why, "Give the model router.route.hosts.")
    server = host if tls and host else address
    if not is_reachable(server, listener.port):
        leads = f", whose address is {address}," if server != address else ""
        remedy = f"Run it where clients are, or leave out {GATEWAY_OPTION}: requests then go through the API server."
        raise KitError(f"The Gateway {name}{leads} can't be reached at {server}:{listener.port} from here.", remedy)
    own: Mapping[str, str] = {"host": host} if host and not tls else {}
    sent = {"authorization": f"Bearer {token}"} if token else {}
    port = "" if listener.port == _DEFAULT_PORTS[listener.protocol] else f":{listener.port}"
    url = f"{listener.protocol.lower()}://{f'[{server}]' if ':' in server else server}{port}"
    return HttpEndpoint(url, {**route.headers, **own, **sent}, verify)


def _read_gateway(access: ClusterAccess, gateway: GatewayPlan) -> _Gateway:
    name = f"{gateway.namespace}/{gateway.name}"
    try:
        read = access.client.get(_GATEWAY, gateway.name, namespace=gateway.namespace)
        return _Gateway.model_validate(read.to_dict())
    except ValidationError as error:  # before FAILURES, which contains its base class ValueError
        raise KitError(f"The Gateway {name} has another form: {explain(error, 'gateway')}") from error
    except FAILURES as error:
        raise KitError(f"The Gateway {name} can't be read: {error}", "Is the stack deployed?") from error


def _listener(gateway: _Gateway, plan: GatewayPlan, name: str) -> _Listener:
    """Return the Gateway's listener for clients: the plan's, or else the first for HTTP or HTTPS.

    Raises:
        KitError: the Gateway has no such listener.
    """
    usable = [item for item in gateway.spec.listeners if item.protocol in _DEFAULT_PORTS]
    for item in usable:
        if plan.listener in {None, item.name}:
            return item
    names = ", ".join(item.name for item in usable) or "none"
    which = f"no listener {plan.listener}" if plan.listener else "no listener"
    raise KitError(f"The Gateway {name} has {which} for HTTP or HTTPS.", f"It has: {names} (gateway.listener).")
