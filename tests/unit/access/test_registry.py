"""Registries that are busy, fail, lie or have no end, as no real one does when it is asked to. What they do
otherwise is tested with a real one (`test_bed/registry`)."""

from collections.abc import Iterator

import httpx2
import pytest
from llmd_base.progress import SilentProgress
from llmd_oke.access import registry as registries
from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError, StoredImage, query_registries
from llmd_oke.catalogue.container_images import ContainerImage
from registry_for_tests import AMD64, Registry, served

REPOSITORY = "llm-d/vllm"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with served(Registry()) as running:
        yield running


def image(registry: Registry, tag: str = "v1", digest: str | None = None) -> ContainerImage:
    return ContainerImage(registry=registry.address, repository=REPOSITORY, tag=tag, digest=digest)


def refusal(registry: Registry, client: RegistryClient | None = None, tag: str = "v1") -> tuple[Refusal, str]:
    with pytest.raises(RegistryError) as caught:
        (client or RegistryClient()).stored(image(registry, tag))
    return caught.value.refusal, caught.value.message


def test_a_registry_without_token_authentication_is_queried_once(registry: Registry):
    registry.wants_token = False
    registry.push(REPOSITORY, "v1", 10)
    RegistryClient().stored(image(registry))
    assert registry.requests == [f"HEAD /v2/{REPOSITORY}/manifests/v1"]


def test_an_unchanged_image_tag_is_verified_by_a_head_request_alone(registry: Registry):
    registry.wants_token = False
    digest = registry.push_index(REPOSITORY, "v1", AMD64)
    assert RegistryClient().stored(image(registry, digest=digest)) == StoredImage(digest)
    assert registry.requests == [f"HEAD /v2/{REPOSITORY}/manifests/v1"]


def test_a_busy_registry_is_queried_again_after_its_retry_after_time(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    registry.busy, registry.retry_after = 2, "3"
    pauses: list[float] = []
    assert RegistryClient(pause=pauses.append).stored(image(registry)).digest == digest
    assert pauses == [3.0, 3.0]


def test_a_registry_with_a_long_retry_after_time_is_not_waited_for(registry: Registry):
    registry.push(REPOSITORY, "v1", 10)
    registry.busy, registry.retry_after = 1, "3600"
    pauses: list[float] = []
    kind, message = refusal(registry, RegistryClient(pause=pauses.append))
    assert kind is Refusal.BUSY
    assert "3600 s" in message
    assert not pauses


def test_a_failing_registry_is_queried_three_times(registry: Registry):
    registry.push(REPOSITORY, "v1", 10)
    registry.broken = 9
    pauses: list[float] = []
    assert refusal(registry, RegistryClient(pause=pauses.append))[0] is Refusal.UNREACHABLE
    assert pauses == [2.0, 4.0]


def test_a_registry_that_does_not_run_is_reported_as_unreachable():
    with served(Registry()) as gone:
        pass
    assert refusal(gone)[0] is Refusal.UNREACHABLE


def test_an_image_manifest_that_does_not_match_its_digest_is_unsound(registry: Registry):
    registry.push_index(REPOSITORY, "v1", AMD64)
    registry.false_digest = "sha256:" + "0" * 64
    registry.repositories[REPOSITORY][registry.false_digest] = registry.repositories[REPOSITORY]["v1"]
    assert refusal(registry)[0] is Refusal.UNSOUND


def test_a_registry_response_beyond_the_size_limit_is_unsound(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    registry.push_index(REPOSITORY, "v1", AMD64)
    monkeypatch.setattr(registries, "MAX_MANIFEST_BYTES", 100)
    assert refusal(registry)[0] is Refusal.UNSOUND


def test_remote_registries_are_queried_over_https_and_docker_hub_at_its_own_address():
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(404)

    client = RegistryClient(httpx2.Client(transport=httpx2.MockTransport(answer)))
    with pytest.raises(RegistryError):
        client.stored(ContainerImage(registry="docker.io", repository="library/python", tag="3.12"))
    assert asked == ["https://registry-1.docker.io/v2/library/python/manifests/3.12"]


def test_registry_tokens_are_not_requested_over_plain_http_from_remote_hosts():
    challenge = {"www-authenticate": 'Bearer realm="http://example.com/token"'}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(401, headers=challenge))
    with pytest.raises(RegistryError) as caught:
        RegistryClient(httpx2.Client(transport=transport)).stored(
            ContainerImage(registry="example.com", repository="a/b", tag="v1")
        )
    assert caught.value.refusal is Refusal.UNSOUND


def test_several_registries_are_queried_and_each_image_gets_its_own_answer(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    with served(Registry()) as other:
        other_digest = other.push(REPOSITORY, "v1", 30)
        images = [image(registry), image(registry, "v2"), image(other)]
        answers = query_registries(images, registries.stored_image, SilentProgress())
    assert answers[images[0].reference] == StoredImage(digest, 10)
    missing = answers[images[1].reference]
    assert isinstance(missing, RegistryError)
    assert missing.refusal is Refusal.NOT_FOUND
    assert answers[images[2].reference] == StoredImage(other_digest, 30)
