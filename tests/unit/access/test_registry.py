"""Registries that are busy, fail, lie or have no end, as no real one does when it is asked to. What they do
otherwise is tested with a real one (`test_bed/registry`)."""

import httpx2
import pytest
from llmd_base.progress import SilentProgress
from llmd_oke.access import registry as registries
from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError, StoredImage, query_registries
from llmd_oke.catalogue.container_images import ContainerImage
from registry_for_tests import AMD64, Registry, served

REPOSITORY = "llm-d/vllm"


def image(registry: Registry, tag: str = "v1", digest: str | None = None) -> ContainerImage:
    return ContainerImage(registry=registry.address, repository=REPOSITORY, tag=tag, digest=digest)


def refusal(registry: Registry, client: RegistryClient | None = None, tag: str = "v1") -> tuple[Refusal, str]:
    with pytest.raises(RegistryError) as caught:
        (client or RegistryClient()).stored(image(registry, tag))
    return caught.value.refusal, caught.value.message


def test_without_token_authentication_a_registry_gets_one_head_request_for_an_image(registry: Registry):
    registry.wants_token = False
    registry.push(REPOSITORY, "v1", 10)
    RegistryClient().stored(image(registry))
    digest = registry.push_index(REPOSITORY, "v2", AMD64)
    assert RegistryClient().stored(image(registry, "v2", digest)) == StoredImage(digest)
    assert registry.requests == [f"HEAD /v2/{REPOSITORY}/manifests/{tag}" for tag in ("v1", "v2")]


def test_a_busy_registry_is_queried_again_after_its_retry_after_time_if_it_is_short(registry: Registry):
    digest = registry.push(REPOSITORY, "v1", 10)
    registry.busy, registry.retry_after = 2, "3"
    pauses: list[float] = []
    client = RegistryClient(pause=pauses.append)
    assert client.stored(image(registry)).digest == digest
    assert pauses == [3.0, 3.0]
    registry.busy, registry.retry_after = 1, "3600"
    kind, message = refusal(registry, client)
    assert (kind, "3600 s" in message) == (Refusal.BUSY, True)
    assert pauses == [3.0, 3.0]


def test_a_failing_registry_is_queried_three_times(registry: Registry):
    registry.push(REPOSITORY, "v1", 10)
    registry.broken = 9
    pauses: list[float] = []
    assert refusal(registry, RegistryClient(pause=pauses.append))[0] is Refusal.UNREACHABLE
    assert pauses == [2.0, 4.0]


def test_a_manifest_too_long_or_unlike_its_digest_is_unsound(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    registry.push_index(REPOSITORY, "v1", AMD64)
    with monkeypatch.context() as limited:
        limited.setattr(registries, "MAX_MANIFEST_BYTES", 100)
        assert refusal(registry)[0] is Refusal.UNSOUND
    registry.false_digest = "sha256:" + "0" * 64
    registry.repositories[REPOSITORY][registry.false_digest] = registry.repositories[REPOSITORY]["v1"]
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
