"""Secrets that a stack is given stand in secret inputs, and nowhere else: planted, and searched for everywhere."""

import json
from typing import Any

import pytest
import yaml
from created_cluster import cluster_layer, created
from llmd_base.errors import InvalidStack, KitError
from llmd_oke import planning
from llmd_oke.config import validate
from llmd_oke.testing import Rendered

ROCM = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-AMD-ROCM-724-2026.07.13-0"
IMPORT = {"name": ROCM, "checksum": "md5:" + "a" * 32}
LINK = "https://objectstorage.us-ashburn-1.oraclecloud.com/p/planted-image-link/n/ns/b/images/o/image.oci"
SECRETS = {
    "huggingFaceToken": "hf_planted_token",
    "modelSourceUrl": "https://objectstorage.us-ashburn-1.oraclecloud.com/p/planted-source/n/ns/b/models/o/",
    "imageLinks": json.dumps({"mi300x": LINK}),
}
PLANTED = ("planted-image-link", "planted-source", "hf_planted_token")


def whole(rendered: Any, source: str | None = "object-storage") -> Rendered:
    """A stack with all of these secrets, and with weights on nodes' disks if they have a source."""
    cache = {"modelCache": {"kind": "node-disk", "path": "/mnt/nvme/models"}, "prewarm": {"source": source}}
    storage = cache if source else {"modelCache": {"kind": "none"}}
    return rendered(created(pool={"image": {"import": IMPORT}}, storage=storage), **SECRETS)


def places(value: Any, text: str, path: str = "") -> list[str]:
    """Return where a text stands in inputs, by path."""
    if isinstance(value, dict):
        return [
            matches for key, part in value.items() for matches in places(part, text, f"{path}.{key}".removeprefix("."))
        ]
    if isinstance(value, list):
        return [matches for i, part in enumerate(value) for matches in places(part, text, f"{path}[{i}]")]
    return [path] if text in str(value) else []


def test_planted_secrets_occur_only_in_secret_inputs(rendered: Any):
    stack = whole(rendered)
    seen = set()
    for resource in stack.resources:
        for text in PLANTED:
            for place in places(resource.inputs, text):
                seen.add(text)
                assert any(place.startswith(secret) for secret in resource.secret_inputs), f"{resource.name}: {place}"
            assert text not in json.dumps([resource.name, resource.urn, *resource.ignore_changes])
    assert seen == set(PLANTED)
    assert not [text for text in PLANTED if text in json.dumps(stack.outputs, default=str)]


def test_the_link_of_an_imported_image_is_secret_in_the_resources_outputs_too(rendered: Any):
    for image in whole(rendered).of_type("oci:Core/image:Image"):
        assert image.secret_inputs == {"imageSourceDetails"}
        assert image.additional_secret_outputs == ("imageSourceDetails",)


def test_no_planted_secret_occurs_in_a_kubernetes_object_other_than_a_secret(rendered: Any):
    for manifest in whole(rendered).manifests():
        if manifest["kind"] != "Secret":
            assert not [text for text in PLANTED if places(manifest, text)], manifest["metadata"]["name"]


@pytest.mark.parametrize("source", ["object-storage", "hugging-face"])
def test_a_server_with_pre_warmed_weights_is_offline_and_has_no_hugging_face_token(rendered: Any, source: str):
    deployments = [m for m in whole(rendered, source).manifests() if m["kind"] == "Deployment"]
    servers = [
        container
        for manifest in deployments
        for container in manifest["spec"]["template"]["spec"]["containers"]
        if {"name": "HF_HUB_OFFLINE", "value": "1"} in container.get("env", [])
    ]
    assert len(servers) == 2
    assert not [container for container in servers if "HF_TOKEN" in {item["name"] for item in container["env"]}]


@pytest.mark.parametrize(
    ("source", "holders"), [("object-storage", set()), ("hugging-face", {"prewarm"}), (None, {"vllm"})]
)
def test_only_containers_that_download_from_hugging_face_get_the_token(
    rendered: Any, source: str | None, holders: set[str]
):
    texts: set[str] = set()
    containers: dict[str, bool] = {}
    for manifest in whole(rendered, source).manifests():
        spec = manifest.get("spec", {}).get("template", {}).get("spec", {})
        for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
            named = [item["valueFrom"] for item in container.get("env", ()) if item["name"] == "HF_TOKEN"]
            containers[container["name"]] = bool(named)
            texts |= {word for word in [*container.get("command", ()), *container.get("args", ())] if "$(" in word}
    assert {name for name, holds in containers.items() if holds} == holders
    assert {"vllm", "routing-proxy"} <= set(containers)
    assert not [text for text in texts if "TOKEN" in text or "SOURCE" in text]


@pytest.mark.parametrize(
    "uri", [LINK, "https://user:planted@host/image", "https://host/i?X-Amz-Signature=planted", "https://host/i#planted"]
)
def test_a_secret_image_link_in_the_stack_file_is_refused_without_being_shown(uri: str):
    config = cluster_layer(pool={"image": {"import": {**IMPORT, "uri": uri}}})
    with pytest.raises(InvalidStack) as caught:
        planning.plan(validate(config))
    (problem,) = [item for item in caught.value.problems if item.path == "gpuPools[0].image.import.uri"]
    assert "llmd-oke:imageLinks.mi300x" in problem.accepted
    assert "planted" not in str(caught.value) + repr(caught.value.problems)


def test_a_public_image_link_may_be_in_the_stack_file(rendered: Any):
    stack = rendered(cluster_layer(pool={"image": {"import": {**IMPORT, "uri": "https://objects/public.oci"}}}))
    (image,) = stack.of_type("oci:Core/image:Image")
    assert image.inputs["imageSourceDetails"]["sourceUri"] == "https://objects/public.oci"


@pytest.mark.parametrize("links", [None, "{}", "[]", '{"mi300x": 1}', '{"mi300x": "http://planted"}', "planted"])
def test_an_imported_image_without_a_link_is_refused_with_the_command_that_sets_one(rendered: Any, links: str | None):
    secrets = {} if links is None else {"imageLinks": links}
    with pytest.raises(KitError, match="llmd-oke:imageLinks") as caught:
        rendered(cluster_layer(pool={"image": {"import": IMPORT}}), **secrets)
    assert "planted" not in str(caught.value)


def test_stack_file_and_plan_do_not_contain_the_secret_link_of_an_imported_image():
    config = validate(created(pool={"image": {"import": IMPORT}}))
    assert "planted" not in yaml.safe_dump(config.model_dump(mode="json", by_alias=True)) + repr(planning.plan(config))
