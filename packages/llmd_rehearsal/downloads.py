"""Programs as their makers publish them: files of a release, and files of the container image that stacks deploy.

Each is checked against the digest that the kit pins before anything of it is kept.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.catalogue.container_images import PLATFORM, ContainerImage, LockedImage
from llmd_oke.values import Entry
from pydantic import Field

MIRROR = "LLMD_OKE_DOWNLOADS"
"""Variable with the address of a mirror that has release files under their own names, or `none`: then nothing is
downloaded and programs are built instead.
"""

NO_DOWNLOADS = "none"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architectures by what `uname -m` calls them."""


class ReleaseFile(Entry):
    """A file of a program's release, for each architecture that its makers publish it for.

    `{architecture}` stands in `url` and in `file`, which is the program's path in an archive; a release file without
    one is the program itself. `sha256` has checksums by architecture (`amd64`, `arm64`), and `names` what the makers
    call an architecture where that is something else.
    """

    url: str
    sha256: dict[str, str]
    file: str | None = None
    names: dict[str, str] = Field(default_factory=dict[str, str])


class ImageFile(Entry):
    """A program as a `file` of a container image that stacks deploy."""

    image: LockedImage
    file: str


class UnreachableError(KitError):
    """A host can't be reached now; it has refused nothing."""


@dataclass(frozen=True)
class ProgramDownload:
    """A program that can be downloaded for this machine: `origin` says from where, `digest` is the pinned SHA-256 of
    the release file or of the image. `file` is the program's path in it; without one, the release file is the program.
    """

    origin: str
    digest: str
    source: str | ContainerImage
    file: str | None

    @property
    def is_wanted(self) -> bool:
        """Tell whether it may be fetched: a user can turn downloads off, and a mirror has no images."""
        mirror = os.environ.get(MIRROR, "")
        return not mirror if isinstance(self.source, ContainerImage) else mirror != NO_DOWNLOADS

    def ask(self) -> None:
        """Ask whether an image can be had; a release file is only asked for when it is fetched.

        Raises:
            KitError: it can't.
        """
        if isinstance(self.source, ContainerImage):
            from llmd_rehearsal import download_client  # noqa: PLC0415 - loads an HTTP client, which few rehearsals need

            download_client.ask_for_image(self.source)

    def fetch(self, target: Path, progress: Progress) -> None:
        """Write the program to a file that can be run.

        Raises:
            UnreachableError: its host can't be reached.
            KitError: it can't be downloaded, isn't what the digest pins, or has no such file.
        """
        from llmd_rehearsal import download_client  # noqa: PLC0415 - loads an HTTP client, which few rehearsals need

        if isinstance(self.source, ContainerImage):
            content = download_client.file_of_image(self.source, self.file or "")
        else:
            url, folder = _mirrored(self.source), target.parent
            content = download_client.file_of_release(url, self.digest, self.file, folder, progress)
        if content is None:
            raise KitError(f"{self.origin} has no file {self.file}")
        target.write_bytes(content)
        target.chmod(0o755)


def architecture() -> str:
    """Return this machine's architecture as most makers call it (`amd64`); empty for one that nobody publishes for."""
    return _ARCHITECTURES.get(platform.machine(), "")


def of_release(release_file: ReleaseFile) -> ProgramDownload | None:
    """Return the release's file for this machine; None where its makers publish none."""
    machine = architecture()
    digest = release_file.sha256.get(machine)
    if digest is None:
        return None
    name = release_file.names.get(machine, machine)
    url = release_file.url.format(architecture=name)
    file = release_file.file and release_file.file.format(architecture=name)
    return ProgramDownload(urlsplit(url).netloc, digest, url, file)


def of_image(image_file: ImageFile) -> ProgramDownload | None:
    """Return the file of a deployed image; None where the image has no digest, or isn't for this machine."""
    image = image_file.image
    if image.digest is None or architecture() != PLATFORM[1]:
        return None
    return ProgramDownload(image.reference, image.digest.removeprefix("sha256:"), image, image_file.file)


def _mirrored(url: str) -> str:
    mirror = os.environ.get(MIRROR, "")
    return f"{mirror.rstrip('/')}/{url.rpartition('/')[2]}" if mirror else url
