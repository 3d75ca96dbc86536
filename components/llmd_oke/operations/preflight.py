"""Preflight checks of a tenancy before resources are created: limits, capacity, images, policies, versions.

Checks only read. A check whose request OCI refuses has the verdict `unknown`, so that a user with few rights still gets
the other findings.
"""

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Network, ip_network

from llmd_base.errors import KitError

from llmd_oke.access.oci_client import OciClient, stored_file, stored_text
from llmd_oke.catalogue.cluster import policies as policy_facts
from llmd_oke.catalogue.cluster import reserved_ranges
from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.operations.capacity import capacity_findings, limit_findings
from llmd_oke.operations.findings import Finding, Verdict, check_findings
from llmd_oke.operations.node_images import (
    LinkOf,
    ReadLink,
    image_findings,
    oke_image_findings,
    package_findings,
    pool_image_file,
)
from llmd_oke.operations.tenancy import StackTenancy
from llmd_oke.planning.gpu_stack import add_ons as wanted_add_ons
from llmd_oke.planning.iam import iam_needs

MAX_SKEW = 3
"""Largest difference in minor versions by which a kubelet may be older than the API server (Kubernetes version skew
policy)."""


def preflight(
    client: OciClient,
    config: StackConfig,
    read_link: ReadLink = stored_file,
    link_of: LinkOf = lambda _: None,
    read_text: Callable[[str], str] = stored_text,
    stack_tag: str | None = None,
) -> list[Finding]:
    """Run all checks of a stack; return their findings.

    Args:
        client: client of OCI.
        config: the stack's configuration.
        read_link: returns size and checksums of the image file at a URI.
        link_of: returns the secret URI of a pool's image file, None if the stack has none.
        read_text: downloads a public text.
        stack_tag: value of the stack's tag; resources with this tag exist already and need no further limits.

    Raises:
        KitError: the stack file has no cluster.
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
        read = partial(pool_image_file, pool, image, read_link, link_of)
        findings += check_findings("image", path, partial(image_findings, tenancy, path, image, shape, read))
        findings += check_findings(
            "packages", path, partial(package_findings, tenancy, path, image, version, read_text)
        )
    return findings


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
    """Return the Kubernetes version of the existing control plane: that of the cluster whose OCID the stack file has,
    or else of the newest active cluster of the stack file's name; None if there is none.
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
    """Check that OKE offers the stack's add-ons, in their pinned versions, for the stack's Kubernetes version."""
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


def _network(tenancy: StackTenancy) -> Iterator[Finding]:
    """Check that the CIDRs of an existing VCN don't overlap reserved ranges; planning checks the stack file's own
    CIDRs.
    """
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
    """Check that the tenancy has the policy statements that the stack needs but doesn't create. Statements are compared
    by the right that they grant (the words between `to` and `in`), since group names may differ.
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


def _running(tenancy: StackTenancy) -> Iterator[Finding]:
    """Yield the number of the stack's existing GPU nodes for each pool, which need no further limits and capacity."""
    for i, pool in tenancy.created_pools:
        nodes = sum(node.pool == pool.name for node in tenancy.running.nodes)
        if nodes:
            yield Finding("running", f"gpuPools[{i}].size", Verdict.FINE, f"{nodes} nodes of the stack run")


def _existing_cluster(client: OciClient, config: StackConfig) -> Iterator[Finding]:
    cluster = config.cluster
    assert isinstance(cluster, ExistingCluster)  # noqa: S101 - the caller has checked
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
    ("node image", "systemPool.image", oke_image_findings),
    ("network", "cluster.network", _network),
    ("policies", "cluster.iam", _policies),
    ("running", "gpuPools", _running),
    ("limits", "gpuPools", limit_findings),
    ("capacity", "gpuPools", capacity_findings),
]
"""Name, path in the stack file and function of each check, quick ones first."""
