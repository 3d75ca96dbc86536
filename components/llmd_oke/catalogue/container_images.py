"""Container images by name, tag and digest. Whoever decides on an image names it once, by registry, repository and tag
(`values/releases`, `values/container-images/jobs.yaml` and others); the lock has the digest of each."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema, model_validator

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.values import Entry, follows_project, required_entry, values_folder

OCI_REGISTRY = ".ocir.io"
"""How the names of OCI's registries end, to which nodes sign in with rights of their own."""

PLATFORM = ("linux", "amd64")
"""Operating system and architecture of the nodes of all shapes of the catalogue."""

DIGEST = r"sha256:[0-9a-f]{64}"
_HOST = r"localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:[0-9])"
_REFERENCE = re.compile(
    rf"(?P<registry>(?:{_HOST})(?::[0-9]{{1,5}})?)"
    r"/(?P<repository>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    rf":(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})(?:@(?P<digest>{DIGEST}))?"
)
"""The grammar of references (distribution, reference/regexp.go), with what it leaves open: registry and tag."""


class ContainerImage(Entry):
    """A container image. Without a `digest` what is pulled is whatever the registry has under the tag that day."""

    registry: str
    repository: str
    tag: str
    digest: str | None = None

    @property
    def reference(self) -> str:
        """Reference by tag, as reports, comparisons and the lock have it."""
        return f"{self.registry}/{self.repository}:{self.tag}"

    @property
    def pinned(self) -> str:
        """Reference in manifests: tag and digest, where the digest is known."""
        return f"{self.registry}/{self.repository}:{self.pinned_tag}"

    @property
    def pinned_tag(self) -> str:
        """The tag with the digest, for charts that want an image in parts."""
        return self.tag if self.digest is None else f"{self.tag}@{self.digest}"

    def is_copied_by(self, reference: str) -> bool:
        """Tell whether a reference is this image, or a mirror of it: the last part of the repository and the
        tag agree.
        """
        name = self.repository.rpartition("/")[2]
        return reference.partition("@")[0].rpartition("/")[2] == f"{name}:{self.tag}"


class LockedDigest(Entry):
    """Entry of the lock for one image: its digest with its source, or None and the reason. One that is `gone` can't be
    pulled any more, for that reason.

    `download_bytes` is the sum of its compressed layers for linux/amd64, None where no registry has told it.
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
    """Digests by reference (`registry/repository:tag`)."""

    images: dict[Annotated[str, AfterValidator(_tagged)], LockedDigest]


LOCK = EntryKind("container-images", Lock, files=("lock",))


def lock_file() -> Path:
    """Return the path of the kit's lock."""
    return values_folder() / LOCK.folder / "lock.yaml"


def project_lock() -> Lock:
    """The digests of the open project's own lock; none where it has none."""
    return entries.project_entry(LOCK, "lock") or Lock(images={})


@follows_project
def kit_lock() -> Lock:
    """The digests of the kit's `values/container-images/lock.yaml`."""
    return required_entry(LOCK.folder, "lock", Lock)


@follows_project
def lock() -> Lock:
    """The digests of the kit's lock, and those of the project's own beside them and in their place."""
    return Lock(images={**kit_lock().images, **project_lock().images})


def parse_reference(reference: str) -> ContainerImage:
    """The image of a reference as it is written.

    Raises:
        ValueError: it isn't `registry/repository:tag`, with or without `@sha256:…`.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ValueError(
            f"{reference!r} is no container image: registry/repository:tag, and @sha256: with 64 hexadecimal digits"
            " where it is pinned"
        )
    return ContainerImage(**match.groupdict())


def locked_image(reference: str) -> ContainerImage:
    """The image of a reference, with the lock's digest where it has none of its own.

    Raises:
        ValueError: the reference has the wrong form, or a digest that isn't the lock's.
    """
    image = parse_reference(reference)
    known = lock().images.get(image.reference)
    if known is None or known.digest is None:
        return image
    if image.digest not in {None, known.digest}:
        raise ValueError(f"{image.reference} is locked as {known.digest}, not as {image.digest}")
    return image.model_copy(update={"digest": known.digest})


def removal_reason(image: ContainerImage) -> str | None:
    """Return the reason why nobody can pull an image any more; None where nothing is known of that. A mirror has
    another reference.
    """
    known = lock().images.get(image.reference)
    return known.reason if known and known.gone else None


LockedImage = Annotated[
    ContainerImage,
    BeforeValidator(lambda value: locked_image(value) if isinstance(value, str) else value),
    WithJsonSchema({"type": "string", "description": "registry/repository:tag, with @sha256:… where it is pinned"}),
]
"""An image that a record of `values/` names by its reference, with its digest from the lock."""


class PullLimit(Entry):
    """Number of manifests that one address may pull from a registry without an account, in so many hours."""

    pulls: int
    hours: int
    source: str


class Registries(Entry):
    """Registries that bound pulls, by their names in references."""

    pull_limits: dict[str, PullLimit]


@follows_project
def registries() -> Registries:
    """Read what is known of registries (`values/container-images/registries.yaml`)."""
    return required_entry("container-images", "registries", Registries)


class Publisher(Entry):
    """Publisher that signs images: by a public `key` in PEM, whose signatures are over a `hash`, or as an `identity` of
    Sigstore's certificates that an `issuer` vouches for, with `<tag>` in it for the image's tag.
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
    """Publishers that sign, and images of those that don't, with the reason. `*` matches any text."""

    publishers: tuple[Publisher, ...]
    unsigned: dict[str, str]

    def publisher(self, image: ContainerImage) -> Publisher | str | None:
        """Return who signs an image, or why nobody does; None where nothing is known of that."""
        name = f"{image.registry}/{image.repository}"
        for publisher in self.publishers:
            if any(fnmatchcase(name, pattern) for pattern in publisher.images):
                return publisher
        return next((reason for pattern, reason in self.unsigned.items() if fnmatchcase(name, pattern)), None)


@follows_project
def signatures() -> Signatures:
    """Read who signs images (`values/container-images/signatures.yaml`)."""
    return required_entry("container-images", "signatures", Signatures)


class JobImages(Entry):
    """Images of Jobs that several parts of the kit run."""

    python: LockedImage


@follows_project
def job_images() -> JobImages:
    """The images of `values/container-images/jobs.yaml`."""
    return required_entry("container-images", "jobs", JobImages)


class EnvoyImage(Entry):
    """The Envoy that routers and front doors run."""

    image: LockedImage


@follows_project
def envoy_image() -> ContainerImage:
    """The image of `values/container-images/envoy.yaml`."""
    return required_entry("container-images", "envoy", EnvoyImage).image
