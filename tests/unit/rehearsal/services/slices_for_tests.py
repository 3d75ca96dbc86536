"""Services and EndpointSlices for tests."""

from typing import Any, cast

from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice


def make_service(name: str, address: str = "10.96.0.20", **spec: Any) -> Service:
    ports = spec.pop("ports", [{"name": "http", "port": 80, "targetPort": "web"}])
    body = {"metadata": {"name": name, "namespace": "serving"}, "spec": {"clusterIP": address, "ports": ports, **spec}}
    return cast("Service", Service.from_dict(body))


def make_slice(service: str, *addresses: str, port: int = 8080, name: str = "http", **endpoint: Any) -> EndpointSlice:
    body = {
        "metadata": {"name": f"{service}-x", "namespace": "serving", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": name, "port": port}],
        "endpoints": [{"addresses": [address], **endpoint} for address in addresses],
    }
    return cast("EndpointSlice", EndpointSlice.from_dict(body))
