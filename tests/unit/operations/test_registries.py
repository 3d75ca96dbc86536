import hashlib
from collections.abc import Iterator
from datetime import date

import pytest
from file_server import FileServer, running_file_server
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.access.registry import Answers, Refusal, RegistryError, StoredImage
from llmd_oke.catalogue.container_images import ContainerImage, parse_reference
from llmd_oke.catalogue.operators import HelmChart
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.registries import (
    LockUpdate,
    chart_findings,
    lock_update,
    refuse_other_archives,
    registry_findings,
)
from llmd_oke.planning.container_images import UsedImage
from registry_for_tests import ARM64, Registry, served

REPOSITORY = "llm-d/vllm"
ARCHIVE = b"an archive"
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
INDEX = "apiVersion: v1\nentries:\n  gpu:\n    - {version: v1, urls: [charts/gpu.tgz], digest: not-read}\n"


def look(address: str, digest: str | None = None) -> Finding:
    image = ContainerImage(registry=address, repository=REPOSITORY, tag="v1", digest=digest)
    (finding,) = registry_findings([UsedImage(image, "vLLM", "release")], SilentProgress())
    return finding


def test_an_image_that_can_be_pulled_passes_with_its_current_or_locked_digest(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    finding = look(registry.address)
    assert (finding.check, finding.path, finding.verdict) == ("pull", "release", Verdict.FINE)
    assert finding.value == f"vLLM: {registry.address}/{REPOSITORY}:v1 can be pulled, {digest} today"
    assert not any(request.endswith(digest) for request in registry.requests)
    assert look(registry.address, digest).value.endswith("can be pulled as it is locked")
    assert any(request.endswith(digest) for request in registry.requests)


def test_an_image_tag_that_moved_is_reported_but_passes_if_its_digest_is_locked(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    moved = registry.push(REPOSITORY, "v1", 11)
    finding = look(registry.address, digest)
    assert finding.verdict is Verdict.FINE
    assert f"is {moved} now, the lock has {digest}" in finding.value
    assert "Nodes pull the locked one" in finding.remedy


def test_a_locked_digest_that_the_registry_lost_is_a_problem(registry: Registry):
    registry.push(REPOSITORY, "v1", 10)
    finding = look(registry.address, "sha256:" + "0" * 64)
    assert finding.verdict is Verdict.PROBLEM
    assert "which the registry has no more" in finding.value
    assert "images update --moved" in finding.remedy


def test_an_image_that_a_registry_refuses_is_a_problem_with_a_remedy(registry: Registry):
    missing = look(registry.address)
    assert (missing.verdict, missing.remedy) == (Verdict.PROBLEM, "A tag that the registry has.")
    registry.push_index(REPOSITORY, "v1", ARM64)
    assert "linux/amd64" in look(registry.address).remedy
    registry.private.add(REPOSITORY)
    denied = look(registry.address)
    assert denied.verdict is Verdict.PROBLEM
    assert "private, or gone" in denied.value


@pytest.fixture
def repository() -> Iterator[FileServer]:
    with running_file_server() as server:
        server.files = {"/charts/gpu.tgz": ARCHIVE, "/index.yaml": INDEX.encode()}
        yield server


def wanted(repository: str, sha256: str | None) -> HelmChart:
    return HelmChart(reference="gpu", version="v1", repository=repository, sha256=sha256, reason="nobody asked")


def chart(repository: str, sha256: str | None) -> Finding:
    (finding,) = chart_findings([wanted(repository, sha256)], SilentProgress())
    return finding


def test_a_chart_archive_is_compared_with_the_catalogues_checksum(repository: FileServer):
    assert chart(repository.address, SHA256).verdict is Verdict.FINE
    other = chart(repository.address, "0" * 64)
    assert (other.verdict, other.value) == (Verdict.PROBLEM, f"chart gpu v1 is {SHA256}, the catalogue has {'0' * 64}")
    unknown = chart(repository.address, None)
    assert (unknown.verdict, SHA256 in unknown.value) == (Verdict.UNKNOWN, True)


def test_an_update_with_a_chart_archive_of_another_checksum_is_refused(repository: FileServer):
    other, same, unknown = (wanted(repository.address, sha256) for sha256 in ("0" * 64, SHA256, None))
    with pytest.raises(KitError, match=r"chart gpu v1 is .*, the catalogue has 0000"):
        refuse_other_archives([other], SilentProgress())
    refuse_other_archives([same, unknown], SilentProgress())


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
def test_the_check_of_a_chart_is_unknown_after_an_unexpected_answer(repository: FileServer, index: str, words: str):
    repository.files["/index.yaml"] = index.encode()
    finding = chart(repository.address, SHA256)
    assert (finding.verdict, words in finding.value) == (Verdict.UNKNOWN, True)


def test_the_check_of_an_image_or_a_chart_is_unknown_if_nobody_answers():
    with served(Registry()) as gone:
        pass
    finding = look(gone.address)
    assert finding.verdict is Verdict.UNKNOWN
    assert "does not answer" in finding.value
    assert chart("http://127.0.0.1:9", SHA256).verdict is Verdict.UNKNOWN


ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")
A, B = "ghcr.io/llm-d/a:v1", "ghcr.io/llm-d/b:v1"
LOCK = f"""\
# What this file is.
images:
  {A}:
    digest: null
    reason: its registry was not asked
  # B is special.
  {B}:
    digest: {TWO}
    source: a published comparison
"""
TODAY = date(2026, 11, 21)


def images(*references: str) -> list[ContainerImage]:
    return [parse_reference(reference) for reference in references]


def after(answers: Answers, *references: str, take_moved: bool = False) -> LockUpdate:
    return lock_update(LOCK, images(*(references or (A, B))), answers, TODAY, take_moved=take_moved)


@pytest.mark.parametrize("reason", ["its registry was not asked", "the package was removed\n    gone: true"])
def test_locking_a_digest_removes_the_reason_for_its_absence_and_keeps_comments(reason: str):
    lock = LOCK.replace("its registry was not asked", reason)
    update = lock_update(lock, images(A, B), {A: StoredImage(ONE, 1234), B: StoredImage(TWO)}, TODAY)
    locked = f"digest: {ONE}\n    source: ghcr.io, 2026-11-21\n    download_bytes: 1234"
    assert update.text == LOCK.replace("digest: null\n    reason: its registry was not asked", locked)
    assert (update.moved, update.unanswered) == ({}, {})


def test_the_new_digest_of_a_moved_image_tag_is_locked_only_on_request():
    answers = {A: StoredImage(ONE), B: StoredImage(THREE)}
    kept = after(answers)
    assert kept.moved == {B: (TWO, THREE)}
    assert f"digest: {TWO}" in kept.text
    taken = after(answers, take_moved=True)
    assert not taken.moved
    assert f"digest: {THREE}\n    source: ghcr.io, 2026-11-21" in taken.text


def test_a_locked_digest_stays_unless_its_registry_says_that_the_image_is_missing():
    gone = RegistryError(Refusal.UNREACHABLE, "ghcr.io does not answer.")
    update = after({A: gone, B: gone})
    assert update.text == LOCK
    assert update.unanswered == {A: gone.message, B: gone.message}
    missing = RegistryError(Refusal.NOT_FOUND, "ghcr.io has no llm-d/a:v1.")
    update = after({A: missing, B: RegistryError(Refusal.DENIED, "private, or gone")})
    assert "digest: null\n    reason: ghcr.io has no llm-d/a:v1." in update.text
    assert f"digest: {TWO}" in update.text
    assert update.unanswered == {B: "private, or gone"}


def test_the_image_lock_gets_new_images_in_order_loses_unused_ones_and_then_stays():
    new = "ghcr.io/llm-d/aa:v1"
    update = after({A: StoredImage(ONE), new: StoredImage(THREE)}, A, new)
    assert update.text.index(A) < update.text.index(new)
    assert f"  {new}:\n    digest: {THREE}\n    source: ghcr.io, 2026-11-21\n" in update.text
    assert B not in update.text
    answers = {A: RegistryError(Refusal.NOT_FOUND, "ghcr.io has no llm-d/a:v1."), B: StoredImage(TWO, 7)}
    once = after(answers).text
    assert lock_update(once, images(A, B), answers, date(2027, 1, 1)).text == once


def of_repository(sha256: str) -> HelmChart:
    return HelmChart(reference="gpu", version="v1", repository="https://charts.example.com", sha256=sha256)


def test_a_copied_chart_archive_must_be_there_and_have_the_catalogues_checksum(registry: Registry):
    (finding,) = chart_findings([of_repository("0" * 64)], SilentProgress(), MirrorRegistry(registry.address))
    assert (finding.verdict, "charts.example.com/gpu:v1" in finding.value) == (Verdict.PROBLEM, True)
    registry.push("charts.example.com/gpu", "v1", 10)  # the layer's digest is 64 zeros
    mirror = MirrorRegistry(registry.address)
    (fine,) = chart_findings([of_repository("0" * 64)], SilentProgress(), mirror)
    assert (fine.verdict, fine.path) == (Verdict.FINE, "gpuStack")
    refuse_other_archives([of_repository("0" * 64)], SilentProgress(), mirror)
    (other,) = chart_findings([of_repository("1" * 64)], SilentProgress(), mirror)
    assert other.verdict is Verdict.PROBLEM
    assert "images copy-list" in other.remedy
    with pytest.raises(KitError, match="the catalogue sha256:1111"):
        refuse_other_archives([of_repository("1" * 64)], SilentProgress(), mirror)
