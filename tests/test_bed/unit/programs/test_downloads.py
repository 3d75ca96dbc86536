"""Programs downloaded as their makers publish them, from a server on this machine, and what happens without one."""

import hashlib
import platform
from collections.abc import Iterator

import pytest
from file_server import FileServer, archive, running_file_server
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.planning.container_images import kit_images
from llmd_rehearsal import downloads, program_definitions, programs
from llmd_rehearsal.downloads import ImageFile, ReleaseFile

URL = "https://example.com/releases/etcd-v3.6.6-linux-{architecture}.tar.gz"
FILE = "etcd-linux-{architecture}/etcd"


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, cache) -> Iterator[FileServer]:
    """A mirror, whose folder of files `LLMD_OKE_DOWNLOADS` names."""
    with running_file_server() as served:
        monkeypatch.setenv("LLMD_OKE_DOWNLOADS", f"{served.address}/files")
        yield served


@pytest.fixture(autouse=True)
def on_amd64(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


ETCD = archive({"./etcd-linux-amd64/README.md": b"read me", "./etcd-linux-amd64/etcd": b"#!/bin/sh\n"})


@pytest.fixture
def published(monkeypatch, mirror):
    """Let etcd alone be published, as this archive, with its own checksum unless another is given."""

    def publish(content: bytes = ETCD, sha256: str | None = None, file: str | None = FILE) -> None:
        digest = sha256 or hashlib.sha256(content).hexdigest()
        known = program_definitions.definitions()
        etcd = known.programs["etcd"]
        release = ReleaseFile(url=URL, file=file, sha256={"amd64": digest})
        source = etcd.source.model_copy(update={"release": release})
        defined = {"etcd": etcd.model_copy(update={"source": source}), "helm": known.programs["helm"]}
        changed = known.model_copy(update={"programs": defined})
        for module in (program_definitions, programs):
            monkeypatch.setattr(module, "definitions", lambda: changed)
        mirror.files["/files/etcd-v3.6.6-linux-amd64.tar.gz"] = content

    return publish


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def builds(go_tool):
    """A Go that builds a file that says so."""
    go_tool('while [ "$1" != -o ]; do shift; done; echo built > "$2"')


def test_a_published_program_is_downloaded_once_and_executable(published, mirror, path, monkeypatch, listener):
    published()
    etcd = programs.ensure(["etcd"], listener)["etcd"]
    assert (etcd.path.read_bytes(), etcd.path.stat().st_mode & 0o111) == (b"#!/bin/sh\n", 0o111)
    assert etcd.origin == "downloaded from example.com"
    for downloads_from in (f"{mirror.address}/files", "none"):
        monkeypatch.setenv("LLMD_OKE_DOWNLOADS", downloads_from)
        assert programs.ensure(["etcd"], listener)["etcd"] == etcd
    assert mirror.asked == ["/files/etcd-v3.6.6-linux-amd64.tar.gz"]
    assert listener.steps == ["downloading etcd v3.6.6 from example.com"]


def test_a_downloaded_file_that_is_no_archive_is_the_program_itself(published, path, listener):
    published(b"#!/bin/sh\n", file=None)
    assert programs.ensure(["etcd"], listener)["etcd"].path.read_bytes() == b"#!/bin/sh\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sha256": "0" * 64}, "pinned is 0000"),
        ({"content": archive({"other": b""})}, "has no file etcd-linux-amd64/etcd"),
        ({"content": b"<html>"}, "is no archive"),
        ({"content": ETCD[:100]}, "is no archive"),
    ],
)
def test_a_download_with_another_checksum_is_deleted_and_the_program_is_compiled(
    published, builds, cache, listener, arguments, reason
):
    published(**arguments)
    assert programs.ensure(["etcd"], listener)["etcd"].origin == "built from tools/"
    assert reason in listener.details[0]
    assert listener.details[0].endswith(": it is built here instead")
    assert list((cache / "unfinished").iterdir()) == []


def test_a_mirror_without_the_file_is_reported_and_the_program_is_built(published, mirror, builds, listener):
    published()
    mirror.files.clear()
    assert programs.ensure(["etcd"], listener)["etcd"].origin == "built from tools/"
    assert "answers 404" in listener.details[0]


def test_without_a_network_only_the_first_download_host_is_tried(published, builds, monkeypatch, listener):
    published()
    monkeypatch.setenv("LLMD_OKE_DOWNLOADS", "http://127.0.0.1:1")
    assert {program.origin for program in programs.ensure(["etcd", "helm"], listener).values()} == {"built from tools/"}
    (detail,) = listener.details
    assert detail.startswith("127.0.0.1 does not answer")
    assert detail.endswith("what is missing is built here instead")


def test_nothing_is_downloaded_if_downloads_are_disabled(published, mirror, builds, monkeypatch, listener):
    published()
    monkeypatch.setenv("LLMD_OKE_DOWNLOADS", "none")
    assert programs.ensure(["etcd"], listener)["etcd"].origin == "built from tools/"
    assert mirror.asked == []


def test_a_program_without_a_download_for_this_machine_is_built(published, mirror, builds, monkeypatch, listener):
    published()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert programs.ensure(["etcd"], listener)["etcd"].origin == "built from tools/"
    assert mirror.asked == []


@pytest.mark.parametrize(
    "value",
    ["http://mirror.example", "off", "mirror.example/files", "ftp://mirror.example", "https://", "https://[::1"],
)
def test_downloads_are_refused_from_what_is_neither_a_mirror_nor_none(published, builds, monkeypatch, listener, value):
    published()
    monkeypatch.setenv("LLMD_OKE_DOWNLOADS", value)
    with pytest.raises(KitError, match="is neither `none` nor the HTTPS address of a mirror"):
        programs.ensure(["etcd"], listener)
    assert (listener.steps, listener.details) == ([], [])


RELEASES = {
    name: (definition, definition.source.release)
    for name, definition in program_definitions.definitions().programs.items()
    if definition.source.release
}


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_downloads_are_pinned_for_each_architecture_in_the_version_that_is_built(name, architecture):
    definition, release = RELEASES[name]
    version = {"v0.312.0": "3.12.0", "v1.37.0": "3.250.0"}.get(definition.version, definition.version.removeprefix("v"))
    url = release.url.format(architecture=release.names.get(architecture, architecture))
    assert url.startswith("https://")
    assert version in url
    assert len(bytes.fromhex(release.sha256[architecture])) == 32


def test_pinned_downloads_with_equal_checksums_are_the_same_file():
    addresses: dict[str, set[str]] = {}
    for _, release in RELEASES.values():
        for architecture, digest in release.sha256.items():
            addresses.setdefault(digest, set()).add(release.url.format(architecture=architecture))
    assert all(len(urls) == 1 for urls in addresses.values())


IMAGES = [
    (version, file)
    for definition in program_definitions.definitions().programs.values()
    for version, file in definition.source.images.items()
]


@pytest.mark.parametrize(("version", "file"), IMAGES)
def test_images_that_programs_are_extracted_from_are_those_that_stacks_deploy(version: str, file: ImageFile):
    assert file.image.reference in {image.reference for image in kit_images()}
    assert file.image.tag == version
    assert file.image.digest


def test_programs_are_extracted_only_from_images_for_this_machine(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert downloads.of_image(IMAGES[0][1]) is None


@pytest.mark.parametrize("mirror", ["none", "https://mirror.example"])
def test_no_registry_is_used_if_downloads_are_disabled_or_only_from_a_mirror(monkeypatch, mirror):
    monkeypatch.setenv("LLMD_OKE_DOWNLOADS", mirror)
    found = downloads.of_image(IMAGES[0][1])
    assert found is not None
    assert not found.is_wanted


def test_an_unreachable_image_registry_is_tried_again(cache, monkeypatch, go_tool):
    monkeypatch.delenv("LLMD_OKE_DOWNLOADS")
    go_tool("""echo '{"Error": "403 Forbidden"}'""")
    asked: list[str] = []

    def ask(self: downloads.ProgramDownload) -> None:
        asked.append(self.origin)
        raise answers[len(asked) - 1]

    monkeypatch.setattr(downloads.ProgramDownload, "ask", ask)
    answers = [downloads.UnreachableError("no network"), KitError("it is private"), KitError("it is private")]
    for _ in answers:
        assert "403 Forbidden" in (programs.why_unavailable("epp", "v0.10.0") or "")
    assert len(asked) == 2
