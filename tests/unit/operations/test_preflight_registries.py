"""What a look at registries finds for a stack's images, with a registry on the loopback interface."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.preflight_registries import registry_findings
from llmd_oke.planning.container_images import UsedImage
from llmd_oke.progress import SilentProgress

sys.path.insert(0, str(Path(__file__).parents[1] / "access"))
from registry_for_tests import ARM64, Registry, served

REPOSITORY = "llm-d/vllm"


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
