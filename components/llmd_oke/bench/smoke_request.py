"""What is asked of a smoke benchmark, as plain data that fits a file; and how it becomes a plan where the pods are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from llmd_oke.bench.circumstances import Circumstances
from llmd_oke.bench.directory import Directory
from llmd_oke.bench.evidence import EvidenceSettings
from llmd_oke.bench.load import Target
from llmd_oke.bench.metrics import EndpointRole, MetricsEndpoint
from llmd_oke.bench.smoke import SmokePlan
from llmd_oke.bench.thresholds import Thresholds
from llmd_oke.bench.topology import RouterPart, Topology

PROGRAMS = {"endpoint-picker": "epp", "proxy": "envoy", "routing-proxy": "pd-sidecar"}
"""The programs that are parts of a router, by the labels of the parts."""


@dataclass(frozen=True)
class PodGroup:
    """Equal pods of one unit, and the port where they show their counters."""

    unit: str
    role: EndpointRole
    selector: Mapping[str, str]
    metrics_port: int


@dataclass(frozen=True)
class SmokeRequest:
    """A smoke benchmark of one model, without anything that is known only when its pods are there.

    `service` takes requests on port 80; `server_port` is where each server, behind its routing sidecar if it has one,
    takes them itself, and `prefill_header` what tells a routing sidecar which prefill server to use. `evidence` is
    None where there is nothing to prove.
    """

    namespace: str
    service: str
    model: str
    topology: Topology
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    timeout_s: float
    thresholds: Thresholds
    groups: tuple[PodGroup, ...]
    server_port: int
    prefill_header: str
    evidence: EvidenceSettings | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> str:
        """The request as the text of a file; equal requests give equal texts."""
        return _REQUEST.dump_json(self, indent=1).decode()


_REQUEST = TypeAdapter(SmokeRequest)


def from_json(text: str | bytes) -> SmokeRequest:
    """The request that `to_json` wrote."""
    return _REQUEST.validate_json(text)


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
        metrics=tuple(_metrics(request, directory)),
        introductions=tuple(_introductions(request, directory)),
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


def _metrics(request: SmokeRequest, directory: Directory) -> Iterator[MetricsEndpoint]:
    for group in request.groups:
        for pod in directory.pods(request.namespace, group.selector):
            way = directory.pod(request.namespace, pod, group.metrics_port)
            yield MetricsEndpoint(group.role, pod.name, f"{way.url}/metrics", way.headers, way.verify)


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
