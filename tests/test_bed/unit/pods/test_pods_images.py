"""The image table."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.serving.image_pull import ImagePullArgs, daemon_set
from llmd_rehearsal.pods.images import ImageEntry, load, repository

PULL = ImagePullArgs(namespace="llm-d", image="vllm/vllm-openai-rocm:v1", shape="BM.GPU.MI300X.8", nodes=1)
TABLE = load(Path(__file__).parents[4] / "values" / "rehearsal" / "images.yaml")


def entry_of(image: str, *words: list[str] | None) -> ImageEntry:
    entry = TABLE.find(image, *words)
    assert entry
    return entry


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("envoy", "docker.io/library/envoy"),
        ("envoyproxy/envoy:distroless-v1.40.0", "docker.io/envoyproxy/envoy"),
        ("docker.io/envoyproxy/envoy@sha256:abc", "docker.io/envoyproxy/envoy"),
        ("registry.local:5000/a/b:tag@sha256:abc", "registry.local:5000/a/b"),
        ("localhost/a:1", "localhost/a"),
    ],
)
def test_an_images_repository_excludes_tag_and_digest(image: str, expected: str) -> None:
    assert repository(image) == expected


@pytest.mark.parametrize(
    ("image", "program"),
    [
        ("ghcr.io/llm-d/llm-d-inference-scheduler:v0.7.1", "epp"),
        ("registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0", "epp"),
        ("ghcr.io/llm-d/llm-d-routing-sidecar:v0.7.1", "pd-sidecar"),
        ("docker.io/envoyproxy/envoy:distroless-v1.40.0", "envoy"),
    ],
)
def test_images_of_picker_sidecar_and_envoy_run_real_programs_in_rehearsals(image: str, program: str) -> None:
    assert entry_of(image).program == program


def test_a_rehearsed_envoy_has_fewer_threads_than_its_manifest_requests() -> None:
    entry = entry_of("docker.io/envoyproxy/envoy:distroless-v1.40.0")
    words = ["envoy", "--concurrency", "8", "-c", "x"]
    assert entry.with_flags(words)[: len(words)] == ["envoy", "--concurrency", "2", "-c", "x"]
    assert "--concurrency" not in entry.with_flags(["envoy", "-c", "x"])


def test_the_table_of_programs_adds_flags_that_a_containers_command_does_not_set() -> None:
    entry = ImageEntry(repositories=("a",), program="a", path="/a", adds={"--every": "10s"})
    assert entry.with_flags(["a", "-c", "x"]) == ["a", "-c", "x", "--every", "10s"]
    assert entry.with_flags(["a", "--every=1s"]) == ["a", "--every=1s"]


PYTHON_IMAGE = "docker.io/library/python:3.12.8-slim-bookworm"
VLLM_IMAGE = "ghcr.io/llm-d/llm-d-rocm:v0.5.0"


@pytest.mark.parametrize(
    ("image", "command", "arguments", "python"),
    [
        (PYTHON_IMAGE, ["python", "-B", "/opt/gate.py"], None, "bare"),
        (PYTHON_IMAGE, None, ["/usr/local/bin/python3.12", "x.py"], "bare"),
        (PYTHON_IMAGE, None, None, "bare"),
        (VLLM_IMAGE, ["/opt/vllm/bin/python3", "-m", "bench"], None, "packages"),
        ("vllm/vllm-openai-rocm:v0.15.1", ["python"], ["/opt/smoke.py", "--model=vllm/x"], "packages"),
    ],
)
def test_only_python_in_vllm_images_has_further_packages(image: str, command: Any, arguments: Any, python: str) -> None:
    assert entry_of(image, command, arguments).python == python


@pytest.mark.parametrize(
    ("image", "command", "arguments"),
    [
        (VLLM_IMAGE, None, None),
        ("vllm/vllm-openai-rocm:v0.15.1", None, None),
        ("vllm/vllm-openai:v0.15.1", None, None),
        (VLLM_IMAGE, None, ["--model", "m"]),
        (VLLM_IMAGE, ["python", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "m"]),
        (VLLM_IMAGE, ["vllm", "serve"], ["m"]),
    ],
)
def test_servers_of_vllm_images_are_simulated_in_all_forms(image: str, command: Any, arguments: Any) -> None:
    assert entry_of(image, command, arguments).simulator == "vllm"


def test_a_pod_that_only_keeps_an_image_on_its_node_needs_no_process() -> None:
    pod = daemon_set(PULL)["spec"]["template"]["spec"]
    assert entry_of(VLLM_IMAGE, pod["containers"][0]["command"]).idle


def test_an_image_in_a_private_registry_runs_the_original_images_program() -> None:
    image = "docker.io/envoyproxy/envoy:distroless-v1.33.2"
    assert TABLE.find(f"iad.ocir.io/ai/mirror/{image}") == TABLE.find(image) is not None


def test_no_program_runs_for_an_unlisted_image_or_command() -> None:
    assert TABLE.find("ghcr.io/llm-d/llm-d-benchmark:v0.5.2") is None
    assert TABLE.find(PYTHON_IMAGE, ["sh", "-c", "true"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "images: [{repositories: [a]}]",
        "images: [{repositories: [a], program: p}]",
        "images: [{repositories: [a], program: p, path: /p, simulator: vllm}]",
        "images: [{repositories: [a], simulator: vllm, typo: 1}]",
        "images: [",
    ],
)
def test_the_error_for_an_invalid_table_of_programs_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(text)
    with pytest.raises(KitError, match=r"image table .*images\.yaml"):
        load(path)
