"""Checks of a created cluster's pools, their cycling, and the settings of the cluster autoscaler add-on."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isfinite

from llmd_base.errors import SET, Described, Problem
from pydantic.alias_generators import to_camel

from llmd_oke import catalogue
from llmd_oke.catalogue.cluster import KernelFault, availability_domains, cloud_init
from llmd_oke.catalogue.operators import cluster_autoscaler
from llmd_oke.catalogue.shapes import POOL_LABEL, flexible_shape
from llmd_oke.config import (
    AutoscaledSize,
    CpuPoolConfig,
    CreateCluster,
    FileStorage,
    GpuPoolConfig,
    Image,
    Launch,
    Lustre,
    StackConfig,
    SystemPoolConfig,
)
from llmd_oke.config.cluster import AddOn
from llmd_oke.config.pools import CycleMode
from llmd_oke.planning.cluster_plan import CyclingPlan, NodesPlan
from llmd_oke.planning.placement import place_at_first
from llmd_oke.planning.plan import Plan

SYSTEM_POOL = "system"
"""Name of the pool of nodes for controllers and the cluster autoscaler."""

RDMA_LAUNCHES: tuple[Launch, ...] = ("managed-compute-cluster", "cluster-network", "compute-cluster-instances")
"""Launch modes whose nodes are in the RDMA network."""

SELF_MANAGED_LAUNCHES: tuple[Launch, ...] = ("cluster-network", "compute-cluster-instances")
"""Launch modes whose nodes join the cluster by themselves rather than through a node pool of OKE."""

MANAGED_LAUNCHES: tuple[Launch, ...] = ("managed-compute-cluster", "plain")
"""Launch modes whose nodes are a node pool of OKE."""

MINOR_VERSIONS_OF_SKEW = 3
"""Maximum number of minor versions that a kubelet may be behind the API server, by Kubernetes' version skew policy; it
may never be ahead.
"""

SELF_MANAGED_MINIMUM = {"vcn-native": (1, 27, 10), "flannel": (1, 25, 0)}
"""Minimum Kubernetes version for self-managed nodes (OCI documentation, Prerequisites for Self-Managed Node Creation).
"""

_SECRET_LINK = re.compile(r"^https://[^/]*@|/p/[^/]+/|[?#]")
"""Pattern of URLs that contain a secret: a user, a pre-authenticated request in the path, or a signature in the query.
"""

_REGION_PART = re.compile(r"^[^:]+:(?P<region>.+)-AD-[1-9]$")


def pool_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of the pools, if this stack creates them."""
    cluster = config.created_cluster
    if cluster is None:
        return
    for i, pool in enumerate(config.gpu_pools):
        yield from _gpu_pool(config, cluster, pool, f"gpuPools[{i}]")
    yield from _cpu_pool(cluster, config.system_pool, "systemPool")
    for i, pool in enumerate(config.cpu_pools):
        yield from _cpu_pool(cluster, pool, f"cpuPools[{i}]")
    yield from _names(config)


def _gpu_pool(config: StackConfig, cluster: CreateCluster, pool: GpuPoolConfig, path: str) -> Iterator[Problem]:
    yield from launch_problems(pool, path)
    yield from _version(cluster, pool.kubernetes_version, path)
    yield from _memory(pool, path)
    if config.rdma != "none" and pool.launch == "plain":
        why = f"a plain node pool has no RDMA network, and rdma is {config.rdma}"
        yield Problem(f"{path}.launch", "plain", "one of " + ", ".join(RDMA_LAUNCHES) + "; or rdma: none", why)
    if pool.pool_id is None:
        yield from _needed_to_create(pool, path)
    minimum = SELF_MANAGED_MINIMUM[cluster.cni]
    if pool.launch in SELF_MANAGED_LAUNCHES and _parts(cluster.kubernetes_version) < minimum:
        accepted = "at least v" + ".".join(map(str, minimum))
        why = f"self-managed nodes ({path}.launch: {pool.launch}) can't join a {cluster.cni} cluster of this version"
        yield Problem("cluster.kubernetesVersion", cluster.kubernetes_version, accepted, why)


def _needed_to_create(pool: GpuPoolConfig, path: str) -> Iterator[Problem]:
    if pool.availability_domain is None:
        why = "the nodes of a GPU pool are in one availability domain, and OCI has them of each shape in some only"
        yield Problem(f"{path}.availabilityDomain", None, "its whole name, such as Uocm:US-ASHBURN-AD-1", why)
    if pool.image is None:
        why = "OKE's own images have neither the GPU driver nor the RDMA software"
        yield Problem(f"{path}.image", None, "an object with one of the keys ocid, import", why)
        return
    yield from _image(pool.image, f"{path}.image", pool.shape, pool.name)
    image = catalogue.image(pool.image.import_.name) if pool.image.import_ else None
    if image and image.operating_system != "Canonical Ubuntu" and pool.launch in RDMA_LAUNCHES:
        why = f"the RDMA network of {pool.launch} is set up on Ubuntu only, and this is {image.operating_system}"
        yield Problem(f"{path}.image.import.name", image.name, "an Ubuntu image", why)


def _image(image: Image, path: str, shape: str, pool: str) -> Iterator[Problem]:
    if (image.ocid is None) == (image.import_ is None):
        why = "ocid and import are both set" if image.ocid else "neither ocid nor import is set"
        value: object = SET if image.ocid else {}
        yield Problem(path, value, "one of ocid, import", f"{why}, and nodes boot from one image")
    if image.import_ is None:
        return
    if image.import_.uri and _SECRET_LINK.search(image.import_.uri):
        accepted = f"no uri, and the link as a secret: pulumi config set --secret --path llmd-oke:imageLinks.{pool}"
        why = "whoever reads the stack file or the stack's state could read the bucket"
        yield Problem(f"{path}.import.uri", Described("a link with a secret in it"), accepted, why)
    entry = catalogue.image(image.import_.name)
    if entry is None:
        accepted = "one of " + ", ".join(catalogue.image_names()) + "; or import it by hand and give its ocid"
        yield Problem(f"{path}.import.name", image.import_.name, accepted, "the catalogue has no such entry")
    elif entry.shapes and shape not in entry.shapes:
        images = (catalogue.image(name) for name in catalogue.image_names())
        fitting = [other.name for other in images if other and shape in other.shapes]
        accepted, why = f"one of {', '.join(fitting)}", f"the image is made for {', '.join(entry.shapes)}"
        if not fitting:
            accepted = "an image of your own as image.ocid" + ("" if ".GPU." in shape else ", or no image")
            why = f"{why}, and the catalogue has none for {shape}"
        yield Problem(f"{path}.import.name", image.import_.name, accepted, why)


def _memory(pool: GpuPoolConfig, path: str) -> Iterator[Problem]:
    shape = catalogue.shape(pool.shape)
    if shape is None:
        return
    most = shape.memory_gib - shape.gpus * shape.server_requests_per_gpu.memory_gib
    if pool.huge_pages_gib > most:
        why = f"of {shape.memory_gib} GiB the servers of {shape.gpus} GPUs ask for {shape.memory_gib - most}"
        yield Problem(f"{path}.hugePagesGib", pool.huge_pages_gib, f"at most {most}", why)


def _cpu_pool(cluster: CreateCluster, pool: SystemPoolConfig, path: str) -> Iterator[Problem]:
    yield from _version(cluster, pool.kubernetes_version, path)
    if ".GPU." in pool.shape:
        why = "GPU nodes are tainted, so that nothing but model servers would run here"
        yield Problem(f"{path}.shape", pool.shape, "a shape without GPUs, such as VM.Standard.E5.Flex", why)
    if pool.image is not None:
        name = pool.name if isinstance(pool, CpuPoolConfig) else SYSTEM_POOL
        yield from _image(pool.image, f"{path}.image", pool.shape, name)
    yield from size_problems(pool, path)
    yield from _cycling(pool, path)


def _version(cluster: CreateCluster, version: str | None, path: str) -> Iterator[Problem]:
    if version is None:
        return
    control_plane, nodes = _parts(cluster.kubernetes_version), _parts(version)
    oldest = f"v1.{control_plane[1] - MINOR_VERSIONS_OF_SKEW}.0"
    accepted = f"{oldest} to {cluster.kubernetes_version}"
    if nodes > control_plane:
        why = f"nodes may not be newer than the control plane, {cluster.kubernetes_version}"
        yield Problem(f"{path}.kubernetesVersion", version, accepted, why)
    elif control_plane[1] - nodes[1] > MINOR_VERSIONS_OF_SKEW:
        behind = control_plane[1] - nodes[1]
        most = f"at most {MINOR_VERSIONS_OF_SKEW} minor versions behind the control plane"
        why = f"nodes may be {most} ({cluster.kubernetes_version}), these would be {behind}"
        yield Problem(f"{path}.kubernetesVersion", version, accepted, why)


def _names(config: StackConfig) -> Iterator[Problem]:
    taken = {SYSTEM_POOL: "systemPool", **{pool.name: f"gpuPools[{i}]" for i, pool in enumerate(config.gpu_pools)}}
    for i, pool in enumerate(config.cpu_pools):
        if pool.name in taken:
            yield Problem(f"cpuPools[{i}].name", pool.name, "a name of its own", f"{taken[pool.name]} has it already")
        taken.setdefault(pool.name, f"cpuPools[{i}]")
    for i, pool in enumerate(config.gpu_pools):
        if pool.name == SYSTEM_POOL:
            yield Problem(f"gpuPools[{i}].name", pool.name, "a name of its own", "systemPool has it already")


def newest_oke_image(names: Collection[str], version: str) -> str | None:
    """Return the newest OKE image name for a Kubernetes version, x86 and without GPU software; None if there
    is none.
    """
    part = f"-OKE-{version.removeprefix('v')}-"
    fit = [name for name in names if part in name and "aarch64" not in name and "GPU" not in name]
    return max(fit, key=_date_and_build, default=None)


def kernel_faults(image: str) -> list[KernelFault]:
    """Return the kernel vulnerabilities that are fixed in images later than this one, by the date in its name; empty if
    the name has no date. Oracle's names contain the date of the operating system's build, and at their end that of the
    image: `Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-...-AMD-ROCM-724-2026.07.13-0`.
    """
    dates = re.findall(r"(?<![0-9.])(20[0-9]{2})\.([01][0-9])\.([0-3][0-9])(?![0-9.])", image)
    if not dates:
        return []
    built = max("-".join(parts) for parts in dates)
    return [fault for fault in cloud_init().kernel_faults if fault.fixed is not None and built < fault.fixed]


def _date_and_build(name: str) -> list[str]:
    """Return date and build number of an image name such as `Oracle-Linux-8.10-2026.07.31-0-OKE-1.34.2-1234`, in a form
    that sorts as text.
    """
    parts = name.split("-")
    dated = [part for part in parts if part.count(".") == 2 and part[:2] == "20"]
    return [*dated[:1], parts[-1].zfill(8)]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.removeprefix("v").split("."))


_LAUNCHES_OF_OPTIONS: Mapping[str, tuple[tuple[Launch, ...], str]] = {
    "compute_cluster_id": (
        ("managed-compute-cluster", "compute-cluster-instances"),
        "its nodes are in no compute cluster",
    ),
    "fault_domains": (
        ("managed-compute-cluster", "compute-cluster-instances", "plain"),
        "OCI itself spreads the nodes of a cluster network",
    ),
    "host_group_id": (MANAGED_LAUNCHES, "only node pools of OKE can be placed on a host group"),
    "boot_volume_vpus_per_gb": (SELF_MANAGED_LAUNCHES, "node pools of OKE don't say how fast boot volumes are"),
    "cycling": (MANAGED_LAUNCHES, "OKE doesn't replace self-managed nodes"),
}
"""Launch modes that support a field of a pool, and the reason why others don't. OCI would silently ignore such a field.
"""


def launch_problems(pool: GpuPoolConfig, path: str) -> Iterator[Problem]:
    """Yield a problem for options that the pool's launch mode doesn't support, and for options that contradict each
    other.
    """
    for field, (launches, why) in _LAUNCHES_OF_OPTIONS.items():
        value = getattr(pool, field)
        if value in (None, ()) or pool.launch in launches:
            continue
        accepted = "nothing, or launch: " + " or ".join(launches)
        shown = SET if field == "cycling" else value
        yield Problem(f"{path}.{to_camel(field)}", shown, accepted, f"launch is {pool.launch}: {why}")
    if pool.eviction_grace_minutes is not None and pool.launch not in MANAGED_LAUNCHES:
        why = f"launch is {pool.launch}: OKE doesn't drain self-managed nodes"
        yield Problem(f"{path}.evictionGraceMinutes", pool.eviction_grace_minutes, "nothing", why)
    if pool.pool_id is not None and pool.launch == "compute-cluster-instances":
        yield Problem(f"{path}.poolId", pool.pool_id, "nothing", f"launch is {pool.launch}: instances make no pool")
    if pool.pool_id is not None and pool.compute_cluster_id is not None:
        why = "the pool is there already, and a pool never changes its compute cluster"
        yield Problem(f"{path}.computeClusterId", pool.compute_cluster_id, "nothing beside poolId", why)
    yield from _cycling(pool, path)


def planned_cycling(pool: GpuPoolConfig | SystemPoolConfig) -> CyclingPlan | None:
    """Return the cycling of a pool, or None if it has none. Another customer may get a returned GPU instance before its
    replacement is launched: the defaults never return one.
    """
    cycling = pool.cycling
    if cycling is None:
        return None
    mode: CycleMode = cycling.mode or ("replace-boot-volume" if isinstance(pool, GpuPoolConfig) else "replace-node")
    surge = cycling.max_surge or ("1" if mode == "replace-node" else "0")
    unavailable = cycling.max_unavailable or ("1" if surge in {"0", "0%"} else "0")
    return CyclingPlan(mode, surge, unavailable)


def _cycling(pool: GpuPoolConfig | SystemPoolConfig, path: str) -> Iterator[Problem]:
    cycling = planned_cycling(pool)
    if cycling is None:
        return
    if not cycling.grows and not cycling.shrinks:
        why = "maxSurge and maxUnavailable are both 0, and a pool that may neither grow nor shrink can replace no node"
        yield Problem(f"{path}.cycling", SET, "maxSurge or maxUnavailable above 0", why)
    if isinstance(pool, GpuPoolConfig) and cycling.mode == "replace-boot-volume" and cycling.grows:
        why = "a node whose boot volume is replaced stays the same node, so that none is added"
        yield Problem(f"{path}.cycling.maxSurge", cycling.max_surge, "0, or mode: replace-node", why)


def size_problems(pool: SystemPoolConfig, path: str) -> Iterator[Problem]:
    """Yield a problem for OCPUs and memory that nodes of the pool's shape can't have."""
    limits = flexible_shape(pool.shape)
    if limits is None:
        return
    if pool.ocpus > limits.ocpus:
        why = f"nodes of {pool.shape} have at most {limits.ocpus:g} OCPUs"
        yield Problem(f"{path}.ocpus", pool.ocpus, f"at most {limits.ocpus:g}, or another shape", why)
        return
    low, high = limits.memory_gb_per_ocpu
    least, most = low * pool.ocpus, min(high * pool.ocpus, limits.memory_gb)
    if not least <= pool.memory_gib <= most:
        whole = f" and at most {limits.memory_gb:g} GB" if isfinite(limits.memory_gb) else ""
        of_shape = f"nodes of {pool.shape} have {low:g} to {high:g} GB for each OCPU{whole}"
        why = f"{of_shape}, so {least:g} to {most:g} with {pool.ocpus:g} OCPUs"
        yield Problem(f"{path}.memoryGib", pool.memory_gib, f"{least:g} to {most:g}, or other ocpus", why)


def availability_domain_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for availability domains of a different region, if this stack creates resources in them."""
    cluster = config.created_cluster
    if cluster is None:
        return
    for path, name in _domains(config, cluster):
        region = region_words(name)
        if region is not None and not f"{cluster.region}-".startswith(f"{region}-"):
            why = f"its name tells the region {region}, and cluster.region is {cluster.region}"
            yield Problem(path, name, f"an availability domain of {cluster.region}", why)


def region_words(availability_domain: str) -> str | None:
    """Return the region in the name of an availability domain, with or without the region's number; None if the name
    has no region.

    `Uocm:US-ASHBURN-AD-1` is in us-ashburn, `TGjA:CA-TORONTO-1-AD-1` in ca-toronto-1, `Uocm:PHX-AD-1` in us-phoenix.
    """
    match = _REGION_PART.match(availability_domain)
    words = match["region"] if match else ""
    if re.fullmatch(r"[A-Z]+-[A-Z]+(-[0-9]+)?", words):
        return words.lower()
    known = availability_domains().region_words.items()
    return next((region.rpartition("-")[0] for region, own in known if own == words), None)


def _domains(config: StackConfig, cluster: CreateCluster) -> Iterator[tuple[str, str]]:
    for i, pool in enumerate(config.gpu_pools):
        if pool.availability_domain is not None and pool.pool_id is None:
            yield f"gpuPools[{i}].availabilityDomain", pool.availability_domain
    lists = {"systemPool": config.system_pool.availability_domains}
    lists |= {f"cpuPools[{i}]": pool.availability_domains for i, pool in enumerate(config.cpu_pools)}
    lists["cluster.lookupResults"] = cluster.lookup_results.availability_domains
    for path, names in lists.items():
        yield from ((f"{path}.availabilityDomains[{i}]", name) for i, name in enumerate(names))
    cache = config.storage.model_cache
    if isinstance(cache, FileStorage | Lustre) and cache.availability_domain is not None:
        yield "storage.modelCache.availabilityDomain", cache.availability_domain


def autoscaled_pools(config: StackConfig) -> list[GpuPoolConfig | CpuPoolConfig]:
    """Return the pools created by the stack whose size OKE's cluster autoscaler decides."""
    if config.created_cluster is None:
        return []
    pools: list[GpuPoolConfig | CpuPoolConfig] = [*config.gpu_pools, *config.cpu_pools]
    return [pool for pool in pools if pool.autoscaled]


def awaited_nodes(plan: Plan) -> dict[str, int]:
    """Return the number of nodes to wait for before models are deployed, by name of the pool. It is the size of a fixed
    pool and, for an autoscaled pool, the number of nodes with initial servers, at least the pool's minimum. If another
    stack deploys the models, it is the initial size of each pool.
    """
    if not plan.models:
        return {pool.name: pool.size for pool in plan.pools}
    nodes, _ = place_at_first(plan.config, plan.config.models, plan.pools)
    used = Counter(node.pool for node in nodes if node.servers)
    return {pool.name: max(pool.limits.least, used[pool.name]) if pool.autoscaled else pool.size for pool in plan.pools}


def autoscaler_add_on(config: StackConfig) -> AddOn:
    """Return OKE's cluster autoscaler add-on without its setting `nodes`, merged with the add-on's settings in the
    stack file.
    """
    facts = cluster_autoscaler()
    minutes = [pool.ready_timeout_minutes for pool in autoscaled_pools(config) if isinstance(pool, GpuPoolConfig)]
    follows = {
        "nodeSelectors": json.dumps({POOL_LABEL: SYSTEM_POOL}),
        "maxNodeProvisionTime": f"{max([facts.provision_minutes, *minutes])}m",
    }
    add_ons = config.created_cluster.add_ons if config.created_cluster else ()
    own = next((add_on for add_on in add_ons if add_on.name == facts.name), None)
    settings = {**facts.configurations, **(own.configurations if own else {}), **follows}
    return AddOn(name=facts.name, version=own.version if own else None, configurations=settings)


def autoscaler_nodes(pools: Iterable[NodesPlan], pool_ids: Mapping[str, str]) -> str:
    """Return the add-on's setting `nodes`: limits and OCID of each pool; `pool_ids` has the OCIDs by name of
    the pool.
    """
    return ", ".join(f"{pool.limits.least}:{pool.limits.most}:{pool_ids[pool.name]}" for pool in pools)


def node_scaling_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for invalid limits of pools, and for pools that the autoscaler can't change."""
    paths: dict[str, GpuPoolConfig | CpuPoolConfig] = {
        f"gpuPools[{i}]": pool for i, pool in enumerate(config.gpu_pools)
    }
    paths |= {f"cpuPools[{i}]": pool for i, pool in enumerate(config.cpu_pools)}
    for path, pool in paths.items():
        if isinstance(pool.scaling, AutoscaledSize):
            why = f"the pool starts with {pool.size} node{'s' * (pool.size != 1)}"
            if pool.scaling.min_size > pool.size:
                yield Problem(f"{path}.scaling.minSize", pool.scaling.min_size, f"at most {pool.size}", why)
            if pool.scaling.max_size < pool.size:
                yield Problem(f"{path}.scaling.maxSize", pool.scaling.max_size, f"at least {pool.size}", why)
    created = autoscaled_pools(config)
    for path, pool in paths.items():
        if isinstance(pool, GpuPoolConfig) and pool in created:
            yield from _out_of_reach(pool, path)
    if not created or (cluster := config.created_cluster) is None:
        return
    facts = cluster_autoscaler()
    if int(cluster.kubernetes_version.split(".")[1]) < facts.oldest_minor:
        why = f"the add-on {facts.name} signs in by workload identity, which older versions of it can't"
        accepted = f"v1.{facts.oldest_minor} or newer"
        yield Problem("cluster.kubernetesVersion", cluster.kubernetes_version, accepted, why)
    for i, add_on in enumerate(cluster.add_ons):
        for key in facts.follows if add_on.name == facts.name else ():
            if key in add_on.configurations:
                path = f"cluster.addOns[{i}].configurations.{key}"
                why = "this setting follows from the scaling of the pools"
                yield Problem(path, add_on.configurations[key], "nothing", why)


def _out_of_reach(pool: GpuPoolConfig, path: str) -> Iterator[Problem]:
    mode = pool.scaling.mode
    if pool.launch not in MANAGED_LAUNCHES:
        accepted = "mode: fixed, or launch: " + " or ".join(MANAGED_LAUNCHES)
        why = f"launch is {pool.launch}: OKE's autoscaler changes node pools of OKE, and these nodes are in none"
        yield Problem(f"{path}.scaling.mode", mode, accepted, why)
    if pool.pool_id is not None:
        why = "the pool is there already (poolId), and nothing of it is changed"
        yield Problem(f"{path}.scaling.mode", mode, "mode: fixed", why)
