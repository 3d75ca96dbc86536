"""Which addresses stand behind which Service, from Services and their EndpointSlices alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import ServicePort, ServiceSpec
from lightkube.models.discovery_v1 import Endpoint, EndpointPort
from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice

from llmd_oke.rehearsal.watches import metadata, texts

SERVICE_LABEL = "kubernetes.io/service-name"


@dataclass(frozen=True, order=True)
class Address:
    """An IPv4 address and a TCP port."""

    ip: str
    port: int


def forwardings(services: Iterable[Service], slices: Iterable[EndpointSlice]) -> dict[Address, tuple[Address, ...]]:
    """Give for each Service address with ready endpoints those endpoints; Services without are left out."""
    by_service = slices_by_service(slices)
    table: dict[Address, tuple[Address, ...]] = {}
    for service in services:
        spec = service.spec or ServiceSpec()
        if not spec.clusterIP or spec.clusterIP == "None":
            continue
        for port in spec.ports or []:
            targets = sorted(set(_targets(port, by_service.get(service_key(service), []))))
            if (port.protocol or "TCP") == "TCP" and targets:
                table[Address(spec.clusterIP, port.port)] = tuple(targets)
    return table


def slices_by_service(slices: Iterable[EndpointSlice]) -> Mapping[tuple[str, str], list[EndpointSlice]]:
    """Group EndpointSlices by the namespace and name of their Service."""
    grouped: dict[tuple[str, str], list[EndpointSlice]] = {}
    for each in slices:
        meta = metadata(each)
        name = texts(meta, "labels").get(SERVICE_LABEL)
        if name is not None and each.addressType == "IPv4":
            grouped.setdefault((meta.namespace or "", name), []).append(each)
    return grouped


def service_key(service: Service) -> tuple[str, str]:
    """Give a Service's namespace and name."""
    meta = metadata(service)
    return meta.namespace or "", meta.name or ""


def ready_endpoints(each: EndpointSlice) -> list[Endpoint]:
    """Give a slice's endpoints that may get traffic; unknown readiness counts as ready, as the API says."""
    return [point for point in each.endpoints or [] if point.conditions is None or point.conditions.ready is not False]


def _targets(port: ServicePort, slices: Iterable[EndpointSlice]) -> Iterator[Address]:
    for each in slices:
        number = _port_number(port, each.ports or [])
        if number is None:
            continue
        for point in ready_endpoints(each):
            yield from (Address(ip, number) for ip in point.addresses)


def _port_number(port: ServicePort, ports: Iterable[EndpointPort]) -> int | None:
    return next((each.port for each in ports if (each.name or "") == (port.name or "")), None)
