"""NetworkPolicies of whole stacks: no pod of the kit is without one, and none reaches its node's metadata."""

from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any

import pytest
from created_cluster import created
from llmd_oke.testing import Rendered
from stack_files import stack as stack_file

LINK_LOCAL = IPv4Network("169.254.0.0/16")
METADATA = IPv4Network("169.254.169.254/32")
KEPT_IMAGE = {"app.kubernetes.io/part-of": "llmd-oke", "app.kubernetes.io/name": "image-pull"}
"""Pods that keep an image on their node speak with nobody."""


@pytest.fixture
def whole(rendered: Any) -> Rendered:
    return rendered(created())


def policies(stack: Rendered) -> list[dict[str, Any]]:
    return [item for item in stack.manifests() if item["kind"] == "NetworkPolicy"]


def destinations(stack: Rendered) -> Iterator[dict[str, Any]]:
    for policy in policies(stack):
        for rule in policy["spec"]["egress"]:
            assert rule["to"], policy["metadata"]["name"]
            yield from rule["to"]


def is_selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(item["operator"] == "Exists" for item in expressions)
    exact = selector.get("matchLabels", {})
    return exact.items() <= labels.items() and all(item["key"] in labels for item in expressions)


def test_every_network_policy_restricts_incoming_and_outgoing_connections(stack: Rendered):
    for policy in policies(stack):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"], policy["metadata"]["name"]


def require_closed_metadata(stack: Rendered) -> None:
    """Fail where a policy opens the metadata of nodes."""
    for peer in destinations(stack):
        block = peer.get("ipBlock", {"cidr": "192.0.2.0/32"})
        reached = METADATA.subnet_of(IPv4Network(block["cidr"]))
        assert not reached or str(LINK_LOCAL) in block["except"]


def test_no_pod_may_reach_the_metadata_service_that_gives_it_the_nodes_identity(stack: Rendered):
    require_closed_metadata(stack)


def test_an_allowed_range_that_includes_the_metadata_address_excludes_it(rendered: Any):
    ranges = ["0.0.0.0/0", "160.0.0.0/4", "169.252.0.0/14"]
    opened = rendered(stack_file(networkPolicies={"destinations": [{"cidr": cidr} for cidr in ranges]}))
    require_closed_metadata(opened)
    assert {*ranges} <= {peer.get("ipBlock", {}).get("cidr") for peer in destinations(opened)}


@pytest.mark.parametrize("of_created_cluster", [False, True])
def test_every_pod_is_selected_by_a_network_policy_besides_the_namespaces_default(
    stack: Rendered, whole: Rendered, of_created_cluster: bool
):
    declared = whole if of_created_cluster else stack
    closed = {item["metadata"]["namespace"] for item in policies(declared) if item["spec"]["podSelector"] == {}}
    own = [item["spec"]["podSelector"] for item in policies(declared) if item["spec"]["podSelector"]]
    for item in declared.manifests():
        if item["kind"] in {"Deployment", "DaemonSet", "Job"} and item["metadata"]["namespace"] != "kube-system":
            labels = item["spec"]["template"]["metadata"]["labels"]
            assert item["metadata"]["namespace"] in closed
            assert any(is_selected(selector, labels) for selector in own) or KEPT_IMAGE.items() <= labels.items()


def test_a_namespace_of_the_kit_denies_all_traffic_by_default(whole: Rendered):
    closed = [item for item in policies(whole) if item["spec"]["podSelector"] == {}]
    assert {item["metadata"]["namespace"] for item in closed} == {"llm-d", "llmd-oke-acceptance"}
    for policy in closed:
        assert policy["spec"]["ingress"] == []
        assert all({port["port"] for port in rule["ports"]} == {53} for rule in policy["spec"]["egress"])
