"""Checks of service limits, host capacity and capacity reservations against the demand of a stack's nodes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from typing import Any

from llmd_oke import catalogue
from llmd_oke.catalogue.operations import limits
from llmd_oke.catalogue.shapes import flexible_shape
from llmd_oke.config import GpuPoolConfig
from llmd_oke.operations.findings import Finding, Verdict, check_findings
from llmd_oke.operations.tenancy import StackTenancy
from llmd_oke.planning.pools import SYSTEM_POOL

_ENOUGH_AT_FIRST = "enough for size, not for scaling.maxSize"

COMPUTE = "compute"

INCREASE = "Request a service limit increase in the OCI console."

REGION = ""

Definitions = Callable[[str], list[dict[str, Any]]]
"""Function that returns OCI's limit definitions of a service."""


@dataclass(frozen=True)
class NodeDemand:
    """Demand of new nodes for a resource that an OCI service limit restricts.

    `path` is the key of the stack file that causes the demand, `names` the possible names of the limit of `service`,
    `per_node` the demand of each of `nodes` nodes in `unit`. The nodes are spread over `domains`; `running` is the
    number of nodes that exist already and aren't counted.
    """

    path: str
    service: str
    names: tuple[str, ...]
    unit: str
    per_node: float = 1
    nodes: int = 1
    domains: tuple[str, ...] = ()
    running: int = 0

    @property
    def total(self) -> float:
        """Demand of all new nodes together, in `unit`."""
        return self.per_node * self.nodes

    def of_one(self, domain: str) -> float:
        """Return the highest demand for the resource in one availability domain if nodes are spread evenly; 0 if no
        node may be placed in `domain`.
        """
        return self.per_node * ceil(self.nodes / max(1, len(self.domains))) if domain in self.domains else 0.0


def limit_findings(tenancy: StackTenancy) -> Iterator[Finding]:
    """Yield a finding for each service limit that the stack's demand counts against; the demands of pools with the same
    limit are added.

    Raises:
        OciError: OCI doesn't return the limit definitions. If it doesn't return what is left of one limit, only the
            finding of that limit is affected.
    """
    root = tenancy.cluster.tenancy_id

    @cache
    def definitions(service: str) -> list[dict[str, Any]]:
        return list(tenancy.client.get("limits", "/limitDefinitions", compartmentId=root, serviceName=service))

    yield from _unnamed_limits(tenancy, definitions)
    together: defaultdict[tuple[str, tuple[str, ...]], list[NodeDemand]] = defaultdict(list)
    for demand in _demands(tenancy):
        together[demand.service, demand.names].append(demand)
    for (service, names), demands in together.items():
        by_name = {str(definition["name"]): definition for definition in definitions(service)}
        definition, path = next((by_name[name] for name in names if name in by_name), None), demands[0].path
        if definition is None:
            yield Finding("limits", path, Verdict.UNKNOWN, f"the region has no limit {' or '.join(names)}")
        else:
            judged = partial(_limit_finding, tenancy, service, definition, demands)
            yield from check_findings("limits", path, lambda judge=judged: [judge()])


def _demands(tenancy: StackTenancy) -> Iterator[NodeDemand]:
    cluster, config, names = tenancy.cluster, tenancy.config, limits()
    runs = tenancy.runs
    if cluster.cluster_id is None and not runs.clusters:
        yield NodeDemand("cluster", names.cluster.service, names.cluster.names, "clusters")
    if cluster.network.vcn_id is None and not runs.networks:
        yield NodeDemand("cluster.network", names.network.service, names.network.names, "VCNs")
    for i, pool in _pools_on_demand(tenancy):
        shape = catalogue.shape(pool.shape)
        if shape is not None and shape.limit is not None:
            path = f"gpuPools[{i}].{most_key(pool)}"
            domains = (pool.availability_domain,) if pool.availability_domain else ()
            running = runs.of_pool(pool.name)
            nodes = max(0, pool.limits.most - running)
            yield NodeDemand(path, COMPUTE, (shape.limit,), "GPUs", shape.gpus, nodes, domains, running)
    cpu_pools = [(f"cpuPools[{i}]", pool.name, pool) for i, pool in enumerate(config.cpu_pools)]
    for path, name, pool in [("systemPool", SYSTEM_POOL, config.system_pool), *cpu_pools]:
        shape = flexible_shape(pool.shape)
        if shape is not None and shape.limits is not None:
            domains, running = tuple(pool.availability_domains) or tenancy.availability_domains, runs.of_pool(name)
            of_nodes = (max(0, pool.limits.most - running), domains, running)
            yield NodeDemand(f"{path}.ocpus", COMPUTE, shape.limits.ocpus, "OCPUs", pool.ocpus, *of_nodes)
            yield NodeDemand(f"{path}.memoryGib", COMPUTE, shape.limits.memory_gb, "GB", pool.memory_gib, *of_nodes)


def most_key(pool: GpuPoolConfig) -> str:
    """Return the stack-file key that gives a pool's largest number of nodes: `size`, or the maximum of its
    autoscaling.
    """
    return "scaling.maxSize" if pool.autoscaled else "size"


def _pools_on_demand(tenancy: StackTenancy) -> list[tuple[int, GpuPoolConfig]]:
    """Return the pools whose nodes count against limits, with their positions. Pools with a capacity reservation aren't
    among them: limits were charged when the reservation was created.
    """
    return [(i, pool) for i, pool in tenancy.created_pools if pool.capacity_reservation_id is None]


def _unnamed_limits(tenancy: StackTenancy, definitions: Definitions) -> Iterator[Finding]:
    """Yield a finding for each pool of a shape whose limit has no published name."""
    for i, pool in _pools_on_demand(tenancy):
        shape = catalogue.shape(pool.shape)
        if shape is not None and shape.limit is None:
            product = shape.gpu.product.lower()
            likely = [
                definition["name"] for definition in definitions(COMPUTE) if product in definition["name"].lower()
            ]
            value = (
                f"the limit of {shape.name} has no published name; the region has {', '.join(likely) or 'none like it'}"
            )
            remedy = f"Look in the OCI console whether it leaves {pool.limits.most * shape.gpus} GPUs."
            yield Finding("limits", f"gpuPools[{i}].{most_key(pool)}", Verdict.UNKNOWN, value, remedy)


def _limit_finding(
    tenancy: StackTenancy, service: str, definition: dict[str, Any], demands: Sequence[NodeDemand]
) -> Finding:
    name, unit, path = str(definition["name"]), demands[0].unit, demands[0].path
    places = sorted({domain for demand in demands for domain in demand.domains})
    by_domain = definition.get("scopeType") == "AD"
    if definition.get("isResourceAvailabilitySupported") is False:
        return Finding("limits", path, Verdict.UNKNOWN, f"OCI does not say how much of {name} is available")
    if by_domain and not places:
        return Finding("limits", path, Verdict.UNKNOWN, f"{name} counts by availability domain, and none is named")
    free = {place: _available(tenancy, service, name, place) for place in (places if by_domain else [REGION])}
    numbers = {place: "an unknown number" if amount is None else f"{amount:g}" for place, amount in free.items()}
    amounts = ", ".join(f"{number} available{f' in {place}' if place else ''}" for place, number in numbers.items())
    also = "".join(f", {demand.path}" for demand in demands[1:])
    value = f"{name}: {amounts}; {sum(demand.total for demand in demands):g} {unit} wanted ({path}{also})"
    if running := sum(demand.running for demand in demands):
        value += f", beside those of the {running} nodes that run"
    verdict, remedy = _verdict(free, demands)
    return Finding("limits", path, verdict, value, remedy)


def _verdict(free: dict[str, float | None], demands: Sequence[NodeDemand]) -> tuple[Verdict, str]:
    """Return verdict and remedy for one limit; `free` is what is available in each availability domain, None if
    unknown.

    OKE spreads nodes over availability domains, so that a domain with too little is a problem only for pools that have
    no other domain.
    """
    known = {place: amount for place, amount in free.items() if amount is not None}
    if len(known) < len(free):
        return Verdict.UNKNOWN, "OCI does not say how much of it is available."
    alone = {place: sum(demand.total for demand in demands if demand.domains == (place,)) for place in known}
    if sum(known.values()) < sum(demand.total for demand in demands) or any(known[at] < alone[at] for at in known):
        return Verdict.PROBLEM, INCREASE
    if any(known[at] < sum(demand.of_one(at) for demand in demands) for at in known):
        return Verdict.UNKNOWN, "Enough in all, but not for an even share of the nodes in each availability domain."
    return Verdict.FINE, ""


def _available(tenancy: StackTenancy, service: str, name: str, domain: str) -> float | None:
    query = {"compartmentId": tenancy.cluster.tenancy_id, **({"availabilityDomain": domain} if domain else {})}
    answer = tenancy.client.get("limits", f"/services/{service}/limits/{name}/resourceAvailability", **query)
    available = answer.get("available")
    return None if available is None else float(available)


def capacity_findings(tenancy: StackTenancy) -> Iterator[Finding]:
    """Yield a finding for each pool on whether OCI has capacity for its new nodes: in its reservation, whose free
    instances all pools of the reservation share, or else by OCI's capacity report.
    """
    reserved: list[GpuPoolConfig] = []
    for i, pool in tenancy.created_pools:
        if pool.capacity_reservation_id:
            path = f"gpuPools[{i}].capacityReservationId"
            yield _reservation(tenancy, pool, path, pool.capacity_reservation_id, reserved)
            reserved.append(pool)
        elif pool.availability_domain:
            yield _capacity_report(tenancy, pool, f"gpuPools[{i}].size", pool.availability_domain)


def _reservation(
    tenancy: StackTenancy, pool: GpuPoolConfig, path: str, ocid: str, before: Sequence[GpuPoolConfig]
) -> Finding:
    """Return the finding on a reservation: whether it has enough free instances of the pool's shape in the pool's
    availability and fault domains, after the demand of the pools `before` with the same reservation.
    """
    answer = tenancy.client.get("compute", f"/computeCapacityReservations/{ocid}")
    rows: list[dict[str, Any]] = [
        row
        for row in answer.get("instanceReservationConfigs") or ()
        if row.get("instanceShape") == pool.shape
        and (not pool.fault_domains or row.get("faultDomain") in {None, *pool.fault_domains})
    ]
    free = sum(int(row.get("reservedCount") or 0) - int(row.get("usedCount") or 0) for row in rows)
    where = f" in {', '.join(pool.fault_domains)}" if pool.fault_domains else ""
    running, domain = tenancy.runs.of_pool(pool.name, ocid), answer.get("availabilityDomain")
    value = f"{answer.get('lifecycleState')}, {free} instances of {pool.shape} free{where}"
    value += f", beside the {running} that the pool has" if running else ""
    if domain not in {None, pool.availability_domain}:
        remedy = f"A reservation of {pool.availability_domain}, or gpuPools[].availabilityDomain: {domain}."
        return Finding("capacity", path, Verdict.PROBLEM, f"{value}, all in {domain}", remedy)
    sharing = [
        other
        for other in before
        if (other.capacity_reservation_id, other.shape) == (ocid, pool.shape)
        and (not pool.fault_domains or not other.fault_domains or {*pool.fault_domains} & {*other.fault_domains})
    ]
    runs = {other.name: tenancy.runs.of_pool(other.name, ocid) for other in sharing}
    if sharing:
        value += f", for the pools {', '.join([*runs, pool.name])} together"
    active = answer.get("lifecycleState") == "ACTIVE"
    most = pool.limits.most - running + sum(max(0, other.limits.most - runs[other.name]) for other in sharing)
    least = pool.size - running + sum(max(0, other.size - runs[other.name]) for other in sharing)
    if active and free >= most:
        return Finding("capacity", path, Verdict.FINE, value)
    remedy = f"Let the reservation have {most} free instances of {pool.shape}{where}, or leave it out."
    if active and free >= least:
        return Finding("capacity", path, Verdict.UNKNOWN, f"{value}: {_ENOUGH_AT_FIRST}", remedy)
    return Finding("capacity", path, Verdict.PROBLEM, value, remedy)


def _capacity_report(tenancy: StackTenancy, pool: GpuPoolConfig, path: str, domain: str) -> Finding:
    body = {
        "compartmentId": tenancy.cluster.tenancy_id,
        "availabilityDomain": domain,
        "shapeAvailabilities": [{"instanceShape": pool.shape}],
    }
    running = tenancy.runs.of_pool(pool.name)
    if running >= pool.limits.most:
        return Finding("capacity", path, Verdict.FINE, f"all {running} nodes run")
    (answer,) = tenancy.client.send("POST", "compute", "/computeCapacityReports", body)["shapeAvailabilities"]
    status, count = str(answer.get("availabilityStatus")), answer.get("availableCount")
    value = f"{status} in {domain}" + (f", {count} instances" if count is not None else "")
    value += f", beside the {running} nodes that run" if running else ""
    remedy = "Another availability domain or region, a capacity reservation, or a word with Oracle."
    free = 0 if status != "AVAILABLE" else count
    if free is not None and int(free) < pool.size - running:
        return Finding("capacity", path, Verdict.PROBLEM, value, remedy)
    if free is not None and int(free) < pool.limits.most - running:
        return Finding("capacity", path, Verdict.UNKNOWN, f"{value}: {_ENOUGH_AT_FIRST}", remedy)
    return Finding("capacity", path, Verdict.FINE, value)
