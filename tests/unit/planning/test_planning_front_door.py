from typing import Any

import pytest
from created_stacks import refusals
from llmd_oke.planning.advice import advice
from llmd_oke.planning.plan import FrontDoorPlan
from stack_files import model, ocid, paths, plan, problems

AGGREGATED = model("agg-tp1-4r", name="gpt-agg")
LLAMA = model("agg-tp1-1r", model="llama-3.3-70b-instruct-fp8-dynamic", name="llama")
KEYS = {"kind": "api-keys"}
TLS = {"host": "llm.example.com", "tls": {"kind": "config"}}


def refused(*models: dict[str, Any], **door: Any) -> list[str]:
    return paths(*models, frontDoor=door, networkPolicies={"engine": "existing"})


def planned(*models: dict[str, Any], **door: Any) -> FrontDoorPlan:
    result = plan(*(models or [model("2p-tp1-2d-tp1")]), frontDoor={"uncheckedPods": "accepted", **door}).front_door
    assert result is not None
    return result


def told(**door: Any) -> dict[str, str]:
    keys = {"authentication": KEYS, "uncheckedPods": "accepted", **door}
    return {item.path: item.text for item in advice(plan(model("2p-tp1-2d-tp1"), frontDoor=keys))}


def of_client(limits: object) -> dict[str, Any]:
    """A front door with limits of one client."""
    return {"authentication": KEYS, "limits": {"clients": {"a": limits}}}


def test_the_front_door_lists_the_copies_of_each_model_entry_under_its_served_name():
    door = planned(model("2p-tp1-2d-tp1", copies=2), AGGREGATED, LLAMA)
    assert [(m.served_name, m.units) for m in door.models] == [
        ("openai/gpt-oss-120b", ("gpt-oss-120b-0", "gpt-oss-120b-1")),
        ("openai/gpt-oss-120b", ("gpt-agg",)),
        (door.models[2].served_name, ("llama",)),
    ]
    unrouted = planned(model("agg-tp1-4r", copies=2, router={"mode": "none"}))
    assert [m.units for m in unrouted.models] == [("gpt-oss-120b",)]


@pytest.mark.parametrize(
    ("door", "path"),
    [
        ({"tls": {"kind": "config"}}, "host"),
        ({"exposure": "internal", "authentication": KEYS}, "tls"),
        ({"exposure": "internal", "limits": {"requestsPerMinute": 60}}, "authentication"),
        ({"authentication": KEYS, "limits": {"tokensPerMinute": 5}}, "limits.tokensPerMinute"),
        (of_client(7), "limits.clients.a.requestsPerMinute"),
        (of_client({"concurrentRequests": 7}), "limits.clients.a.concurrentRequests"),
        (of_client({"models": ["gpt-oss-120"]}), "limits.clients.a.models[0]"),
        (of_client({"models": []}), "limits.clients.a.models"),
        ({"authentication": KEYS, "limits": {"requestsPerMinute": 5}}, "limits.requestsPerMinute"),
        ({"authentication": KEYS, "limits": {"concurrentRequests": 6}}, "limits.concurrentRequests"),
        ({"authentication": KEYS, "limits": {"models": ["gpt-oss-120"]}}, "limits.models[0]"),
        ({"authentication": KEYS, "limits": {"models": [], "clients": {"a": 60}}}, "limits.clients.a.models"),
        ({"limits": {"models": []}}, "authentication"),
        ({"cacheIsolation": "client"}, "authentication"),
        ({"hosts": {"a.example.com": "gpt-os"}}, "hosts.a.example.com"),
        ({"host": "a.io", "hosts": {"a.io": "gpt-oss-120b"}}, "hosts.a.io"),
        ({"weights": {"gpt-oss-120": 100}}, "weights.gpt-oss-120"),
        ({"weights": {"gpt-oss-120b": 90}}, "weights"),
        ({"loadBalancer": {"subnetId": ocid("subnet")}}, "loadBalancer"),
        ({"exposure": "public", "authentication": KEYS, **TLS}, "loadBalancer.subnetId"),
    ],
)
def test_contradictory_front_door_settings_are_refused_with_their_path(door: dict[str, Any], path: str):
    assert refused(**door) == [f"frontDoor.{path}"]


@pytest.mark.parametrize(("isolation", "words"), [("client", "fewer cache hits"), ("none", "share prefix cache")])
def test_check_says_what_cacheisolation_client_costs_and_what_none_exposes(isolation: str, words: str):
    assert words in told(cacheIsolation=isolation)["frontDoor.cacheIsolation"]


def test_front_door_api_keys_require_enforced_network_policies_or_an_opt_out():
    door = {"authentication": KEYS}
    assert paths(frontDoor=door) == ["frontDoor.uncheckedPods"]
    assert problems(frontDoor={**door, "uncheckedPods": "accepted"}) == []
    assert problems(frontDoor=door, networkPolicies={"engine": "existing"}) == []
    assert refusals(stack_changes={"frontDoor": door, "networkPolicies": {"engine": "calico"}}) == {}


@pytest.mark.parametrize(("cni", "engine"), [("vcn-native", "calico"), ("flannel", "existing")])
def test_calico_is_offered_to_a_front_door_only_where_the_kit_can_install_it(cni: str, engine: str):
    result = refusals(stack_changes={"frontDoor": {"authentication": KEYS}}, cni=cni)
    assert f"or networkPolicies.engine: {engine})" in result["frontDoor.uncheckedPods"]


def test_front_door_limits_apply_to_clients_without_limits_of_their_own():
    own = {"models": ["llama"], "concurrentRequests": 2}
    limits = {"concurrentRequests": 8, "models": ["gpt-oss-120b"], "clients": {"a": own}}
    door = planned(model("2p-tp1-2d-tp1"), LLAMA, authentication=KEYS, limits=limits)
    assert (door.limits.concurrent_requests, door.limits.models) == (4, ("openai/gpt-oss-120b",))
    assert (door.clients["a"].concurrent_requests, door.clients["a"].models) == (1, (door.models[1].served_name,))
    without_models = {"models": [], "clients": {"a": {"models": ["gpt-oss-120b"]}}}
    assert planned(authentication=KEYS, limits=without_models).limits.models == ()


def test_check_warns_of_token_limits_that_a_models_longest_request_always_exceeds():
    clients = {"small": {"tokensPerMinute": 200_000}, "equal": {"tokensPerMinute": 262_144}}
    said = told(limits={"tokensPerMinute": 262_146, "clients": clients})
    assert "gpt-oss-120b 131,072" in said["frontDoor.limits.clients.small.tokensPerMinute"]
    assert "gpt-oss-120b 131,072" in said["frontDoor.limits.clients.equal.tokensPerMinute"]
    assert "frontDoor.limits.tokensPerMinute" not in said


def test_a_public_front_door_requires_tls_and_authentication():
    result = refused(exposure="public", loadBalancer={"subnetId": ocid("subnet")})
    assert set(result) == {"frontDoor.tls", "frontDoor.authentication"}


@pytest.mark.parametrize(("network", "count"), [({}, 1), ({"publicLoadBalancers": True}, 0)])
def test_a_public_front_door_requires_a_public_subnet(network: dict[str, Any], count: int):
    door = {"exposure": "public", "authentication": KEYS, "uncheckedPods": "accepted", **TLS}
    assert len(refusals(stack_changes={"frontDoor": door}, network=network)) == count


def test_front_door_weights_must_be_given_for_every_copy_of_a_weighted_model():
    models = model("2p-tp1-2d-tp1", copies=2), AGGREGATED
    assert refused(*models, weights={"gpt-oss-120b-0": 100}) == ["frontDoor.weights"]


def test_a_model_with_the_name_of_the_front_doors_kubernetes_objects_is_refused():
    assert refused(model(name="front-door")) == ["models[0].name"]


def test_the_cluster_layer_cannot_have_a_front_door():
    assert "frontDoor" in paths(layer="cluster", frontDoor={})
