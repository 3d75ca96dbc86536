"""A plan, for people and as JSON."""

from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from llmd_oke.cli import console
from llmd_oke.cli.tables import Fitting
from llmd_oke.planning import Advice, ModelPlan, Plan, Pool, merge_advice
from llmd_oke.planning.bring_up import ASSUMED, BringUp, Leg, bring_up
from llmd_oke.planning.container_images import chart_archives, images_of, tag_only_sentence, unchecked_archives_sentence
from llmd_oke.planning.cost import Costs, costs


def show(stack: str, plan: Plan, release: str | None = None) -> None:
    """Prints a plan and its advice; `release` are words for it in place of its name."""
    console.output().print(f"[bold]{escape(stack)}[/] can be deployed")
    cost, forecast = costs(plan), bring_up(plan)
    left_out = Padding(f"[dim]not included: {escape('; '.join(cost.not_included))}[/]", (0, 0, 0, 2))
    console.output().print(
        Group(
            _cluster(plan, release or plan.release.name),
            "",
            Fitting(_costs(cost)),
            left_out,
            "",
            Fitting(_models(plan)),
            "",
            Fitting(_bring_up(forecast)),
            Padding(f"[dim]{escape('; '.join(_published(forecast)))}[/]", (0, 0, 0, 2)),
        )
    )
    for note in merge_advice(Advice(model.name, model.update_note) for model in plan.models):
        console.output().print(f"\n  [dim]updates of {escape(note.path)}:[/] {escape(note.text)}")
    if sentence := tag_only_sentence(images_of(plan)):
        console.output().print(f"\n[yellow]images[/] {escape(sentence)}")
    if sentence := unchecked_archives_sentence(chart_archives(plan)):
        console.output().print(f"\n[yellow]charts[/] {escape(sentence)}")
    for advice in merge_advice(plan.advice):
        console.output().print(f"\n[yellow]advice[/] [bold]{escape(advice.path)}[/]: {escape(advice.text)}")


def as_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain data.

    Prices are list prices in US dollars, `price_usd_per_hour` that of the GPU nodes; `key_value_tokens` are bounds.
    """
    return {
        "release": plan.release.name,
        "namespace": plan.namespace,
        "nodes": len(plan.nodes_at_first),
        "idle_nodes": len(plan.idle_nodes),
        "gpus": plan.gpus,
        "used_gpus": plan.used_gpus,
        "price_usd_per_hour": plan.price_usd_per_hour,
        "costs": _costs_as_json(costs(plan)),
        "models": [_model(model) for model in plan.models],
        "bring_up": _bring_up_as_json(bring_up(plan)),
        "images": [
            {"image": used.image.reference, "digest": used.image.digest, "used_by": used.used_by, "path": used.path}
            for used in images_of(plan)
        ],
        "advice": [{"path": advice.path, "text": advice.text} for advice in plan.advice],
    }


def _bring_up_as_json(found: BringUp) -> dict[str, Any]:
    starts, critical = found.starts, found.critical
    legs = [
        {
            "name": leg.name,
            "starts_s": round(starts[leg.name]),
            "seconds": round(leg.seconds),
            "source": leg.source,
            "after": list(leg.after),
            "critical": leg.name in critical,
        }
        for leg in found.legs
    ]
    return {"seconds": round(found.seconds), "legs": legs}


def _costs_as_json(found: Costs) -> dict[str, Any]:
    parts = [{"part": cost.part, "usd_per_hour": _cents(cost.usd_per_hour)} for cost in found.parts]
    return {
        "usd_per_hour": _cents(found.usd_per_hour),
        "as_of": found.as_of,
        "parts": parts,
        "not_included": list(found.not_included),
    }


def _cents(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 2)


def _model(model: ModelPlan) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.model.repository,
        "topology": str(model.topology),
        "copies": len(model.units),
        "gpus": model.gpus,
        "router": model.router.mode,
        "updates": {"way": model.update_way, "note": model.update_note},
        "max_model_len": model.max_model_len,
        "roles": [
            {
                "role": role.role,
                "replicas": role.replicas,
                "tensor_parallel_size": role.tensor_parallel_size,
                "key_value_tokens": role.memory.key_value_tokens,
                "max_surge": role.rollout.max_surge,
                "max_unavailable": role.rollout.max_unavailable,
            }
            for role in model.units[0].roles
        ],
    }


def _cluster(plan: Plan, release: str) -> Table:
    pools = ", ".join(f"{_size(pool)} x {pool.shape.name}" for pool in plan.pools)
    table = Table.grid(padding=(0, 2))
    table.add_row("  [dim]release[/]", escape(release))
    table.add_row("  [dim]nodes[/]", f"{pools}, {plan.gpus} GPUs, {plan.used_gpus} used")
    return table


def _size(pool: Pool) -> str:
    least, most = pool.limits
    return f"{pool.size} ({least} to {most})" if pool.autoscaled else str(pool.size)


def _costs(found: Costs) -> Table:
    """Every part with its price, and the sum."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=True)
    table.add_column(f"  cost at list price, {found.as_of}")
    table.add_column("$/hour", justify="right")
    for cost in found.parts:
        table.add_row(f"  {escape(cost.part)}", "unknown" if cost.usd_per_hour is None else f"{cost.usd_per_hour:,.2f}")
    if len(found.parts) > 1:
        table.add_row("  all of it", f"{found.usd_per_hour:,.2f}")
    return table


def _bring_up(found: BringUp) -> Table:
    """Each leg with its time; those in brackets end while a longer one beside them still goes on."""
    starts, critical = found.starts, found.critical
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  from up to the first token, forecast")
    table.add_column("from", justify="right")
    table.add_column("takes", justify="right")
    table.add_column("figure")
    for leg in found.legs:
        takes = _minutes(leg.seconds)
        longest = leg.name in critical
        cells = (_minutes(starts[leg.name]), takes if longest else f"({takes})", _basis(leg))
        table.add_row(f"  {leg.name}", *cells, style=None if longest else "dim")
    table.add_row("  all of it", "", _minutes(found.seconds), "")
    return table


def _basis(leg: Leg) -> str:
    return leg.source if leg.source == ASSUMED else "published"


def _published(found: BringUp) -> list[str]:
    """The sources of figures that have one."""
    return [f"{leg.name}: {leg.source}" for leg in found.legs if leg.source != ASSUMED]


def _minutes(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def _models(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("  model", "left"), ("topology", "left"), ("copies", "right"), ("GPUs", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    table.add_column("router")
    table.add_column("KV tokens per server (bound)", justify="right")
    for model in plan.models:
        room = "\n".join(f"{role.role} {role.memory.key_value_tokens:,}" for role in model.units[0].roles)
        cells = (str(model.topology), str(len(model.units)), str(model.gpus), model.router.mode, room)
        table.add_row(f"  {model.name}", *cells)
    return table
