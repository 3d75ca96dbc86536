"""A plan, for people and as JSON."""

from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console
from llmd_oke.planning import ModelPlan, Plan


def show(stack: str, plan: Plan) -> None:
    """Prints a plan and its advice."""
    console.output().print(f"[bold]{escape(stack)}[/] can be deployed")
    console.output().print(Group(_cluster(plan), "", _models(plan)))
    for advice in plan.advice:
        console.output().print(f"\n[yellow]advice[/] [bold]{escape(advice.path)}[/]: {escape(advice.text)}")


def as_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain data. Prices are list prices in US dollars; `key_value_tokens` are bounds."""
    return {
        "release": plan.release.name,
        "namespace": plan.namespace,
        "nodes": len(plan.nodes),
        "idle_nodes": len(plan.idle_nodes),
        "gpus": plan.gpus,
        "used_gpus": plan.used_gpus,
        "price_usd_per_hour": plan.price_usd_per_hour,
        "models": [_model(model) for model in plan.models],
        "advice": [{"path": advice.path, "text": advice.text} for advice in plan.advice],
    }


def _model(model: ModelPlan) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.model.repository,
        "topology": str(model.topology),
        "copies": len(model.units),
        "gpus": model.gpus,
        "router": model.router.mode,
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


def _cluster(plan: Plan) -> Table:
    pools = ", ".join(f"{pool.size} x {pool.shape.name}" for pool in plan.pools)
    table = Table.grid(padding=(0, 2))
    table.add_row("  [dim]release[/]", plan.release.name)
    table.add_row("  [dim]nodes[/]", f"{pools}, {plan.gpus} GPUs, {plan.used_gpus} used")
    table.add_row("  [dim]cost[/]", f"{plan.price_usd_per_hour:.2f} $/hour at list price")
    return table


def _models(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("  model", "left"), ("topology", "left"), ("copies", "right"), ("GPUs", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    table.add_column("router")
    table.add_column("KV tokens per server (bound)", justify="right")
    for model in plan.models:
        room = ", ".join(f"{role.role} {role.memory.key_value_tokens:,}" for role in model.units[0].roles)
        cells = (str(model.topology), str(len(model.units)), str(model.gpus), model.router.mode, room)
        table.add_row(f"  {model.name}", *cells)
    return table
