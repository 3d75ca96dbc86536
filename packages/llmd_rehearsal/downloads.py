"""Downloads of programs: files of a program's release, or files of the container image that stacks deploy.

Each download is verified with the digest that the kit pins before it is stored.
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
"""Environment variable with the base URL of a mirror that has the release files under their own file names; `none`
turns downloads off, so that programs are built from source.
"""

NO_DOWNLOADS = "none"

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architecture names of releases, by the output of `uname -m`."""


class ReleaseFile(Entry):
    """File of a program's release, for each architecture that the release supports.

    `url` and `file` may contain the placeholder `{architecture}`. `file` is the program's path in the archive; without
    it, the release file is the program itself. `sha256` has checksums by architecture (`amd64`, `arm64`), and `names`
    the publisher's own name of an architecture where it differs.
    """

    url: str
    sha256: dict[str, str]
    file: str | None = None
    names: dict[str, str] = Field(default_factory=dict[str, str])


class ImageFile(Entry):
    """Program as the file `file` of a container image that stacks deploy."""

    image: LockedImage
    file: str


class UnreachableError(KitError):
    """A download's host can't be reached at present; a host that refuses a request raises another error."""


@dataclass(frozen=True)
class ProgramDownload:
    """Download of a program for this machine's architecture.

    `origin` names the host or image, and `digest` is the pinned SHA-256 of the release file or image. `file` is the
    program's path in the archive or image; if None, the release file is the program itself.
    """

    origin: str
    digest: str
    source: str | ContainerImage
    file: str | None

    @property
    def is_wanted(self) -> bool:
        """Tell whether the environment variable `LLMD_OKE_DOWNLOADS` allows this download: it can turn downloads off,
        or name a mirror, which has no images.

        Raises:
            KitError: the variable has another value.
        """
        return not mirror() if isinstance(self.source, ContainerImage) else mirror() != NO_DOWNLOADS

    def ask(self) -> None:
        """Check that a registry provides the image. Release files aren't checked before they are fetched.

        Raises:
            KitError: the image isn't available.
        """
        if isinstance(self.source, ContainerImage):
            from llmd_rehearsal import download_client  # noqa: PLC0415 - loads an HTTP client, which few rehearsals need

            download_client.ask_for_image(self.source)

    def fetch(self, target: Path, progress: Progress) -> None:
        """Download the program and write it to `target` as an executable file.

        Raises:
            UnreachableError: the host can't be reached.
            KitError: the download failed, its digest isn't the pinned one, or the archive has no such file.
        """
        from llmd_rehearsal import download_client  # noqa: PLC0415 - loads an HTTP client, which few rehearsals need

        if isinstance(self.source, ContainerImage):
            content = download_client.file_of_image(self.source, self.file or "")
        else:
            url = f"{base}/{self.source.rpartition('/')[2]}" if (base := mirror()) else self.source
            content = download_client.file_of_release(url, self.digest, self.file, target.parent, progress)
        if content is None:
            raise KitError(f"{self.origin} has no file {self.file}")
        target.write_bytes(content)
        target.chmod(0o755)


def mirror() -> str:
    """Return the value of `LLMD_OKE_DOWNLOADS`: a mirror's base URL without a slash at its end, `none`, or empty.

    Raises:
        KitError: the value is something else; a typing error would otherwise cost a build of all programs.
    """
    value = os.environ.get(MIRROR, "").strip()
    if value in {"", NO_DOWNLOADS} or is_secure(value):
        return value.rstrip("/")
    raise KitError(
        f"{MIRROR} is {value!r}: it is neither `none` nor the HTTPS address of a mirror.",
        f"For example: {MIRROR}=https://mirror.example/files",
    )


def is_secure(url: str) -> bool:
    """Tell whether a URL is one of HTTPS, or of HTTP on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    is_local_http = parts.scheme == "http" and parts.hostname in _LOOPBACK
    return bool(parts.hostname) and (parts.scheme == "https" or is_local_http)


def architecture() -> str:
    """Return this machine's architecture under the name that published files use (`amd64`); empty if programs aren't
    published for it.
    """
    return _ARCHITECTURES.get(platform.machine(), "")


def of_release(release_file: ReleaseFile) -> ProgramDownload | None:
    """Return the download of a release's file for this machine; None if the release doesn't support the
    architecture.
    """
    machine = architecture()
    digest = release_file.sha256.get(machine)
    if digest is None:
        return None
    name = release_file.names.get(machine, machine)
    url = release_file.url.format(architecture=name)
    file = release_file.file and release_file.file.format(architecture=name)
    return ProgramDownload(urlsplit(url).netloc, digest, url, file)


def of_image(image_file: ImageFile) -> ProgramDownload | None:
    """Return the download of a file of a deployed image; None if the image has no digest or doesn't support this
    machine's architecture.
    """
    image = image_file.image
    if image.digest is None or architecture() != PLATFORM[1]:
        return None
    return ProgramDownload(image.reference, image.digest.removeprefix("sha256:"), image, image_file.file)
