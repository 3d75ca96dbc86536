"""Errors of shape: paths as the user wrote them, what would be accepted, no word of the validator's own."""

import copy
import json
from math import nan
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import config
from llmd_oke.config.base import is_dns_label
from llmd_oke.config.shape_problems import did_you_mean
from stack_files import document, model, stack

GOOD = stack(model("8p-tp1-2d-tp4", engine={"env": {"A": "1"}, "extraArgs": ["--seed=1"]}), nodes=2)


def changed(*place: str | int, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(GOOD)
    target: Any = result
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    return result


def problems(value: Any) -> list[Problem]:
    with pytest.raises(InvalidStack) as caught:
        config.validate(value)
    return list(caught.value.problems)


def problem(*place: str | int, value: Any) -> Problem:
    (result,) = problems(changed(*place, value=value))
    return result


@pytest.mark.parametrize(
    ("place", "value", "path", "accepted"),
    [
        (("gpuPools", 0, "size"), "2", "gpuPools[0].size", "a whole number without quotes"),
        (("gpuPools", 0, "size"), True, "gpuPools[0].size", "a whole number without quotes"),
        (("gpuPools", 0, "size"), 2.5, "gpuPools[0].size", "a whole number without quotes"),
        (("gpuPools", 0, "size"), [], "gpuPools[0].size", "a whole number without quotes"),
        (("gpuPools", 0, "size"), 0, "gpuPools[0].size", "at least 1"),
        (("gpuPools", 0, "size"), 1001, "gpuPools[0].size", "at most 1000"),
        (("gpuPools", 0, "name"), "A b", "gpuPools[0].name", "lower-case letters"),
        (("gpuPools", 0), 5, "gpuPools[0]", "an object with the keys availabilityDomain"),
        (("gpuPools",), [], "gpuPools", "at least 1 item"),
        (("gpuPools",), {}, "gpuPools", "a list"),
        (("release",), 0.8, "release", "text"),
        (("rdma",), None, "rdma", "'sriov-vf' or 'none'"),
        (("cluster", "mode"), "make", "cluster.mode", "'existing' or 'create'"),
        (("models", 0, "engine", "blockSize"), 17, "models[0].engine.blockSize", "16, 32, 64 or 128"),
        (("models", 0, "engine", "extraArgs"), "--seed=1", "models[0].engine.extraArgs", "a list"),
        (("models", 0, "engine", "extraArgs", 0), 1, "models[0].engine.extraArgs[0]", "text"),
        (("models", 0, "engine", "env", "A"), 1, "models[0].engine.env.A", "text"),
        (("models", 0, "engine", "gpuMemoryUtilization"), 1.5, "models[0].engine.gpuMemoryUtilization", "at most 1"),
        (
            ("models", 0, "engine"),
            {"gpuMemoryUtilization": nan},
            "models[0].engine.gpuMemoryUtilization",
            "an ordinary",
        ),
        (("models", 0, "router"), {"nonCachedTokens": 0}, "models[0].router.nonCachedTokens", "at least 1"),
        (("models", 0, "slo"), {"ttftMs": 0}, "models[0].slo.ttftMs", "more than 0"),
        (("models", 0, "topology"), 5, "models[0].topology", "8p-tp1-4d-tp2"),
        (("models", 0, "topology"), None, "models[0].topology", "8p-tp1-4d-tp2"),
        (("models", 0, "engine", "env"), {"A B": "1"}, "models[0].engine.env.A B", "letters, digits and underscores"),
        (
            ("models", 0, "topology"),
            {"aggregated": {"replicas": 1, "tensorParallelSize": 0}},
            "models[0].topology.aggregated.tensorParallelSize",
            "at least 1",
        ),
        (("smoke",), None, "smoke", "an object with the keys concurrency"),
    ],
)
def test_an_invalid_value_is_reported_with_its_path_and_valid_values(
    place: tuple[str | int, ...], value: Any, path: str, accepted: str
):
    result = problem(*place, value=value)
    assert result.path == path
    assert result.accepted.startswith(accepted) or accepted in result.accepted
    assert result.value is value or isinstance(value, dict)


@pytest.mark.parametrize(
    "text", ["", "8p", "8p-tp1", "0p-tp1-4d-tp2", "agg-tp1", "8P-TP1-4D-TP2", "8p-tp1-4d-tp2\n", "٨p-tp1-4d-tp2"]
)
def test_the_error_for_an_invalid_topology_shows_both_of_its_notations(text: str):
    result = problem("models", 0, "topology", value=text)
    assert (result.path, result.value) == ("models[0].topology", text)
    assert "8p-tp1-4d-tp2" in result.accepted
    assert "agg-tp1-16r" in result.accepted


def test_an_invalid_number_of_a_short_topology_is_reported_at_the_topology():
    result = problem("models", 0, "topology", value="2000p-tp1-4d-tp2")
    assert (result.path, result.value) == ("models[0].topology", "2000p-tp1-4d-tp2")
    assert result.why == "prefill.replicas must be at most 1024"


@pytest.mark.parametrize(
    ("place", "key", "suggestion"),
    [
        ((), "gpuPool", "gpuPools"),
        ((), "gpu_pools", "gpuPools"),
        (("models", 0), "topologie", "topology"),
        (("models", 0, "workload"), "input_tokens", "inputTokens"),
        (("models", 0, "workload"), "colour", "one of inputTokens, outputTokens, sharedPrefixTokens"),
        (("models", 0, "engine"), "maxModelLength", "maxModelLen"),
        (("cluster",), "identifer", "identifier"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_right_one_or_all(place: tuple[str | int, ...], key: str, suggestion: str):
    result = problem(*place, key, value="x")
    assert result.why == "there is no such key"
    assert result.accepted.split("?", 1)[0] == suggestion


def test_a_stack_file_cannot_have_a_key_by_its_python_name():
    written = {"gpu_pools" if key == "gpuPools" else key: value for key, value in GOOD.items()}
    assert [(result.path, result.why) for result in problems(written) if result.path != "gpuPools"] == [
        ("gpu_pools", "there is no such key")
    ]


def test_a_key_of_another_cluster_mode_is_reported_with_the_mode_it_belongs_to():
    created = {"mode": "existing", "identifier": "here", "region": "eu-frankfurt-1"}
    assert problem("cluster", value=created).why == "the key belongs to mode create; here mode is existing"
    existing = problems({**GOOD, "cluster": {"mode": "create", "identifier": "here"}})
    assert "the key belongs to mode existing; here mode is create" in [item.why for item in existing]
    assert problem("cluster", value={"identifier": "here"}).accepted == "one of existing, create"


def test_every_missing_key_of_a_stack_file_is_reported():
    assert [result.path for result in problems({})] == ["gpuPools", "release"]


def test_a_problem_with_a_large_value_is_still_reported_in_one_line():
    result = problem("models", 0, "engine", "env", value=[{"x" * 100: ["y" * 100] * 50}] * 50)
    assert "\n" not in str(result)
    assert len(str(result)) < 700


def test_config_classes_accept_python_names_and_stack_file_names_of_keys():
    assert config.WorkloadConfig(input_tokens=1, output_tokens=2) == config.WorkloadConfig(
        inputTokens=1, outputTokens=2
    )


def test_a_loaded_config_object_is_immutable():
    loaded = config.validate(GOOD)
    with pytest.raises(ValueError, match="frozen"):
        loaded.release = "other"


def test_omitted_keys_of_a_model_have_the_documented_defaults():
    model = config.validate(GOOD).models[0]
    assert (model.copies, model.router.mode, model.engine.gpu_memory_utilization) == (1, "standalone", 0.95)
    assert model.object_name == "gpt-oss-120b"
    entry = {**GOOD["models"][0], "model": "Acme-7B_v1.5"}
    assert config.validate({**GOOD, "models": [entry]}).models[0].object_name == "acme-7b-v1-5"


@pytest.mark.parametrize(
    ("name", "fits"), [("a" * 36, True), ("a" * 37, False), ("7b", False), ("model-", False), ("a.b", False)]
)
def test_a_derived_object_name_must_be_a_dns_label_of_at_most_36_characters(name: str, fits: bool):
    assert is_dns_label(name) is fits


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = st.sampled_from(
    [
        ("cluster",),
        ("gpuPools",),
        ("gpuPools", 0),
        ("gpuPools", 0, "size"),
        ("models",),
        ("models", 0),
        ("models", 0, "topology"),
        ("models", 0, "workload"),
        ("models", 0, "engine", "env"),
        ("smoke",),
        ("unknown",),
    ]
)


@given(PLACES, JSON)
@example(("gpuPools",), [{"[key]": None}])
def test_any_value_at_any_stack_file_key_is_accepted_or_reported_without_internals(
    place: tuple[str | int, ...], value: Any
):
    try:
        config.validate(changed(*place, value=value))
    except InvalidStack as refused:
        for result in refused.problems:
            assert result.path
            assert result.accepted
            assert result.why
            for internal in ("pydantic", "Input should", "ctx", "function-", "tagged-union", "[key]"):
                is_given = internal in json.dumps(value, ensure_ascii=False)
                assert is_given or internal not in result.path + result.accepted + result.why


@given(JSON)
def test_any_json_value_instead_of_a_stack_object_is_refused(value: Any):
    with pytest.raises(InvalidStack):
        config.validate(value)


def test_the_config_object_that_pulumi_passes_is_read_like_the_stack_file():
    assert config.validate(json.loads(json.dumps(GOOD))) == config.parse(document(GOOD))


NAMES = ["BM.GPU.MI300X.8", "BM.GPU.H100.8", "llama-3.3-70b-instruct-fp8-dynamic-kv"]


@pytest.mark.parametrize(
    ("written", "known", "accepted"),
    [
        ("bm.gpu.mi300x.8", NAMES, f"{NAMES[0]}? or another of {NAMES[1]}, {NAMES[2]}"),
        ("llama-3.3-70b", NAMES, f"{NAMES[2]}? or another of {NAMES[0]}, {NAMES[1]}"),
        ("BM.GPU.H10O.8", NAMES, f"{NAMES[1]}? or another of {NAMES[0]}, {NAMES[2]}"),
        ("x", NAMES, f"one of {', '.join(NAMES)}"),
        ("scaling", ["cycling", "image"], "one of cycling, image"),
        ("colour", ["cluster", "layer"], "one of cluster, layer"),
        ("secret", ["prefix", "pullSecret"], "pullSecret? or prefix"),
        ("prefixes", ["prefix"], "prefix"),
    ],
)
def test_only_a_name_that_is_alike_is_suggested_for_an_unknown_one(written: str, known: list[str], accepted: str):
    assert did_you_mean(written, known) == accepted
