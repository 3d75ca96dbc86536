"""Releases, overrides and the profiles of routers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import config, planning
from llmd_oke.catalogue.container_images import lock
from llmd_oke.catalogue.models import PassedEvaluation, QuickReduce
from llmd_oke.planning.checks import model_contexts
from llmd_oke.planning.models import answer_changes
from stack_files import known_model, model, paths, plan, problems, stack

EQUAL = "4p-tp2-4d-tp2"
"""Which every release can serve: KV cache of older ones can't be split by heads."""


def texts(*models: dict[str, object], **changes: object) -> list[str]:
    return [f"{advice.path}: {advice.text}" for advice in plan(*models, **changes).advice]


@pytest.mark.parametrize(("former", "name"), [("llm-d-0.7", "llm-d-0.6.0"), ("llm-d-0.8", "llm-d-0.7.0")])
def test_an_llm_d_release_under_its_former_name_is_refused_with_its_present_name(former: str, name: str):
    (problem,) = problems(release=former)
    assert problem.path == "release"
    assert problem.accepted.startswith(f"{name}, or ")
    assert f"what was called {former}" in problem.why


MIRRORED = {"endpointPickerImage": "registry.mine/llm-d-inference-scheduler:v0.8.0"}
GONE = {"endpointPickerImage": "ghcr.io/llm-d/llm-d-inference-scheduler:v0.8.0"}


@pytest.mark.parametrize(
    ("release", "override", "router", "found"),
    [
        ("llm-d-0.9.0", {}, {}, []),
        ("llm-d-0.7.0", {}, {}, ["release"]),
        ("llm-d-0.7.0", {"router": "llm-d-0.9.0"}, {}, []),
        ("llm-d-0.7.0", MIRRORED, {}, []),
        ("llm-d-0.7.0", GONE, {}, ["override.endpointPickerImage"]),
        ("llm-d-0.9.0", {**GONE, "router": "llm-d-0.7.0"}, {}, ["override.endpointPickerImage"]),
        ("llm-d-0.9.0", {"router": "llm-d-0.6.0"}, {}, ["override.router"]),
        ("llm-d-0.7.0", {}, {"mode": "none"}, []),
    ],
)
def test_deleted_images_are_refused_if_real_nodes_pull_them(
    release: str, override: dict[str, str], router: dict[str, str], found: list[str]
):
    served = model("4p-tp2-4d-tp2" if not router else "agg-tp1-1r", router=router)
    value = stack(served, release=release, **({"override": override} if override else {}))
    assert [problem.path for problem in refused(value)] == found
    assert planning.plan_object(value)


@pytest.mark.parametrize(
    ("topology", "mode", "pulled"),
    [
        (EQUAL, "standalone", ["vllmImage", "endpointPickerImage", "proxyImage", "routingSidecarImage"]),
        ("agg-tp1-1r", "standalone", ["vllmImage", "endpointPickerImage", "proxyImage"]),
        ("agg-tp1-1r", "gateway", ["vllmImage", "endpointPickerImage"]),
        ("agg-tp1-1r", "none", ["vllmImage"]),
    ],
)
def test_only_images_that_the_stacks_nodes_pull_are_refused_if_deleted(
    topology: str, mode: str, pulled: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("llmd_oke.planning.releases.removal_reason", lambda image: "it was removed")
    gateway = {"gateway": {"mode": "create", "provider": "istio"}} if mode == "gateway" else {}
    result = refused(stack(model(topology, router={"mode": mode}), **gateway))
    assert [(problem.path, problem.accepted) for problem in result] == [
        ("release", f"llm-d-0.9.0, or override.{key} with a copy that nodes can pull") for key in pulled
    ]


def refused(value: object) -> Sequence[Problem]:
    try:
        planning.plan_object(value, nodes_pull=True)
    except InvalidStack as refusal:
        return refusal.problems
    return ()


@pytest.mark.parametrize(
    ("key", "release"),
    [("vllmImage", "llm-d-0.9.0"), ("vllmImage", "llm-d-0.10.0"), ("endpointPickerImage", "llm-d-0.9.0")],
)
def test_a_deleted_own_image_may_give_way_to_that_of_the_release_it_replaces(
    monkeypatch: pytest.MonkeyPatch, key: str, release: str
):
    gone = "registry.mine/image:v1"
    monkeypatch.setattr(
        "llmd_oke.planning.releases.removal_reason", lambda image: "deleted" if image.reference == gone else None
    )
    used = release if key == "vllmImage" else "llm-d-0.10.0"
    (problem,) = refused(stack(model(EQUAL), release=used, override={key: gone, "router": "llm-d-0.9.0"}))
    assert (problem.path, problem.value) == (f"override.{key}", gone)
    assert problem.accepted == f"nothing, for {release}'s own image; or a copy in a registry that nodes can reach"


def test_check_reports_images_that_were_removed_from_their_registry():
    assert any("was removed from its registry" in text for text in texts(model(EQUAL), release="llm-d-0.7.0"))
    assert not any("registry" in text for text in texts(release="llm-d-0.9.0"))


def test_check_reports_a_releases_known_limits_that_apply_to_the_stack():
    result = texts(model(EQUAL), release="llm-d-0.7.0")
    assert any("/v1/responses are never prefilled remotely" in text for text in result)
    aggregated = texts(model("agg-tp1-1r"), release="llm-d-0.7.0")
    assert not any("prefilled remotely" in text for text in aggregated)
    llama = model(EQUAL, model="llama-3.3-70b-instruct-fp8-dynamic")
    assert not any("/v1/responses" in text for text in texts(llama, release="llm-d-0.7.0"))


def test_an_update_tells_the_number_of_known_limits_and_its_other_advice_in_full():
    result = plan(model(EQUAL), release="llm-d-0.7.0")
    limits = {item.text for item in result.advice if item.kind == "limit"}
    others = {item.text for item in result.advice if item.kind != "limit"}
    assert len(limits) > 1
    told = [item.text for item in planning.advice_of_update(result)]
    assert set(told[:-1]) == others
    assert told[-1] == f"{len(limits)} known limits of llm-d-0.7.0 (docs/releases.md)"
    single = replace(result, advice=(planning.Advice("models[0]", "a limit", "limit"),))
    assert planning.limits_sentence(single).startswith("1 known limit of ")


def test_check_warns_of_faults_of_the_releases_vllm_if_kv_cache_is_transferred():
    (result,) = [text for text in texts(model(EQUAL), release="llm-d-0.9.0") if "vllm/issues/49238" in text]
    assert result.startswith("models[0]: vLLM v0.26.0: a decode server may crash")
    assert not any("49238" in text for text in texts(model("agg-tp1-1r"), release="llm-d-0.9.0"))
    other = {"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.29.0"}
    assert not any("49238" in text for text in texts(model(EQUAL), release="llm-d-0.9.0", override=other))


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
def test_the_picker_profile_follows_from_the_workload_and_the_release(shared: int, release: str, profile: str):
    workload = {"inputTokens": 4096, "outputTokens": 256, "sharedPrefixTokens": shared}
    assert plan(model(EQUAL, workload=workload), release=release).models[0].profile == profile


def test_a_picker_profile_in_the_stack_file_that_the_release_lacks_is_refused():
    value = model(EQUAL, router={"profile": "token-load"})
    assert plan(value).models[0].profile == "token-load"
    assert paths(value, release="llm-d-0.7.0") == ["models[0].router.profile"]


@pytest.mark.parametrize(
    ("router", "key"),
    [
        ({"replicas": 3}, "replicas"),
        ({"mode": "none", "replicas": 1}, "replicas"),
        ({"mode": "none", "profile": "prefix"}, "profile"),
        ({"mode": "none", "flowControl": {}}, "flowControl"),
        ({"peakPrefillTokensPerS": 20000}, "peakPrefillTokensPerS"),
    ],
)
def test_router_settings_without_an_effect_are_refused_with_their_path(router: dict[str, Any], key: str) -> None:
    topology = "agg-tp1-2r" if router.get("mode") == "none" else EQUAL
    assert paths(model(topology, router=router)) == [f"models[0].router.{key}"]


def test_check_warns_of_settings_of_remote_prefill_with_aggregated_servers():
    router = {"decider": "always", "nonCachedTokens": 100}
    unread = "because aggregated servers compute their prompts themselves; leave it out"
    told = {item.path: item.text for item in plan(model("agg-tp1-2r", router=router)).advice if unread in item.text}
    assert told == {
        "models[0].router.decider": f"decider: always has no effect, {unread}",
        "models[0].router.nonCachedTokens": f"nonCachedTokens: 100 has no effect, {unread}",
    }
    assert not [text for text in texts(model(EQUAL, router=router)) if unread in text]


def test_as_many_replicas_of_the_router_as_the_release_has_or_fewer_can_be_requested():
    router = {"replicas": 1, "profile": "prefix-affinity", "peakPrefillTokensPerS": 20000}
    assert plan(model(EQUAL, router=router)).models[0].router_replicas == 1
    for own in ({}, {"replicas": 2}):
        assert plan(model(EQUAL, router=own)).models[0].router_replicas == 2
    assert not any("nobody has measured" in text for text in texts(model(EQUAL, router=router)))
    assert any("nobody has measured" in text for text in texts(model(EQUAL, router={"profile": "prefix-affinity"})))


def test_a_router_override_that_lacks_the_stacks_profile_uses_the_nearest_profile():
    with_older = plan(model(router={"profile": "token-load"}), override={"router": "llm-d-0.6.0"})
    assert with_older.models[0].profile == "running-requests"
    assert with_older.release.name == "llm-d-0.9.0"
    assert with_older.release.endpoint_picker.image.tag == "v0.7.1"
    text = [advice.text for advice in with_older.advice if advice.path == "models[0].router.profile"]
    assert text == ["endpoint picker v0.7.1 has no scorers for token-load: running-requests is used"]


def test_check_reports_every_override_and_an_image_that_its_own_release_avoids():
    result = texts(override={"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.27.1", "quickReduce": "INT4"})
    assert any("vllm image docker.io/vllm/vllm-openai-rocm:v0.27.1 is not what llm-d-0.9.0" in text for text in result)
    assert any("override.quickReduce: INT4 in all-reduce changes answers: each update asks" in text for text in result)
    avoided = texts(override={"vllmImage": "registry.mine/llm-d-rocm:v0.9.0"})
    assert any("llm-d-0.9.0 does without it: it crash-looped" in text for text in avoided)


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
def test_unknown_or_ineffective_release_overrides_are_refused(override: dict[str, str], path: str):
    assert paths(override=override) == [path]


@pytest.mark.parametrize(
    ("override", "image"),
    [
        ({"endpointPickerImage": "ghcr.io/llm-d/llm-d-inference-scheduler:v0.8.0"}, "a copy that nodes can pull"),
        ({"routingSidecarImage": "registry.mine/llm-d-routing-sidecar:v0.8.0"}, "this image"),
    ],
)
def test_an_override_by_a_picker_or_sidecar_of_another_release_needs_its_router_too(
    override: dict[str, str], image: str
):
    (problem,) = problems(override=override)
    assert problem.path == f"override.{next(iter(override))}"
    assert problem.accepted == f"nothing, or {image} together with override.router: llm-d-0.7.0"
    assert problems(override={**override, "router": "llm-d-0.7.0"}) == []
    assert problems(model(EQUAL), release="llm-d-0.7.0", override=override) == []


def test_a_digest_that_contradicts_the_lock_file_is_refused_with_the_locked_digest():
    image = "docker.io/vllm/vllm-openai-rocm:v0.26.0"
    value, right = f"{image}@sha256:{'1' * 64}", lock().images[image].digest
    (problem,) = problems(override={"vllmImage": value})
    assert (problem.short_value, right in problem.accepted) == (repr(value), True)


@pytest.mark.parametrize(("shared", "found"), [(100, []), (101, ["models[0].workload.sharedPrefixTokens"])])
def test_a_shared_prefix_longer_than_the_prompt_is_refused(shared: int, found: list[str]):
    workload = {"inputTokens": 100, "outputTokens": 10, "sharedPrefixTokens": shared}
    assert paths(model(workload=workload)) == found


ANOTHER_BACKEND = {"attentionBackend": "ROCM_ATTN", "vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.27.1"}
LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"


def llama(topology: str = "4p-tp1-2d-tp2", *arguments: str) -> dict[str, object]:
    return model(topology, model=LLAMA, engine={"maxModelLen": 8192, "extraArgs": list(arguments)})


@pytest.mark.parametrize(
    ("used", "override", "path"),
    [
        (model(EQUAL), {"quickReduce": "INT4"}, "override.quickReduce"),
        (model(EQUAL), {"vllmImage": "ghcr.io/llm-d/llm-d-rocm:v0.7.0"}, "override.vllmImage"),
        (llama(), ANOTHER_BACKEND, "override.attentionBackend"),
        (llama("agg-tp1-1r", "--attention-backend", "ROCM_ATTN"), None, "models[0].engine.extraArgs[0]"),
    ],
)
def test_each_update_evaluates_accuracy_if_settings_change_answers(used, override: dict[str, str] | None, path: str):
    changes = {"override": override} if override else {}
    result = plan(used, **changes)
    assert [change.path for change in result.models[0].answer_changes] == [path]
    assert result.models[0].min_accuracy == 0.95
    assert plan(used, smoke={"thresholds": {"minAccuracy": 0.99}}, **changes).models[0].min_accuracy == 0.99


@pytest.mark.parametrize(
    ("used", "override"),
    [
        (model(EQUAL), {"quickReduce": "NONE"}),
        (model("8p-tp1-4d-tp1"), {"quickReduce": "INT4"}),
        (model(EQUAL), {"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.27.1"}),
        (model("agg-tp1-1r"), {"attentionBackend": "ROCM_AITER_UNIFIED_ATTN"}),
        (llama("agg-tp1-1r", "--attention-backend", "TRITON_ATTN"), {"quickReduce": "NONE"}),
    ],
    ids=[
        *("no format", "servers of one GPU", "another image", "the release's own backend"),
        "the release's own of servers that hand KV cache over",
    ],
)
def test_settings_that_do_not_change_answers_need_no_accuracy_evaluation(used, override: dict[str, str]):
    (result,) = plan(used, override=override).models
    assert (result.answer_changes, result.min_accuracy) == ((), None)
    asked = plan(used, override=override, smoke={"thresholds": {"minAccuracy": 0.5}})
    assert asked.models[0].min_accuracy == 0.5


@pytest.mark.parametrize(
    ("smoke", "path"),
    [({"where": "none"}, "smoke.where"), ({"thresholds": {"minAccuracy": 0.9}}, "smoke.thresholds.minAccuracy")],
)
def test_settings_that_change_answers_are_refused_if_accuracy_evaluation_is_off(smoke: dict[str, object], path: str):
    assert paths(model(EQUAL), override={"quickReduce": "INT4"}, smoke=smoke) == [path]
    assert paths(model(EQUAL), smoke=smoke) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"release": "llm-d-0.7.0"}, ["release"]),
        ({"override": {"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.27.1"}}, ["override.vllmImage"]),
        ({"override": {"quickReduce": "NONE"}}, []),
    ],
)
def test_a_quick_reduce_format_untested_in_the_release_requires_an_evaluation(changes, found: list[str]):
    evaluated = PassedEvaluation(name="gpqa", release="llm-d-0.9.0", score=0.7)
    measured = QuickReduce(quantization="INT6", evaluation=evaluated)
    facts = known_model("gpt-oss-120b").model_copy(update={"quick_reduce": measured})
    (subject,) = model_contexts(config.validate(stack(model(EQUAL), **changes))).values()
    assert [change.path for change in answer_changes(replace(subject, facts=facts))] == found


@pytest.mark.parametrize(
    ("used", "release", "backend", "found"),
    [
        (model("4p-tp1-2d-tp4"), "llm-d-0.6.0", "ROCM_AITER_UNIFIED_ATTN", ["override.attentionBackend"]),
        (model(EQUAL), "llm-d-0.6.0", "ROCM_AITER_UNIFIED_ATTN", []),
        (model("1p-tp4-1d-tp8", model="deepseek-r1"), "llm-d-0.7.0", "TRITON_MLA", []),
    ],
    ids=["unequal sizes", "equal sizes", "latent attention"],
)
def test_kv_cache_that_an_own_vllm_image_may_not_split_requires_an_evaluation(
    used, release: str, backend: str, found: list[str]
):
    override = {"vllmImage": "docker.io/mine/vllm:v1", "attentionBackend": backend}
    result = plan(used, release=release, override=override)
    assert [change.path for change in result.models[0].answer_changes] == found
