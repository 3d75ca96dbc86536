"""Whether the service limits of a tenancy leave room for what a stack creates."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from typing import Any

from llmd_oke import catalogue
from llmd_oke.catalogue.flexible_shapes import flexible_shape
from llmd_oke.catalogue.limits import limits
from llmd_oke.config import GpuPool, SystemPool
from llmd_oke.operations.findings import Finding, Verdict, guarded
from llmd_oke.operations.tenancy import Tenancy

COMPUTE = "compute"
INCREASE = "Request a service limit increase in the OCI console. What this stack has rented already counts as used."
REGION = ""

Definitions = Callable[[str], list[dict[str, Any]]]
"""The limits of a service, as OCI defines them."""


@dataclass(frozen=True)
class Demand:
    """So many of something, for each of so many nodes that are spread over these availability domains."""

    path: str
    service: str
    names: tuple[str, ...]
    unit: str
    each: float = 1
    nodes: int = 1
    domains: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """For all nodes."""
        return self.each * self.nodes

    def of_one(self, domain: str) -> float:
        """The most in one of the domains, if nodes are spread evenly."""
        return self.each * ceil(self.nodes / max(1, len(self.domains))) if domain in self.domains else 0.0


def limit_findings(tenancy: Tenancy) -> Iterator[Finding]:
    """What there is to say of each limit that the stack meets; pools that share one are judged together.

    Raises:
        OciError: OCI doesn't tell which limits there are. One whose rest it doesn't tell hides no other.
    """
    definitions: Definitions = cache(partial(_definitions, tenancy))
    yield from _unnamed(tenancy, definitions)
    together: defaultdict[tuple[str, tuple[str, ...]], list[Demand]] = defaultdict(list)
    for demand in _demands(tenancy):
        together[demand.service, demand.names].append(demand)
    for (service, names), demands in together.items():
        definition, path = _definition(definitions(service), names), demands[0].path
        if definition is None:
            yield Finding("limits", path, Verdict.UNKNOWN, f"the region has no limit {' or '.join(names)}")
        else:
            judged = partial(_judged, tenancy, service, definition, demands)
            yield from guarded("limits", path, lambda judge=judged: [judge()])


def _demands(tenancy: Tenancy) -> Iterator[Demand]:
    cluster, known = tenancy.cluster, limits()
    if cluster.cluster_id is None:
        yield Demand("cluster", known.cluster.service, known.cluster.names, "clusters")
    if cluster.network.vcn_id is None:
        yield Demand("cluster.network", known.network.service, known.network.names, "VCNs")
    for i, pool in _on_demand(tenancy):
        yield from _of_gpu_pool(f"gpuPools[{i}].{most_key(pool)}", pool)
    pools = tenancy.config.cpu_pools
    for path, pool in (
        ("systemPool", tenancy.config.system_pool),
        *((f"cpuPools[{i}]", p) for i, p in enumerate(pools)),
    ):
        yield from _of_cpu_pool(tenancy, path, pool)


def most_key(pool: GpuPool) -> str:
    """Where the stack file says how many nodes a pool may have."""
    return "scaling.maxSize" if pool.autoscaled else "size"


def _on_demand(tenancy: Tenancy) -> list[tuple[int, GpuPool]]:
    """A reservation's nodes have been counted when it was made."""
    return [(i, pool) for i, pool in tenancy.created_pools if pool.capacity_reservation_id is None]


def _of_gpu_pool(path: str, pool: GpuPool) -> Iterator[Demand]:
    shape = catalogue.shape(pool.shape)
    if shape is not None and shape.limit is not None:
        domains = (pool.availability_domain,) if pool.availability_domain else ()
        yield Demand(path, COMPUTE, (shape.limit,), "GPUs", shape.gpus, pool.limits.most, domains)


def _of_cpu_pool(tenancy: Tenancy, path: str, pool: SystemPool) -> Iterator[Demand]:
    shape = flexible_shape(pool.shape)
    if shape is None or shape.limits is None:
        return
    domains, nodes = tuple(pool.availability_domains) or tenancy.availability_domains, pool.limits.most
    yield Demand(f"{path}.ocpus", COMPUTE, shape.limits.ocpus, "OCPUs", pool.ocpus, nodes, domains)
    yield Demand(f"{path}.memoryGib", COMPUTE, shape.limits.memory_gb, "GB", pool.memory_gib, nodes, domains)


def _unnamed(tenancy: Tenancy, definitions: Definitions) -> Iterator[Finding]:
    """Shapes whose limit has no published name."""
    for i, pool in _on_demand(tenancy):
        shape = catalogue.shape(pool.shape)
        if shape is not None and shape.limit is None:
            product = shape.gpu.product.lower()
            likely = [each["name"] for each in definitions(COMPUTE) if product in each["name"].lower()]
            value = (
                f"the limit of {shape.name} has no published name; the region has {', '.join(likely) or 'none like it'}"
            )
            remedy = f"Look in the OCI console whether it leaves {pool.limits.most * shape.gpus} GPUs."
            yield Finding("limits", f"gpuPools[{i}].{most_key(pool)}", Verdict.UNKNOWN, value, remedy)


def _definition(definitions: list[dict[str, Any]], names: Iterable[str]) -> dict[str, Any] | None:
    by_name = {str(each["name"]): each for each in definitions}
    return next((by_name[name] for name in names if name in by_name), None)


def _definitions(tenancy: Tenancy, service: str) -> list[dict[str, Any]]:
    root = tenancy.cluster.tenancy_id
    return list(tenancy.client.get("limits", "/limitDefinitions", compartmentId=root, serviceName=service))


def _judged(tenancy: Tenancy, service: str, definition: dict[str, Any], demands: Sequence[Demand]) -> Finding:
    name, unit, path = str(definition["name"]), demands[0].unit, demands[0].path
    places = sorted({domain for demand in demands for domain in demand.domains})
    by_domain = definition.get("scopeType") == "AD"
    if definition.get("isResourceAvailabilitySupported") is False:
        return Finding("limits", path, Verdict.UNKNOWN, f"OCI does not say how much of {name} is available")
    if by_domain and not places:
        return Finding("limits", path, Verdict.UNKNOWN, f"{name} counts by availability domain, and none is named")
    free = {place: _available(tenancy, service, name, place) for place in (places if by_domain else [REGION])}
    told = ", ".join(f"{_number(amount)} available{f' in {place}' if place else ''}" for place, amount in free.items())
    also = "".join(f", {demand.path}" for demand in demands[1:])
    value = f"{name}: {told}; {sum(demand.total for demand in demands):g} {unit} wanted ({path}{also})"
    verdict, remedy = _verdict(free, demands)
    return Finding("limits", path, verdict, value, remedy)


def _verdict(free: dict[str, float | None], demands: Sequence[Demand]) -> tuple[Verdict, str]:
    """OKE spreads nodes over domains, so that one which is short is a problem only for pools that have no other."""
    known = {place: amount for place, amount in free.items() if amount is not None}
    if len(known) < len(free):
        return Verdict.UNKNOWN, "OCI does not say how much of it is available."
    alone = {place: sum(each.total for each in demands if each.domains == (place,)) for place in known}
    if sum(known.values()) < sum(each.total for each in demands) or any(known[at] < alone[at] for at in known):
        return Verdict.PROBLEM, INCREASE
    if any(known[at] < sum(each.of_one(at) for each in demands) for at in known):
        return Verdict.UNKNOWN, "Enough in all, but not for an even share of the nodes in each availability domain."
    return Verdict.FINE, ""


def _available(tenancy: Tenancy, service: str, name: str, domain: str) -> float | None:
    query = {"compartmentId": tenancy.cluster.tenancy_id}
    if domain:
        query["availabilityDomain"] = domain
    answer = tenancy.client.get("limits", f"/services/{service}/limits/{name}/resourceAvailability", **query)
    available = answer.get("available")
    return None if available is None else float(available)


def _number(amount: float | None) -> str:
    return "an unknown number" if amount is None else f"{amount:g}"
