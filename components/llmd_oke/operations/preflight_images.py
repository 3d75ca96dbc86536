"""Whether the images that nodes boot from are there, for their shape, what their checksums say that they are, and
whether there are OKE's packages for nodes of them.
"""

import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from llmd_oke import catalogue
from llmd_oke.access.objects import StoredFile
from llmd_oke.access.oci_client import OciError
from llmd_oke.catalogue.cloud_init import cloud_init
from llmd_oke.config import Image
from llmd_oke.config.node_pools import ImageImport
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.tenancy import Tenancy

ReadLink = Callable[[str], StoredFile]
"""Asks Object Storage for the file behind a link."""

LinkOf = Callable[[str], str | None]
"""The secret link to the file of a pool's image, None where the stack has none."""

CHECKSUM_TAG = "llmd-oke-checksum"
"""The tag that an imported image keeps its checksum in (`NodeImage`)."""


def image_findings(
    tenancy: Tenancy, path: str, image: Image, shape: str, read: Callable[[], StoredFile]
) -> Iterator[Finding]:
    """What there is to say of one image; `read` asks for the file that it is imported from.

    Raises:
        OciError: OCI or the link doesn't answer.
    """
    if image.ocid is not None:
        yield from _there(tenancy, f"{path}.ocid", image.ocid, shape)
    elif image.import_ is not None:
        yield from _imported(tenancy, f"{path}.import", image.import_, read)


def _there(tenancy: Tenancy, path: str, ocid: str, shape: str) -> Iterator[Finding]:
    image = tenancy.client.get("compute", f"/images/{ocid}")
    state, name = image.get("lifecycleState"), image.get("displayName")
    if state != "AVAILABLE":
        yield Finding("image", path, Verdict.PROBLEM, f"{name} is {state}", "Wait for the import, or another image.")
        return
    shapes = {entry["shape"] for entry in tenancy.client.get("compute", f"/images/{ocid}/shapes")}
    if shape in shapes:
        yield Finding("image", path, Verdict.FINE, f"{name} is AVAILABLE for {shape}")
    else:
        remedy = f"Add {shape} to the image's compatible shapes."
        yield Finding("image", path, Verdict.PROBLEM, f"{name} is not for {shape}", remedy)


def _imported(tenancy: Tenancy, path: str, wanted: ImageImport, read: Callable[[], StoredFile]) -> Iterator[Finding]:
    """An image that was imported already is known by its tag: its link may have expired, and OCI has no checksum of it.

    One that is still to be imported is known by what Object Storage says of the file.
    """
    for image in tenancy.client.get("compute", "/images", compartmentId=tenancy.cluster.compartment_id):
        if _checksum_of(image) == wanted.checksum:
            yield _known(path, image)
            return
    yield _file(f"{path}.checksum", wanted.checksum, read())


def _checksum_of(image: dict[str, Any]) -> str | None:
    tags: dict[str, str] = image.get("freeformTags") or {}
    return tags.get(CHECKSUM_TAG)


def _known(path: str, image: dict[str, Any]) -> Finding:
    state, name = image.get("lifecycleState"), image.get("displayName")
    if state == "AVAILABLE":
        return Finding("image", path, Verdict.FINE, f"{name} was imported from a file with this checksum")
    return Finding("image", path, Verdict.PROBLEM, f"{name} is {state}", "Wait for the import, or delete it.")


def _file(path: str, wanted: str, file: StoredFile) -> Finding:
    kind, gib = wanted.partition(":")[0], file.size_bytes / 2**30
    stated = [checksum for checksum in file.checksums if checksum.startswith(f"{kind}:")]
    if wanted in stated:
        return Finding("image", path, Verdict.FINE, f"Object Storage states {wanted} for the file of {gib:.1f} GiB")
    if not stated:
        others = " and ".join(file.checksums) or "no checksum"
        remedy = "Read the file and compare, or write down a checksum of the kind that is stated."
        value = f"Object Storage states {others} and no {kind} for the file of {gib:.1f} GiB"
        return Finding("image", path, Verdict.UNKNOWN, value, remedy)
    value = f"Object Storage states {' and '.join(stated)}, the stack file {wanted}"
    return Finding("image", path, Verdict.PROBLEM, value, "Another file than was meant: mend the link or the checksum.")


NODE_PACKAGE = "oci-oke-node-all"
"""What nodes of Ubuntu images join with: one package for each patch of Kubernetes, `oci-oke-node-all-1.34.2` (OCI
documentation, Running Ubuntu on Worker Nodes Using Custom Images)."""


def package_findings(
    tenancy: Tenancy, path: str, image: Image, version: str, read_text: Callable[[str], str]
) -> Iterator[Finding]:
    """Whether OKE's repository has the package of a version of Kubernetes for an Ubuntu image. What an image itself
    carries is not published. `read_text` reads the repository's index.

    Raises:
        OciError: OCI or the repository doesn't answer.
    """
    system, release = _operating_system(tenancy, image)
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
    folder = f"{packages.repository}/ubuntu-{codename}/kubernetes-{patch.rpartition('.')[0]}"
    index = _index(f"{folder}/dists/stable/main/binary-amd64/Packages", read_text)
    listed = re.findall(rf"^Package: {NODE_PACKAGE}-(\S+)$", index, re.MULTILINE)
    if patch in listed:
        value = f"{NODE_PACKAGE}-{patch} is in OKE's repository for Ubuntu {release}"
        yield Finding("packages", path, Verdict.FINE, value)
        return
    others = ", ".join(f"v{other}" for other in dict.fromkeys(listed)) or "none"
    value = f"OKE's repository for Ubuntu {release} has no {NODE_PACKAGE}-{patch}: nodes join if the image carries it"
    yield Finding("packages", path, Verdict.UNKNOWN, value, f"An image that does, or a version that it has: {others}.")


def _index(uri: str, read_text: Callable[[str], str]) -> str:
    """A repository has its index packed, plain, or both."""
    try:
        return read_text(f"{uri}.gz")
    except OciError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return read_text(uri)


def _operating_system(tenancy: Tenancy, image: Image) -> tuple[str, str]:
    known = catalogue.image(image.import_.name) if image.import_ else None
    if known is not None:
        return known.operating_system, known.operating_system_version
    answer = tenancy.client.get("compute", f"/images/{image.ocid}")
    return str(answer.get("operatingSystem")), str(answer.get("operatingSystemVersion"))
