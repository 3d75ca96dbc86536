"""What the pools of a created cluster must satisfy. Each rule yields the problems that it finds."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from llmd_oke import catalogue
from llmd_oke.config import CpuPool, CreateCluster, GpuPool, Image, StackConfig, SystemPool
from llmd_oke.errors import Problem
from llmd_oke.planning.flexible_shapes import size_problems
from llmd_oke.planning.launches import RDMA_LAUNCHES, SELF_MANAGED_LAUNCHES, launch_problems

SYSTEM_POOL = "system"
"""Name of the pool that controllers and the cluster autoscaler run on."""

MINOR_VERSIONS_OF_SKEW = 3
"""Kubernetes' version skew policy: a kubelet may be up to three minor versions behind the API server, never ahead."""

SELF_MANAGED_MINIMUM = {"vcn-native": (1, 27, 10), "flannel": (1, 25, 0)}
"""OCI documentation, Prerequisites for Self-Managed Node Creation."""


_SECRET_LINK = re.compile(r"^https://[^/]*@|/p/[^/]+/|[?#]")
"""An address with a user, a pre-authenticated request in its path, or a signature in its query."""


@dataclass(frozen=True)
class _Subject:
    """A GPU pool of a cluster that is created, and its path in the stack file."""

    stack: StackConfig
    cluster: CreateCluster
    pool: GpuPool
    path: str


def pool_problems(config: StackConfig) -> Iterator[Problem]:
    """What is wrong with the pools, where this stack creates them."""
    if not isinstance(config.cluster, CreateCluster) or config.layer == "serving":
        return
    for i, pool in enumerate(config.gpu_pools):
        yield from _gpu_pool(_Subject(config, config.cluster, pool, f"gpuPools[{i}]"))
    for path, pool in _cpu_pools(config):
        yield from _cpu_pool(config.cluster, pool, path)
    yield from _names(config)


def _gpu_pool(subject: _Subject) -> Iterator[Problem]:
    pool, path = subject.pool, subject.path
    yield from launch_problems(pool, path)
    yield from _version(subject.cluster, pool.kubernetes_version, path)
    yield from _memory(subject)
    yield from _fabric(subject)
    if pool.pool_id is None:
        yield from _needed_to_create(subject)
    if pool.launch in SELF_MANAGED_LAUNCHES:
        yield from _self_managed_version(subject)


def _needed_to_create(subject: _Subject) -> Iterator[Problem]:
    pool, path = subject.pool, subject.path
    if pool.availability_domain is None:
        why = "the nodes of a GPU pool are in one availability domain, and OCI has them of each shape in some only"
        yield Problem(f"{path}.availabilityDomain", None, "its whole name, such as Uocm:US-ASHBURN-AD-1", why)
    if pool.image is None:
        why = "OKE's own images have neither the GPU driver nor the RDMA software"
        yield Problem(f"{path}.image", None, "an object with one of the keys ocid, import", why)
    else:
        yield from _image(pool.image, f"{path}.image", pool.shape, pool.name)
        yield from _ubuntu(subject)


def _image(image: Image, path: str, shape: str, pool: str) -> Iterator[Problem]:
    if (image.ocid is None) == (image.import_ is None):
        written = "both" if image.ocid else None
        yield Problem(path, written, "one of ocid, import", "nodes boot from one image")
    if image.import_ is None:
        return
    if image.import_.uri and _SECRET_LINK.search(image.import_.uri):
        accepted = f"no uri, and the link as a secret: pulumi config set --secret --path llmd-oke:imageLinks.{pool}"
        why = "whoever reads the stack file or the stack's state could read the bucket"
        yield Problem(f"{path}.import.uri", "a link with a secret in it", accepted, why)
    known = catalogue.image(image.import_.name)
    if known is None:
        accepted = "one of " + ", ".join(catalogue.image_names()) + "; or import it by hand and give its ocid"
        yield Problem(f"{path}.import.name", image.import_.name, accepted, "the catalogue has no such entry")
    elif known.shapes and shape not in known.shapes:
        accepted = "one of " + ", ".join(name for name in catalogue.image_names() if _fits(name, shape))
        why = f"the image is made for {', '.join(known.shapes)}"
        yield Problem(f"{path}.import.name", image.import_.name, accepted, why)


def _fits(image: str, shape: str) -> bool:
    known = catalogue.image(image)
    return known is not None and shape in known.shapes


def _ubuntu(subject: _Subject) -> Iterator[Problem]:
    pool = subject.pool
    known = catalogue.image(pool.image.import_.name) if pool.image and pool.image.import_ else None
    if known and known.operating_system != "Canonical Ubuntu" and pool.launch in RDMA_LAUNCHES:
        why = f"the RDMA network of {pool.launch} is set up on Ubuntu only, and this is {known.operating_system}"
        yield Problem(f"{subject.path}.image.import.name", known.name, "an Ubuntu image", why)


def _fabric(subject: _Subject) -> Iterator[Problem]:
    if subject.stack.rdma != "none" and subject.pool.launch == "plain":
        why = f"a plain node pool has no RDMA network, and rdma is {subject.stack.rdma}"
        yield Problem(f"{subject.path}.launch", "plain", "one of " + ", ".join(RDMA_LAUNCHES) + "; or rdma: none", why)


def _memory(subject: _Subject) -> Iterator[Problem]:
    shape, asked = catalogue.shape(subject.pool.shape), subject.pool.huge_pages_gib
    if shape is None:
        return
    most = shape.memory_gib - shape.gpus * shape.server_requests_per_gpu.memory_gib
    if asked > most:
        why = f"of {shape.memory_gib} GiB the servers of {shape.gpus} GPUs ask for {shape.memory_gib - most}"
        yield Problem(f"{subject.path}.hugePagesGib", asked, f"at most {most}", why)


def _self_managed_version(subject: _Subject) -> Iterator[Problem]:
    cluster = subject.cluster
    minimum = SELF_MANAGED_MINIMUM[cluster.cni]
    if _parts(cluster.kubernetes_version) < minimum:
        accepted = "at least v" + ".".join(map(str, minimum))
        why = f"self-managed nodes ({subject.path}.launch: {subject.pool.launch}) with {cluster.cni} need it"
        yield Problem("cluster.kubernetesVersion", cluster.kubernetes_version, accepted, why)


def _cpu_pools(config: StackConfig) -> Iterator[tuple[str, SystemPool]]:
    yield "systemPool", config.system_pool
    for i, pool in enumerate(config.cpu_pools):
        yield f"cpuPools[{i}]", pool


def _cpu_pool(cluster: CreateCluster, pool: SystemPool, path: str) -> Iterator[Problem]:
    yield from _version(cluster, pool.kubernetes_version, path)
    if ".GPU." in pool.shape:
        why = "GPU nodes are tainted, so that nothing but model servers would run here"
        yield Problem(f"{path}.shape", pool.shape, "a shape without GPUs, such as VM.Standard.E5.Flex", why)
    if pool.image is not None:
        name = pool.name if isinstance(pool, CpuPool) else SYSTEM_POOL
        yield from _image(pool.image, f"{path}.image", pool.shape, name)
    yield from size_problems(pool, path)
    if pool.cycling is not None and {pool.cycling.max_surge, pool.cycling.max_unavailable} <= {"0", "0%"}:
        why = "a pool that may neither grow nor shrink can replace no node"
        yield Problem(f"{path}.cycling", "0 and 0", "maxSurge or maxUnavailable above 0", why)


def _version(cluster: CreateCluster, version: str | None, path: str) -> Iterator[Problem]:
    if version is None:
        return
    control_plane, nodes = _parts(cluster.kubernetes_version), _parts(version)
    oldest = f"v1.{max(0, control_plane[1] - MINOR_VERSIONS_OF_SKEW)}"
    accepted = f"{oldest} to {cluster.kubernetes_version}"
    if nodes > control_plane:
        why = f"nodes may not be newer than the control plane, {cluster.kubernetes_version}"
        yield Problem(f"{path}.kubernetesVersion", version, accepted, why)
    elif control_plane[1] - nodes[1] > MINOR_VERSIONS_OF_SKEW:
        behind = control_plane[1] - nodes[1]
        why = f"nodes may be {MINOR_VERSIONS_OF_SKEW} minor versions behind the control plane, not {behind}"
        yield Problem(f"{path}.kubernetesVersion", version, accepted, why)


def newest_oke_image(names: Collection[str], version: str) -> str | None:
    """The newest of OKE's images for a version of Kubernetes, x86 and without GPU software; None without any."""
    part = f"-OKE-{version.removeprefix('v')}-"
    fit = [name for name in names if part in name and "aarch64" not in name and "GPU" not in name]
    return max(fit, key=_date_and_build, default=None)


def _date_and_build(name: str) -> list[str]:
    """`Oracle-Linux-8.10-2026.07.31-0-OKE-1.34.2-1234`: the dates sort as text, builds by length first."""
    parts = name.split("-")
    dated = [part for part in parts if part.count(".") == 2 and part[:2] == "20"]
    return [*dated[:1], parts[-1].zfill(8)]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.removeprefix("v").split("."))


def _names(config: StackConfig) -> Iterator[Problem]:
    taken = {SYSTEM_POOL: "systemPool", **{pool.name: f"gpuPools[{i}]" for i, pool in enumerate(config.gpu_pools)}}
    for i, pool in enumerate(config.cpu_pools):
        if pool.name in taken:
            yield Problem(f"cpuPools[{i}].name", pool.name, "a name of its own", f"{taken[pool.name]} has it already")
        taken.setdefault(pool.name, f"cpuPools[{i}]")
    for i, pool in enumerate(config.gpu_pools):
        if pool.name == SYSTEM_POOL:
            yield Problem(f"gpuPools[{i}].name", pool.name, "a name of its own", "systemPool has it already")
