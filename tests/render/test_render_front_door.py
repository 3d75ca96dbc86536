import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from certificates_for_tests import certificate, private_key
from created_cluster import created
from llmd_base.errors import InvalidStack
from llmd_oke import catalogue
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.testing import Rendered
from render_support import selects
from stack_files import created_stack, model, stack

ALICE = "sk-alice-Qm7xT2vKd9RwZb4H"
NEXT = "sk-next-Hd5kV9bMq2TzXc7R"
DIGEST = hashlib.sha256(ALICE.encode()).hexdigest()
HOST = "llm.example.com"
KEYS = {"kind": "api-keys"}
TRUSTED = {"uncheckedPods": "accepted"}
AGGREGATED = model("agg-tp1-4r", name="gpt-agg")
CACHE_SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f0aabbccdd9e8f7a6b"
BASELINE = model("agg-tp1-1r", name="plain", router={"mode": "none"})


def secrets() -> dict[str, str]:
    key = private_key()
    pair = {"chain": certificate(key, HOST).chain, "key": key.pem}
    return {"frontDoorKeys": json.dumps({"alice": ALICE}), "frontDoorCertificate": json.dumps(pair)}


@pytest.fixture(scope="module")
def secured(rendered: Any) -> Rendered:
    """Three models behind keys and a certificate of the config."""
    door = {
        "host": HOST,
        "tls": {"kind": "config"},
        "authentication": KEYS,
        **TRUSTED,
        **TRUSTED,
        "limits": {"requestsPerMinute": 60},
    }
    return rendered(stack(model("2p-tp1-2d-tp1"), AGGREGATED, BASELINE, frontDoor=door), **secrets())


def test_a_clients_present_and_next_api_key_both_identify_the_client(rendered: Any):
    door = {"authentication": KEYS, **TRUSTED}
    both = {"frontDoorKeys": json.dumps({"alice": ALICE}), "frontDoorNextKeys": json.dumps({"alice": NEXT})}
    (access,) = [
        m
        for m in rendered(stack(AGGREGATED, frontDoor=door), **both).manifests()
        if m["metadata"]["name"] == "front-door-access"
    ]
    text = access["stringData"]["authentication.json"]
    assert all(f'[\\"{hashlib.sha256(key.encode()).hexdigest()}\\"] = \\"alice\\"' in text for key in (ALICE, NEXT))
    assert ALICE not in text + NEXT


def test_kubernetes_secrets_are_changed_in_place_and_not_replaced(rendered: Any):
    made = rendered(stack(AGGREGATED), huggingFaceToken="hf_planted")
    (token,) = [item for item in made.resources if item.inputs.get("metadata", {}).get("name") == "huggingface-token"]
    providers = {item.urn: item.inputs for item in made.of_type("pulumi:providers:kubernetes")}
    assert providers[token.provider.rpartition("::")[0]]["enableSecretMutable"] in {True, "true"}


def clusters(rendered: Rendered) -> dict[str, dict[str, int | None]]:
    """Units with their weights, by the name of Envoy's cluster."""
    (traffic,) = [m for m in rendered.manifests() if m["metadata"].get("name", "").endswith("-traffic")]
    return {
        cluster["name"]: {
            end["endpoint"]["address"]["socket_address"]["address"].split(".")[0]: end.get("load_balancing_weight")
            for end in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        }
        for cluster in json.loads(traffic["data"]["clusters.json"])["resources"]
    }


def envoys(rendered: Rendered) -> dict[str, Any]:
    (found,) = [
        m
        for m in rendered.manifests()
        if m["metadata"].get("name", "").startswith("front-door-") and m["kind"] == "Deployment"
    ]
    return found


def test_envoys_of_a_stacks_front_door_are_created_after_servers_and_routers(secured: Rendered):
    made = secured.of_type("kubernetes:apps/v1:Deployment")
    (door,) = (item for item in made if "StackFrontDoor" in item.urn)
    assert {item.urn for item in made if item is not door} < {*door.depends_on}


def test_api_keys_and_the_tls_private_key_occur_only_in_kubernetes_secrets(secured: Rendered):
    for resource in secured.resources:
        if ALICE in json.dumps(resource.inputs) or "PRIVATE KEY" in json.dumps(resource.inputs):
            assert resource.type == "kubernetes:core/v1:Secret"
            assert resource.secret_inputs == {"stringData"}
    assert ALICE not in json.dumps(secured.outputs, default=str)


def test_the_cluster_stores_only_digests_of_api_keys(secured: Rendered):
    manifests = [json.dumps(manifest) for manifest in secured.manifests()]
    assert not any(ALICE in manifest for manifest in manifests)
    assert [DIGEST in manifest for manifest in manifests].count(True) == 1


def test_the_cache_salt_secret_is_in_one_kubernetes_secret_and_routers_allow_salts(rendered: Any, secured: Rendered):
    door = {"host": HOST, "tls": {"kind": "config"}, "authentication": KEYS, **TRUSTED, "cacheIsolation": "client"}
    stack_file = stack(model("2p-tp1-2d-tp1"), frontDoor=door)
    salted = rendered(stack_file, **secrets(), frontDoorCacheSecret=CACHE_SECRET)
    holders = [m for m in salted.manifests() if CACHE_SECRET in json.dumps(m)]
    assert [(m["kind"], m["metadata"]["name"]) for m in holders] == [("Secret", "front-door-access")]
    refuses = {name: '["cache_salt"]' in router_program(found) for name, found in (("all", secured), ("own", salted))}
    assert refuses == {"all": True, "own": False}


def router_program(rendered: Rendered) -> str:
    """Return what a router's Envoy holds bodies to."""
    config = json.loads(rendered.kubernetes("ConfigMap", "gpt-oss-120b-envoy")["data"]["envoy.yaml"])
    (listener,) = [item for item in config["static_resources"]["listeners"] if item["name"] == "vllm"]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    (checks,) = [item for item in filters if item["name"] == "client-bodies"]
    return checks["typed_config"]["default_source_code"]["inline_string"]


def test_the_address_of_the_front_door_is_a_stack_output(secured: Rendered):
    assert secured.outputs["front_door"] == "https://llm.example.com"


def test_the_address_of_a_front_door_without_a_host_is_that_of_its_service(rendered: Any):
    made = rendered(stack(frontDoor={"uncheckedPods": "accepted"}))
    assert made.outputs["front_door"] == "http://front-door.llm-d.svc.cluster.local"


def test_with_a_front_door_each_model_keeps_its_service_but_has_no_own_envoys(secured: Rendered):
    pods = envoys(secured)["spec"]["template"]["metadata"]["labels"]
    for i, name in enumerate(("gpt-oss-120b", "gpt-agg")):
        service = secured.kubernetes("Service", name)["spec"]
        assert selects(service["selector"], pods)
        assert service["ports"][0]["targetPort"] == 8100 + i
    assert secured.kubernetes("Service", "plain")["spec"]["ports"][0]["targetPort"] == 8000
    assert not secured.of_type("llmd-oke:index:FrontDoor")


def test_a_model_without_routers_is_reached_through_its_own_service(secured: Rendered):
    assert list(clusters(secured)["model/plain"]) == ["plain"]


def test_front_door_ports_without_authentication_are_reachable_only_by_listed_pods(secured: Rendered):
    rules = secured.kubernetes("NetworkPolicy", "front-door")["spec"]["ingress"]
    open_ports = [port["port"] for rule in rules if "from" not in rule for port in rule["ports"]]
    assert open_ports == [8443]


def test_front_door_metrics_are_only_for_benchmark_and_monitoring_pods(rendered: Any):
    for result, name in (
        (rendered(stack(frontDoor={})), "front-door"),
        (rendered(stack()), "gpt-oss-120b-front-door"),
    ):
        rules = result.kubernetes("NetworkPolicy", name)["spec"]["ingress"]
        (metrics,) = [rule for rule in rules if {"protocol": "TCP", "port": 19001} in rule["ports"]]
        assert len(metrics["ports"]) == 1
        assert all(
            "ipBlock" in peer or "podSelector" in peer or "namespaceSelector" in peer for peer in metrics["from"]
        )


def test_a_front_door_that_fetches_token_keys_may_reach_and_verifies_their_host(rendered: Any):
    authentication = {"kind": "jwt", "issuer": "https://id.example.com", "audiences": ["llm"]}
    uri = "https://id.example.com:8443/jwks.json"
    result = rendered(stack(frontDoor={"authentication": {**authentication, "jwksUri": uri}, **TRUSTED}))
    (policy,) = [
        m for m in result.manifests() if (m["kind"], m["metadata"].get("name")) == ("NetworkPolicy", "front-door")
    ]
    ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", [])]
    assert 8443 in ports
    (bootstrap,) = [
        m["data"]["envoy.yaml"]
        for m in result.manifests()
        if "envoy.yaml" in m.get("data", {}) and "key-set" in m["data"]["envoy.yaml"]
    ]
    assert '"exact": "id.example.com"' in bootstrap


def test_each_of_a_front_doors_two_envoys_allows_half_of_a_clients_limits(rendered: Any):
    own = {"requestsPerMinute": 20, "tokensPerMinute": 2000, "concurrentRequests": 8, "models": ["gpt-oss-120b"]}
    limits = {"requestsPerMinute": 60, "tokensPerMinute": 6000, "clients": {"alice": own}}
    result = rendered(stack(frontDoor={"authentication": KEYS, **TRUSTED, "limits": limits}), **secrets())
    (text,) = [m["data"]["envoy.yaml"] for m in result.manifests() if "requests-per-minute" in str(m)]
    filters = json.loads(text)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    buckets = {
        filter_["name"]: [row["token_bucket"]["max_tokens"] for row in filter_["typed_config"]["descriptors"]]
        for filter_ in filters["http_filters"]
        if filter_["name"].endswith("-per-minute")
    }
    assert buckets == {"requests-per-minute": [10, 30], "tokens-per-minute": [1000, 3000]}
    assert '[\\"alice\\"] = {[\\"openai/gpt-oss-120b\\"] = true}' in text
    (traffic,) = [m for m in result.manifests() if m["metadata"].get("name", "").endswith("-traffic")]
    most = {
        cluster["name"]: cluster["circuit_breakers"]["thresholds"][0]["max_requests"]
        for cluster in json.loads(traffic["data"]["clusters.json"])["resources"]
    }
    assert {number for name, number in most.items() if name.startswith("client/alice/")} == {4}


def test_a_request_without_max_tokens_counts_as_what_its_servers_may_generate(rendered: Any):
    door = {
        "authentication": KEYS,
        **TRUSTED,
        "limits": {"tokensPerMinute": 1_000_000},
        "hosts": {"a.example.com": "gpt-agg"},
    }
    short = model("agg-tp1-4r", name="gpt-agg", engine={"maxModelLen": 8192})
    result = rendered(stack(model("2p-tp1-2d-tp1"), short, frontDoor=door), **secrets())
    (text,) = [m["data"]["envoy.yaml"] for m in result.manifests() if "tokens-per-minute" in str(m)]
    longest = text.split("local Longest = ")[1].split("\\n")[0].replace('\\"', '"')
    assert longest == (
        '{["hosts"] = {["a.example.com"] = 8192}, ["entries"] = {["gpt-oss-120b"] = 131072, ["gpt-agg"] = 8192},'
        ' ["models"] = {["openai/gpt-oss-120b"] = 131072}}'
    )


def test_assumed_request_lengths_cover_the_longest_sequence_of_any_catalogued_model():
    lengths = [entry.max_model_len for name in catalogue.model_names() if (entry := catalogue.model(name))]
    assert max(lengths) <= bounds().longest_sequence


def test_limits_for_all_clients_apply_to_clients_without_limits_of_their_own(rendered: Any):
    own = {"models": ["gpt-agg"], "concurrentRequests": 8}
    limits = {"models": [], "concurrentRequests": 16, "clients": {"alice": own}}
    result = rendered(stack(AGGREGATED, frontDoor={"authentication": KEYS, **TRUSTED, "limits": limits}), **secrets())
    (text,) = [m["data"]["envoy.yaml"] for m in result.manifests() if "client-rights" in str(m)]
    tables = dict(re.findall(r"local (\w+) = (.*?)\\n", text[text.index("local Models") :].replace('\\"', "'")))
    assert tables["Models"] == "{['alice'] = {['openai/gpt-oss-120b'] = true}, [''] = {}}"
    assert (tables["Most"], tables["Counted"]) == ("4", "{['alice'] = true}")


def test_a_client_with_a_concurrency_limit_has_one_envoy_cluster_for_a_models_copies(rendered: Any):
    limits = {"clients": {"alice": {"concurrentRequests": 8}}}
    door = {"authentication": KEYS, **TRUSTED, "limits": limits, "hosts": {"gpt.example.com": "gpt-oss-120b"}}
    result = rendered(stack(model("2p-tp1-2d-tp1", copies=2), AGGREGATED, frontDoor=door), **secrets())
    units = clusters(result)
    name = "client/alice/openai/gpt-oss-120b"
    assert [other for other in units if other.startswith("client/")] == [name]
    assert units[name] == {**units["model/gpt-oss-120b"], **units["model/gpt-agg"]}
    texts = [m["data"]["envoy.yaml"] for m in result.manifests() if "envoy.yaml" in m.get("data", {})]
    (text,) = [text for text in texts if f'"{name}"' in text]
    assert set(re.findall('"cluster": "(client/[^"]+)"', text)) == {name}


def test_changing_traffic_weights_changes_one_configmap_and_no_pod(rendered: Any):
    def manifests(**weights: int) -> dict[tuple[str, str], Any]:
        door = {"weights": {name.replace("_", "-"): weight for name, weight in weights.items()}}
        result = rendered(stack(model("2p-tp1-2d-tp1", copies=2), frontDoor=door))
        return {(m["kind"], m["metadata"].get("name", "")): m for m in result.manifests()}

    old = manifests(gpt_oss_120b_0=100, gpt_oss_120b_1=0)
    new = manifests(gpt_oss_120b_0=50, gpt_oss_120b_1=50)
    assert old.keys() == new.keys()
    changed = [key for key in old if old[key] != new[key]]
    assert [kind for kind, name in changed if name.endswith("-traffic")] == ["ConfigMap"]
    assert len(changed) == 1


def test_a_copy_of_a_model_with_traffic_weight_zero_is_in_no_envoy_cluster(rendered: Any):
    door = {"weights": {"gpt-oss-120b-0": 100, "gpt-oss-120b-1": 0}}
    result = rendered(stack(model("2p-tp1-2d-tp1", copies=2), frontDoor=door))
    assert [list(units.values()) for units in clusters(result).values()] == [[100], [100]]


def test_only_the_front_doors_kubernetes_provider_makes_configmaps_mutable(secured: Rendered):
    providers = {p.name: p.inputs for p in secured.of_type("pulumi:providers:kubernetes")}
    assert [name for name, inputs in providers.items() if "enableConfigMapMutable" in inputs] == ["front-door"]
    assert {inputs["enableSecretMutable"] for inputs in providers.values()} == {"true"}


@pytest.mark.parametrize(("exposure", "internal"), [("internal", "true"), ("public", "false")])
def test_the_front_doors_load_balancer_is_in_the_stacks_subnet_and_security_group(
    rendered: Any, exposure: str, internal: str
):
    door = {"exposure": exposure, "host": HOST, "tls": {"kind": "config"}, "authentication": KEYS, **TRUSTED}
    network = {"publicLoadBalancers": exposure == "public"}
    result = rendered(created_stack(cluster={"network": network}, frontDoor=door), **secrets())
    service = result.kubernetes("Service", "front-door")
    notes = {key.split("/")[1]: value for key, value in service["metadata"]["annotations"].items()}
    role = "load_balancers" if exposure == "internal" else "public_load_balancers"
    assert service["spec"]["type"] == "LoadBalancer"
    assert (notes["load-balancer-type"], notes["internal"]) == ("nlb", internal)
    assert notes["security-list-management-mode"] == "None"
    assert role.replace("_", "-") in notes["subnet"].replace("_", "-")
    assert role.replace("_", "-") in notes["oci-network-security-groups"].replace("_", "-")


def test_an_expired_front_door_certificate_is_refused_before_anything_is_declared(rendered: Any):
    key, end = private_key(), datetime(2026, 1, 31, tzinfo=UTC)
    pair = {"chain": certificate(key, HOST, end).chain, "key": key.pem}
    door = {"host": HOST, "tls": {"kind": "config"}}
    with pytest.raises(InvalidStack, match=r"frontDoorCertificate\.chain: .* expired on 2026-01-31"):
        rendered(stack(frontDoor=door), frontDoorCertificate=json.dumps(pair))


@pytest.mark.parametrize(("days", "warned"), [(3, True), (300, False)])
def test_an_update_logs_a_warning_only_if_the_front_doors_certificate_expires_soon(
    rendered: Any, caplog: pytest.LogCaptureFixture, days: int, warned: bool
):
    key = private_key()
    pair = {"chain": certificate(key, HOST, datetime.now(UTC) + timedelta(days=days)).chain, "key": key.pem}
    door = {"host": HOST, "tls": {"kind": "config"}}
    rendered(stack(AGGREGATED, frontDoor=door), frontDoorCertificate=json.dumps(pair))
    assert any("llmd-oke:frontDoorCertificate ends in" in record.message for record in caplog.records) == warned


def test_with_api_keys_only_front_door_and_router_pods_may_send_requests_to_models(rendered: Any):
    door = {"host": HOST, "tls": {"kind": "config"}, "authentication": KEYS, **TRUSTED}
    models = [model("2p-tp1-2d-tp1"), AGGREGATED, BASELINE]
    behind = rendered(created(pool={"bootVolumeGib": 2048}, models=models, frontDoor=door), **secrets())
    policies = [item for item in behind.manifests() if item["kind"] == "NetworkPolicy"]
    requests = [
        (policy["metadata"]["name"], rule)
        for policy in policies
        for rule in policy["spec"]["ingress"]
        if {8081, 8000} & {port["port"] for port in rule.get("ports", ())}
    ]
    assert len(requests) == 6
    for name, rule in requests:
        assert "from" in rule, name
        named = [peer["podSelector"].get("matchLabels", {}) for peer in rule["from"] if "podSelector" in peer]
        doors = [labels for labels in named if labels.get("app.kubernetes.io/component") == "stack-front-door"]
        assert doors or any("llmd-oke/router" in labels for labels in named), name
