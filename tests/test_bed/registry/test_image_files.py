"""Programs taken out of the images that stacks deploy, from a real registry."""

import json
import platform
from pathlib import Path

import pytest
from file_server import archive
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_rehearsal.downloads import ImageFile, ProgramDownload, UnreachableError, of_image
from registry_for_tests import INDEX, MANIFEST
from registry_program import CONFIG, LAYER, RegistryProgram

REPOSITORY = "llm-d/picker"


@pytest.fixture(autouse=True)
def on_amd64(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("LLMD_OKE_DOWNLOADS", raising=False)


def layer(**files: bytes) -> tuple[str, bytes]:
    return LAYER, archive(files)


def download(registry: RegistryProgram, digest: str, file: str = "app/epp") -> ProgramDownload:
    image = ContainerImage(registry=registry.address, repository=REPOSITORY, tag="v1", digest=digest)
    found = of_image(ImageFile(image=image, file=file))
    assert found is not None
    return found


def test_a_program_is_extracted_from_the_topmost_image_layer_that_has_it(registry: RegistryProgram, tmp_path: Path):
    layers = [layer(**{"app/epp": b"old"}), layer(**{"app/epp": b"program" * 10**6}), layer(**{"etc/passwd": b""})]
    digest = registry.push_artifact(REPOSITORY, "v1", (CONFIG, b"{}"), layers)
    download(registry, digest).ask()
    download(registry, digest).fetch(tmp_path / "epp", SilentProgress())
    assert (tmp_path / "epp").read_bytes() == b"program" * 10**6
    assert (tmp_path / "epp").stat().st_mode & 0o111


def test_a_program_is_extracted_from_the_image_for_this_machines_platform(registry: RegistryProgram, tmp_path: Path):
    entries: list[dict[str, object]] = []
    for architecture in ("arm64", "amd64"):
        content = layer(**{"app/epp": architecture.encode()})
        digest = registry.push_artifact(REPOSITORY, architecture, (CONFIG, architecture.encode()), [content])
        size = len(registry.manifest(REPOSITORY, digest))
        entry = {"mediaType": MANIFEST, "digest": digest, "size": size}
        entries.append({**entry, "platform": {"os": "linux", "architecture": architecture}})
    document = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    index = registry.put(REPOSITORY, "v1", document, INDEX)
    download(registry, index).fetch(tmp_path / "epp", SilentProgress())
    assert (tmp_path / "epp").read_bytes() == b"amd64"


def test_extracting_a_program_that_its_image_lacks_fails_and_names_the_file(registry: RegistryProgram, tmp_path: Path):
    digest = registry.push_artifact(REPOSITORY, "v1", (CONFIG, b"{}"), [layer(other=b"")])
    with pytest.raises(KitError, match=r"picker:v1 has no file app/epp"):
        download(registry, digest).fetch(tmp_path / "epp", SilentProgress())


def test_extracting_a_program_from_a_deleted_or_private_image_fails_with_that_reason(registry: RegistryProgram):
    with pytest.raises(KitError, match="has no llm-d/picker@sha256:0000"):
        download(registry, f"sha256:{'0' * 64}").ask()
    registry.private.add(REPOSITORY)
    with pytest.raises(KitError, match="private, or gone"):
        download(registry, f"sha256:{'0' * 64}").ask()


def test_an_unreachable_image_registry_is_reported_as_unreachable_not_as_refusing():
    image = ContainerImage(registry="127.0.0.1:1", repository=REPOSITORY, tag="v1", digest=f"sha256:{'0' * 64}")
    found = of_image(ImageFile(image=image, file="app/epp"))
    assert found is not None
    with pytest.raises(UnreachableError, match="does not answer"):
        found.ask()
