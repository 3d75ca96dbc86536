"""Each rule of the policies by itself: what it finds, and what it leaves alone."""

from collections.abc import Mapping
from typing import Any

import pytest
from llmd_oke.policies.organisation import Organisation
from llmd_oke.policies.rules import (
    CONFIG,
    RESOURCE_RULES,
    STACK_RULES,
    PolicyResource,
    StackFacts,
    Violation,
    description,
    violations,
)

CLUSTER = "oci:ContainerEngine/cluster:Cluster"
POOL = "oci:ContainerEngine/nodePool:NodePool"
INTERNAL = "oci-network-load-balancer.oraclecloud.com/internal"
TOKEN = "hf_" + "a1B2" * 10


def found(
    policy: str, *resources: PolicyResource, facts: StackFacts | None = None, **choices: object
) -> list[Violation]:
    """Return the breaches of one policy, with some choices of the organisation."""
    organisation = Organisation.model_validate(choices)
    return [item for item in violations(resources, organisation, facts) if item.policy == policy]


def oci(type_: str = CLUSTER, *, protect: bool = True, **properties: object) -> PolicyResource:
    return PolicyResource(type_, "it", properties, protect)


def kubernetes(kind: str, **properties: Any) -> PolicyResource:
    metadata = {"name": "it", "namespace": "llm-d", **properties.pop("metadata", {})}
    return PolicyResource(f"kubernetes:v1:{kind}", "it", {"kind": kind, "metadata": metadata, **properties})


def service(port: int, annotations: Mapping[str, str] | None = None, name: str = "front-door") -> PolicyResource:
    spec = {"type": "LoadBalancer", "ports": [{"port": port}]}
    return kubernetes("Service", metadata={"annotations": annotations or {}, "name": name}, spec=spec)


def test_a_public_api_endpoint_violates_its_policy():
    public, private = (oci(endpointConfig={"isPublicIpEnabled": value}) for value in (True, False))
    (violation,) = found("public-endpoints", public, private)
    assert violation.key == "cluster.apiEndpoint.access"
    assert not found("public-endpoints", public, public_api=True)


@pytest.mark.parametrize(
    ("resource", "keys"),
    [
        (service(80), ["frontDoor.tls"]),
        (service(80, name="other"), [""]),
        (service(443), []),
        (service(80, {INTERNAL: "true"}), []),
        (service(80, {INTERNAL: "false"}), ["frontDoor.tls"]),
    ],
)
def test_a_public_load_balancer_without_tls_violates_its_policy(resource: PolicyResource, keys: list[str]):
    assert [item.key for item in found("public-endpoints", resource)] == keys


@pytest.mark.parametrize(
    ("internal", "protocol", "count"), [("false", "HTTP", 1), ("false", "HTTPS", 0), ("true", "HTTP", 0)]
)
def test_a_public_gateway_listener_without_tls_violates_its_policy(internal: str, protocol: str, count: int):
    spec = {"infrastructure": {"annotations": {INTERNAL: internal}}, "listeners": [{"name": "a", "protocol": protocol}]}
    assert len(found("public-endpoints", kubernetes("Gateway", spec=spec))) == count


@pytest.mark.parametrize(("signed_in", "count"), [(False, 1), (True, 0)])
def test_a_public_front_door_without_authentication_violates_its_policy(signed_in: bool, count: int):
    facts = StackFacts(1.0, signed_in=signed_in)
    assert len(found("client-authentication", service(443), service(443, name="other"), facts=facts)) == count


def test_missing_required_tags_violate_their_policy():
    tags = {"freeformTags": {"team": "a"}, "definedTags": {"Operations.CostCenter": "42"}}
    bare = oci("oci:ContainerEngine/addon:Addon")
    required = {"required_tags": ["team", "Operations.CostCenter", "owner"]}
    (violation,) = found("required-tags", oci(**tags), bare, **required)
    assert (violation.found, violation.key) == ("it has no tag owner", "tags.freeform")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (StackFacts(1001.0), "it costs 1,001 US dollars a month"),
        (StackFacts(999.0, ("one pool",)), "one pool has no price"),
        (StackFacts(999.0), None),
        (None, None),
    ],
)
def test_a_stack_above_the_price_limit_violates_its_policy(facts: StackFacts | None, words: str | None):
    texts = [item.found for item in found("monthly-cost", facts=facts, monthly_usd=1000)]
    assert [words in text for text in texts if words] == ([True] if words else [])
    assert bool(texts) == bool(words)


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        "-----BEGIN RSA PRIVATE KEY-----\nMII",
        "ghp_" + "a" * 36,
        "AKIA" + "A" * 16,
        "https://objectstorage.us-ashburn-1.oraclecloud.com/p/" + "a" * 24 + "/n/x/b/y/o/",
        ".".join(["eyJ" + "a" * 12] * 2 + ["b" * 12]),
    ],
)
def test_plain_text_keys_and_tokens_violate_their_policy_and_are_not_shown(text: str):
    (violation,) = found("plain-secrets", kubernetes("ConfigMap", data={"a": [text]}))
    assert "data.a[0]" in violation.found
    assert text not in str(violation)


def test_secret_values_and_ordinary_values_satisfy_the_policy_on_secrets():
    secret = PolicyResource(
        "kubernetes:core/v1:Secret", "s", {"stringData": {"token": TOKEN}}, False, frozenset({"stringData"})
    )
    assert not found(
        "plain-secrets", secret, kubernetes("ConfigMap", data={"a": "hf_home", "b": "-----BEGIN CERTIFICATE-----"})
    )


def test_a_setting_listed_as_secret_violates_its_policy_in_plain_text():
    settings = PolicyResource(CONFIG, "prod", {"llmd-oke:huggingFaceToken": "short", "oci:region": "us-ashburn-1"})
    (violation,) = found("plain-secrets", settings)
    assert "llmd-oke:huggingFaceToken" in violation.found


def test_an_unprotected_resource_that_must_be_protected_violates_its_policy():
    storage = oci("oci:FileStorage/fileSystem:FileSystem", protect=False)
    assert [item.key for item in found("protection", oci(protect=False), oci(), storage)] == ["cluster.protect"]
    (violation,) = found("protection", storage, oci(protect=False), protected=["file-systems"])
    assert violation.key == "storage.modelCache"


def test_regions_and_shapes_outside_the_allow_list_violate_their_policy():
    def provider(name: str) -> PolicyResource:
        return PolicyResource("pulumi:providers:oci", name, {"region": "us-phoenix-1"})

    assert len(found("regions", provider("oci"), provider("iam-home"), regions=["us-ashburn-1"])) == 1
    assert not found("regions", provider("oci"))
    launched = oci(
        "oci:Core/instanceConfiguration:InstanceConfiguration", instanceDetails={"launchDetails": {"shape": "B"}}
    )
    assert len(found("shapes", oci(POOL, nodeShape="B"), oci(POOL, nodeShape="A"), launched, shapes=["A"])) == 2
    assert not found("shapes", launched)


def test_images_without_digest_violate_their_policy_except_of_allowed_registries():
    pod = {"template": {"spec": {"initContainers": [{"image": "a/b:1"}], "containers": [{"image": "c:1@sha256:00"}]}}}
    assert [item.accepted for item in found("image-digests", kubernetes("Deployment", spec=pod))] == ["a/b:1@sha256:…"]
    assert not found("image-digests", kubernetes("Deployment", spec=pod), tags_suffice=["a/"])


def test_a_namespace_with_model_servers_but_no_network_policy_is_a_violation():
    server = kubernetes("Deployment", metadata={"labels": {"llm-d.ai/role": "decode"}})
    elsewhere = kubernetes("NetworkPolicy", metadata={"namespace": "other"})
    assert [item.resource for item in found("network-policies", server, elsewhere)] == ["Namespace llm-d"]
    assert not found("network-policies", server, kubernetes("NetworkPolicy"))


def test_a_disabled_policy_reports_nothing():
    assert not found("protection", oci(protect=False), levels={"protection": "off"})


@pytest.mark.parametrize("policy", [*RESOURCE_RULES, *STACK_RULES])
def test_each_policy_has_a_description_of_what_it_finds(policy: Any):
    assert description(policy).startswith("Find ")
