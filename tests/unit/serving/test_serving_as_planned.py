import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke import catalogue, planning
from llmd_oke.program.models import servers_args, unit_args
from llmd_oke.serving.units import server_spec, workload
from stack_files import PROJECT, existing_pool, model, read, stack

STACKS = sorted(path.stem.removeprefix("Pulumi.") for path in (PROJECT / "stacks").glob("Pulumi.*.yaml"))
TOPOLOGIES = ("1p-tp8-1d-tp8", "2p-tp1-1d-tp2", "2p-tp1-2d-tp1", "1p-tp4-1d-tp4", "agg-tp8-1r", "agg-tp1-2r")

Servers = tuple[planning.Plan, planning.ModelPlan, planning.RolePlan, dict[str, Any]]
"""A plan, one of its models, one of the roles of that, and the Deployment of its servers."""


def servers(plan: planning.Plan) -> Iterator[Servers]:
    for planned in plan.models:
        args = unit_args(plan, planned, "model-server")
        for role in planned.units[0].roles:
            spec = server_spec(args, role.role, role.parallelism)
            yield plan, planned, role, workload("servers", "unit", args, servers_args(role), spec)


def plans() -> Iterator[planning.Plan]:
    """Every stack of the kit with every release, and all models, as far as they are accepted: with the newest release
    in all topologies, with and without RDMA, and with each older one in two.
    """
    yield from (planning.plan_object(read(name)) for name in STACKS)
    networks, (*older, newest) = (("sriov-vf", 2), ("none", 1)), catalogue.release_names()
    choices = [
        *itertools.product([newest], TOPOLOGIES, networks),
        *itertools.product(older, ["1p-tp4-1d-tp4"], networks),
        *itertools.product(older, ["agg-tp8-1r"], networks[1:]),
    ]
    stacks = [
        stack(model(topology, model=name), release=release, rdma=rdma, gpuPools=[existing_pool(size=nodes)])
        for name, (release, topology, (rdma, nodes)) in itertools.product(catalogue.model_names(), choices)
    ]
    of_kit = itertools.product(catalogue.release_names(), map(read, STACKS))
    for item in (*stacks, *({**item, "release": release} for release, item in of_kit)):
        with suppress(InvalidStack):
            yield planning.plan_object(item)


@pytest.fixture(scope="module")
def every() -> list[Servers]:
    return [item for plan in plans() for item in servers(plan)]


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (vllm,) = manifest["spec"]["template"]["spec"]["containers"]
    return vllm


def arguments(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the arguments with a value, by flag."""
    parts = (argument.partition("=") for argument in container(manifest)["args"])
    return {flag: value for flag, mark, value in parts if mark}


def test_these_tests_cover_servers_of_all_releases_models_and_roles(every: list[Servers]):
    assert {plan.release.name for plan, *_ in every} == set(catalogue.release_names())
    assert {planned.model.name for _, planned, *_ in every} == set(catalogue.model_names())
    kinds = {(plan.release.name, role.role, plan.rdma) for plan, _, role, _ in every}
    roles = ("prefill", "decode", "aggregated")
    assert kinds == set(itertools.product(catalogue.release_names(), roles, (True, False)))


def test_servers_request_as_many_virtual_functions_as_the_plan_gives_their_role(every: list[Servers]):
    for plan, _, role, manifest in every:
        resource, resources = plan.pools[0].shape.rdma.resource, container(manifest)["resources"]
        asked = {int(resources[kind].get(resource, 0)) for kind in ("limits", "requests")}
        assert asked == {role.virtual_functions}
        annotations = manifest["spec"]["template"]["metadata"].get("annotations", {})
        assert len(json.loads(annotations.get("k8s.v1.cni.cncf.io/networks", "[]"))) == role.virtual_functions


def test_servers_have_rdma_rights_and_settings_only_on_the_rdma_network(every: list[Servers]):
    for _, _, role, manifest in every:
        vllm = container(manifest)
        on_network = role.virtual_functions > 0
        assert ("add" in vllm["securityContext"]["capabilities"]) == on_network
        names = {entry["name"] for entry in vllm["env"]}
        assert ("UCX_IB_GID_INDEX" in names) == on_network
        assert ("NCCL_IB_HCA" in names) == (on_network and role.parallelism.gpus > 1)


def test_without_rdma_ucx_pipelines_kv_transfers(every: list[Servers]):
    for plan, _, role, manifest in every:
        variables = {entry["name"]: entry.get("value") for entry in container(manifest)["env"]}
        expected = None if plan.rdma or role.role == "aggregated" else "y"
        assert variables.get("UCX_RMA_PPLN_ENABLE") == expected


def test_every_attention_backend_gets_the_block_size_that_vllm_prefers(every: list[Servers]):
    for plan, _, role, manifest in every:
        told, sizes = arguments(manifest), plan.release.vllm.block_size
        preferred = sizes.preferred.get(told["--attention-backend"], sizes.default)
        assert int(told["--block-size"]) == (preferred if role.role == "aggregated" else sizes.kv_connector)


def test_only_prefill_and_decode_servers_have_a_kv_connector_and_its_role(every: list[Servers]):
    for plan, _, role, manifest in every:
        told = arguments(manifest).get("--kv-transfer-config")
        assert (told is None) == (role.role == "aggregated")
        if told is not None:
            assert json.loads(told)["kv_role"] == plan.release.vllm.kv_connector.roles[role.role]


def test_liveness_and_readiness_probes_start_after_vllm_lists_its_models(every: list[Servers]):
    for _, _, role, manifest in every:
        vllm = container(manifest)
        startup, live, ready = (vllm[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
        assert [probe["httpGet"] for probe in (live, ready)] == [{"path": "/health", "port": "vllm"}] * 2
        assert startup["httpGet"] == {"path": "/v1/models", "port": "vllm"}
        assert startup["periodSeconds"] * startup["failureThreshold"] >= role.startup_budget_s
