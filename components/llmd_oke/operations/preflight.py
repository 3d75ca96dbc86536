"""Whether a tenancy has what a stack needs, before anything is rented: limits, capacity, images, rights, versions.

Each check asks OCI for one thing and never changes anything. A check that OCI refuses to answer is `unknown`, so that a
user with few rights still sees the others.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache, cached_property, partial
from http import HTTPStatus
from ipaddress import IPv4Network, ip_network
from math import ceil
from typing import Any

from llmd_base.errors import KitError

from llmd_oke import catalogue
from llmd_oke.access.oci_client import OciClient, OciError, StoredFile, stored_file, stored_text
from llmd_oke.catalogue.cluster import cloud_init, reserved_ranges
from llmd_oke.catalogue.cluster import policies as policy_facts
from llmd_oke.catalogue.operations import limits
from llmd_oke.catalogue.shapes import flexible_shape
from llmd_oke.config import CreateCluster, ExistingCluster, GpuPoolConfig, Image, StackConfig
from llmd_oke.config.pools import ImageImport
from llmd_oke.operations.running_nodes import RunningNodes, running_of
from llmd_oke.planning.gpu_stack import add_ons as wanted_add_ons
from llmd_oke.planning.iam import iam_needs
from llmd_oke.planning.pools import SYSTEM_POOL, kernel_faults, newest_oke_image
from llmd_oke.planning.tags import CHECKSUM_TAG

MAX_SKEW = 3
"""Kubernetes version skew policy: a kubelet may be three minor versions older than the API server."""


_ENOUGH_AT_FIRST = "enough for size, not for scaling.maxSize"


COMPUTE = "compute"


INCREASE = "Request a service limit increase in the OCI console."


REGION = ""


NODE_PACKAGE = "oci-oke-node-all"
"""What nodes of Ubuntu images join with: one package for each patch of Kubernetes, `oci-oke-node-all-1.34.2` (OCI
documentation, Running Ubuntu on Worker Nodes Using Custom Images)."""


ReadLink = Callable[[str], StoredFile]
"""Asks Object Storage for the file behind a link."""


LinkOf = Callable[[str], str | None]
"""The secret link to the file of a pool's image, None where the stack has none."""


Definitions = Callable[[str], list[dict[str, Any]]]
"""The limits of a service, as OCI defines them."""


class Verdict(StrEnum):
    """How it is: `unknown` where OCI gave no answer."""

    FINE = "fine"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `path` is where in the stack file, `value` what OCI says."""

    check: str
    path: str
    verdict: Verdict
    value: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def check_findings(name: str, path: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check, as far as it came, and that OCI did not answer if it did not."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except OciError as error:
        remedy = "Is the sign-in right, and may this user read it?" if error.status in {401, 403, 404} else "Try again."
        findings.append(Finding(name, path, Verdict.UNKNOWN, error.message, remedy))
    return findings


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where nothing speaks against an update, 1 where something does."""
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))


@dataclass(frozen=True)
class StackTenancy:
    """What is asked, and where the stack's cluster is or will be."""

    client: OciClient
    config: StackConfig
    cluster: CreateCluster
    stack_tag: str | None = None

    @cached_property
    def running(self) -> RunningNodes:
        """What the stack has in OCI already, by its tag; nothing where no tag is known.

        Raises:
            OciError: OCI doesn't tell.
        """
        if self.stack_tag is None:
            return RunningNodes()
        own = self.cluster.compartment_id
        return running_of(self.client, own, self.cluster.network.compartment_id or own, self.stack_tag)

    @cached_property
    def runs(self) -> RunningNodes:
        """The same, and nothing where OCI doesn't tell."""
        try:
            return self.running
        except OciError:
            return RunningNodes()

    @cached_property
    def availability_domains(self) -> tuple[str, ...]:
        """The region's availability domains, by their whole names: as the stack file gives them, or as OCI does.

        Raises:
            OciError: OCI doesn't tell.
        """
        if self.cluster.lookup_results.availability_domains:
            return tuple(self.cluster.lookup_results.availability_domains)
        domains = self.client.get("identity", "/availabilityDomains", compartmentId=self.cluster.tenancy_id)
        return tuple(str(domain["name"]) for domain in domains)

    @property
    def created_pools(self) -> list[tuple[int, GpuPoolConfig]]:
        """GPU pools that the stack creates, with their positions."""
        return [(i, pool) for i, pool in enumerate(self.config.gpu_pools) if pool.pool_id is None]

    @property
    def created_images(self) -> list[tuple[str, str, Image, str, str]]:
        """The images that pools boot from: pool, path in the stack file, image, the shape of the nodes, and their
        version of Kubernetes.
        """
        pools = [
            *((pool.name, f"gpuPools[{i}].image", pool) for i, pool in self.created_pools),
            (SYSTEM_POOL, "systemPool.image", self.config.system_pool),
            *((pool.name, f"cpuPools[{i}].image", pool) for i, pool in enumerate(self.config.cpu_pools)),
        ]
        own = self.cluster.kubernetes_version
        return [
            (name, path, pool.image, pool.shape, pool.kubernetes_version or own)
            for name, path, pool in pools
            if pool.image is not None
        ]


def preflight(
    client: OciClient,
    config: StackConfig,
    read_link: ReadLink = stored_file,
    link_of: LinkOf = lambda _: None,
    read_text: Callable[[str], str] = stored_text,
    stack_tag: str | None = None,
) -> list[Finding]:
    """All findings on a stack. `read_link` asks for the file behind an image's link, `link_of` has the secret ones,
    `read_text` reads what is public. What carries `stack_tag` is the stack's own, and needs no room once more.

    Raises:
        KitError: the stack says too little to ask anything.
    """
    if isinstance(config.cluster, ExistingCluster):
        return check_findings("cluster", "cluster.identifier", lambda: _existing_cluster(client, config))
    if not isinstance(config.cluster, CreateCluster):
        raise KitError("The stack says nothing of its cluster.", "Run this on the stack of the cluster layer.")
    tenancy = StackTenancy(client, config, config.cluster, stack_tag)
    findings = [
        finding for name, path, check in CHECKS for finding in check_findings(name, path, lambda c=check: c(tenancy))
    ]
    for pool, path, image, shape, version in tenancy.created_images:
        read = partial(_file_of, pool, image, read_link, link_of)
        findings += check_findings("image", path, partial(image_findings, tenancy, path, image, shape, read))
        findings += check_findings(
            "packages", path, partial(package_findings, tenancy, path, image, version, read_text)
        )
    return findings


def _file_of(pool: str, image: Image, read_link: ReadLink, link_of: LinkOf) -> StoredFile:
    """The file that a pool's image is imported from.

    Raises:
        OciError: there is no link to it, or it does not answer.
    """
    link = (image.import_.uri if image.import_ else None) or link_of(pool)
    if link is None:
        raise OciError(0, "NoLink", f"there is no link to the image's file: set llmd-oke:imageLinks.{pool}")
    return read_link(link)


def _versions(tenancy: StackTenancy) -> Iterator[Finding]:
    cluster = tenancy.cluster
    options = tenancy.client.get("containerengine", "/clusterOptions/all", compartmentId=cluster.compartment_id)
    offered: list[str] = options.get("kubernetesVersions") or []
    path, version = "cluster.kubernetesVersion", cluster.kubernetes_version
    running = _running_version(tenancy)
    if version in offered:
        yield Finding("versions", path, Verdict.FINE, f"{version} is offered")
    elif version != running:
        yield Finding("versions", path, Verdict.PROBLEM, f"{version} is not offered", "One of " + ", ".join(offered))
    if running is not None:
        minor, value = _minor(running), f"the cluster runs {running}"
        if _minor(version) - minor in {0, 1}:
            yield Finding("versions", path, Verdict.FINE, value)
        else:
            remedy = f"A version of 1.{minor} or 1.{minor + 1}: control planes go up one minor at a time."
            yield Finding("versions", path, Verdict.PROBLEM, f"{value}, {version} is wanted", remedy)
        version = version if cluster.cluster_id is None else running
    for i, pool in tenancy.created_pools:
        if pool.kubernetes_version is not None:
            fits = 0 <= _minor(version) - _minor(pool.kubernetes_version) <= MAX_SKEW
            path, value = (
                f"gpuPools[{i}].kubernetesVersion",
                f"nodes {pool.kubernetes_version}, control plane {version}",
            )
            remedy = f"Nodes may be as new as the control plane, and at most {MAX_SKEW} minor versions older."
            yield Finding("versions", path, Verdict.FINE if fits else Verdict.PROBLEM, value, "" if fits else remedy)


def _running_version(tenancy: StackTenancy) -> str | None:
    """The version of the control plane that is there: of the cluster that the stack file names, or else of the newest
    of its name, which the stack made earlier; None where there is none.
    """
    cluster = tenancy.cluster
    if cluster.cluster_id is not None:
        return str(tenancy.client.get("containerengine", f"/clusters/{cluster.cluster_id}")["kubernetesVersion"])
    query = {"compartmentId": cluster.compartment_id, "name": cluster.name}
    newest = tenancy.client.get("containerengine", "/clusters", **query, sortBy="TIME_CREATED", sortOrder="DESC")
    active = (item for item in newest if item.get("lifecycleState") in {"ACTIVE", "UPDATING"})
    return next((str(item["kubernetesVersion"]) for item in active), None)


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def _add_ons(tenancy: StackTenancy) -> Iterator[Finding]:
    """Whether OKE has the stack's add-ons for its version of Kubernetes, in the versions that are pinned."""
    version = tenancy.cluster.kubernetes_version
    query = {"kubernetesVersion": version, "shouldShowAllVersions": "true"}
    options = {
        str(option["name"]): option for option in tenancy.client.get("containerengine", "/addonOptions", **query)
    }
    written = [add_on.name for add_on in tenancy.cluster.add_ons]
    for add_on in wanted_add_ons(tenancy.config, tenancy.cluster):
        path = f"cluster.addOns[{written.index(add_on.name)}]" if add_on.name in written else "gpuStack"
        if add_on.name not in options:
            value, remedy = f"OKE has no {add_on.name} for {version}", f"One of {', '.join(sorted(options))}."
            yield Finding("add-ons", path, Verdict.PROBLEM, value, remedy)
            continue
        offered = [str(item["versionNumber"]) for item in options[add_on.name].get("versions") or ()]
        if add_on.version is None or add_on.version in offered:
            value = f"{add_on.name} {add_on.version or '(OKE chooses the version)'} is offered for {version}"
            yield Finding("add-ons", path, Verdict.FINE, value)
        else:
            value = f"OKE has no {add_on.name} {add_on.version} for {version}"
            remedy = f"cluster.addOns: {{name: {add_on.name}, version: one of {', '.join(offered) or 'none'}}}"
            yield Finding("add-ons", path, Verdict.PROBLEM, value, remedy)


def _node_images(tenancy: StackTenancy) -> Iterator[Finding]:
    """Whether OKE has an image of its own for the pools that name none, each for its version of Kubernetes."""
    cluster = tenancy.cluster
    if cluster.lookup_results.system_image_id is not None:
        return
    pools = [("systemPool", tenancy.config.system_pool)]
    pools += [(f"cpuPools[{i}]", pool) for i, pool in enumerate(tenancy.config.cpu_pools)]
    versions = [
        (path, pool.kubernetes_version or cluster.kubernetes_version) for path, pool in pools if pool.image is None
    ]
    for version in dict.fromkeys(version for _, version in versions):
        query = {"compartmentId": cluster.compartment_id, "nodePoolK8sVersion": version}
        answer = tenancy.client.get("containerengine", "/nodePoolOptions/all", **query)
        sources = {str(source["sourceName"]): str(source["imageId"]) for source in answer.get("sources") or ()}
        newest = newest_oke_image(sources, version)
        for path in (path for path, required in versions if required == version):
            if newest is None:
                value, remedy = (
                    f"OKE has no image for {version}",
                    f"Give {path}.image, or a version that OKE has one for.",
                )
                yield Finding("node image", path, Verdict.PROBLEM, value, remedy)
            else:
                yield Finding("node image", path, Verdict.FINE, newest)
                yield from _kernel_findings(path, newest)


def _kernel_findings(path: str, image: str) -> Iterator[Finding]:
    """Whether an image is older than its fixes of the kernel, by the date in its name. Nodes block the modules that
    have the faults when they boot first; whoever boots the image elsewhere, or loads modules otherwise, isn't held.
    """
    for fault in kernel_faults(image):
        value = f"{image} has {fault.name}; nodes block {', '.join(fault.modules)}"
        yield Finding("node image", path, Verdict.UNKNOWN, value, f"An image of {fault.fixed} or later.")


def _network(tenancy: StackTenancy) -> Iterator[Finding]:
    """Ranges of a VCN that is there; those that the stack names are judged by planning."""
    vcn_id = tenancy.cluster.network.vcn_id
    if vcn_id is None:
        return
    ranges: list[str] = tenancy.client.get("compute", f"/vcns/{vcn_id}")["cidrBlocks"]
    overlaps = [
        f"{cidr} overlaps {reserved.cidr} ({reserved.holds})"
        for cidr in ranges
        for reserved in reserved_ranges()
        if ip_network(cidr).overlaps(IPv4Network(str(reserved.cidr)))
    ]
    if overlaps:
        remedy = "A VCN without these ranges: nodes would reach either the one or the other."
        yield Finding("network", "cluster.network.vcnId", Verdict.PROBLEM, "; ".join(overlaps), remedy)
    else:
        yield Finding("network", "cluster.network.vcnId", Verdict.FINE, ", ".join(ranges))


def _policies(tenancy: StackTenancy) -> Iterator[Finding]:
    """Where an administrator grants rights, the statements that must be somewhere. Groups have any name there, so that
    what counts of a statement is what it grants: the words between `to` and `in`.
    """
    cluster = tenancy.cluster
    if cluster.iam.create:
        return
    own = cluster.model_copy(update={"iam": cluster.iam.model_copy(update={"create": True})})
    needs, reservations = iam_needs(tenancy.config, own), cluster.iam.reservation_compartment_id
    granted = [
        _plain(statement)
        for compartment in dict.fromkeys(filter(None, (cluster.compartment_id, cluster.tenancy_id, reservations)))
        for policy in tenancy.client.get("identity", "/policies", compartmentId=compartment)
        for statement in policy["statements"]
    ]
    for need in (*needs.cluster, *needs.nodes):
        texts = [statement.text for statement in policy_facts().needs[need].statements]
        rights = {text: f" to {_plain(text).partition(' to ')[2].partition(' in ')[0]} in " for text in texts}
        missing = [text for text in texts if not any(rights[text] in statement for statement in granted)]
        verdict, state = (Verdict.PROBLEM, "not granted") if missing else (Verdict.FINE, "granted")
        yield Finding("policies", "cluster.iam", verdict, f"{need}: {state}", "; ".join(missing))


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


@dataclass(frozen=True)
class NodeDemand:
    """So many of something, for each of so many nodes that are spread over these availability domains, beside those
    that are `running` already.
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
        """For all nodes."""
        return self.per_node * self.nodes

    def of_one(self, domain: str) -> float:
        """The most in one of the domains, if nodes are spread evenly."""
        return self.per_node * ceil(self.nodes / max(1, len(self.domains))) if domain in self.domains else 0.0


def limit_findings(tenancy: StackTenancy) -> Iterator[Finding]:
    """What there is to say of each limit that the stack meets; pools that share one are judged together.

    Raises:
        OciError: OCI doesn't tell which limits there are. One whose rest it doesn't tell hides no other.
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


def _running(tenancy: StackTenancy) -> Iterator[Finding]:
    """The GPU nodes that the stack has already, which limits and capacity are not asked for once more."""
    for i, pool in tenancy.created_pools:
        nodes = sum(node.pool == pool.name for node in tenancy.running.nodes)
        if nodes:
            yield Finding("running", f"gpuPools[{i}].size", Verdict.FINE, f"{nodes} nodes of the stack run")


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
    """Where the stack file says how many nodes a pool may have."""
    return "scaling.maxSize" if pool.autoscaled else "size"


def _pools_on_demand(tenancy: StackTenancy) -> list[tuple[int, GpuPoolConfig]]:
    """A reservation's nodes have been counted when it was made."""
    return [(i, pool) for i, pool in tenancy.created_pools if pool.capacity_reservation_id is None]


def _unnamed_limits(tenancy: StackTenancy, definitions: Definitions) -> Iterator[Finding]:
    """Shapes whose limit has no published name."""
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
    """OKE spreads nodes over domains, so that one which is short is a problem only for pools that have no other."""
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


def _capacity(tenancy: StackTenancy) -> Iterator[Finding]:
    """Find capacity for the nodes that don't run yet; pools of one reservation share what is free in it."""
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
    """Judge whether a reservation has instances of the pool's shape, where the pool may be, beside those that it uses
    and those that pools `before` it will use.
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


def image_findings(
    tenancy: StackTenancy, path: str, image: Image, shape: str, read: Callable[[], StoredFile]
) -> Iterator[Finding]:
    """What there is to say of one image; `read` asks for the file that it is imported from.

    Raises:
        OciError: OCI or the link doesn't answer.
    """
    if image.ocid is not None:
        yield from _existing_image(tenancy, f"{path}.ocid", image.ocid, shape)
    elif image.import_ is not None:
        yield from _imported_image(tenancy, f"{path}.import", image.import_, read)


def _existing_image(tenancy: StackTenancy, path: str, ocid: str, shape: str) -> Iterator[Finding]:
    image = tenancy.client.get("compute", f"/images/{ocid}")
    state, name = image.get("lifecycleState"), image.get("displayName")
    yield from _kernel_findings(path, str(name))
    if state != "AVAILABLE":
        yield Finding("image", path, Verdict.PROBLEM, f"{name} is {state}", "Wait for the import, or another image.")
        return
    shapes = {entry["shape"] for entry in tenancy.client.get("compute", f"/images/{ocid}/shapes")}
    if shape in shapes:
        yield Finding("image", path, Verdict.FINE, f"{name} is AVAILABLE for {shape}")
    else:
        remedy = f"Add {shape} to the image's compatible shapes."
        yield Finding("image", path, Verdict.PROBLEM, f"{name} is not for {shape}", remedy)


def _imported_image(
    tenancy: StackTenancy, path: str, source: ImageImport, read: Callable[[], StoredFile]
) -> Iterator[Finding]:
    """An image that was imported already is known by its tag: its link may have expired, and OCI has no checksum of it.

    One that is still to be imported is known by what Object Storage says of the file.
    """
    for image in tenancy.client.get("compute", "/images", compartmentId=tenancy.cluster.compartment_id):
        if (image.get("freeformTags") or {}).get(CHECKSUM_TAG) == source.checksum:
            state, name = image.get("lifecycleState"), image.get("displayName")
            if state == "AVAILABLE":
                yield Finding("image", path, Verdict.FINE, f"{name} was imported from a file with this checksum")
            else:
                remedy = "Wait for the import, or delete it."
                yield Finding("image", path, Verdict.PROBLEM, f"{name} is {state}", remedy)
            return
    yield _image_file(f"{path}.checksum", source.checksum, read())


def _image_file(path: str, expected: str, file: StoredFile) -> Finding:
    kind, gib = expected.partition(":")[0], file.size_bytes / 2**30
    stated = [checksum for checksum in file.checksums if checksum.startswith(f"{kind}:")]
    if expected in stated:
        return Finding("image", path, Verdict.FINE, f"Object Storage states {expected} for the file of {gib:.1f} GiB")
    if not stated:
        others = " and ".join(file.checksums) or "no checksum"
        remedy = "Read the file and compare, or write down a checksum of the kind that is stated."
        value = f"Object Storage states {others} and no {kind} for the file of {gib:.1f} GiB"
        return Finding("image", path, Verdict.UNKNOWN, value, remedy)
    value = f"Object Storage states {' and '.join(stated)}, the stack file {expected}"
    return Finding("image", path, Verdict.PROBLEM, value, "Another file than was meant: mend the link or the checksum.")


def package_findings(
    tenancy: StackTenancy, path: str, image: Image, version: str, read_text: Callable[[str], str]
) -> Iterator[Finding]:
    """Whether OKE's repository has the package of a version of Kubernetes for an Ubuntu image. What an image itself
    carries is not published. `read_text` reads the repository's index.

    Raises:
        OciError: OCI or the repository doesn't answer.
    """
    catalogued = catalogue.image(image.import_.name) if image.import_ else None
    if catalogued is not None:
        system, release = catalogued.operating_system, catalogued.operating_system_version
    else:
        answer = tenancy.client.get("compute", f"/images/{image.ocid}")
        system, release = str(answer.get("operatingSystem")), str(answer.get("operatingSystemVersion"))
    if system != "Canonical Ubuntu":
        return
    packages, patch = cloud_init().packages, version.removeprefix("v")
    codename = packages.codenames.get(release)
    if codename is None:
        value = f"{NODE_PACKAGE}-{patch} for Ubuntu {release}: where OKE keeps it is not known"
        yield Finding(
            "packages", path, Verdict.UNKNOWN, value, f"An image of Ubuntu {' or '.join(packages.codenames)}."
        )
        return
    folder = f"ubuntu-{codename}/kubernetes-{patch.rpartition('.')[0]}"
    index = _package_index([f"{repository}/{folder}" for repository in packages.repositories], read_text)
    listed = re.findall(rf"^Package: {NODE_PACKAGE}-(\S+)$", index, re.MULTILINE)
    if patch in listed:
        value = f"{NODE_PACKAGE}-{patch} is in OKE's repositories for Ubuntu {release}"
        yield Finding("packages", path, Verdict.FINE, value)
        return
    others = ", ".join(f"v{other}" for other in dict.fromkeys(listed)) or "none"
    value = (
        f"OKE's repositories for Ubuntu {release} have no {NODE_PACKAGE}-{patch}: nodes join if the image carries it"
    )
    yield Finding("packages", path, Verdict.UNKNOWN, value, f"An image that does, or a version that it has: {others}.")


def _package_index(folders: Sequence[str], read_text: Callable[[str], str]) -> str:
    """The indexes of all these folders that answer, one after the other.

    Raises:
        OciError: none does.
    """
    texts, refused = list[str](), list[OciError]()
    for folder in folders:
        uri = f"{folder}/dists/stable/main/binary-amd64/Packages"
        try:
            try:
                texts.append(read_text(f"{uri}.gz"))
            except OciError as error:  # a repository has its index packed, plain, or both
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                texts.append(read_text(uri))
        except OciError as error:
            refused.append(error)
    if not texts:
        raise refused[0]
    return "\n".join(texts)


def _existing_cluster(client: OciClient, config: StackConfig) -> Iterator[Finding]:
    cluster = config.cluster
    assert isinstance(cluster, ExistingCluster)  # noqa: S101 - the caller has looked
    path = "cluster.identifier"
    if not cluster.identifier.startswith("ocid1.cluster."):
        yield Finding("cluster", path, Verdict.UNKNOWN, f"{cluster.identifier} is no OCID, so OCI can't be asked")
        return
    details = client.get("containerengine", f"/clusters/{cluster.identifier}")
    state, version, kind = details.get("lifecycleState"), details.get("kubernetesVersion"), details.get("type")
    value = f"{details.get('name')} is {state}, {version}, {kind}"
    if state == "ACTIVE":
        yield Finding("cluster", path, Verdict.FINE, value)
    else:
        yield Finding("cluster", path, Verdict.PROBLEM, value, "An ACTIVE cluster.")


CHECKS: list[tuple[str, str, Callable[[StackTenancy], Iterator[Finding]]]] = [
    ("versions", "cluster.kubernetesVersion", _versions),
    ("add-ons", "cluster.addOns", _add_ons),
    ("node image", "systemPool.image", _node_images),
    ("network", "cluster.network", _network),
    ("policies", "cluster.iam", _policies),
    ("running", "gpuPools", _running),
    ("limits", "gpuPools", limit_findings),
    ("capacity", "gpuPools", _capacity),
]
"""Name, place in the stack file, and the check, quick ones first."""
