"""A router's objects as the kit declares them, with the real endpoint picker and the real Envoy."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.serving import labels
from pod_cluster import HERE, Object, PodCluster, is_ready
from routers_for_tests import LONG, backends, route, router_namespace

pytestmark = pytest.mark.rehearsal

SERVERS = {
    "prefill-0": {"labels": labels.role_selector("m", "prefill")},
    "decode-0": {"labels": labels.role_selector("m", "decode")},
    "decode-1": {"labels": labels.role_selector("m", "decode")},
    "elsewhere": {"labels": {"app": "elsewhere"}},
}
"""Servers of the pool, and one that is none of it."""


@dataclass(frozen=True)
class RouterCluster:
    """A router with its model servers, in a namespace of its own."""

    cluster: PodCluster
    namespace: str
    replicas: int
    address: str
    elsewhere: str
    """A server that is none of the pool's."""
    prefills_all: bool
    """Whether short prompts too are prefilled remotely."""

    def ask(self, prompt: str, headers: dict[str, str]) -> tuple[int, Object]:
        """Return what a client gets for a prompt."""
        words = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        body = json.dumps({"model": "m", "prompt": prompt})
        text = self.cluster.inside(
            *("curl", "-sS", "-m", "60", "-w", "\\n%{http_code}", "-H", "Content-Type: application/json"),
            *(*words, "-d", body, f"http://{self.address}/v1/completions"),
        )
        answer, _, status = text.rpartition("\n")
        return int(status), json.loads(answer) if status == "200" else {"text": answer}

    def pickers(self) -> list[Object]:
        """The pods of the router that are ready."""
        pods = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={labels.ROUTED}=true")["items"]
        return [pod for pod in pods if is_ready(pod)]

    def leader(self) -> str:
        """The pod whose picker decides."""
        leases = self.cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases")["items"]
        holders = [lease["spec"]["holderIdentity"].rpartition("_")[0] for lease in leases]
        return holders[0] if holders else self.pickers()[0]["metadata"]["name"]


GUIDE = {"profile": "prefix-affinity", "decider": "always", "replicas": 1}
"""The router of `stacks/Pulumi.guide.yaml`."""


@pytest.fixture(
    scope="module",
    params=[("llm-d-0.6.0", {}), ("llm-d-0.9.0", {}), ("llm-d-0.9.0", GUIDE)],
    ids=["llm-d-0.6.0", "llm-d-0.9.0", "guide"],
)
def routed(request: pytest.FixtureRequest, pod_cluster: PodCluster) -> Iterator[RouterCluster]:
    name, own = request.param
    namespace = f"{name.replace('.', '-')}{'-guide' if own else ''}"
    with pod_cluster.ending_namespaces():
        release = router_namespace(pod_cluster, namespace, name)
        servers = backends(pod_cluster, namespace, SERVERS)
        address = route(pod_cluster, namespace, release.name, disaggregated=True, **own)
        replicas = own.get("replicas", release.router.replicas)
        yield RouterCluster(
            pod_cluster, namespace, replicas, address, servers["elsewhere"], own.get("decider") == "always"
        )


def test_a_client_cannot_choose_the_server_of_its_request(routed: RouterCluster) -> None:
    status, seen = routed.ask("short", {"x-gateway-destination-endpoint": f"{routed.elsewhere}:8000"})
    assert status == 200, seen
    assert seen["server"].startswith("decode")
    assert seen["headers"]["x-gateway-destination-endpoint"] != f"{routed.elsewhere}:8000"


@pytest.mark.parametrize(
    "header",
    ["x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port"],
)
def test_a_client_cannot_name_a_server_to_the_routing_sidecar(routed: RouterCluster, header: str) -> None:
    status, seen = routed.ask("short", {header: f"{routed.elsewhere}:8000"})
    assert status == 200
    named = seen["headers"].get(header)
    if routed.prefills_all and header == "x-prefiller-host-port":  # the picker's own
        assert not named.startswith(f"{routed.elsewhere}:")
    else:
        assert named is None


def test_the_pickers_prefill_server_header_replaces_the_clients_at_the_sidecar(routed: RouterCluster) -> None:
    status, seen = routed.ask(LONG, {"x-prefiller-host-port": f"{routed.elsewhere}:8000"})
    assert status == 200
    named = seen["headers"]["x-prefiller-host-port"]
    assert named.endswith(":8000")
    assert not named.startswith(f"{routed.elsewhere}:")


def test_every_router_pod_is_ready_whether_its_picker_is_leader_or_not(routed: RouterCluster) -> None:
    assert len(routed.pickers()) == routed.replicas


def test_killing_the_picker_loses_only_requests_in_flight(
    routed: RouterCluster, record_property: Any, tmp_path: Path
) -> None:
    """Later requests are sent on by the other picker. Where there is none, they wait for the next one, and are
    refused by the Service once the pod counts as unready: how many is the machine's to say."""
    program = tmp_path / "load.py"
    program.write_text((HERE / "router_load.py").read_text())
    seen = json.loads(routed.cluster.inside("python3", str(program), routed.address, routed.leader(), "16"))
    killed_s, request = seen["killed_s"], seen["asked"]
    lost = [item for item in request if item["status"] != 200 or not item["whole"]]
    on_their_way = [item for item in request if item["begun_s"] <= killed_s + 0.5 and item["ended_s"] >= killed_s]
    longest_s = max(item["ended_s"] - item["begun_s"] for item in request)
    output = {
        "asked": len(request),
        "lost": len(lost),
        "on their way": len(on_their_way),
        "longest_s": round(longest_s, 1),
    }
    record_property("picker killed", output)
    print(f"picker killed, {routed.replicas} of them: {output}")
    assert len(lost) < len(request) / 2
    if routed.replicas > 1:
        assert [item for item in lost if item not in on_their_way] == []
