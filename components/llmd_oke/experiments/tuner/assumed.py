"""What a deployed model rests on: the forecast that `tune apply` acted on, or else its entry of the stack file."""

from dataclasses import dataclass

from llmd_oke import config
from llmd_oke.experiments.tuner.applied import Applied, changed_conditions, mismatch
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.stack.smoke import conditions
from llmd_oke.tuning.search.question import Targets, parse_targets
from llmd_oke.tuning.watch.assumptions import Assumption, limits, of_forecast, of_lengths, of_targets


@dataclass(frozen=True)
class Assumed:
    """What a deployed model rests on; `source` says in words where that is from, `conditions` in what the deployment
    differs from that of its forecast.
    """

    assumptions: tuple[Assumption, ...]
    targets: Targets
    source: str
    conditions: tuple[str, ...] = ()


def assumed(plan: Plan, model: ModelPlan, applied: Applied | None, forecast_share: float, load_share: float) -> Assumed:
    """What is held against the model: the forecast that was applied, or the stack file's workload and targets.

    The shares are how far forecasts and loads may be off.
    """
    own = next(each for each in plan.config.models if each.object_name == model.name)
    why = mismatch(own, applied) if applied else "no forecast was applied"
    slo = model.slo or config.Slo()
    targets = Targets(slo.ttft_ms and slo.ttft_ms / 1000, slo.itl_ms and slo.itl_ms / 1000)
    lengths = of_lengths(model.workload.input_tokens, model.workload.output_tokens, load_share)
    limit = tuple(limits(model.engine.max_num_seqs, _least_remote_prefill(plan, model)))
    if applied is None or why:
        source = f"the stack file's workload and slo, because {why}"
        return Assumed((*lengths, *of_targets(targets), *limit), targets, source)
    targets = parse_targets(applied.targets)
    found = of_forecast(applied.forecast, targets, _servers(model), forecast_share, load_share)
    source = f"the forecast applied {applied.applied}; {'; '.join(applied.forecast.notes)}"
    return Assumed((*found, *limit), targets, source, tuple(changed_conditions(applied, conditions(plan, model))))


def _least_remote_prefill(plan: Plan, model: ModelPlan) -> float | None:
    remote = model.topology.disaggregated and model.router.mode == "standalone"
    return plan.smoke.thresholds.min_remote_prefill_share if remote else None


def _servers(model: ModelPlan) -> int:
    """How many generate, over all copies."""
    return sum(role.replicas for unit in model.units for role in unit.roles if role.role != "prefill")
