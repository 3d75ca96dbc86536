"""Whether a tenancy has what a stack needs, before anything is rented.

Each check asks OCI for one thing and never changes anything. A check that OCI refuses to answer is `unknown`, so that a
user with few rights still sees the others.
"""

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Network, ip_network

from llmd_oke.access.objects import StoredFile, stored_file, stored_text
from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.catalogue.iam import Need
from llmd_oke.catalogue.iam import policies as policy_facts
from llmd_oke.catalogue.network import reserved_ranges
from llmd_oke.config import CreateCluster, ExistingCluster, GpuPool, Image, StackConfig
from llmd_oke.errors import KitError
from llmd_oke.operations.findings import Finding, Verdict, guarded
from llmd_oke.operations.preflight_images import LinkOf, ReadLink, image_findings, package_findings
from llmd_oke.operations.preflight_limits import limit_findings
from llmd_oke.operations.tenancy import Tenancy
from llmd_oke.planning.add_ons import add_ons as wanted_add_ons
from llmd_oke.planning.iam import iam_needs
from llmd_oke.planning.pools import newest_oke_image

MOST_SKEW = 3
"""Kubernetes version skew policy: a kubelet may be three minor versions older than the API server."""

_ENOUGH_AT_FIRST = "enough for size, not for scaling.maxSize"


def preflight(
    client: OciClient,
    config: StackConfig,
    read_link: ReadLink = stored_file,
    link_of: LinkOf = lambda _: None,
    read_text: Callable[[str], str] = stored_text,
) -> list[Finding]:
    """All findings on a stack. `read_link` asks for the file behind an image's link, `link_of` has the secret ones,
    `read_text` reads what is public.

    Raises:
        KitError: the stack says too little to ask anything.
    """
    if isinstance(config.cluster, ExistingCluster):
        return guarded("cluster", "cluster.identifier", lambda: _existing_cluster(client, config))
    if not isinstance(config.cluster, CreateCluster):
        raise KitError("The stack says nothing of its cluster.", "Run this on the stack of the cluster layer.")
    tenancy = Tenancy(client, config, config.cluster)
    found = [finding for name, path, check in CHECKS for finding in guarded(name, path, lambda c=check: c(tenancy))]
    for pool, path, image, shape, version in tenancy.created_images:
        read = partial(_file_of, pool, image, read_link, link_of)
        found += guarded("image", path, partial(image_findings, tenancy, path, image, shape, read))
        found += guarded("packages", path, partial(package_findings, tenancy, path, image, version, read_text))
    return found


def _file_of(pool: str, image: Image, read_link: ReadLink, link_of: LinkOf) -> StoredFile:
    """The file that a pool's image is imported from.

    Raises:
        OciError: there is no link to it, or it does not answer.
    """
    link = (image.import_.uri if image.import_ else None) or link_of(pool)
    if link is None:
        raise OciError(0, "NoLink", f"there is no link to the image's file: set llmd-oke:imageLinks.{pool}")
    return read_link(link)


def _capacity(tenancy: Tenancy) -> Iterator[Finding]:
    for i, pool in tenancy.created_pools:
        if pool.capacity_reservation_id:
            yield _reservation(tenancy, pool, f"gpuPools[{i}].capacityReservationId", pool.capacity_reservation_id)
        elif pool.availability_domain:
            yield _report(tenancy, pool, f"gpuPools[{i}].size", pool.availability_domain)


def _reservation(tenancy: Tenancy, pool: GpuPool, path: str, ocid: str) -> Finding:
    answer = tenancy.client.get("compute", f"/computeCapacityReservations/{ocid}")
    free = int(answer.get("reservedInstanceCount") or 0) - int(answer.get("usedInstanceCount") or 0)
    value = f"{answer.get('lifecycleState')}, {free} instances free"
    active, most = answer.get("lifecycleState") == "ACTIVE", pool.limits.most
    if active and free >= most:
        return Finding("capacity", path, Verdict.FINE, value)
    remedy = f"Let the reservation have {most} free instances, or leave it out."
    if active and free >= pool.size:
        return Finding("capacity", path, Verdict.UNKNOWN, f"{value}: {_ENOUGH_AT_FIRST}", remedy)
    return Finding("capacity", path, Verdict.PROBLEM, value, remedy)


def _report(tenancy: Tenancy, pool: GpuPool, path: str, domain: str) -> Finding:
    body = {
        "compartmentId": tenancy.cluster.tenancy_id,
        "availabilityDomain": domain,
        "shapeAvailabilities": [{"instanceShape": pool.shape}],
    }
    (answer,) = tenancy.client.send("POST", "compute", "/computeCapacityReports", body)["shapeAvailabilities"]
    status, count = str(answer.get("availabilityStatus")), answer.get("availableCount")
    value = f"{status} in {domain}" + (f", {count} instances" if count is not None else "")
    remedy = "Another availability domain or region, a capacity reservation, or a word with Oracle."
    if status != "AVAILABLE" or (count is not None and int(count) < pool.size):
        return Finding("capacity", path, Verdict.PROBLEM, value, remedy)
    if count is not None and int(count) < pool.limits.most:
        return Finding("capacity", path, Verdict.UNKNOWN, f"{value}: {_ENOUGH_AT_FIRST}", remedy)
    return Finding("capacity", path, Verdict.FINE, value)


def _policies(tenancy: Tenancy) -> Iterator[Finding]:
    """Where an administrator grants rights, the statements that must be somewhere. Groups have any name there."""
    cluster = tenancy.cluster
    if cluster.iam.create:
        return
    own = cluster.model_copy(update={"iam": cluster.iam.model_copy(update={"create": True})})
    needs = iam_needs(tenancy.config, own)
    found: list[str] = []
    for place in dict.fromkeys((cluster.compartment_id, cluster.tenancy_id)):
        for policy in tenancy.client.get("identity", "/policies", compartmentId=place):
            found += map(_plain, policy["statements"])
    for need in (*needs.cluster, *needs.nodes):
        yield _policy(need, found)


def _policy(need: Need, found: list[str]) -> Finding:
    texts = [statement.text for statement in policy_facts().needs[need].statements]
    missing = [text for text in texts if not any(_right(text) in statement for statement in found)]
    if not missing:
        return Finding("policies", "cluster.iam", Verdict.FINE, f"{need}: granted")
    return Finding("policies", "cluster.iam", Verdict.PROBLEM, f"{need}: not granted", "; ".join(missing))


def _right(text: str) -> str:
    """What a statement grants: the words between `to` and `in`."""
    return f" to {_plain(text).partition(' to ')[2].partition(' in ')[0]} in "


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _network(tenancy: Tenancy) -> Iterator[Finding]:
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


def _versions(tenancy: Tenancy) -> Iterator[Finding]:
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
        yield _upgrade(running, version, path)
        version = version if cluster.cluster_id is None else running
    for i, pool in tenancy.created_pools:
        if pool.kubernetes_version is not None:
            yield _skew(version, pool.kubernetes_version, f"gpuPools[{i}].kubernetesVersion")


def _running_version(tenancy: Tenancy) -> str | None:
    """The version of the control plane that is there: of the cluster that the stack file names, or else of the newest
    of its name, which the stack made earlier; None where there is none.
    """
    cluster = tenancy.cluster
    if cluster.cluster_id is not None:
        return str(tenancy.client.get("containerengine", f"/clusters/{cluster.cluster_id}")["kubernetesVersion"])
    place = {"compartmentId": cluster.compartment_id, "name": cluster.name}
    newest = tenancy.client.get("containerengine", "/clusters", **place, sortBy="TIME_CREATED", sortOrder="DESC")
    there = (each for each in newest if each.get("lifecycleState") in {"ACTIVE", "UPDATING"})
    return next((str(each["kubernetesVersion"]) for each in there), None)


def _add_ons(tenancy: Tenancy) -> Iterator[Finding]:
    """Whether OKE has the stack's add-ons for its version of Kubernetes, in the versions that are pinned."""
    version = tenancy.cluster.kubernetes_version
    query = {"kubernetesVersion": version, "shouldShowAllVersions": "true"}
    options = {str(each["name"]): each for each in tenancy.client.get("containerengine", "/addonOptions", **query)}
    for add_on in wanted_add_ons(tenancy.config, tenancy.cluster):
        path = _add_on_path(tenancy, add_on.name)
        if add_on.name not in options:
            value, remedy = f"OKE has no {add_on.name} for {version}", f"One of {', '.join(sorted(options))}."
            yield Finding("add-ons", path, Verdict.PROBLEM, value, remedy)
            continue
        offered = [str(each["versionNumber"]) for each in options[add_on.name].get("versions") or ()]
        if add_on.version is None or add_on.version in offered:
            value = f"{add_on.name} {add_on.version or '(OKE chooses the version)'} is offered for {version}"
            yield Finding("add-ons", path, Verdict.FINE, value)
        else:
            value = f"OKE has no {add_on.name} {add_on.version} for {version}"
            remedy = f"cluster.addOns: {{name: {add_on.name}, version: one of {', '.join(offered) or 'none'}}}"
            yield Finding("add-ons", path, Verdict.PROBLEM, value, remedy)


def _add_on_path(tenancy: Tenancy, name: str) -> str:
    written = [add_on.name for add_on in tenancy.cluster.add_ons]
    return f"cluster.addOns[{written.index(name)}]" if name in written else "gpuStack"


def _node_images(tenancy: Tenancy) -> Iterator[Finding]:
    """Whether OKE has an image of its own for the pools that name none, each for its version of Kubernetes."""
    cluster = tenancy.cluster
    if cluster.given.system_image_id is not None:
        return
    pools = [("systemPool", tenancy.config.system_pool)]
    pools += [(f"cpuPools[{i}]", pool) for i, pool in enumerate(tenancy.config.cpu_pools)]
    asked = [
        (path, pool.kubernetes_version or cluster.kubernetes_version) for path, pool in pools if pool.image is None
    ]
    for version in dict.fromkeys(version for _, version in asked):
        query = {"compartmentId": cluster.compartment_id, "nodePoolK8sVersion": version}
        answer = tenancy.client.get("containerengine", "/nodePoolOptions/all", **query)
        sources = {str(each["sourceName"]): str(each["imageId"]) for each in answer.get("sources") or ()}
        newest = newest_oke_image(sources, version)
        for path in (path for path, wanted in asked if wanted == version):
            if newest is None:
                value, remedy = (
                    f"OKE has no image for {version}",
                    f"Give {path}.image, or a version that OKE has one for.",
                )
                yield Finding("node image", path, Verdict.PROBLEM, value, remedy)
            else:
                yield Finding("node image", path, Verdict.FINE, newest)


def _upgrade(running: str, wanted: str, path: str) -> Finding:
    step = _minor(wanted) - _minor(running)
    if step in {0, 1}:
        return Finding("versions", path, Verdict.FINE, f"the cluster runs {running}")
    remedy = f"A version of 1.{_minor(running)} or 1.{_minor(running) + 1}: control planes go up one minor at a time."
    return Finding("versions", path, Verdict.PROBLEM, f"the cluster runs {running}, {wanted} is wanted", remedy)


def _skew(control_plane: str, nodes: str, path: str) -> Finding:
    skew = _minor(control_plane) - _minor(nodes)
    value = f"nodes {nodes}, control plane {control_plane}"
    if 0 <= skew <= MOST_SKEW:
        return Finding("versions", path, Verdict.FINE, value)
    remedy = f"Nodes may be as new as the control plane, and at most {MOST_SKEW} minor versions older."
    return Finding("versions", path, Verdict.PROBLEM, value, remedy)


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def _existing_cluster(client: OciClient, config: StackConfig) -> Iterator[Finding]:
    cluster = config.cluster
    assert isinstance(cluster, ExistingCluster)  # noqa: S101 - the caller has looked
    path = "cluster.identifier"
    if not cluster.identifier.startswith("ocid1.cluster."):
        yield Finding("cluster", path, Verdict.UNKNOWN, f"{cluster.identifier} is no OCID, so OCI can't be asked")
        return
    found = client.get("containerengine", f"/clusters/{cluster.identifier}")
    state, version, kind = found.get("lifecycleState"), found.get("kubernetesVersion"), found.get("type")
    value = f"{found.get('name')} is {state}, {version}, {kind}"
    good = state == "ACTIVE"
    yield Finding(
        "cluster", path, Verdict.FINE if good else Verdict.PROBLEM, value, "" if good else "An ACTIVE cluster."
    )


CHECKS: list[tuple[str, str, Callable[[Tenancy], Iterator[Finding]]]] = [
    ("versions", "cluster.kubernetesVersion", _versions),
    ("add-ons", "cluster.addOns", _add_ons),
    ("node image", "systemPool.image", _node_images),
    ("network", "cluster.network", _network),
    ("policies", "cluster.iam", _policies),
    ("limits", "gpuPools", limit_findings),
    ("capacity", "gpuPools", _capacity),
]
"""Name, place in the stack file, and the check, quick ones first."""
