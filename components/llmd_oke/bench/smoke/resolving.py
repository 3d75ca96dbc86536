"""From what is asked of a smoke benchmark to its plan, where the pods are."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.deployment.directory import Directory
from llmd_oke.bench.deployment.metrics import MetricsEndpoint, ServerPod
from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.deployment.topology import RouterPart, Topology
from llmd_oke.bench.smoke.request import SmokeRequest
from llmd_oke.bench.smoke.smoke import SmokePlan

PROGRAMS = {"endpoint-picker": "epp", "proxy": "envoy", "front-door": "envoy", "routing-proxy": "pd-sidecar"}
"""The programs that are parts of a router, by the labels of the parts."""


def resolve(request: SmokeRequest, directory: Directory, how: Circumstances) -> SmokePlan:
    """The plan of a benchmark of what is deployed now.

    Raises:
        KitError: the model is not there, or the cluster does not answer.
    """
    way = directory.service(request.namespace, request.service)
    return replace(
        bare_plan(request, how),
        base_url=way.url,
        headers=way.headers,
        verify=way.verify,
        metrics=tuple(endpoints(request, directory)),
        introductions=tuple(_introductions(request, directory)),
        servers=lambda: server_pods(request, directory),
    )


def bare_plan(request: SmokeRequest, how: Circumstances) -> SmokePlan:
    """The plan without addresses: enough to read a result by."""
    return SmokePlan(
        base_url="",
        model=request.model,
        topology=_as_it_ran(request.topology, how.ran),
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        requests=request.requests,
        concurrency=request.concurrency,
        thresholds=request.thresholds,
        evidence=request.evidence,
        other_apis=request.other_apis,
        questions=request.questions,
        time_scale=how.time_scale,
        basis=how.basis,
        simulated=how.simulated,
        timeout_s=request.timeout_s,
        facts=request.facts,
    )


def _as_it_ran(topology: Topology, ran: Mapping[str, str]) -> Topology:
    return replace(topology, router=tuple(_part(part, ran) for part in topology.router))


def _part(part: RouterPart, ran: Mapping[str, str]) -> RouterPart:
    return replace(part, version=ran.get(PROGRAMS.get(part.label, ""), part.version))


def endpoints(request: SmokeRequest, directory: Directory) -> Iterator[MetricsEndpoint]:
    """Where the programs of a model that are there now show their counters.

    Raises:
        KitError: the cluster does not answer.
    """
    for group in request.groups:
        for pod in directory.pods(request.namespace, group.selector):
            way = directory.pod(request.namespace, pod, group.metrics_port)
            yield MetricsEndpoint(group.role, pod.name, f"{way.url}/metrics", way.headers, way.verify)


def server_pods(request: SmokeRequest, directory: Directory) -> tuple[ServerPod, ...]:
    """The pods of a model's servers that are there now.

    Raises:
        KitError: the cluster does not answer.
    """
    return tuple(
        ServerPod(group.role, pod.name, pod.restarts, group.scaled)
        for group in request.groups
        if group.role != "router"
        for pod in directory.pods(request.namespace, group.selector)
    )


def _introductions(request: SmokeRequest, directory: Directory) -> Iterator[Target]:
    """Each decode server's routing sidecar, once for each prefill server of its unit."""
    prefill = {group.unit: group for group in request.groups if group.role == "prefill"}
    for group in request.groups:
        if group.role != "decode" or group.unit not in prefill:
            continue
        others = directory.pods(request.namespace, prefill[group.unit].selector)
        for pod in directory.pods(request.namespace, group.selector):
            way = directory.pod(request.namespace, pod, request.server_port)
            for other in others:
                headers = {**way.headers, request.prefill_header: f"{other.address}:{request.server_port}"}
                yield Target(way.url, request.model, headers, way.verify)
