"""What the vLLM servers of a stack are started with, as far as times depend on it."""

from collections.abc import Mapping, Sequence

from llmd_base.row import Basis

from llmd_oke.catalogue.conditions import UNKNOWN_CONDITIONS, Conditions, quantization
from llmd_oke.catalogue.latency_figures import known_figures, latency_figures
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.releases import Release
from llmd_oke.config.engine import Engine
from llmd_oke.planning.plan import Plan
from llmd_oke.values import Entry


class DeployedConditions(Entry):
    """What the servers of a deployment are started with: those that hand KV caches over, and those that do both."""

    handing_over: Conditions = UNKNOWN_CONDITIONS
    aggregated: Conditions = UNKNOWN_CONDITIONS

    def of(self, topology: str | None) -> Conditions:
        """Those of a topology in short form; of servers that hand KV caches over where there is none."""
        return self.aggregated if topology is not None and topology.startswith("agg-") else self.handing_over


VLLM_DEFAULTS = DeployedConditions()
"""Nothing is set."""


def deployed_conditions(release: Release, model: Model, engine: Engine) -> DeployedConditions:
    """What the servers of a stack are started with, as `llmd_oke.serving.vllm` writes it into their pods."""
    of_model = model.quick_reduce.quantization if model.quick_reduce else None
    quick_reduce = engine.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION") or release.vllm.quick_reduce or of_model

    def conditions(*, hands_over: bool) -> Conditions:
        started = release.vllm.kv_cache_settings(model, engine.extra_args, engine.block_size, hands_over=hands_over)
        return Conditions(
            image=release.vllm.image.reference,
            release=release.name,
            attention_backend=started.attention_backend,
            quick_reduce=quantization(quick_reduce or "NONE"),
            block_size=started.block_size,
        )

    return DeployedConditions(handing_over=conditions(hands_over=True), aggregated=conditions(hands_over=False))


def bound_models(plan: Plan) -> tuple[str, ...]:
    """The models, by repository, whose simulated servers take times that are bounds."""
    figures = {model.model.repository: known_figures(model.model, plan.pools[0].shape.gpu) for model in plan.models}
    return tuple(sorted(repository for repository, known in figures.items() if known.basis is Basis.BOUND))


def forecast_differences(plan: Plan) -> Mapping[str, Sequence[str]]:
    """By model, how its servers differ from those that the kit's latency figures were measured of."""
    by_model: dict[str, list[str]] = {}
    for model in plan.models:
        figures = latency_figures(model.model.name, plan.pools[0].shape.gpu.product) if plan.pools else None
        started = deployed_conditions(plan.release, model.model, model.engine)
        if figures is not None:
            by_model[model.name] = figures.differences(started.of(str(model.topology)))
    return {name: texts for name, texts in by_model.items() if texts}
