from dataclasses import replace

import pytest
from fake_deployment import TOPOLOGY
from llmd_oke.bench.deployment.circumstances import VARIABLE, Circumstances, from_environment
from llmd_oke.bench.deployment.directory import PodAddress, Way
from llmd_oke.bench.deployment.topology import RouterPart
from llmd_oke.bench.smoke.request import from_json
from llmd_oke.bench.smoke.resolving import resolve
from llmd_oke.results.row import Basis
from smoke_requests import REQUEST

PODS = {
    "router": [PodAddress("r", "10.0.0.1")],
    "prefill": [PodAddress("p0", "10.0.0.2"), PodAddress("p1", "10.0.0.3")],
    "decode": [PodAddress("d", "10.0.0.4")],
}


class FakeDirectory:
    def service(self, namespace, name):
        return Way(f"http://{name}.{namespace}")

    def pods(self, namespace, labels):
        return PODS[labels["role"]]

    def pod(self, namespace, pod, port):
        return Way(f"http://{pod.address}:{port}")


def test_a_request_survives_its_file():
    assert from_json(REQUEST.to_json()) == REQUEST


def test_equal_requests_give_equal_texts():
    assert replace(REQUEST).to_json() == REQUEST.to_json()


def test_every_pod_is_asked_for_its_counters_where_it_shows_them():
    found = resolve(REQUEST, FakeDirectory(), Circumstances()).metrics
    assert [(each.role, each.url) for each in found] == [
        ("router", "http://10.0.0.1:9090/metrics"),
        ("prefill", "http://10.0.0.2:8000/metrics"),
        ("prefill", "http://10.0.0.3:8000/metrics"),
        ("decode", "http://10.0.0.4:8200/metrics"),
    ]


def test_the_pods_of_servers_are_listed_anew_whenever_they_are_asked_for():
    servers = resolve(REQUEST, FakeDirectory(), Circumstances()).servers
    assert servers
    assert [(each.role, each.name) for each in servers()] == [("prefill", "p0"), ("prefill", "p1"), ("decode", "d")]


def test_each_pair_of_a_unit_is_introduced_through_the_routing_sidecar():
    pairs = resolve(REQUEST, FakeDirectory(), Circumstances()).introductions
    assert [(pair.base_url, pair.headers["x-prefiller-host-port"]) for pair in pairs] == [
        ("http://10.0.0.4:8000", "10.0.0.2:8000"),
        ("http://10.0.0.4:8000", "10.0.0.3:8000"),
    ]


def test_units_are_not_introduced_to_each_other():
    apart = replace(REQUEST, groups=(REQUEST.groups[1], replace(REQUEST.groups[2], unit="b")))
    assert resolve(apart, FakeDirectory(), Circumstances()).introductions == ()


def test_the_report_names_the_versions_that_ran():
    topology = replace(
        TOPOLOGY, router=(RouterPart("endpoint-picker", "x", "v0.8.0"), RouterPart("service", "y", "v1"))
    )
    how = Circumstances(ran={"epp": "v0.7.1"})
    plan = resolve(replace(REQUEST, topology=topology), FakeDirectory(), how)
    assert [part.version for part in plan.topology.router] == ["v0.7.1", "v1"]


def test_a_pod_that_is_told_nothing_measures_real_servers():
    assert from_environment({}) == Circumstances()


@pytest.mark.parametrize("basis", list(Basis))
def test_what_a_rehearsal_tells_its_pods_arrives(basis):
    how = Circumstances(0.3, basis, ("vLLM", "nodes, and their GPUs"), {"epp": "v0.7.1"})
    assert from_environment({VARIABLE: how.to_text()}) == how
