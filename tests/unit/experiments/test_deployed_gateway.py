"""The way to a model by the address of its Gateway, as clients outside of the cluster have it."""

from dataclasses import dataclass
from typing import Any

import pytest
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from llmd_oke.operations import cluster_access
from llmd_oke.operations.cluster_access import ClusterAccess, way_through_gateway
from llmd_oke.planning import Plan
from stack_files import StackObject, model, plan

EXISTING = {
    "mode": "existing",
    "provider": "agentgateway",
    "name": "shared",
    "namespace": "gateways",
    "uncheckedRequests": "accepted",
}
HTTP = {"name": "web", "port": 80, "protocol": "HTTP"}
HTTPS = {"name": "secure", "port": 443, "protocol": "HTTPS"}
ADDRESS = {"type": "IPAddress", "value": "203.0.113.7"}


@dataclass
class Client:
    """An API server that has one Gateway."""

    document: dict[str, Any]

    def get(self, *_: object, **__: object) -> "Client":
        return self

    def to_dict(self) -> dict[str, Any]:
        return self.document


def deployed(*, route: object = None, **changes: object) -> Plan:
    router = {"mode": "gateway", **({"route": route} if route else {})}
    return plan(model(router=router), gateway={**EXISTING, **changes})


def way(
    monkeypatch: pytest.MonkeyPatch,
    stack: Plan,
    *listeners: StackObject,
    addresses: tuple[StackObject, ...] = (ADDRESS,),
    token: str = "",
) -> HttpEndpoint:
    access = ClusterAccess.__new__(ClusterAccess)
    document = {"spec": {"listeners": list(listeners) or [HTTP]}, "status": {"addresses": list(addresses)}}
    monkeypatch.setattr(access, "_client", Client(document), raising=False)
    return way_through_gateway(access, stack, stack.models[0], token=token)


@pytest.fixture(name="reachable", autouse=True)
def reachable_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "is_reachable", lambda *_: True)


def test_a_gateway_is_called_by_its_certificates_host_or_address_and_its_routes_host(monkeypatch: pytest.MonkeyPatch):
    route = {"hosts": ["gpt.example.com"], "headers": {"X-Model": "gpt"}}
    found = way(monkeypatch, deployed(route=route), token="t")
    assert found.url == "http://203.0.113.7"
    assert dict(found.headers) == {"host": "gpt.example.com", "X-Model": "gpt", "authorization": "Bearer t"}
    found = way(monkeypatch, deployed(listener="secure"), HTTP, {**HTTPS, "hostname": "llm.example.com"})
    assert (found.url, dict(found.headers)) == ("https://llm.example.com", {})
    found = way(monkeypatch, deployed(), {**HTTP, "port": 8080}, addresses=({"value": "2001:db8::7"},))
    assert found.url == "http://[2001:db8::7]:8080"


@pytest.mark.parametrize("addresses", [(), ({"type": "IPAddress"},)])
def test_a_gateway_without_an_address_is_reported_with_its_conditions(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[StackObject, ...]
):
    with pytest.raises(KitError, match="gateways/shared has no address") as told:
        way(monkeypatch, deployed(), addresses=addresses)
    assert told.value.remedy == "kubectl describe gateway shared --namespace gateways says why."


def test_a_gateway_without_a_listener_for_clients_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(KitError, match="no listener edge") as told:
        way(monkeypatch, deployed(listener="edge"), HTTP, HTTPS)
    assert "web, secure" in str(told.value.remedy)


@pytest.mark.parametrize("listener", [HTTPS, {**HTTPS, "hostname": "*.example.com"}])
def test_a_tls_listener_without_host_name_is_refused(monkeypatch: pytest.MonkeyPatch, listener: StackObject):
    with pytest.raises(KitError, match="by which host name") as told:
        way(monkeypatch, deployed(), listener)
    assert "router.route.hosts" in str(told.value.remedy)


def test_a_model_behind_no_gateway_or_one_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_access, "is_reachable", lambda *_: False)
    with pytest.raises(KitError, match=r"can't be reached at 203\.0\.113\.7:80"):
        way(monkeypatch, deployed())
    with pytest.raises(KitError, match="behind no Gateway"):
        way(monkeypatch, plan())
