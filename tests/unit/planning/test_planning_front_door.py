from typing import Any

import pytest
from created_stacks import refusals
from llmd_oke.planning.advice import advice
from stack_files import model, ocid, plan, problems

AGGREGATED = model("agg-tp1-4r", name="gpt-agg")
LLAMA = model("agg-tp1-1r", model="llama-3.3-70b-instruct-fp8-dynamic", name="llama")
KEYS = {"kind": "api-keys"}
TLS = {"host": "llm.example.com", "tls": {"kind": "config"}}


def refused(*models: dict[str, Any], **door: Any) -> dict[str, str]:
    enforced = {"engine": "existing"}
    return {problem.path: str(problem) for problem in problems(*models, frontDoor=door, networkPolicies=enforced)}


def test_a_stack_without_the_key_has_no_front_door():
    assert plan().front_door is None


def test_entries_of_one_model_are_units_of_one_name():
    door = plan(model("2p-tp1-2d-tp1", copies=2), AGGREGATED, LLAMA, frontDoor={}).front_door
    assert door is not None
    assert [(m.served_name, m.units) for m in door.models] == [
        ("openai/gpt-oss-120b", ("gpt-oss-120b-0", "gpt-oss-120b-1")),
        ("openai/gpt-oss-120b", ("gpt-agg",)),
        (door.models[2].served_name, ("llama",)),
    ]


def test_copies_without_routers_are_one_unit():
    door = plan(model("agg-tp1-4r", copies=2, router={"mode": "none"}), frontDoor={}).front_door
    assert door is not None
    assert door.models[0].units == ("gpt-oss-120b",)


def test_a_shift_of_weights_is_no_other_deployment():
    hashes = {
        plan(model("2p-tp1-2d-tp1", copies=2), frontDoor={"weights": weights}).config_hash
        for weights in ({}, {"gpt-oss-120b-0": 90, "gpt-oss-120b-1": 10})
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("door", "path", "words"),
    [
        ({"tls": {"kind": "config"}}, "frontDoor.host", "the key is missing"),
        ({"exposure": "internal", "authentication": KEYS}, "frontDoor.tls", "in plain text"),
        ({"exposure": "internal", "limits": {"requestsPerMinute": 60}}, "frontDoor.authentication", "told apart"),
        (
            {"authentication": KEYS, "limits": {"tokensPerMinute": 5}},
            "frontDoor.limits.tokensPerMinute",
            "a multiple of 2",
        ),
        (
            {"authentication": KEYS, "limits": {"clients": {"a": 7}}},
            "frontDoor.limits.clients.a.requestsPerMinute",
            "a multiple of 2",
        ),
        (
            {"authentication": KEYS, "limits": {"clients": {"a": {"concurrentRequests": 7}}}},
            "frontDoor.limits.clients.a.concurrentRequests",
            "a multiple of 2",
        ),
        (
            {"authentication": KEYS, "limits": {"clients": {"a": {"models": ["gpt-oss-120"]}}}},
            "frontDoor.limits.clients.a.models[0]",
            "gpt-oss-120b",
        ),
        (
            {"authentication": KEYS, "limits": {"clients": {"a": {"models": []}}}},
            "frontDoor.limits.clients.a.models",
            "can ask nothing",
        ),
        (
            {"authentication": KEYS, "limits": {"requestsPerMinute": 5}},
            "frontDoor.limits.requestsPerMinute",
            "multiple",
        ),
        (
            {"authentication": KEYS, "limits": {"concurrentRequests": 6}},
            "frontDoor.limits.concurrentRequests",
            "each of the 2 threads of 2 Envoys allows its share (accepted: a multiple of 4)",
        ),
        (
            {"authentication": KEYS, "limits": {"models": ["gpt-oss-120"]}},
            "frontDoor.limits.models[0]",
            "gpt-oss-120b",
        ),
        (
            {"authentication": KEYS, "limits": {"models": [], "clients": {"a": 60}}},
            "frontDoor.limits.clients.a.models",
            "can ask nothing",
        ),
        ({"limits": {"models": []}}, "frontDoor.authentication", "told apart"),
        ({"cacheIsolation": "client"}, "frontDoor.authentication", "cacheIsolation: none"),
        ({"hosts": {"a.example.com": "gpt-os"}}, "frontDoor.hosts.a.example.com", "gpt-oss-120b"),
        ({"host": "a.io", "hosts": {"a.io": "gpt-oss-120b"}}, "frontDoor.hosts.a.io", "leads to all models"),
        ({"weights": {"gpt-oss-120": 100}}, "frontDoor.weights.gpt-oss-120", "no such unit"),
        ({"weights": {"gpt-oss-120b": 90}}, "frontDoor.weights", "add up to 90"),
        ({"loadBalancer": {"subnetId": ocid("subnet")}}, "frontDoor.loadBalancer", "has no load balancer"),
    ],
)
def test_what_does_not_go_together_is_refused(door: dict[str, Any], path: str, words: str):
    result = refused(**door)
    assert list(result) == [path]
    assert words in result[path]


@pytest.mark.parametrize(("isolation", "words"), [("client", "fewer cache hits"), ("none", "share prefix cache")])
def test_check_says_what_shared_prefix_cache_costs_and_what_its_isolation(isolation: str, words: str):
    door = {"authentication": KEYS, "cacheIsolation": isolation, "uncheckedPods": "accepted"}
    said = {item.path: item.text for item in advice(plan(model("2p-tp1-2d-tp1"), frontDoor=door))}
    assert words in said["frontDoor.cacheIsolation"]


def test_keys_need_enforced_policies_or_trust_in_all_pods():
    door = {"authentication": KEYS}
    (problem,) = problems(frontDoor=door)
    assert problem.path == "frontDoor.uncheckedPods"
    assert "every pod of the cluster goes around keys" in problem.why
    assert problems(frontDoor={**door, "uncheckedPods": "accepted"}) == []
    assert problems(frontDoor=door, networkPolicies={"engine": "existing"}) == []
    assert refusals(stack_changes={"frontDoor": door, "networkPolicies": {"engine": "calico"}}) == {}


def test_limits_of_all_clients_are_those_of_each_of_whom_nothing_else_is_said():
    own = {"models": ["llama"], "concurrentRequests": 2}
    limits = {"concurrentRequests": 8, "models": ["gpt-oss-120b"], "clients": {"a": own}}
    door = plan(
        model("2p-tp1-2d-tp1"), LLAMA, frontDoor={"authentication": KEYS, "uncheckedPods": "accepted", "limits": limits}
    ).front_door
    assert door is not None
    assert (door.limits.concurrent_requests, door.limits.models) == (4, ("openai/gpt-oss-120b",))
    assert (door.clients["a"].concurrent_requests, door.clients["a"].models) == (1, (door.models[1].served_name,))


def test_with_an_empty_list_of_models_only_clients_with_a_list_may_use_any():
    limits = {"models": [], "clients": {"a": {"models": ["gpt-oss-120b"]}}}
    door = plan(
        model("2p-tp1-2d-tp1"), frontDoor={"authentication": KEYS, "uncheckedPods": "accepted", "limits": limits}
    ).front_door
    assert door is not None
    assert door.limits.models == ()


def test_check_says_which_requests_a_limit_of_tokens_never_lets_pass():
    limits = {"tokensPerMinute": 300_000, "clients": {"small": {"tokensPerMinute": 200_000}}}
    door = {"authentication": KEYS, "uncheckedPods": "accepted", "limits": limits}
    said = {item.path: item.text for item in advice(plan(model("2p-tp1-2d-tp1"), frontDoor=door))}
    assert "gpt-oss-120b 131,072" in said["frontDoor.limits.clients.small.tokensPerMinute"]
    assert "frontDoor.limits.tokensPerMinute" not in said


def test_the_internet_gets_neither_plain_nor_free_access():
    result = refused(exposure="public", loadBalancer={"subnetId": ocid("subnet")})
    assert set(result) == {"frontDoor.tls", "frontDoor.authentication"}


def test_a_public_front_door_of_a_cluster_that_is_there_names_its_subnet():
    assert set(refused(exposure="public", authentication=KEYS, **TLS)) == {"frontDoor.loadBalancer.subnetId"}


@pytest.mark.parametrize(("network", "count"), [({}, 1), ({"publicLoadBalancers": True}, 0)])
def test_a_public_front_door_needs_a_public_subnet(network: dict[str, Any], count: int):
    door = {"exposure": "public", "authentication": KEYS, "uncheckedPods": "accepted", **TLS}
    assert len(refusals(stack_changes={"frontDoor": door}, network=network)) == count


def test_each_unit_of_a_model_needs_a_weight():
    result = refused(model("2p-tp1-2d-tp1", copies=2), AGGREGATED, weights={"gpt-oss-120b-0": 100})
    assert "gpt-oss-120b-1, gpt-agg" in result["frontDoor.weights"]


def test_a_model_cannot_have_the_front_doors_name():
    assert "frontDoor" not in refused(model(name="front-door"))
    assert list(refused(model(name="front-door"))) == ["models[0].name"]


def test_the_cluster_layer_has_no_front_door():
    assert "frontDoor" in {p.path for p in problems(layer="cluster", frontDoor={})}
