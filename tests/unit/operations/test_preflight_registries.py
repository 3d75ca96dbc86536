"""What a look at registries finds for a stack's images, with a registry on the loopback interface."""

import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.operators import HelmChart
from llmd_oke.errors import KitError
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.preflight_registries import chart_findings, refuse_other_archives, registry_findings
from llmd_oke.planning.container_images import UsedImage
from llmd_oke.progress import SilentProgress

sys.path.insert(0, str(Path(__file__).parents[1] / "access"))
from registry_for_tests import ARM64, Registry, served

REPOSITORY = "llm-d/vllm"
ARCHIVE = b"an archive"
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
INDEX = "apiVersion: v1\nentries:\n  gpu:\n    - {version: v1, urls: [charts/gpu.tgz], digest: not-read}\n"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with served(Registry()) as running:
        yield running


def look(address: str, digest: str | None = None) -> Finding:
    image = ContainerImage(registry=address, repository=REPOSITORY, tag="v1", digest=digest)
    (finding,) = registry_findings([UsedImage(image, "vLLM", "release")], SilentProgress())
    return finding


def test_an_image_that_can_be_pulled_is_fine_with_its_digest_of_today(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    found = look(registry.address)
    assert (found.check, found.path, found.verdict) == ("pull", "release", Verdict.FINE)
    assert found.value == f"vLLM: {registry.address}/{REPOSITORY}:v1 can be pulled, {digest} today"


def test_a_locked_image_is_asked_for_as_nodes_ask(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    assert look(registry.address, digest).value.endswith("can be pulled as it is locked")
    assert any(request.endswith(digest) for request in registry.requests)


def test_a_moved_tag_is_told_and_does_not_stop_what_is_locked(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    moved = registry.push(REPOSITORY, "v1", 11)
    found = look(registry.address, digest)
    assert found.verdict is Verdict.FINE
    assert f"is {moved} now, the lock has {digest}" in found.value
    assert "Nodes pull the locked one" in found.remedy


def test_a_locked_digest_that_the_registry_lost_is_a_problem(registry: Registry):
    registry.push(REPOSITORY, "v1", 10)
    found = look(registry.address, "sha256:" + "0" * 64)
    assert found.verdict is Verdict.PROBLEM
    assert "which the registry has no more" in found.value
    assert "images update --moved" in found.remedy


def test_what_registries_refuse_is_a_problem_with_its_remedy(registry: Registry):
    assert (look(registry.address).verdict, look(registry.address).remedy) == (
        Verdict.PROBLEM,
        "A tag that the registry has.",
    )
    registry.push_index(REPOSITORY, "v1", ARM64)
    assert "linux/amd64" in look(registry.address).remedy
    registry.private.add(REPOSITORY)
    denied = look(registry.address)
    assert denied.verdict is Verdict.PROBLEM
    assert "private, or gone" in denied.value


def test_no_answer_says_nothing_of_the_image():
    with served(Registry()) as gone:
        pass
    found = look(gone.address)
    assert found.verdict is Verdict.UNKNOWN
    assert "does not answer" in found.value


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "gpu.tgz").write_bytes(ARCHIVE)
    (tmp_path / "index.yaml").write_text(INDEX)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def chart(repository: str, sha256: str | None, version: str = "v1") -> Finding:
    wanted = HelmChart(reference="gpu", version=version, repository=repository, sha256=sha256, reason="nobody asked")
    (finding,) = chart_findings([wanted], SilentProgress())
    return finding


def test_an_archive_is_held_to_the_checksum_of_the_catalogue(repository: str):
    assert chart(repository, SHA256).verdict is Verdict.FINE
    other = chart(repository, "0" * 64)
    assert (other.verdict, other.value) == (Verdict.PROBLEM, f"chart gpu v1 is {SHA256}, the catalogue has {'0' * 64}")


def test_an_update_does_not_begin_with_another_archive_than_the_catalogues(repository: str):
    def begin(sha256: str | None) -> None:
        wanted = HelmChart(reference="gpu", version="v1", repository=repository, sha256=sha256, reason="nobody asked")
        refuse_other_archives([wanted], SilentProgress())

    with pytest.raises(KitError, match=r"chart gpu v1 is .*, the catalogue has 0000"):
        begin("0" * 64)
    begin(SHA256)
    begin(None)


def test_an_archive_without_a_checksum_is_told_with_the_one_of_today(repository: str):
    unknown = chart(repository, None)
    assert (unknown.verdict, SHA256 in unknown.value) == (Verdict.UNKNOWN, True)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (INDEX.replace("v1", "v2"), "has no gpu v1"),
        ("entries: 1", "its index has another form"),
        ("a: &a [1]\nentries: {gpu: *a}", "has aliases"),
        ("[" * 100000, "gives no archive"),
        ("{", "gives no archive"),
    ],
)
def test_a_repository_that_answers_something_else_says_nothing_of_the_chart(
    repository: str, tmp_path: Path, index: str, words: str
):
    (tmp_path / "index.yaml").write_text(index)
    found = chart(repository, SHA256)
    assert (found.verdict, words in found.value) == (Verdict.UNKNOWN, True)


def test_an_unreachable_repository_is_no_problem_of_the_chart():
    assert chart("http://127.0.0.1:9", SHA256).verdict is Verdict.UNKNOWN
