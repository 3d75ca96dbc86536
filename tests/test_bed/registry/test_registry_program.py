import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from file_server import archive
from llmd_base.progress import SilentProgress
from llmd_oke.access import registry as registries
from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError, StoredImage, query_registries
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.operators import HelmChart
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.cli.main import app
from llmd_oke.operations.findings import Verdict
from llmd_oke.operations.registries import chart_findings, registry_findings
from llmd_oke.planning.container_images import UsedImage
from llmd_oke.values import read_yaml
from llmd_rehearsal.programs import locate
from registry_for_tests import AMD64, ARM64
from registry_program import RegistryProgram
from typer.testing import CliRunner

REPOSITORY = "llm-d/vllm"


def image(registry: RegistryProgram, tag: str = "v1", digest: str | None = None) -> ContainerImage:
    return ContainerImage(registry=registry.address, repository=REPOSITORY, tag=tag, digest=digest)


def refusal(registry: RegistryProgram, tag: str) -> tuple[Refusal, str]:
    with pytest.raises(RegistryError) as caught:
        RegistryClient().stored(image(registry, tag))
    return caught.value.refusal, caught.value.message


@pytest.mark.parametrize("media_type", registries._MANIFESTS)
def test_a_single_platform_images_digest_is_that_which_the_registry_returns(registry: RegistryProgram, media_type: str):
    digest = registry.push(REPOSITORY, "single", 10, 20, media_type=media_type)
    assert RegistryClient().stored(image(registry, "single")) == StoredImage(digest)


def test_each_repository_gets_its_own_token_with_pull_permission_only(registry: RegistryProgram):
    registry.push(REPOSITORY, "one", 10)
    registry.push(REPOSITORY, "two", 10)
    registry.tokens.asked.clear()
    client = RegistryClient()
    client.stored(image(registry, "one"))
    client.stored(image(registry, "two"))
    assert registry.tokens.asked == [f"repository:{REPOSITORY}:pull"]


def test_a_multi_platform_image_is_pinned_by_index_and_sized_by_the_nodes_platform(registry: RegistryProgram):
    digest = registry.push_index(REPOSITORY, "several", ARM64, AMD64, bytes_each=1000)
    asked = RegistryClient().stored(image(registry, "several"), with_size=True)
    assert asked == StoredImage(digest, 1001)


def test_an_image_index_without_the_nodes_platform_is_reported(registry: RegistryProgram):
    registry.push_index(REPOSITORY, "arm", ARM64)
    assert refusal(registry, "arm")[0] is Refusal.OTHER_PLATFORM


def test_a_query_by_digest_returns_the_pinned_image_though_its_tag_has_moved(registry: RegistryProgram):
    digest = registry.push(REPOSITORY, "moves", 10)
    registry.push(REPOSITORY, "moves", 11)
    pinned = image(registry, "moves", digest)
    assert RegistryClient().stored(pinned, by_digest=True).digest == digest
    assert RegistryClient().stored(pinned).digest != digest


def test_the_error_for_a_missing_image_tag_names_the_tag(registry: RegistryProgram):
    registry.push(REPOSITORY, "there", 10)
    kind, message = refusal(registry, "absent")
    assert (kind, message) == (Refusal.NOT_FOUND, f"{registry.address} has no {REPOSITORY}:absent.")


def test_a_repository_whose_token_permits_no_pull_counts_as_denied(registry: RegistryProgram):
    registry.push(REPOSITORY, "private", 10)
    registry.private.add(REPOSITORY)
    kind, message = refusal(registry, "private")
    assert kind is Refusal.DENIED
    assert "private, or gone" in message


def test_a_locked_image_digest_deleted_from_its_registry_is_reported_as_a_problem(registry: RegistryProgram):
    gone = registry.push(REPOSITORY, "gone", 10)
    registry.push(REPOSITORY, "gone", 11)
    registry.delete(REPOSITORY, gone)
    used = UsedImage(image(registry, "gone", gone), "vLLM", "release")
    (finding,) = registry_findings([used], SilentProgress())
    assert finding.verdict is Verdict.PROBLEM
    assert "which the registry has no more" in finding.value


def test_the_lock_file_gets_digests_of_images_and_charts_and_moved_tags_are_reported(
    registry: RegistryProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    of_image = registry.push_index(REPOSITORY, "locked", AMD64, ARM64)
    of_chart = registry.push_chart("charts/gpu", "1.0.0", b"an archive")
    chart = HelmChart(reference=f"oci://{registry.address}/charts/gpu", version="1.0.0")
    assert chart.artifact is not None
    path = tmp_path / "lock.yaml"
    path.write_text("images: {}\n")
    monkeypatch.setattr("llmd_oke.operations.registries.lock_file", lambda: path)
    monkeypatch.setattr(
        "llmd_oke.operations.registries.kit_images", lambda: (chart.artifact, image(registry, "locked"))
    )
    assert CliRunner().invoke(app, ["images", "update"]).exit_code == 0
    locked = read_yaml(path)["images"]
    assert {name: entry["digest"] for name, entry in locked.items()} == {
        f"{registry.address}/charts/gpu:1.0.0": of_chart,
        f"{registry.address}/{REPOSITORY}:locked": of_image,
    }
    assert CliRunner().invoke(app, ["images", "update", "--check"]).exit_code == 0
    registry.push(REPOSITORY, "locked", 12)
    again = CliRunner().invoke(app, ["images", "update"])
    assert (again.exit_code, f"and was {of_image}" in again.output) == (1, True)


def test_the_lock_file_has_null_and_a_reason_as_digest_of_an_unpullable_image(
    registry: RegistryProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    registry.push("own/private", "v1", 10)
    registry.private.add("own/private")
    path = tmp_path / "lock.yaml"
    path.write_text("images: {}\n")
    wanted = ContainerImage(registry=registry.address, repository="own/private", tag="v1")
    monkeypatch.setattr("llmd_oke.operations.registries.lock_file", lambda: path)
    monkeypatch.setattr("llmd_oke.operations.registries.kit_images", lambda: (wanted,))
    CliRunner().invoke(app, ["images", "update"])
    (entry,) = read_yaml(path)["images"].values()
    assert entry["digest"] is None
    assert "gives own/private to nobody who isn't signed in" in entry["reason"]


def test_a_missing_image_does_not_prevent_the_check_of_other_images_of_its_registry(registry: RegistryProgram):
    digest = registry.push(REPOSITORY, "all", 10)
    images = [image(registry, "all"), image(registry, "absent")]
    answers = query_registries(images, registries.stored_image, SilentProgress())
    missing = answers[images[1].reference]
    assert answers[images[0].reference] == StoredImage(digest, 10)
    assert isinstance(missing, RegistryError)


def chart_archive(name: str, version: str) -> bytes:
    """A chart's archive, as `helm package` makes it."""
    text = json.dumps({"apiVersion": "v2", "name": name, "version": version})
    return archive({f"{name}/Chart.yaml": text.encode()})


@pytest.fixture
def helm(tmp_path: Path, registry: RegistryProgram) -> list[str]:
    """Helm with folders of its own, signed in to the registry."""
    found = locate("helm")
    if found is None:
        pytest.skip("no helm: llmd-oke rehearse programs builds it")
    config = tmp_path / "config.json"
    account = {"auths": {registry.address: {"auth": "dTpw"}}}
    config.write_text(json.dumps(account))
    return [str(found.path), "--registry-config", str(config), "--repository-cache", str(tmp_path / "cache")]


def run(argv: list[str], folder: Path) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_helm_downloads_a_chart_by_the_locked_digest(registry: RegistryProgram, helm: list[str], tmp_path: Path):
    content = chart_archive("gpu", "1.0.1")
    digest = registry.push_chart("charts/gpu", "1.0.1", content)
    run([*helm, "pull", f"oci://{registry.address}/charts/gpu@{digest}", "--plain-http"], tmp_path)
    (pulled,) = tmp_path.glob("*.tgz")
    assert pulled.read_bytes() == content


def test_a_mirrored_chart_archive_is_checked_against_the_checksum_in_the_catalogue(
    registry: RegistryProgram, helm: list[str], tmp_path: Path
):
    content = chart_archive("gpu", "v1.5.1")
    (tmp_path / "gpu-v1.5.1.tgz").write_bytes(content)
    destination = f"oci://{registry.address}/charts.example.com"
    run([*helm, "push", "gpu-v1.5.1.tgz", destination, "--plain-http"], tmp_path)
    repository, sha256 = "https://charts.example.com", hashlib.sha256(content).hexdigest()
    chart = HelmChart(reference="gpu", version="v1.5.1", repository=repository, sha256=sha256)
    mirror = MirrorRegistry(registry.address)
    (finding,) = chart_findings([chart], SilentProgress(), mirror)
    assert finding.verdict is Verdict.FINE
    (other,) = chart_findings([chart.model_copy(update={"sha256": "1" * 64})], SilentProgress(), mirror)
    assert other.verdict is Verdict.PROBLEM
