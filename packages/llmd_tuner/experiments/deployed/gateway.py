"""The way to a model as clients of its Gateway have it: the address, listener and host names of the Gateway itself."""

import ssl
from collections.abc import Mapping
from typing import Any

from lightkube import generic_resource
from llmd_oke.access.addresses import is_reachable
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.plan import GatewayPlan
from llmd_pods.deployment import HttpEndpoint
from llmd_pods.documents import explain
from llmd_pods.errors import KitError
from pydantic import BaseModel, ValidationError

from llmd_tuner.experiments.deployed.cluster_access import FAILURES, ClusterAccess

OPTION = "--through-gateway"

_DEFAULT_PORTS = {"HTTP": 80, "HTTPS": 443}
"""Protocols that requests can be sent by, with the port that a URL leaves out."""

_generic: Any = generic_resource
_GATEWAY = _generic.create_namespaced_resource("gateway.networking.k8s.io", "v1", "Gateway", "gateways")


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
    """The way to a model from outside of its cluster, by the Gateway's own address. A listener with TLS is asked by the
    host name that its certificate is for.

    Args:
        access: the cluster, whose API server tells the address.
        plan: the stack.
        model: a model of it, which is behind the Gateway.
        verify: how the Gateway's certificate is checked.
        token: what the Gateway asks clients for, if anything.

    Raises:
        KitError: the model is behind no Gateway, or the Gateway has no such listener, no address, or can't be reached.
    """
    if plan.gateway is None or not model.behind_gateway:
        raise KitError(f"{model.name} is behind no Gateway.", f"Leave out {OPTION}, or set router.mode: gateway.")
    gateway, name = _read(access, plan.gateway), f"{plan.gateway.namespace}/{plan.gateway.name}"
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
        remedy = f"Run it where clients are, or leave out {OPTION}: requests then go through the API server."
        raise KitError(f"The Gateway {name}{leads} can't be reached at {server}:{listener.port} from here.", remedy)
    own: Mapping[str, str] = {"host": host} if host and not tls else {}
    sent = {"authorization": f"Bearer {token}"} if token else {}
    return HttpEndpoint(_url(listener, server), {**route.headers, **own, **sent}, verify)


def _read(access: ClusterAccess, gateway: GatewayPlan) -> _Gateway:
    name = f"{gateway.namespace}/{gateway.name}"
    try:
        read = access.client.get(_GATEWAY, gateway.name, namespace=gateway.namespace)
        return _Gateway.model_validate(read.to_dict())
    except ValidationError as error:  # a ValueError too
        raise KitError(f"The Gateway {name} has another form: {explain(error, 'gateway')}") from error
    except FAILURES as error:
        raise KitError(f"The Gateway {name} can't be read: {error}", "Is the stack deployed?") from error


def _listener(gateway: _Gateway, plan: GatewayPlan, name: str) -> _Listener:
    """The one that clients come to."""
    usable = [item for item in gateway.spec.listeners if item.protocol in _DEFAULT_PORTS]
    for item in usable:
        if plan.listener in {None, item.name}:
            return item
    names = ", ".join(item.name for item in usable) or "none"
    which = f"no listener {plan.listener}" if plan.listener else "no listener"
    raise KitError(f"The Gateway {name} has {which} for HTTP or HTTPS.", f"It has: {names} (gateway.listener).")


def _url(listener: _Listener, server: str) -> str:
    host = f"[{server}]" if ":" in server else server
    port = "" if listener.port == _DEFAULT_PORTS[listener.protocol] else f":{listener.port}"
    return f"{listener.protocol.lower()}://{host}{port}"
