"""Checks of node images: OKE's and imported ones, faults of their kernels, and the packages by which nodes join."""

import re
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

from llmd_oke import catalogue
from llmd_oke.access.oci_client import OciError, StoredFile
from llmd_oke.catalogue.cluster import cloud_init
from llmd_oke.config import Image
from llmd_oke.config.pools import ImageImport
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.tenancy import StackTenancy
from llmd_oke.planning.pools import kernel_faults, newest_oke_image
from llmd_oke.planning.tags import CHECKSUM_TAG

NODE_PACKAGE = "oci-oke-node-all"
"""Name of the package by which nodes of Ubuntu images join, before the Kubernetes version: `oci-oke-node-all-1.34.2`
(OCI documentation, Running Ubuntu on Worker Nodes Using Custom Images)."""

ReadLink = Callable[[str], StoredFile]
"""Function that requests size and checksums of the image file at a URI of Object Storage."""

LinkOf = Callable[[str], str | None]
"""Function that returns the secret URI of a pool's image file, None if the stack has none."""


def pool_image_file(pool: str, image: Image, read_link: ReadLink, link_of: LinkOf) -> StoredFile:
    """Return size and checksums of the file from which a pool's image is imported.

    Raises:
        OciError: the stack has no URI of the file, or the file can't be read.
    """
    link = (image.import_.uri if image.import_ else None) or link_of(pool)
    if link is None:
        raise OciError(0, "NoLink", f"there is no link to the image's file: set llmd-oke:imageLinks.{pool}")
    return read_link(link)


def oke_image_findings(tenancy: StackTenancy) -> Iterator[Finding]:
    """Check that OKE has an image for each Kubernetes version of pools without an image in the stack file."""
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
    """Yield a finding for each known kernel fault that was fixed after the date in the image's name. The kit's nodes
    block the affected modules at their first boot; other instances of the image don't.
    """
    for fault in kernel_faults(image):
        value = f"{image} has {fault.name}; nodes block {', '.join(fault.modules)}"
        yield Finding("node image", path, Verdict.UNKNOWN, value, f"An image of {fault.fixed} or later.")


def image_findings(
    tenancy: StackTenancy, path: str, image: Image, shape: str, read: Callable[[], StoredFile]
) -> Iterator[Finding]:
    """Check one image of a pool of `shape`; `read` requests the file from which the image is imported.

    Raises:
        OciError: OCI doesn't answer, or the file can't be read.
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
    """Check an imported image. An image of an earlier import is recognized by its tag with the checksum, since the URI
    may have expired and OCI states no checksums of images; otherwise the file's checksum in Object Storage is compared.
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
    """Check that OKE's package repositories have the node package of a Kubernetes version for an Ubuntu image;
    otherwise the finding is `unknown`, as the image itself may contain the package. `read_text` downloads a
    repository's index.

    Raises:
        OciError: OCI or all repositories don't answer.
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
    """Return the package indexes of repositories, given by their URLs, as one text, without those that don't answer.

    Raises:
        OciError: no repository answers.
    """
    texts, refused = list[str](), list[OciError]()
    for folder in folders:
        uri = f"{folder}/dists/stable/main/binary-amd64/Packages"
        try:
            try:
                texts.append(read_text(f"{uri}.gz"))
            except OciError as error:  # a repository has its index compressed, plain, or both
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                texts.append(read_text(uri))
        except OciError as error:
            refused.append(error)
    if not texts:
        raise refused[0]
    return "\n".join(texts)
