"""The Gateway of a rehearsed stack: Envoy Gateway in the place of any provider."""

from pathlib import Path
from typing import Any

from llmd_oke.operations.cluster_checks import NAMES
from llmd_oke.planning import Plan
from llmd_oke.planning.front_door_secrets import certificate_problems
from llmd_rehearsal.cluster_plan import programs_in_pods
from llmd_rehearsal.front_door import (
    SIMULATED_POOLS,
    gateway_aliases,
    gateway_secrets,
    preinstalled_objects,
    rehearsed_gateway,
    simulated_gateway,
)
from stack_files import model, plan, stack

BEHIND = model("2p-tp1-2d-tp1", router={"mode": "gateway"})
CREATED = {"mode": "create", "provider": "istio", "exposure": "internal", "host": "a.io", "tls": "certificate"}
EXISTING = {
    "mode": "existing",
    "provider": "agentgateway",
    "name": "shared",
    "namespace": "gateways",
    "uncheckedRequests": "accepted",
}


def behind(**gateway: Any) -> Plan:
    return plan(BEHIND, gateway=gateway)


def test_a_rehearsal_creates_a_gateway_by_envoy_gateway_without_host_and_tls():
    rehearsed = rehearsed_gateway(stack(BEHIND, gateway=CREATED))["gateway"]
    assert rehearsed == {"mode": "create", "provider": "envoy-gateway", "host": "a.io", "tls": "certificate"}
    assert plan(BEHIND, gateway=rehearsed).gateway is not None


def test_a_rehearsal_makes_a_gateways_certificate_once_for_each_host(tmp_path: Path):
    (secret,) = gateway_secrets(behind(**CREATED), tmp_path)
    assert (secret.name, secret.namespaces, secret.type) == ("certificate", ("llm-d",), "kubernetes.io/tls")
    pair = {name: file.read_text() for name, file in secret.files.items()}
    assert [*certificate_problems(pair, "certificate", ("a.io",), names=NAMES)] == []
    gateway_secrets(behind(**CREATED), tmp_path)
    assert pair == {name: file.read_text() for name, file in secret.files.items()}
    (other,) = gateway_secrets(behind(**{**CREATED, "host": "b.io"}), tmp_path)
    again = {name: file.read_text() for name, file in other.files.items()}
    assert [*certificate_problems(again, "certificate", ("b.io",), names=NAMES)] == []


def test_in_a_rehearsal_the_host_of_a_gateway_leads_to_its_service():
    named = {"a.io": "inference-gateway.envoy-gateway-system.svc.cluster.local"}
    assert gateway_aliases(behind(**CREATED)) == named
    assert gateway_aliases(behind(**EXISTING)) == {}


def test_a_gateway_without_tls_needs_no_secret_in_a_rehearsal(tmp_path: Path):
    assert gateway_secrets(behind(mode="create", provider="envoy-gateway"), tmp_path) == ()
    assert gateway_secrets(plan(), tmp_path) == ()


def test_an_existing_gateway_is_created_before_the_stack_in_a_rehearsal():
    rehearsed = rehearsed_gateway(stack(BEHIND, gateway={**EXISTING, "listener": "web"}))["gateway"]
    planned = plan(BEHIND, gateway=rehearsed)
    made = {(item["kind"], item["metadata"]["name"]): item for item in preinstalled_objects(planned)}
    gateway = made["Gateway", "shared"]
    assert gateway["metadata"]["namespace"] == "gateways"
    assert {listener["name"] for listener in gateway["spec"]["listeners"]} == {"http", "web"}
    assert ("Namespace", "gateways") in made


def test_a_stack_without_a_gateway_needs_no_gateway_programs():
    assert rehearsed_gateway(stack()) == stack()
    assert preinstalled_objects(plan()) == []
    assert "envoy-gateway" not in programs_in_pods(plan())


def test_a_rehearsal_reports_which_parts_of_a_gateway_are_simulated():
    assert simulated_gateway(behind(**CREATED))[0].startswith("gateway provider istio")
    own = {"mode": "create", "provider": "envoy-gateway"}
    assert simulated_gateway(behind(**own)) == (SIMULATED_POOLS,)
