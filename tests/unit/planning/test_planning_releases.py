"""Releases, overrides and the profiles of routers."""

from collections.abc import Sequence

import pytest
from llmd_oke import planning
from llmd_oke.catalogue.container_images import lock
from llmd_oke.errors import Problem, Refused
from stacks_for_tests import model, plan, problems, stack

EQUAL = "4p-tp2-4d-tp2"
"""Which every release can serve: KV cache of older ones can't be split by heads."""


def texts(*models: dict[str, object], **changes: object) -> list[str]:
    return [f"{advice.path}: {advice.text}" for advice in plan(*models, **changes).advice]


@pytest.mark.parametrize(("former", "name"), [("llm-d-0.7", "llm-d-0.6.0"), ("llm-d-0.8", "llm-d-0.7.0")])
def test_a_former_name_is_refused_with_the_name_that_it_has_now_and_one_that_can_be_pulled(former: str, name: str):
    (problem,) = problems(release=former)
    assert (problem.path, problem.accepted) == ("release", f"{name}, or llm-d-0.9.0, whose images can be pulled")
    assert f"what was called {former}" in problem.why


MIRRORED = {"endpointPickerImage": "registry.mine/llm-d-inference-scheduler:v0.8.0"}
GONE = {"endpointPickerImage": "ghcr.io/llm-d/llm-d-inference-scheduler:v0.8.0"}


@pytest.mark.parametrize(
    ("release", "override", "router", "paths"),
    [
        ("llm-d-0.9.0", {}, {}, []),
        ("llm-d-0.7.0", {}, {}, ["release"]),
        ("llm-d-0.7.0", {"router": "llm-d-0.9.0"}, {}, []),
        ("llm-d-0.7.0", MIRRORED, {}, []),
        ("llm-d-0.7.0", GONE, {}, ["override.endpointPickerImage"]),
        ("llm-d-0.9.0", {"router": "llm-d-0.6.0"}, {}, ["override.router"]),
        ("llm-d-0.7.0", {}, {"mode": "none"}, []),
    ],
)
def test_images_that_are_gone_are_refused_where_nodes_pull_them(
    release: str, override: dict[str, str], router: dict[str, str], paths: list[str]
):
    served = model("4p-tp2-4d-tp2" if not router else "agg-tp1-1r", router=router)
    value = stack(served, release=release, **({"override": override} if override else {}))
    assert [problem.path for problem in refused(value)] == paths
    for problem in refused(value):
        assert problem.accepted == "llm-d-0.9.0, or override.endpointPickerImage with a copy that nodes can pull"
        assert "llm-d-inference-scheduler" in problem.why
        assert "was removed from its registry" in problem.why
    assert planning.plan_object(value)


def refused(value: object) -> Sequence[Problem]:
    try:
        planning.plan_object(value, nodes_pull=True)
    except Refused as refusal:
        return refusal.problems
    return ()


def test_a_rehearsal_of_what_nodes_can_not_pull_says_so():
    assert any("was removed from its registry" in text for text in texts(model(EQUAL), release="llm-d-0.7.0"))
    assert not any("registry" in text for text in texts(release="llm-d-0.9.0"))


def test_known_limits_are_told_where_they_matter():
    told = texts(model(EQUAL), release="llm-d-0.7.0")
    assert any("/v1/responses are never prefilled remotely" in text for text in told)
    aggregated = texts(model("agg-tp1-1r"), release="llm-d-0.7.0")
    assert not any("prefilled remotely" in text for text in aggregated)
    llama = model(EQUAL, model="llama-3.3-70b-instruct-fp8-dynamic")
    assert not any("/v1/responses" in text for text in texts(llama, release="llm-d-0.7.0"))


@pytest.mark.parametrize(
    ("shared", "release", "profile"),
    [
        (0, "llm-d-0.9.0", "token-load"),
        (0, "llm-d-0.7.0", "running-requests"),
        (1023, "llm-d-0.9.0", "token-load"),
        (1024, "llm-d-0.9.0", "prefix"),
        (4096, "llm-d-0.7.0", "prefix"),
    ],
)
def test_the_profile_follows_the_workload_and_what_the_release_can(shared: int, release: str, profile: str):
    workload = {"inputTokens": 4096, "outputTokens": 256, "sharedPrefixTokens": shared}
    assert plan(model(EQUAL, workload=workload), release=release).models[0].profile == profile


def test_a_profile_that_is_asked_for_is_used_or_refused():
    asked = model(EQUAL, router={"profile": "token-load"})
    assert plan(asked).models[0].profile == "token-load"
    (problem,) = problems(asked, release="llm-d-0.7.0")
    assert (problem.path, problem.accepted) == (
        "models[0].router.profile",
        "one of prefix, running-requests, or a later release",
    )


def test_the_router_of_another_release_takes_the_nearest_profile():
    with_older = plan(model(router={"profile": "token-load"}), override={"router": "llm-d-0.6.0"})
    assert with_older.models[0].profile == "running-requests"
    assert with_older.release.name == "llm-d-0.9.0"
    assert with_older.release.endpoint_picker.image.tag == "v0.7.1"
    told = [advice.text for advice in with_older.advice if advice.path == "models[0].router.profile"]
    assert told == ["endpoint picker v0.7.1 has no scorers for token-load: running-requests is used"]


def test_overrides_are_shown_by_every_plan():
    told = texts(override={"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.27.1", "quickReduce": "INT4"})
    assert any("vllm image docker.io/vllm/vllm-openai-rocm:v0.27.1 is not what llm-d-0.9.0" in text for text in told)
    assert any("override.quickReduce" in text and "llmd-oke eval" in text for text in told)


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ({"router": "llm-d-0.8"}, "override.router"),
        ({"vllmImage": "vllm-openai-rocm"}, "override.vllmImage"),
        ({"vllmImage": "docker.io/vllm/vllm-openai-rocm"}, "override.vllmImage"),
        ({"proxyImage": "docker.io/envoyproxy/envoy@sha256:abc"}, "override.proxyImage"),
        ({"attentionBackend": "ROCM_AITER_UNIFIED_ATTN"}, "override.attentionBackend"),
    ],
)
def test_overrides_that_name_nothing_that_would_start_are_refused(override: dict[str, str], path: str):
    assert [problem.path for problem in problems(override=override)] == [path]


@pytest.mark.parametrize(
    "override",
    [
        {"endpointPickerImage": "ghcr.io/llm-d/llm-d-inference-scheduler:v0.8.0"},
        {"routingSidecarImage": "registry.mine/llm-d-routing-sidecar:v0.8.0"},
    ],
)
def test_a_picker_or_sidecar_of_another_release_comes_with_its_router(override: dict[str, str]):
    (problem,) = problems(override=override)
    assert problem.path == f"override.{next(iter(override))}"
    assert problem.accepted == "override.router: llm-d-0.7.0"
    assert problems(override={**override, "router": "llm-d-0.7.0"}) == []
    assert problems(model(EQUAL), release="llm-d-0.7.0", override=override) == []


def test_an_image_that_its_own_release_does_without_is_told():
    told = texts(override={"vllmImage": "registry.mine/llm-d-rocm:v0.9.0"})
    assert any("llm-d-0.9.0 does without it: it crash-looped" in text for text in told)


def test_a_digest_that_is_not_the_locks_is_refused_with_the_locks_own():
    image = "docker.io/vllm/vllm-openai-rocm:v0.26.0"
    asked, right = f"{image}@sha256:{'1' * 64}", lock().images[image].digest
    (problem,) = problems(override={"vllmImage": asked})
    assert problem.short_value == repr(asked)
    assert problem.accepted.startswith(f"{image}@{right}, or the tag alone; where the tag has moved, `llmd-oke images")


def test_a_prefix_longer_than_the_prompt_is_refused():
    workload = {"inputTokens": 100, "outputTokens": 10, "sharedPrefixTokens": 101}
    (problem,) = problems(model(workload=workload))
    assert problem.path == "models[0].workload.sharedPrefixTokens"
