"""Smoke benchmark of a plan: the requests for its models, facts for their reports, and the Jobs in the cluster."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pulumi
from llmd_base.records import record
from llmd_base.row import ConditionFacts
from llmd_bench.deployment import ReportedServers, ReportedTopology, RouterPart
from llmd_bench.evidence import DecisionCounter, EvidenceSettings, OtherApi
from llmd_bench.smoke_request import PodGroup, SmokeLimits, SmokeRequest

from llmd_oke.catalogue.benchmarks import builtin_set
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.server_settings import SERVER_PORT
from llmd_oke.catalogue.serving import without_rdma
from llmd_oke.planning import ModelPlan, Plan, RolePlan
from llmd_oke.planning.conditions import planned_conditions
from llmd_oke.planning.releases import override_words
from llmd_oke.program.arguments import arguments, common_args
from llmd_oke.program.models import (
    engine_args,
    model_cache_mount,
    router_args,
    servers_args,
    unit_args,
    unit_name,
)
from llmd_oke.serving import labels, vllm
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.bench_program import digest
from llmd_oke.serving.router import router_manifests
from llmd_oke.serving.smoke_benchmark import SmokeBenchmark, SmokeBenchmarkArgs
from llmd_oke.serving.units import server_spec, workload
from llmd_oke.serving.vllm import ServerSpec

ROUTER_METRICS_PORT = 9090

PREFILL_HEADER = "x-prefiller-host-port"
"""HTTP header by which the endpoint picker names the prefill server to a routing sidecar (llm-d-inference-scheduler,
pkg/common)."""


def declare_smoke(plan: Plan, stack: str, opts: pulumi.ResourceOptions) -> None:
    """Declare the smoke benchmark of each model, if the stack file has `smoke.where: cluster`.

    `opts` must depend on all models: a missed threshold fails the update, and must not do so before all are deployed.
    """
    if plan.smoke.where != "cluster":
        return
    for model in plan.models:
        SmokeBenchmark(f"{model.name}-smoke", smoke_args(plan, model, stack), opts)


def smoke_args(plan: Plan, model: ModelPlan, stack: str) -> SmokeBenchmarkArgs:
    """Return the arguments of a model's smoke benchmark."""
    return arguments(
        SmokeBenchmarkArgs,
        common_args(plan),
        plan.smoke,
        model=model.name,
        image=plan.release.vllm.image.pinned,
        request=smoke_request(plan, model).to_json(),
        facts=json.dumps(facts(stack, plan, model), indent=1),
        measured=measured(plan, model),
    )


def smoke_request(plan: Plan, model: ModelPlan) -> SmokeRequest:
    """Return the request for the smoke benchmark of one model, without facts for the report (see `facts`)."""
    smoke = plan.smoke
    return record(
        SmokeRequest,
        smoke,
        model.workload,
        plan,
        service=model.name,
        model=model.model.repository,
        topology=topology(plan, model),
        thresholds=replace(SmokeLimits(**smoke.thresholds.model_dump()), min_accuracy=model.min_accuracy),
        groups=tuple(_groups(plan, model)),
        server_port=SERVER_PORT,
        prefill_header=PREFILL_HEADER,
        other_apis=tuple(_other_apis(plan, model)),
        evidence=_evidence(plan, model),
        adapters=tuple(adapter.name for adapter in model.adapters),
        questions=None if model.min_accuracy is None else builtin_set(),
    )


def facts(stack: str, plan: Plan, model: ModelPlan) -> dict[str, Any]:
    """Return the facts for a model's report that aren't measured: stack, override, conditions, price and GPUs."""
    share = model.gpus / plan.gpus
    return {
        "stack": stack,
        "override": override_words(plan.override),
        **conditions(plan, model),
        "config_hash": plan.config_hash,
        "price_usd_per_hour": round(plan.price_usd_per_hour * share, 2),
        "gpus_in_pools": plan.gpus,
    }


def conditions(plan: Plan, model: ModelPlan) -> ConditionFacts:
    """Return the conditions of a model's deployment (settings and versions on which latencies depend) for rows of
    results, apart from its topology.
    """
    told = arguments(ConditionFacts, planned_conditions(plan, model), model)
    if told.get("draft_tokens") is None:
        told.pop("draft_tokens", None)
    return told


def measured(plan: Plan, model: ModelPlan) -> str:
    """Return a digest of everything that serves a model: its servers, its routers' objects, and its adapters. When the
    digest changes, updates run the smoke benchmark again.
    """
    routers = [router_manifests(router_args(plan, model, unit)) for unit in model.units] if model.routed else []
    adapters = [adapter.served_name for adapter in model.adapters]
    return digest([list(_workloads(plan, model)), routers, *([adapters] if adapters else [])])


def _workloads(plan: Plan, model: ModelPlan) -> Iterator[Any]:
    """Yield the declared workloads of a model's servers, with constants for names that Pulumi knows only later."""
    own = unit_args(plan, model, "model-server")
    args: UnitArgs = {**own, "model_cache": model_cache_mount(plan, model, "claim")}
    for unit in model.units:
        name = unit_name(plan, model, unit)
        for role in unit.roles:
            spec = server_spec(args, role.role, role.parallelism)
            of_unit: UnitArgs = {**args, "inference_pool": name}
            yield workload(f"{name}-{role.role}", name, of_unit, servers_args(role), spec)


def topology(plan: Plan, model: ModelPlan) -> ReportedTopology:
    """Return a model's topology, servers and router parts as the report of its smoke benchmark states them."""
    copies = len(model.units)
    name = str(model.topology) if copies == 1 else f"{copies} x {model.topology}"
    servers = tuple(_servers(plan, model, role, copies) for role in model.units[0].roles)
    return ReportedTopology(
        name, servers, _router_parts(plan, model), f"AMD-Instinct-{plan.pools[0].shape.gpu.product}"
    )


def _servers(plan: Plan, model: ModelPlan, role: RolePlan, copies: int) -> ReportedServers:
    shape, engine = plan.pools[0].shape, engine_args(model)
    spec = record(ServerSpec, role, model, plan, shape=shape, engine=engine, cache={}, tracing=None)
    variables = ((entry.get("name", ""), entry.get("value")) for entry in vllm.environment(spec))
    env = {name: value for name, value in variables if value is not None}
    return ReportedServers(
        role.role,
        role.replicas * copies,
        role.parallelism,
        plan.release.vllm.image.reference,
        {"args": vllm.arguments(spec)},
        env,
    )


def _router_parts(plan: Plan, model: ModelPlan) -> tuple[RouterPart, ...]:
    """Return the programs between client and servers, with the release's versions."""
    if not model.routed:
        return (RouterPart("service", "Kubernetes Service", "v1"),)
    release = plan.release
    parts = [RouterPart("endpoint-picker", _name(release.endpoint_picker.image), release.endpoint_picker.image.tag)]
    gateway = plan.gateway if model.behind_gateway else None
    if gateway is not None:
        parts.append(RouterPart("gateway", gateway.provider.name, "of the cluster"))
    else:
        parts.append(RouterPart("proxy", "Envoy", release.proxy.image.tag))
        parts.append(RouterPart("front-door", "Envoy", release.proxy.image.tag))
    if model.topology.disaggregated:
        parts.append(
            RouterPart("routing-proxy", _name(release.routing_sidecar.image), release.routing_sidecar.image.tag)
        )
    return tuple(parts)


def _name(image: ContainerImage) -> str:
    return image.repository.rpartition("/")[2]


def _groups(plan: Plan, model: ModelPlan) -> Iterator[PodGroup]:
    for unit in model.units:
        name = unit_name(plan, model, unit)
        if model.routed:
            yield PodGroup(unit.name, "router", labels.router_selector(name), ROUTER_METRICS_PORT)
        for role in unit.roles:
            port = role.settings.vllm_port
            yield PodGroup(unit.name, role.role, labels.role_selector(name, role.role), port, role.scaling is not None)


def _other_apis(plan: Plan, model: ModelPlan) -> Iterator[OtherApi]:
    disaggregated = model.topology.disaggregated and model.routed
    remote = plan.release.endpoint_picker.dialect.disaggregating_apis
    for api in model.model.apis:
        if api in ("chat", "responses"):
            yield OtherApi(api, api in remote if disaggregated else None)


def _evidence(plan: Plan, model: ModelPlan) -> EvidenceSettings | None:
    if not (model.topology.disaggregated and model.routed):
        return None
    metric = plan.release.endpoint_picker.dialect.metrics.decisions
    decisions = DecisionCounter((metric,), "decision_type", ("prefill-decode",))
    emulated = None if plan.rdma else without_rdma().emulated_gb_per_s
    return EvidenceSettings(decisions, block_size=model.block_size, emulated_gb_per_s=emulated)
