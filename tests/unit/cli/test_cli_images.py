"""`llmd-oke images`, with a registry on the loopback interface."""

import json
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue.container_images import ContainerImage, locked_image
from llmd_oke.cli.main import app
from llmd_oke.operations import registries
from llmd_oke.planning import container_images
from llmd_oke.values import open_project
from project_entries import write_entry
from registry_for_tests import Registry
from stack_files import PROJECT
from typer.testing import CliRunner


@pytest.fixture
def lock(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of one image of that registry, which the kit deploys."""
    path = tmp_path / "lock.yaml"
    image = ContainerImage(registry=registry.address, repository="llm-d/vllm", tag="v1")
    path.write_text(
        f"# A lock.\nimages:\n  {image.reference}:\n    digest: null\n    reason: its registry was not asked\n"
    )
    monkeypatch.setattr(registries, "lock_file", lambda: path)
    monkeypatch.setattr(registries, "kit_images", lambda: (image,))
    return path


def update(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["images", "update", *arguments])
    return result.exit_code, result.output


def test_images_update_writes_a_lock_that_images_check_accepts(lock: Path, registry: Registry):
    digest = registry.push("llm-d/vllm", "v1", 10, 20)
    assert update("--check")[0] == 1
    code, output = update()
    assert (code, f"+    digest: {digest}" in output) == (0, True)
    assert f"digest: {digest}" in lock.read_text()
    assert "download_bytes: 30" in lock.read_text()
    assert lock.read_text().startswith("# A lock.\n")
    assert update("--check")[0] == 0


@pytest.mark.parametrize("option", ["--dry-run", "--check"])
def test_images_update_writes_the_image_lock_only_on_request(lock: Path, registry: Registry, option: str):
    registry.push("llm-d/vllm", "v1", 10)
    before = lock.read_text()
    assert "+    digest: sha256:" in update(option)[1]
    assert lock.read_text() == before


def test_images_update_exits_with_1_for_a_moved_tag_without_the_moved_option(lock: Path, registry: Registry):
    registry.push("llm-d/vllm", "v1", 10)
    update()
    moved = registry.push("llm-d/vllm", "v1", 11)
    code, output = update()
    assert (code, f"is {moved} now" in output) == (1, True)
    assert moved not in lock.read_text()
    assert update("--moved")[0] == 0
    assert moved in lock.read_text()


def test_images_update_exits_with_1_if_a_registry_takes_no_requests(lock: Path, registry: Registry):
    registry.push("llm-d/vllm", "v1", 10)
    registry.busy, registry.retry_after = 1, "3600"
    before = lock.read_text()
    code, output = update()
    assert (code, "takes no more requests for 3600 s" in output) == (1, True)
    assert lock.read_text() == before


def test_images_list_gives_component_key_and_digest_of_each_image():
    arguments = ["images", "list", "--project", str(PROJECT), "--stack"]
    images = json.loads(CliRunner().invoke(app, [*arguments, "guide", "--json"]).output)["images"]
    assert [image["used_by"] for image in images] == [
        "image pull",
        "vLLM",
        "endpoint picker",
        "Envoy",
        "routing sidecar",
    ]
    assert {image["path"] for image in images} == {"release"}
    assert all(image["digest"] or image["no_digest_because"] for image in images)
    result = CliRunner().invoke(app, [*arguments, "reference"])
    assert (result.exit_code, "tag alone" in result.output) == (0, True)


@pytest.fixture
def project(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, and an image of that registry that the kit's lock doesn't know."""
    (tmp_path / "Pulumi.yaml").write_text("name: mine\n")
    image = ContainerImage(registry=registry.address, repository="llm-d/vllm", tag="v1")
    monkeypatch.setattr(container_images, "kit_images", lambda: (image,))
    return tmp_path


def test_a_project_gets_its_own_image_lock_which_is_used_from_then_on(project: Path, registry: Registry):
    digest, before = registry.push("llm-d/vllm", "v1", 10), container_images.kit_lock()
    assert update("--project", str(project))[0] == 0
    open_project(project)
    assert locked_image(f"{registry.address}/llm-d/vllm:v1").digest == digest
    assert container_images.kit_lock() == before
    assert update("--project", str(project), "--check")[0] == 0


def test_images_update_locks_images_that_were_added_to_the_projects_lock_by_hand(project: Path, registry: Registry):
    digest = registry.push("own/vllm", "v2", 10)
    registry.push("llm-d/vllm", "v1", 10)
    reference = f"{registry.address}/own/vllm:v2"
    write_entry(project, "container-images/lock", {"images": {reference: {"digest": None, "reason": "new"}}})
    assert update("--project", str(project))[0] == 0
    open_project(project)
    assert locked_image(reference).digest == digest


def copy_list(*arguments: str) -> str:
    whole = ["images", "copy-list", "--project", str(PROJECT), *arguments]
    return CliRunner().invoke(app, whole, catch_exceptions=False).output


def test_images_copy_list_prints_the_destination_of_each_copy_as_json():
    document = json.loads(copy_list("--stack", "reference", "--mirror", "iad.ocir.io/ai/mirror", "--json"))
    assert document["prefix"] == "iad.ocir.io/ai/mirror"
    assert all(item["destination"].startswith("iad.ocir.io/ai/mirror/") for item in document["copies"])
    assert [text.partition(",")[0] for text in document["not_mirrored"]] == ["OKE's control plane"]


def test_images_copy_list_without_a_private_registry_is_refused_with_a_remedy():
    with pytest.raises(KitError, match="has no private registry") as raised:
        copy_list("--stack", "rehearsal")
    assert (raised.value.remedy or "").startswith("Say registryMirror in the stack file, or --mirror")


@pytest.mark.parametrize("prefix", ["https://x.io/a", "x", "iad.ocir.io/a/"])
def test_images_copy_list_refuses_an_invalid_name_of_a_private_registry(prefix: str):
    with pytest.raises(KitError, match=f"--mirror {prefix} is no private registry"):
        copy_list("--stack", "rehearsal", "--mirror", prefix)


@pytest.mark.parametrize(("form", "word"), [("crane", "crane copy "), ("skopeo", "# skopeo sync"), ("plain", "  iad.")])
def test_images_copy_list_prints_the_requested_format(form: str, word: str):
    assert word in copy_list("--stack", "rehearsal", "--mirror", "iad.ocir.io/ai/mirror", "--format", form)
