"""Pulls of simulated nodes with pods' image pull Secrets, from the stand-in for a private registry and a real one."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web
from lightkube.core.resource import NamespacedResourceG
from lightkube.resources.core_v1 import Pod, Secret
from llmd_rehearsal.agent_config import RegistryConfig
from llmd_rehearsal.pods.containers import StartError
from llmd_rehearsal.pods.image_pulls import ImagePuller
from llmd_rehearsal.private_registry import USER, docker_config
from llmd_rehearsal.registry import Registry
from llmd_rehearsal.watches import ObjectStore
from registry_program import RegistryProgram

PREFIX = "iad.ocir.io/namespace/mirror"
IMAGE = f"{PREFIX}/docker.io/vllm/vllm-openai-rocm:v1"


class Secrets:
    """Secrets of a cluster, by namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Secret] = {}

    def put(self, content: str, name: str = "ocir", uid: str = "1") -> None:
        data = {".dockerconfigjson": base64.b64encode(content.encode()).decode()}
        document = {"metadata": {"name": name, "namespace": "llm-d", "uid": uid}, "data": data}
        self.objects["llm-d", name] = cast("Secret", Secret.from_dict(document))

    def get(self, namespace: str, name: str) -> NamespacedResourceG | None:
        return self.objects.get((namespace, name))

    def puller(self, url: str) -> ImagePuller:
        return ImagePuller(RegistryConfig(prefix=PREFIX, url=url), cast("ObjectStore[Secret]", self))


def pod(node: str = "gpu-0", *secrets: str) -> Pod:
    spec = {"nodeName": node, "containers": [], "imagePullSecrets": [{"name": name} for name in secrets or ("ocir",)]}
    return cast("Pod", Pod.from_dict({"metadata": {"name": "server", "namespace": "llm-d"}, "spec": spec}))


class Observed:
    """Registry with accounts, image pull Secrets of pods, and a simulated node that pulls images."""

    def __init__(self, accounts: Path, secrets: Secrets, puller: ImagePuller) -> None:
        self.accounts, self.secrets, self.puller = accounts, secrets, puller

    def accept(self, *passwords: str) -> None:
        self.accounts.write_text(json.dumps({USER: passwords}))

    def sign_in(self, password: str, uid: str = "1") -> None:
        self.secrets.put(docker_config("iad.ocir.io", password), uid=uid)

    async def refused(self, asking: Pod | None = None, image: str = IMAGE) -> str:
        try:
            await self.puller.pull(asking or pod(), image)
        except StartError as error:
            return f"{error.reason}: {error}"
        return ""


@pytest.fixture
async def seen(tmp_path: Path) -> AsyncIterator[Observed]:
    """A stand-in for a registry, whose only password is `first`, which the pods' Secret has."""
    accounts, secrets = tmp_path / "accounts.json", Secrets()
    runner = web.AppRunner(Registry(accounts).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    observed = Observed(accounts, secrets, secrets.puller(f"http://{host}:{port}"))
    observed.accept("first")
    observed.sign_in("first")
    yield observed
    await runner.cleanup()


async def test_a_pod_with_the_registrys_password_in_its_secret_gets_its_image(seen: Observed) -> None:
    assert await seen.refused() == ""
    assert await seen.refused(pod("gpu-0", "absent"), "docker.io/library/python:3.12") == ""


async def test_a_pod_without_the_secret_waits_with_the_reason_and_the_name_of_its_image(seen: Observed) -> None:
    told = await seen.refused(pod("gpu-0", "absent"))
    assert told.startswith(f'ErrImagePull: failed to pull image "{IMAGE}": failed to authorize: 401')
    seen.sign_in("wrong")
    assert "401" in await seen.refused()


async def test_a_pull_secret_changed_in_place_keeps_a_nodes_images_and_pulls_others(seen: Observed) -> None:
    assert await seen.refused() == ""
    seen.accept("first", "second")
    seen.sign_in("second")
    seen.accept("second")
    assert await seen.refused() == ""
    assert await seen.refused(pod("gpu-1")) == ""


async def test_a_secret_that_is_left_as_it_was_starts_pods_on_nodes_with_the_image_alone(seen: Observed) -> None:
    assert await seen.refused() == ""
    seen.accept("second")
    assert await seen.refused() == ""
    assert "401" in await seen.refused(pod("gpu-1"))


async def test_a_secret_that_is_made_anew_with_another_password_is_asked_for_again(seen: Observed) -> None:
    assert await seen.refused() == ""
    seen.sign_in("second", uid="2")
    assert "401" in await seen.refused()
    seen.accept("second")
    assert await seen.refused() == ""


async def test_a_node_whose_disks_were_replaced_asks_the_registry_for_its_images_again(seen: Observed) -> None:
    assert await seen.refused() == ""
    seen.accept("second")
    seen.puller.forget("gpu-0")
    assert "401" in await seen.refused()


@pytest.mark.parametrize("content", ["[]", '{"auths": null}', '{"auths": {"iad.ocir.io": null}}', "1"])
async def test_a_pull_secret_without_accounts_is_no_credential(content: str, seen: Observed) -> None:
    seen.secrets.put(content)
    assert "no image pull Secret of the pod has credentials" in await seen.refused()


async def test_a_pull_secret_may_have_user_and_password_apart_and_a_url_as_its_host(seen: Observed) -> None:
    account = {"username": USER, "password": "first"}
    seen.secrets.put(json.dumps({"auths": {"https://iad.ocir.io/v1/": account}}))
    assert await seen.refused() == ""


@pytest.mark.parametrize(("secret", "is_refused"), [("ocir", False), ("absent", True)])
async def test_simulated_nodes_sign_in_at_a_real_registry_as_well(
    registry: RegistryProgram, secret: str, is_refused: bool
) -> None:
    repository = "namespace/mirror/docker.io/vllm/vllm-openai-rocm"
    registry.push(repository, "v1", 10)
    registry.private.add(repository)
    secrets = Secrets()
    secrets.put(docker_config("iad.ocir.io", "any"))
    seen = Observed(Path(), secrets, secrets.puller(f"http://{registry.address}"))
    assert bool(await seen.refused(pod("gpu-0", secret))) is is_refused
