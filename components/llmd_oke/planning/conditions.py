"""Settings and versions of a stack's vLLM servers on which their latencies depend."""

import re
from collections.abc import Mapping, Sequence

from llmd_base.row import Basis
from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.conditions import UNKNOWN_CONDITIONS, Conditions, draft_differences
from llmd_oke.catalogue.latency_figures import known_figures, latency_figures
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.releases import Release
from llmd_oke.catalogue.server_settings import ServerSettings, reduced, server_settings
from llmd_oke.config import Role
from llmd_oke.config.engine import Engine
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.planning.model_plan import ModelPlan
from llmd_oke.planning.plan import Plan
from llmd_oke.values import Entry


class DeployedConditions(Entry):
    """Conditions on which the latencies of a stack's servers depend: `handing_over` of servers that transfer KV cache,
    `aggregated` of those that don't, both with several GPUs. `of` derives those of a topology.
    """

    handing_over: Conditions = UNKNOWN_CONDITIONS
    aggregated: Conditions = UNKNOWN_CONDITIONS

    def of(self, topology: str | None) -> Conditions:
        """Return the conditions of servers with a topology in short form; without a topology, those of servers that
        transfer KV cache.
        """
        own = self.aggregated if topology is not None and topology.startswith("agg-") else self.handing_over
        sizes = [int(size) for size in re.findall(r"tp(\d+)", topology or "")]
        if own.quick_reduce is None or not sizes:
            return own
        return own.model_copy(update={"quick_reduce": reduced(own.quick_reduce, max(sizes)) or "NONE"})


VLLM_DEFAULTS = DeployedConditions()
"""Conditions of servers of which neither image nor settings are known."""


def deployed_conditions(release: Release, model: CatalogueModel, engine: Engine) -> DeployedConditions:
    """Return the conditions, on which latencies depend, of servers with these vLLM settings, for any topology."""

    def of_role(role: Role) -> Conditions:
        settings = server_settings(release, model, engine, role, Parallelism(2), rdma=False)
        return _conditions(release, [settings], engine)

    return DeployedConditions(handing_over=of_role("decode"), aggregated=of_role("aggregated"))


def planned_conditions(plan: Plan, model: ModelPlan) -> Conditions:
    """Return the conditions (settings and versions on which latencies depend) of a planned model's servers."""
    return _conditions(plan.release, [role.settings for role in model.units[0].roles], model.engine)


def _conditions(release: Release, roles: Sequence[ServerSettings], engine: Engine) -> Conditions:
    """Return the conditions of servers that work together. Quantized all-reduce counts if the servers of any role use
    it.
    """
    draft, asked = roles[0].draft, engine.speculation
    used: list[QuickReduceFormat] = [role.quick_reduce for role in roles if role.quick_reduce]
    return Conditions(
        image=release.vllm.image.reference,
        release=release.name,
        attention_backend=roles[0].attention_backend,
        quick_reduce=used[0] if used else "NONE",
        block_size=roles[0].block_size,
        draft_tokens=draft.tokens if draft else None,
        accepted_share=asked.accepted_share if asked else None,
    )


def bound_models(plan: Plan) -> tuple[str, ...]:
    """Return the Hugging Face repositories, sorted, of the models whose simulated servers have latencies that are lower
    bounds rather than fitted to measurements.
    """
    figures = {model.model.repository: known_figures(model.model, plan.pools[0].shape.gpu) for model in plan.models}
    return tuple(sorted(repository for repository, known in figures.items() if known.basis is Basis.BOUND))


def forecast_differences(plan: Plan) -> Mapping[str, Sequence[str]]:
    """Return, by model, the differences between its servers and those on which the kit's latency figures were measured;
    models without differences are left out.
    """
    by_model: dict[str, list[str]] = {}
    for model in plan.models:
        figures = latency_figures(model.model.name, plan.pools[0].shape.gpu.product)
        deployed = planned_conditions(plan, model)
        if figures is not None and figures.measured:
            by_model[model.name] = figures.differences(deployed)
        else:
            by_model[model.name] = list(draft_differences(deployed))
    return {name: texts for name, texts in by_model.items() if texts}
