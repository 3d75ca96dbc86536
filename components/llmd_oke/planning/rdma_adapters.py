"""Check of servers that need an image made for their nodes' RDMA adapters, and advice on these adapters."""

import math
from collections.abc import Iterator

from llmd_base.errors import Problem

from llmd_oke.catalogue import operators
from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.models import BYTES_PER_GIB
from llmd_oke.catalogue.shapes import Gpu, Shape
from llmd_oke.planning.model_plan import ModelPlan, RolePlan
from llmd_oke.planning.placement import virtual_functions
from llmd_oke.planning.plan import Advice
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.releases import has_own_vllm


def rdma_adapter_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield a problem if a model's servers use RDMA adapters for which the release's image isn't known to have the
    software.
    """
    needed = operators.rdma_adapters(context.shape).own_image
    servers = context.model.topology.servers()
    used = any(virtual_functions(context.stack, role, context.parallelism(role)) for role in servers)
    if needed is not None and used and context.shape.rdma.virtual_functions and not has_own_vllm(context.stack):
        accepted = "override.vllmImage with an image of your own, or rdma: none with servers that keep to a node"
        topology = context.model.topology.source_text
        yield Problem(f"{context.path}.topology", topology, accepted, f"{needed.text} ({needed.source})")


def rdma_adapter_advice(model: ModelPlan, shape: Shape, path: str) -> Iterator[Advice]:
    """Yield advice on the RDMA adapters that a model's servers use: known limits, and KV cache in pieces that are
    larger than the adapters register.
    """
    roles = [role for role in model.units[0].roles if role.virtual_functions]
    if not roles:
        return
    facts = operators.rdma_adapters(shape)
    limits: list[tuple[str, KnownLimit]] = [("topology", limit) for limit in facts.limits]
    if facts.part_of_ports is not None and any(role.virtual_functions < shape.gpus for role in roles):
        limits.append(("topology", facts.part_of_ports))
    name = model.engine.kv_cache.connector
    if model.topology.disaggregated and name in facts.connectors:
        limits.append(("engine.kvCache.connector", facts.connectors[name]))
    for key, limit in limits:
        yield Advice(f"{path}.{key}", f"{limit.text} ({limit.source})", "note")
    if facts.largest_region_gb is not None and model.topology.disaggregated:
        yield from _regions(model, roles, shape.gpu, facts.largest_region_gb, path)


def _regions(model: ModelPlan, roles: list[RolePlan], gpu: Gpu, largest_gb: float, path: str) -> Iterator[Advice]:
    """Yield advice if the KV cache of one layer on a GPU exceeds what an adapter registers in one piece. Keys and
    values are two pieces, but for latent attention, which has neither.
    """
    architecture, found = model.model.architecture, dict[str, Advice]()
    pieces = max(1, architecture.attention_layers) * (1 if architecture.latent_attention else 2)
    for role in sorted(roles, key=lambda role: role.memory.key_value_gib / role.parallelism.gpus):
        piece_gb = role.memory.key_value_gib / role.parallelism.gpus / pieces * BYTES_PER_GIB / 1e9
        if piece_gb <= largest_gb:
            continue
        spare_gib = (piece_gb - largest_gb) * pieces * 1e9 / BYTES_PER_GIB
        fits = math.floor((role.settings.gpu_memory_utilization - spare_gib / gpu.memory_gib) * 100) / 100
        key = f"{path}.{model.engine.key_of('gpu_memory_utilization', role.role)}"
        text = (
            f"{role.role} servers keep up to {piece_gb:.1f} GB of KV cache in one piece, and these adapters register"
            f" {largest_gb:g} GB at most; {fits:g} keeps below that (llm-d guides,"
            " pd-disaggregation/modelserver/amd/vllm/nixl/base)"
        )
        found[key] = Advice(key, text)
    yield from found.values()
