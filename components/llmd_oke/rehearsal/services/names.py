"""The cluster's DNS names: what each of them means, from Services and EndpointSlices alone.

Follows the Kubernetes DNS specification (https://github.com/kubernetes/dns/blob/master/docs/specification.md) as far
as pods of this kit ask: A and SRV records of Services, headless ones and their hosts, ExternalName, pod addresses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import ServiceSpec
from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice

from llmd_oke.rehearsal.services.table import ready_endpoints, service_key, slices_by_service


@dataclass(frozen=True)
class Port:
    """A named port, for SRV."""

    name: str
    protocol: str
    number: int


@dataclass(frozen=True)
class Name:
    """What one name stands for: addresses, or another name outside the cluster."""

    addresses: tuple[str, ...] = ()
    alias: str | None = None
    ports: tuple[Port, ...] = ()


def names(services: Iterable[Service], slices: Iterable[EndpointSlice], domain: str) -> dict[str, Name]:
    """Give all names of Services and hosts of headless ones, lower case, without a final dot."""
    by_service = slices_by_service(slices)
    zone: dict[str, Name] = {}
    for service in services:
        namespace, name = service_key(service)
        full = f"{name}.{namespace}.svc.{domain}".lower()
        spec = service.spec or ServiceSpec()
        behind = by_service.get((namespace, name), [])
        if spec.type == "ExternalName":
            zone[full] = Name(alias=spec.externalName)
        elif spec.clusterIP == "None":
            zone[full] = Name(_addresses(behind), ports=_ports(spec))
            zone |= _hosts(full, behind)
        elif spec.clusterIP:
            zone[full] = Name((spec.clusterIP,), ports=_ports(spec))
    return zone


def lookup(zone: Mapping[str, Name], name: str, domain: str) -> Name | None:
    """Give what a name stands for, None when it doesn't exist."""
    asked = name.lower().rstrip(".")
    found = zone.get(asked)
    if found is not None:
        return found
    pod = _pod_address(asked, domain)
    if pod is not None:
        return Name((pod,))
    known_above = any(each.endswith(f".{asked}") for each in zone)
    return Name() if known_above else None


def service_port(zone: Mapping[str, Name], name: str) -> tuple[str, Port] | None:
    """Give target and port of an SRV name such as `_http._tcp.router.default.svc.cluster.local`."""
    labels = name.lower().rstrip(".").split(".", 2)
    if len(labels) < 3 or not labels[0].startswith("_") or not labels[1].startswith("_"):
        return None
    found = zone.get(labels[2])
    wanted = (labels[0][1:], labels[1][1:])
    ports = found.ports if found else ()
    return next(((labels[2], port) for port in ports if (port.name, port.protocol) == wanted), None)


def _addresses(slices: Iterable[EndpointSlice]) -> tuple[str, ...]:
    return tuple(sorted({ip for each in slices for point in ready_endpoints(each) for ip in point.addresses}))


def _hosts(service: str, slices: Iterable[EndpointSlice]) -> dict[str, Name]:
    return {
        f"{point.hostname}.{service}": Name(tuple(point.addresses))
        for each in slices
        for point in ready_endpoints(each)
        if point.hostname
    }


def _ports(spec: ServiceSpec) -> tuple[Port, ...]:
    return tuple(
        Port(port.name.lower(), (port.protocol or "TCP").lower(), port.port) for port in spec.ports or [] if port.name
    )


def _pod_address(name: str, domain: str) -> str | None:
    labels = name.removesuffix(f".pod.{domain}").split(".")
    parts = labels[0].split("-")
    is_address = name.endswith(f".pod.{domain}") and len(labels) == 2 and len(parts) == 4
    return ".".join(parts) if is_address and all(part.isdigit() for part in parts) else None
