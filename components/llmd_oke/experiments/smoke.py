"""The smoke benchmark of a deployed stack: from plan and cluster to what the benchmark needs to know."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import RenderableType

from llmd_oke.bench import smoke as bench_smoke
from llmd_oke.bench.evidence import DecisionCounter, EvidenceSettings
from llmd_oke.bench.load import Target
from llmd_oke.bench.metrics import EndpointRole, MetricsEndpoint
from llmd_oke.bench.smoke import Provenance, SmokePlan, run_smoke
from llmd_oke.bench.store import store
from llmd_oke.bench.summary import summarize_result
from llmd_oke.bench.tables import render
from llmd_oke.bench.thresholds import Thresholds
from llmd_oke.bench.topology import RouterPart, Servers, Topology
from llmd_oke.experiments.cluster_access import ClusterAccess
from llmd_oke.planning import ModelPlan, Plan, RolePlan
from llmd_oke.progress import Progress
from llmd_oke.serving import labels, vllm
from llmd_oke.serving.vllm import ServerSpec
from llmd_oke.stack.models import engine_args

ROUTER_METRICS_PORT = 9090

PREFILL_HEADER = "x-prefiller-host-port"
"""How the endpoint picker names the prefill server to a routing sidecar (llm-d-inference-scheduler, pkg/common)."""


@dataclass(frozen=True)
class Circumstances:
    """What a benchmark must know beside the plan: `time_scale` is wall seconds for a second of model time.

    `simulated` lists what was not real, `ran` the versions of programs that ran instead of the release's own.
    """

    time_scale: float = 1.0
    provenance: Provenance = Provenance.MEASURED
    simulated: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict[str, str])


def smoke_plan(stack: str, plan: Plan, model: ModelPlan, access: ClusterAccess, how: Circumstances) -> SmokePlan:
    """What the benchmark of one model needs.

    Raises:
        KitError: the model is not there, or the cluster does not answer.
    """
    way = access.service(plan.namespace, model.name)
    smoke = plan.smoke
    return SmokePlan(
        base_url=way.url,
        headers=way.headers,
        verify=way.verify,
        model=model.model.repository,
        topology=topology(plan, model, how.ran),
        input_tokens=model.workload.input_tokens,
        output_tokens=model.workload.output_tokens,
        requests=smoke.requests,
        concurrency=smoke.concurrency,
        thresholds=Thresholds(**smoke.thresholds.model_dump()),
        metrics=tuple(_metrics(plan, model, access)),
        introductions=tuple(_introductions(plan, model, access)),
        evidence=_evidence(plan, model),
        time_scale=how.time_scale,
        provenance=how.provenance,
        simulated=how.simulated,
        timeout_s=smoke.timeout_s,
        facts=_facts(stack, plan, model),
    )


def topology(plan: Plan, model: ModelPlan, ran: Mapping[str, str]) -> Topology:
    """What is measured, for the report; `ran` has the versions of programs that ran instead of the release's."""
    copies = len(model.units)
    name = str(model.topology) if copies == 1 else f"{copies} x {model.topology}"
    servers = tuple(_servers(plan, model, role, copies) for role in model.units[0].roles)
    return Topology(name, servers, _router_parts(plan, model, ran), f"AMD-Instinct-{plan.pools[0].shape.gpu.product}")


def _servers(plan: Plan, model: ModelPlan, role: RolePlan, copies: int) -> Servers:
    spec = ServerSpec(
        release=plan.release,
        model=model.model,
        shape=plan.pools[0].shape,
        role=role.role,
        tensor_parallel_size=role.tensor_parallel_size,
        rdma=plan.rdma,
        engine=engine_args(model),
    )
    env = {entry["name"]: entry["value"] for entry in vllm.environment(spec) if "value" in entry}
    return Servers(
        role.role,
        role.replicas * copies,
        role.tensor_parallel_size,
        plan.release.vllm.image,
        {"args": vllm.arguments(spec)},
        env,
    )


def _router_parts(plan: Plan, model: ModelPlan, ran: Mapping[str, str]) -> tuple[RouterPart, ...]:
    """The programs between client and servers, in the versions that ran; those of the release where none is told."""
    if model.router.mode == "none":
        return (RouterPart("service", "Kubernetes Service", "v1"),)
    release = plan.release
    parts = [
        RouterPart("endpoint-picker", "llm-d-inference-scheduler", ran.get("epp", release.endpoint_picker.image.tag)),
        RouterPart("proxy", "Envoy", ran.get("envoy", _tag(release.proxy.image))),
    ]
    if model.topology.disaggregated:
        sidecar = ran.get("pd-sidecar", _tag(release.routing_sidecar.image))
        parts.append(RouterPart("routing-proxy", "llm-d-routing-sidecar", sidecar))
    return tuple(parts)


def _tag(image: str) -> str:
    return image.rsplit(":", 1)[1]


def _metrics(plan: Plan, model: ModelPlan, access: ClusterAccess) -> Iterator[MetricsEndpoint]:
    for unit in model.units:
        if model.router.mode == "standalone":
            selector = {labels.UNIT: unit.name, labels.ROUTED: "true"}
            yield from _endpoints(plan.namespace, access, "router", selector, ROUTER_METRICS_PORT)
        for role in unit.roles:
            selector = labels.role_selector(unit.name, role.role)
            port = vllm.BEHIND_SIDECAR_PORT if role.role == "decode" else vllm.SERVER_PORT
            yield from _endpoints(plan.namespace, access, role.role, selector, port)


def _endpoints(
    namespace: str, access: ClusterAccess, role: EndpointRole, selector: Mapping[str, str], port: int
) -> Iterator[MetricsEndpoint]:
    for pod in access.pods(namespace, selector):
        way = access.pod(namespace, pod, port)
        yield MetricsEndpoint(role, pod.name, f"{way.url}/metrics", way.headers, way.verify)


def _introductions(plan: Plan, model: ModelPlan, access: ClusterAccess) -> Iterator[Target]:
    """Each decode server's routing sidecar, once for each prefill server of its unit."""
    if not model.topology.disaggregated:
        return
    for unit in model.units:
        prefill = access.pods(plan.namespace, labels.role_selector(unit.name, "prefill"))
        for pod in access.pods(plan.namespace, labels.role_selector(unit.name, "decode")):
            way = access.pod(plan.namespace, pod, vllm.SERVER_PORT)
            for other in prefill:
                headers = {**way.headers, PREFILL_HEADER: f"{other.address}:{vllm.SERVER_PORT}"}
                yield Target(way.url, model.model.repository, headers, way.verify)


def _evidence(plan: Plan, model: ModelPlan) -> EvidenceSettings | None:
    if not model.topology.disaggregated or model.router.mode != "standalone":
        return None
    metric = plan.release.endpoint_picker.decision_metric
    return EvidenceSettings(
        DecisionCounter((metric,), "decision_type", ("prefill-decode",)), block_size=model.engine.block_size
    )


def _facts(stack: str, plan: Plan, model: ModelPlan) -> dict[str, object]:
    share = model.gpus / plan.gpus
    return {
        "stack": stack,
        "release": plan.release.name,
        "config_hash": plan.config_hash,
        "price_usd_per_hour": round(plan.price_usd_per_hour * share, 2),
        "gpus_in_pools": plan.gpus,
    }


@dataclass(frozen=True)
class Outcome:
    """What came out for one model, ready to be shown; `failed` are the checks that it did not pass."""

    name: str
    failed: tuple[str, ...]
    summary: dict[str, object]
    table: RenderableType
    report: Path

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.failed


def run_all(
    stack: str, plan: Plan, how: Circumstances, reports: Path, started: datetime, progress: Progress
) -> list[Outcome]:
    """Benchmarks the models of a deployed stack one after the other and stores their reports.

    Raises:
        KitError: a model is not there or does not answer.
    """
    access = ClusterAccess(plan.kubeconfig_context)
    outcomes: list[Outcome] = []
    for model in plan.models:
        progress.step(f"benchmarking {model.name}: {plan.smoke.requests} requests, {plan.smoke.concurrency} at a time")
        result = run_smoke(smoke_plan(stack, plan, model, access, how), _Teller(progress))
        part = model.name if len(plan.models) > 1 else None
        stored = store(result, reports, stack, started=started, part=part)
        failed = tuple(check.name for check in result.verdict.failed)
        outcomes.append(Outcome(model.name, failed, summarize_result(result), render(result), stored.report))
    return outcomes


class _Teller:
    """Says how far a benchmark is, not more often than every two seconds."""

    INTERVAL_S = 2.0

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said = time.monotonic()
        self._phase = ""

    def __call__(self, news: bench_smoke.Progress) -> None:
        now = time.monotonic()
        if news.phase == self._phase and now - self._said < self.INTERVAL_S:
            return
        self._phase, self._said = news.phase, now
        self._progress.detail(f"{news.phase} {news.done}/{news.total}" if news.total else news.phase)
