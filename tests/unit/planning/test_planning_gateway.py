from typing import Any

import pytest
from created_stacks import refusals
from llmd_base.errors import InvalidStack
from llmd_oke import planning
from llmd_oke.config import validate
from llmd_oke.planning.plan import GatewayPlan
from stack_files import model, paths, plan, problems, stack

CREATED = {"mode": "create", "provider": "istio"}
EXISTING = {
    "mode": "existing",
    "provider": "agentgateway",
    "name": "shared",
    "namespace": "gateways",
    "uncheckedRequests": "accepted",
}
LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"


def behind(topology: str = "2p-tp1-2d-tp1", *, route: object = None, **changes: object) -> dict[str, Any]:
    """A model behind a Gateway."""
    router = {"mode": "gateway", **({"route": route} if route else {})}
    return model(topology, router=router, **changes)


def refused(*models: dict[str, Any], **stack: Any) -> dict[str, str]:
    return {problem.path: str(problem) for problem in problems(*models, **stack)}


def planned(**gateway: Any) -> GatewayPlan:
    result = plan(behind(), gateway=gateway).gateway
    assert result is not None
    return result


def told(gateway: dict[str, Any], path: str = "gateway.provider", **changes: Any) -> list[str]:
    return [advice.text for advice in plan(behind(), gateway=gateway, **changes).advice if advice.path == path]


@pytest.mark.parametrize(
    ("changes", "listener"),
    [
        ({}, "clients"),
        ({"port": 80}, "clients"),
        ({"port": 8080}, "cluster"),
        ({"host": "llm.example.com", "tls": "certificate"}, "cluster"),
    ],
)
def test_a_created_gateway_without_tls_on_port_80_has_one_listener_for_all(changes: dict[str, Any], listener: str):
    gateway = planned(**CREATED, **changes)
    assert (gateway.listener, gateway.cluster_listener) == ("clients", listener)
    assert gateway.service_host == "inference-gateway-istio.llm-d.svc.cluster.local"
    assert gateway.pod_labels == {"gateway.networking.k8s.io/gateway-name": "inference-gateway"}


def test_an_existing_gateways_service_is_by_its_providers_convention_or_by_name():
    gateway = planned(**EXISTING)
    assert (gateway.created, gateway.listener) == (None, None)
    assert gateway.service_host == "shared.gateways.svc.cluster.local"
    named = planned(**{**EXISTING, "provider": "envoy-gateway", "service": {"name": "edge", "namespace": "front"}})
    assert (named.service_host, named.service_namespace) == ("edge.front.svc.cluster.local", "front")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"provider": "itsio"}, "gateway.provider"),
        ({"tls": "certificate"}, "gateway.host"),
        ({"host": "llm.example.com"}, "gateway.host"),
        ({"host": "a.io", "tls": "certificate", "port": 80}, "gateway.port"),
        ({"name": "gpt-oss-120b"}, "gateway.name"),
    ],
)
def test_a_gateway_that_the_provider_cannot_create_is_refused(changes: dict[str, Any], path: str):
    assert path in paths(behind(), gateway={**CREATED, **changes})


@pytest.mark.parametrize(
    ("models", "stack", "path", "words"),
    [
        ([behind()], {}, "gateway", "models[0]"),
        ([model()], {"gateway": CREATED}, "gateway", "no model"),
        ([model(router={"route": {"hosts": ["a.example.com"]}})], {}, "models[0].router.route", "router.mode"),
        ([behind()], {"gateway": {**EXISTING, "provider": "envoy-gateway"}}, "gateway.service", "can't be told"),
        ([behind()], {"gateway": CREATED, "frontDoor": {}}, "frontDoor", "standalone"),
        ([behind(), behind(name="again")], {"gateway": CREATED}, "models[1].router.route", "models[0] already"),
        ([behind()], {"gateway": {**EXISTING, "uncheckedRequests": True}}, "gateway.uncheckedRequests", "no such"),
    ],
    ids=[
        *("a model behind none", "one without models", "a route without it", "one without its provider's Service"),
        *("one beside a front door", "models with equal routes", "another word than accepted"),
    ],
)
def test_a_gateway_and_models_that_do_not_fit_each_other_are_refused(
    models: list[dict[str, Any]], stack: dict[str, Any], path: str, words: str
):
    assert words in refused(*models, **stack)[path]


@pytest.mark.parametrize(
    ("route", "key"),
    [
        ({"hosts": ["a.io", "b.io", "a.io"]}, "hosts[2]"),
        ({"headers": {"X-Model": "a", "x-model": "b"}}, "headers.x-model"),
    ],
)
def test_a_gateway_route_that_repeats_a_condition_is_refused(route: dict[str, Any], key: str):
    assert paths(behind(route=route), gateway=CREATED) == [f"models[0].router.route.{key}"]


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (None, {"hosts": ["llama.example.com"]}, []),
        (None, {"headers": {"X-Gateway-Base-Model-Name": "llama"}}, []),
        ({"headers": {"X-Model": "a"}}, {"headers": {"x-model": "a"}}, ["models[1].router.route"]),
        (
            {"hosts": ["a.example.com"], "path": "/v1"},
            {"hosts": ["a.example.com"], "path": "/v1/"},
            ["models[1].router.route"],
        ),
    ],
    ids=["a host", "a header", "the case of a header's name", "a slash at the end of the path"],
)
def test_models_behind_a_gateway_differ_by_host_or_header_and_not_by_notation(
    first: dict[str, Any] | None, second: dict[str, Any], refused: list[str]
):
    assert paths(behind(route=first), behind(model=LLAMA, name="llama", route=second), gateway=CREATED) == refused


SHARED = {"mode": "existing", "name": "shared", "namespace": "gateways", "service": {"name": "shared"}}
ACCEPTED = {"uncheckedRequests": "accepted"}
UNCHECKED = [
    {"mode": "create", "provider": "agentgateway"},
    *({**SHARED, "provider": p} for p in ("agentgateway", "istio")),
]


@pytest.mark.parametrize("gateway", UNCHECKED)
def test_a_gateway_that_checks_no_client_fields_is_accepted_explicitly_and_warned_of(gateway: dict[str, Any]):
    assert paths(behind(), gateway=gateway) == ["gateway.uncheckedRequests"]
    assert paths(behind(), gateway={**gateway, **ACCEPTED}) == []
    assert any("kv_transfer_params, priority" in text for text in told({**gateway, **ACCEPTED}))


@pytest.mark.parametrize("gateway", [CREATED, {**CREATED, "provider": "envoy-gateway"}])
def test_a_gateway_that_checks_requests_needs_no_uncheckedrequests_setting(gateway: dict[str, Any]):
    assert paths(behind(), gateway=gateway) == []


def test_check_says_what_istio_needs_and_that_its_filters_were_never_tried():
    texts = told(CREATED)
    assert "ENABLE_GATEWAY_API_INFERENCE_EXTENSION" in texts[0]
    assert [text for text in texts if "was never tried" in text]
    assert not [text for text in texts if "lets all" in text]


@pytest.mark.parametrize("mode", [{"mode": "create"}, SHARED])
def test_no_advice_on_fields_of_client_requests_is_given_with_envoy_gateway(mode: dict[str, Any]):
    both = plan(behind(), gateway={**mode, "provider": "envoy-gateway"}, release="llm-d-0.7.0").advice
    assert not [advice for advice in both if "client" in advice.text and advice.path.startswith("gateway")]


def test_check_warns_of_a_routing_sidecar_behind_a_gateway_that_trusts_client_fields():
    gateway = {**UNCHECKED[0], **ACCEPTED}
    assert not told(gateway, "gateway", release="llm-d-0.9.0")
    assert told(gateway, "gateway", release="llm-d-0.7.0")
    beside = model("2p-tp1-2d-tp1", model=LLAMA, name="llama")
    made = plan(behind("agg-tp1-1r"), beside, gateway=gateway, release="llm-d-0.7.0")
    assert "gateway" not in [advice.path for advice in made.advice]


def test_endpoint_pickers_behind_a_gateway_need_less_cpu_than_routers_with_envoy():
    small = {"shape": "VM.Standard.E5.Flex", "size": 1, "ocpus": 8, "memoryGib": 32}
    routed = refusals(stack_changes={"models": [model("2p-tp1-2d-tp1")], "systemPool": small})
    assert list(routed) == ["systemPool.size"]
    assert not refusals(stack_changes={"models": [behind()], "systemPool": small, "gateway": CREATED})


def test_more_copies_of_a_model_than_a_gateway_providers_route_supports_are_refused():
    config = validate(stack(behind(copies=2), gateway={**CREATED, "provider": "envoy-gateway"}))
    with pytest.raises(InvalidStack) as refused_:
        planning.plan(config, nodes_pull=True)
    assert "models[0].copies" in [problem.path for problem in refused_.value.problems]
    assert planning.plan(config).models[0].copies == 2


def test_a_gateway_providers_limit_of_copies_is_that_of_models_behind_the_gateway():
    beside = model("2p-tp1-2d-tp1", model=LLAMA, name="llama", copies=2)
    config = validate(stack(behind(), beside, gateway={**CREATED, "provider": "envoy-gateway"}))
    models = planning.plan(config, nodes_pull=True).models
    assert [(made.behind_gateway, made.copies) for made in models] == [(True, 1), (False, 2)]


@pytest.mark.parametrize(
    ("provider", "timeout_s", "told"), [("istio", 360, False), ("istio", 361, True), ("agentgateway", 0, True)]
)
def test_check_warns_of_responses_that_a_load_balancer_may_time_out(provider: str, timeout_s: int, told: bool):
    gateways = ({**EXISTING, **ACCEPTED, "provider": provider}, {"mode": "create", "provider": "envoy-gateway"})
    paths = [
        {advice.path for advice in plan(behind(route={"timeoutS": timeout_s}), gateway=gateway).advice}
        for gateway in gateways
    ]
    assert ("models[0].router.route.timeoutS" in paths[0]) is told
    assert "models[0].router.route.timeoutS" not in paths[1]
