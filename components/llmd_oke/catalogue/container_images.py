"""Container images by name, tag and digest. Each image is named in one file, by registry, repository and tag
(`values/releases`, `values/container-images/jobs.yaml` and others); the lock has the digests.
"""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema, model_validator

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.values import Entry, follows_project, required_entry, values_folder

OCI_REGISTRY = ".ocir.io"
"""Suffix of the host names of OCI's registries, to which nodes authenticate with their own IAM permissions."""

PLATFORM = ("linux", "amd64")
"""Operating system and architecture of the nodes of all shapes of the catalogue."""

DIGEST = r"sha256:[0-9a-f]{64}"
_HOST = r"localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:[0-9])"
_REFERENCE = re.compile(
    rf"(?P<registry>(?:{_HOST})(?::[0-9]{{1,5}})?)"
    r"/(?P<repository>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    rf":(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})(?:@(?P<digest>{DIGEST}))?"
)
"""Grammar of image references (distribution, reference/regexp.go); registry and tag, which it leaves optional, are
required.
"""


class ContainerImage(Entry):
    """Container image. Without a `digest`, the registry's current image for the tag is pulled."""

    registry: str
    repository: str
    tag: str
    digest: str | None = None

    @property
    def reference(self) -> str:
        """Reference with tag and without digest, as in reports, comparisons and the lock."""
        return f"{self.registry}/{self.repository}:{self.tag}"

    @property
    def pinned(self) -> str:
        """Reference of the image for manifests: with tag and, if known, digest."""
        return f"{self.registry}/{self.repository}:{self.pinned_tag}"

    @property
    def pinned_tag(self) -> str:
        """Tag with the digest, if known, for charts whose values have an image's parts in separate fields."""
        return self.tag if self.digest is None else f"{self.tag}@{self.digest}"

    def is_copied_by(self, reference: str) -> bool:
        """Tell whether a reference names this image or a mirrored copy of it: the last component of the repository and
        the tag are equal.
        """
        name = self.repository.rpartition("/")[2]
        return reference.partition("@")[0].rpartition("/")[2] == f"{name}:{self.tag}"


class LockedDigest(Entry):
    """Entry of the image lock for one image.

    Attributes:
        digest: digest of the image; None if unknown.
        source: source of the digest.
        reason: reason why the digest is unknown, or why the image is `gone`.
        gone: whether the image can't be pulled any more.
        download_bytes: sum of the compressed layers for linux/amd64 in bytes; None if unknown.
    """

    digest: str | None
    source: str | None = None
    reason: str | None = None
    gone: bool = False
    download_bytes: int | None = None

    @model_validator(mode="after")
    def _explained(self) -> Self:
        if self.digest is not None and not re.fullmatch(DIGEST, self.digest):
            raise ValueError("digest must be sha256: and 64 hexadecimal digits, or null")
        if (self.source if self.digest else self.reason) is None:
            raise ValueError("a digest needs its source, and null its reason")
        return self


def _tagged(reference: str) -> str:
    if parse_reference(reference).digest is not None:
        raise ValueError("the digest is the value, and no part of the name: registry/repository:tag")
    return reference


class Lock(Entry):
    """Digests of images by reference (`registry/repository:tag`): one lock file."""

    images: dict[Annotated[str, AfterValidator(_tagged)], LockedDigest]


LOCK = EntryKind("container-images", Lock, files=("lock",))


def lock_file() -> Path:
    """Return the path of the kit's lock file, which has the digests of images."""
    return values_folder() / LOCK.folder / "lock.yaml"


def project_lock() -> Lock:
    """Return the open project's own lock of image digests; an empty one if the project has none."""
    return entries.project_entry(LOCK, "lock") or Lock(images={})


@follows_project
def kit_lock() -> Lock:
    """Return the kit's lock of image digests (`values/container-images/lock.yaml`)."""
    return required_entry(LOCK.folder, "lock", Lock)


@follows_project
def lock() -> Lock:
    """Return the image digests of the kit's lock, extended and overridden by those of the project's own."""
    return Lock(images={**kit_lock().images, **project_lock().images})


def parse_reference(reference: str) -> ContainerImage:
    """Return the image that a reference names, without looking up its digest.

    Raises:
        ValueError: the reference isn't `registry/repository:tag`, with or without `@sha256:…`.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ValueError(
            "this is no full name of a container image: registry/repository:tag, with or without @sha256: and 64"
            " hexadecimal digits"
        )
    return ContainerImage(**match.groupdict())


def locked_image(reference: str) -> ContainerImage:
    """Return the image that a reference names, with the lock's digest if the reference has none.

    Raises:
        ValueError: the reference has the wrong form, or a digest that differs from the lock's.
    """
    image = parse_reference(reference)
    known = lock().images.get(image.reference)
    if known is None or known.digest is None:
        return image
    if image.digest not in {None, known.digest}:
        raise ValueError(f"{image.reference} is locked as {known.digest}, not as {image.digest}")
    return image.model_copy(update={"digest": known.digest})


def removal_reason(image: ContainerImage) -> str | None:
    """Return the reason why an image can't be pulled any more; None if no such reason is known. A mirrored copy has its
    own reference, and isn't affected.
    """
    known = lock().images.get(image.reference)
    return known.reason if known and known.gone else None


LockedImage = Annotated[
    ContainerImage,
    BeforeValidator(lambda value: locked_image(value) if isinstance(value, str) else value),
    WithJsonSchema({"type": "string", "description": "registry/repository:tag, with @sha256:… where it is pinned"}),
]
"""Image that a record of `values/` has as a reference, with the digest from the lock."""


class PullLimit(Entry):
    """Maximum number of manifests that one IP address may pull anonymously from a registry within a number of hours."""

    pulls: int
    hours: int
    source: str


class Registries(Entry):
    """Limits on anonymous pulls, by host name of the registry."""

    pull_limits: dict[str, PullLimit]


@follows_project
def registries() -> Registries:
    """Return the facts about registries (`values/container-images/registries.yaml`)."""
    return required_entry("container-images", "registries", Registries)


class Publisher(Entry):
    """Publisher that signs images, either by a public `key` (PEM, signatures over a `hash`) or as an `identity` in
    Sigstore's certificates from an `issuer`. `<tag>` in `identity` stands for the image's tag.
    """

    images: tuple[str, ...]
    source: str
    key: str | None = None
    hash: Literal["sha256", "sha512"] = "sha256"
    identity: str | None = None
    issuer: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.key is None) == (self.identity is None) or (self.identity is None) != (self.issuer is None):
            raise ValueError("a publisher signs with a key, or as an identity with its issuer")
        return self


class Signatures(Entry):
    """Publishers that sign images, and patterns of unsigned images with the reason. `*` matches any text."""

    publishers: tuple[Publisher, ...]
    unsigned: dict[str, str]

    def publisher(self, image: ContainerImage) -> Publisher | str | None:
        """Return the publisher that signs an image, or the reason why it is unsigned; None if neither is known."""
        name = f"{image.registry}/{image.repository}"
        for publisher in self.publishers:
            if any(fnmatchcase(name, pattern) for pattern in publisher.images):
                return publisher
        return next((reason for pattern, reason in self.unsigned.items() if fnmatchcase(name, pattern)), None)


@follows_project
def signatures() -> Signatures:
    """Return the publishers that sign images (`values/container-images/signatures.yaml`)."""
    return required_entry("container-images", "signatures", Signatures)


class JobImages(Entry):
    """Container images of Jobs that several parts of the kit run."""

    python: LockedImage


@follows_project
def job_images() -> JobImages:
    """Return the images of Jobs that several parts of the kit run (`values/container-images/jobs.yaml`)."""
    return required_entry("container-images", "jobs", JobImages)


class EnvoyImage(Entry):
    """Envoy image of routers and front doors."""

    image: LockedImage


@follows_project
def envoy_image() -> ContainerImage:
    """Return the Envoy image of routers and front doors (`values/container-images/envoy.yaml`)."""
    return required_entry("container-images", "envoy", EnvoyImage).image
