"""A stack's own config of the endpoint picker: what is read, what is refused, and what is deployed."""

import copy
from typing import Any

import pytest
import yaml
from llmd_base.errors import SET, InvalidStack, Problem
from llmd_oke import planning
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.program.declare import render
from stack_files import existing_pool, model, paths, plan, stack

PATH = "models[0].router.config"
PD: dict[str, Any] = {
    "plugins": [
        {"type": "prefill-filter"},
        {"type": "decode-filter"},
        {"type": "active-request-scorer"},
        {"type": "always-disagg-pd-decider"},
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}},
    ],
    "schedulingProfiles": [
        {
            "name": role,
            "plugins": [{"pluginRef": f"{role}-filter"}, {"pluginRef": "active-request-scorer"}],
        }
        for role in ("prefill", "decode")
    ],
}
PRECISE = [
    {"type": "token-producer", "parameters": {"modelName": "m", "vllm": {"url": "http://render"}}},
    {"type": "precise-prefix-cache-producer", "parameters": {"kvEventsConfig": {"discoverPods": True}}},
]


def document(config: Any, topology: str = "1p-tp1-1d-tp1", **router: Any) -> dict[str, Any]:
    return stack(model(topology, router={"config": config, **router}), gpuPools=[existing_pool(size=4)])


def problems(config: Any, topology: str = "1p-tp1-1d-tp1", **router: Any) -> list[Problem]:
    try:
        planning.plan_object(document(config, topology, **router))
    except InvalidStack as error:
        return error.problems
    return []


def with_plugins(*further: dict[str, Any], decode: str | None = None) -> dict[str, Any]:
    config = copy.deepcopy(PD)
    config["plugins"] += further
    if decode:
        config["schedulingProfiles"][1]["plugins"].append({"pluginRef": decode})
    return config


def with_session_filter(parameters: dict[str, Any]) -> dict[str, Any]:
    config = with_plugins({"type": "session-affinity-filter", "parameters": parameters})
    config["schedulingProfiles"][0]["plugins"].append({"pluginRef": "session-affinity-filter"})
    return config


def with_handler(parameters: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(PD)
    config["plugins"][-1]["parameters"] = parameters
    return config


def with_weight(weight: object) -> dict[str, Any]:
    config = copy.deepcopy(PD)
    config["schedulingProfiles"][1]["plugins"][1]["weight"] = weight
    return config


def with_profile(profile: object) -> dict[str, Any]:
    return {**PD, "schedulingProfiles": [*PD["schedulingProfiles"], profile]}


WITH_SCORER = with_plugins({"type": "session-affinity-scorer"})


def test_a_custom_picker_config_is_rendered_unchanged_and_its_plugins_are_permitted():
    rendered = render(document(WITH_SCORER))
    (texts,) = (
        item.inputs["data"]
        for item in rendered.resources
        if item.type.endswith(":ConfigMap") and item.inputs["metadata"]["name"].endswith("-epp")
    )
    (text,) = texts.values()
    version = endpoint_picker("v0.10.0").api_versions[0]
    assert yaml.safe_load(text) == {"apiVersion": version, "kind": "EndpointPickerConfig", **WITH_SCORER}
    (picker,) = (
        container
        for item in rendered.resources
        if item.type.endswith(":Deployment")
        for container in item.inputs["spec"]["template"]["spec"]["containers"]
        if container["name"] == "epp"
    )
    assert "--allow-experimental-plugins" in picker["args"]


def test_the_plans_router_profile_is_named_own_if_the_stack_has_a_picker_config():
    (planned,) = plan(model("1p-tp1-1d-tp1", router={"config": PD}), nodes=4).models
    assert planned.router_profile == "own"


@pytest.mark.parametrize(
    ("key", "value"),
    [("profile", "token-load"), ("decider", "always"), ("nonCachedTokens", 100), ("peakPrefillTokensPerS", 1000)],
)
def test_router_settings_beside_a_custom_picker_config_are_refused(key: str, value: object):
    assert [problem.path for problem in problems(PD, **{key: value})] == [f"models[0].router.{key}"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**PD, "profiles": []}, "unknown key profiles"),
        (with_plugins({"name": "x"}), "an item of plugins has no type"),
        (with_plugins({"type": []}), "type in plugins is not of type string"),
        ({**PD, "apiVersion": None}, "doesn't read apiVersion null"),
        (with_profile({"name": "x", "plugins": [{}]}), "a plugin of profile x has no pluginRef"),
        (with_plugins({"type": "prefix-cache-scorer", "parameters": {"weight": 1}}), "no parameter weight"),
        (with_plugins({"type": "no-such-scorer"}), "knows of no plugin no-such-scorer"),
        ({**PD, "schedulingProfiles": []}, "no schedulingProfiles"),
        (with_plugins(decode="prefix-cache-scorer"), "names plugin prefix-cache-scorer, which is not there"),
        ({**PD, "plugins": [*PD["plugins"], 42]}, "plugins has 42, which is no object"),
        (with_plugins({"type": "queue-scorer", "parameters": 7}), "parameters in plugins is not of type object"),
        (with_plugins({"type": "queue-scorer", "params": {}}), "plugins has no key params"),
        (with_profile({"name": "x", "plugins": "y"}), "not of type array"),
        ({**with_profile(7), "featureGates": []}, "has 7, which is no object"),
        ({**PD, "dataLayer": {"sources": [{"pluginRef": "absent"}]}}, "dataLayer names plugin absent"),
        (with_weight("heavy"), "weight in plugins of profile decode is not of type number"),
    ],
)
def test_a_picker_config_that_the_picker_cannot_parse_is_refused(config: dict[str, Any], said: str):
    (problem,) = problems(config)
    assert (problem.path, problem.value) == (PATH, SET)
    assert said in (problem.why or "")


@pytest.mark.parametrize("reference", [[], {"a": 1}])
def test_references_in_a_picker_config_that_are_no_text_are_refused(reference: Any):
    config = copy.deepcopy(PD)
    config["schedulingProfiles"][0]["plugins"][0]["pluginRef"] = reference
    config["dataLayer"] = {"sources": [{"pluginRef": reference}]}
    config["plugins"][-1]["parameters"] = {"deciders": {"prefill": reference or [1]}}
    said = " ".join(problem.why or "" for problem in problems(config))
    assert all(text in said for text in ("pluginRef in plugins of profile prefill", "dataLayer names", "the decider"))


def test_a_plugin_without_a_type_hides_no_other_refusal():
    said = " ".join(problem.why or "" for problem in problems(with_plugins({"name": "x"}, PRECISE[1])))
    assert "guesses tokens" in said


def test_a_picker_config_without_remote_prefill_is_refused_for_disaggregation():
    plain = {
        "plugins": [{"type": "single-profile-handler"}, {"type": "queue-scorer"}],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
    }
    said = " ".join(problem.why or "" for problem in problems(plain))
    assert all(words in said for words in ("no disagg-profile-handler", "no prefill-filter"))
    assert problems(plain, "agg-tp1-1r") == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (with_plugins({"type": "data-parallel-profile-handler"}), "no prompt is prefilled remotely"),
        (with_session_filter({}), "without profileName"),
        (with_plugins(PRECISE[1]), "guesses tokens"),
        (with_plugins({"type": "token-producer"}, PRECISE[1]), "guesses tokens"),
        (with_plugins(*PRECISE, {"type": "prefix-cache-scorer"}), "approximate index"),
        (
            with_plugins({"type": "prefix-cache-affinity-filter"}, decode="prefix-cache-affinity-filter"),
            "decode servers that once had a prefix",
        ),
        (with_plugins({"type": "predicted-latency-producer"}, {"type": "latency-scorer"}), "doesn't deploy"),
        (with_plugins({"type": "latency-scorer"}, decode="latency-scorer"), "doesn't deploy"),
    ],
)
def test_a_picker_config_that_runs_but_routes_wrongly_is_refused_with_a_source(config: dict[str, Any], said: str):
    (problem,) = problems(config)
    assert said in (problem.why or "")
    assert "https://github.com/" in (problem.why or "")


def test_a_picker_config_whose_prefix_scorer_names_the_precise_producer_is_accepted():
    named = {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"}
    assert problems(with_plugins(*PRECISE, {"type": "prefix-cache-scorer", "parameters": named})) == []


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "names no decider"),
        ({"deciders": {"prefill": "prefix-based-pd-decider"}}, "which is not there"),
        ({"deciders": {"prefill": "always-disagg-pd-decider"}, "stageOrder": "prefill-first"}, "takes no decider"),
    ],
)
def test_a_profile_handler_that_would_never_prefill_remotely_is_refused(parameters: dict[str, Any], said: str):
    (problem,) = problems(with_handler(parameters))
    assert said in (problem.why or "")


@pytest.mark.parametrize(
    "config",
    [PD, with_handler({"stageOrder": "prefill-first"}), with_session_filter({"profileName": "prefill"})],
    ids=["a decider", "no decider as prefill comes first", "a filter of sessions for the prefill profile"],
)
def test_a_picker_config_that_prefills_remotely_is_accepted(config: dict[str, Any]):
    assert problems(config) == []


@pytest.mark.parametrize(
    ("parameters", "headers"),
    [
        ({"profileName": "prefill"}, ("x-session-token",)),
        ({"profileName": "prefill", "strategy": "session_id"}, ("x-session-id",)),
        (
            {
                "profileName": "prefill",
                "strategy": "session_id",
                "sessionIdConfig": {"sources": [{"header": "Session-Id"}, {"attribute": "agent-identity"}]},
            },
            ("session-id",),
        ),
    ],
)
def test_planned_session_headers_are_those_that_a_picker_config_reads(
    parameters: dict[str, Any], headers: tuple[str, ...]
):
    (planned,) = planning.plan_object(document(with_session_filter(parameters))).models
    assert planned.session_headers == headers


@pytest.mark.parametrize("release", ["llm-d-0.6.0", "llm-d-0.7.0"])
def test_a_session_scorer_is_refused_in_releases_that_send_clients_no_token(release: str):
    plugins = [{"type": "single-profile-handler"}, {"type": "session-affinity-scorer"}]
    config = {
        "plugins": plugins,
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "session-affinity-scorer"}]}],
    }
    asked = stack(model("agg-tp1-2r", router={"config": config}), gpuPools=[existing_pool(size=4)], release=release)
    with pytest.raises(InvalidStack) as refused:
        planning.plan_object(asked)
    (problem,) = refused.value.problems
    assert (problem.path, "no client ever has one to send" in (problem.why or "")) == (PATH, True)


def test_a_gateway_that_removes_session_headers_is_refused_with_session_affinity():
    router = {"profile": "session-affinity", "mode": "gateway"}
    gateway = {"mode": "create", "name": "models", "provider": "envoy-gateway"}
    assert paths(model("1p-tp1-1d-tp1", router=router), nodes=4, gateway=gateway) == ["models[0].router.mode"]


def test_the_adapter_affinity_profile_is_refused_for_servers_without_adapters():
    def found(**engine: object) -> list[str]:
        router = {"profile": "lora-affinity"}
        asked = model("1p-tp1-1d-tp1", model="llama-3.1-8b-instruct", router=router, engine=engine)
        return paths(asked, nodes=4, storage={"modelCache": {"kind": "node-disk"}})

    assert found() == ["models[0].router.profile"]
    assert found(adapters={}) == []
