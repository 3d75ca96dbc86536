"""References of container images, and the lock of their digests."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from llmd_oke.catalogue import container_images, operators
from llmd_oke.catalogue.container_images import ContainerImage, Lock, LockedDigest, lock, locked_image, parse_reference
from llmd_oke.planning.container_images import kit_images
from llmd_oke.values import names, read_yaml, values_folder
from pydantic import ValidationError

NAME = "ghcr.io/llm-d/llm-d-rocm:v0.6.0"
DIGEST = "sha256:" + "0a" * 32
MEASURED_OR_REHEARSED = ("latency", "tuning", "rehearsal", "container-images")
"""Folders that say what was measured once, or what stands for which image, and deploy nothing."""


def test_an_image_without_a_digest_is_requested_by_tag():
    assert parse_reference(NAME).pinned == parse_reference(NAME).reference == NAME


def test_a_locked_image_is_requested_by_tag_and_digest_which_no_other_may_contradict(monkeypatch: pytest.MonkeyPatch):
    entry = LockedDigest(digest=DIGEST, source="a test")
    monkeypatch.setattr(container_images, "lock", lambda: Lock(images={NAME: entry}))
    image = locked_image(NAME)
    assert (image.reference, image.pinned) == (NAME, f"{NAME}@{DIGEST}")
    assert locked_image(f"{NAME}@{DIGEST}") == image
    other = "sha256:" + "0b" * 32
    with pytest.raises(ValueError, match=f"locked as {DIGEST}, not as {other}"):
        locked_image(f"{NAME}@{other}")
    outside = f"example.com/team/vllm:1@{other}"
    assert locked_image(outside).pinned == outside


@pytest.mark.parametrize("registry", ["ghcr.io", "localhost:5000", "127.0.0.1:5000", "registry:5000", "localhost"])
def test_an_image_reference_is_parsed_into_registry_repository_and_tag(registry: str):
    image = parse_reference(f"{registry}/llm-d/x:v1")
    assert (image.registry, image.repository, image.tag) == (registry, "llm-d/x", "v1")


@pytest.mark.parametrize(
    "text",
    [
        "python:3.12",  # of which registry?
        "vllm/vllm-openai:v1",
        "ghcr.io/llm-d/x",  # which tag?
        f"ghcr.io/llm-d/x@{DIGEST}",
        "ghcr.io/llm-d/X:v1",
        "ghcr.io/llm-d/x:v1@sha256:short",
        f"ghcr.io/llm-d/x:v1@{DIGEST}0",
        "ghcr.io/llm-d/x:v1 ",
        "",
    ],
)
def test_an_incomplete_image_reference_is_refused_with_the_right_form(text: str):
    with pytest.raises(ValueError, match="registry/repository:tag"):
        parse_reference(text)


def test_the_image_lock_has_exactly_the_images_of_the_catalogue():
    assert list(lock().images) == [image.reference for image in kit_images()]


def test_every_image_in_values_is_listed_in_the_catalogue():
    charts = {chart.reference for name in names("operators") if (chart := _chart(name))}
    known = {image.reference for image in kit_images()}
    assert set(_references()) == known - charts
    assert charts <= known


def _chart(name: str) -> ContainerImage | None:
    entry = read_yaml(values_folder() / "operators" / f"{name}.yaml")
    return operators.operator(name).chart.artifact if "chart" in entry else None


def test_no_image_tag_is_written_in_python_code():
    root = values_folder().parent
    sources = [path.read_text() for folder in ("components", "packages") for path in (root / folder).rglob("*.py")]
    known = [image.reference.rpartition(":")[0] for image in kit_images()]
    named = [name for source in sources for name in known if re.search(re.escape(name) + ":[a-z0-9]", source)]
    assert not named


def test_an_image_lock_entry_has_a_digest_with_source_or_null_with_a_reason():
    for entry in lock().images.values():
        assert entry.source if entry.digest else entry.reason
    for wrong in ({"digest": DIGEST}, {"digest": None}, {"digest": "sha256:1", "source": "a test"}):
        with pytest.raises(ValidationError):
            LockedDigest.model_validate(wrong)


def _references() -> Iterator[str]:
    for path in values_folder().rglob("*.yaml"):
        if path.relative_to(values_folder()).parts[0] not in MEASURED_OR_REHEARSED:
            yield from filter(_is_reference, _texts(read_yaml(path)))
    for name in ("envoy", "jobs"):
        yield from _texts(read_yaml(values_folder() / "container-images" / f"{name}.yaml"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _is_reference(text: str) -> bool:
    try:
        return bool(parse_reference(text))
    except ValueError:
        return False
