from typing import Any

import pytest
from created_stacks import validated
from llmd_oke import planning
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.planning.container_images import (
    UsedImage,
    chart_archives,
    images_of,
    kit_images,
    project_images,
    tag_only_sentence,
    unchecked_archives_sentence,
)
from stack_files import model, plan, problems

NODE_DISK = {"modelCache": {"kind": "node-disk"}}


def used(*models: dict[str, Any], **changes: Any) -> list[str]:
    return [image.used_by for image in images_of(plan(*models, **changes))]


@pytest.mark.parametrize(
    ("served", "nodes", "further"),
    [
        (model("8p-tp1-4d-tp2"), 2, ["endpoint picker", "Envoy", "routing sidecar"]),
        (model("agg-tp1-8r"), 1, ["endpoint picker", "Envoy"]),
        (model("agg-tp1-8r", router={"mode": "none"}), 1, []),
    ],
)
def test_models_need_images_of_their_vllm_router_and_routing_sidecar(
    served: dict[str, Any], nodes: int, further: list[str]
):
    assert used(served, nodes=nodes) == ["image pull", "vLLM", *further]


def test_a_pre_warmed_model_cache_adds_the_pre_warm_image_to_the_pulled_images():
    assert "pre-warm" in used(model("agg-tp1-8r"), nodes=1, storage=NODE_DISK)
    assert "pre-warm" not in used(model("agg-tp1-8r"), nodes=1, storage={**NODE_DISK, "prewarm": {"source": "none"}})


def test_images_of_node_gate_and_operators_are_listed_once_for_a_created_cluster():
    images = images_of(planning.plan(validated(stack_changes={"storage": NODE_DISK})))
    names = [image.used_by for image in images]
    assert names[0] == "gate"
    assert sum("amd-gpu-operator" in name for name in names) == 5
    assert "cert-manager (chart)" in names
    references = [image.image.reference for image in images]
    assert len(set(references)) == len(references)


@pytest.mark.parametrize(("owner", "installed"), [("install", True), ("existing", False)])
def test_images_of_the_group_controller_are_listed_if_the_stack_installs_it(owner: str, installed: bool):
    assert ("leader-worker-set (chart)" in used(leaderWorkerSets=owner)) is installed


def test_a_projects_image_lock_needs_exactly_the_kits_images_without_a_digest():
    assert project_images() == tuple(image for image in kit_images() if image.digest is None)


def test_every_helm_chart_from_a_chart_repository_has_a_pinned_checksum():
    charts = chart_archives(planning.plan(validated(stack_changes={"monitoring": "install"})))
    assert [chart.reference for chart in charts] == ["gpu-operator-charts", "kube-prometheus-stack"]
    assert unchecked_archives_sentence(charts) is None


def test_check_reports_a_chart_without_a_checksum_and_the_reason():
    (chart,) = chart_archives(planning.plan(validated()))
    unknown = chart.model_copy(update={"sha256": None, "reason": "nobody asked"})
    assert unchecked_archives_sentence((unknown,)) == (
        "no checksum is known of gpu-operator-charts v1.5.1 of https://rocm.github.io/gpu-operator (nobody asked): "
        "`llmd-oke preflight` says what there is today"
    )


def test_an_image_set_in_the_stack_file_is_listed_with_the_key_that_sets_it():
    mine = f"example.com/team/vllm:1@sha256:{'0' * 64}"
    created = planning.plan(validated(stack_changes={"override": {"vllmImage": mine}}))
    for planned in (plan(nodes=2, override={"vllmImage": mine}), created):
        assert [image.path for image in images_of(planned) if image.image.pinned == mine] == ["override.vllmImage"]


def test_an_image_that_acceptance_takes_from_the_release_is_listed_with_that_key():
    images = images_of(planning.plan(validated(stack_changes={"override": {"quickReduce": "INT4"}})))
    assert [image.path for image in images if image.used_by == "vLLM"] == ["release"]


@pytest.mark.parametrize("digest", ["sha256:1", f"sha256:{'0' * 64}"])
def test_a_malformed_or_contradicting_digest_is_refused_with_its_key(digest: str):
    pinned = next(image for image in kit_images() if image.digest)
    (problem,) = problems(model("agg-tp1-8r"), nodes=1, override={"proxyImage": f"{pinned.reference}@{digest}"})
    assert problem.path == "override.proxyImage"


def test_check_counts_images_without_a_digest_in_one_sentence():
    by_tag = UsedImage(ContainerImage(registry="ghcr.io", repository="a/b", tag="v1"), "x", "release")
    pinned = UsedImage(by_tag.image.model_copy(update={"digest": "sha256:" + "0" * 64}), "y", "release")
    assert (tag_only_sentence((by_tag, pinned)) or "").startswith("1 of 2 container images and charts are named by tag")
    assert tag_only_sentence((pinned,)) is None
