"""`llmd-oke check` and `schema`: the problems of a stack file or its plan, and the JSON Schema for editors."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import InvalidStack
from llmd_base.records import document
from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from llmd_oke import planning
from llmd_oke.catalogue.entries import names, project_names
from llmd_oke.catalogue.latency_figures import project_problems
from llmd_oke.catalogue.project import NAMED_IN_STACKS
from llmd_oke.cli import console, options
from llmd_oke.cli.console import problem_document
from llmd_oke.cli.plan_summary import minutes, show_summary
from llmd_oke.cli.tables import FittingTable, open_table
from llmd_oke.config.schema import stack_file_schema
from llmd_oke.planning import Advice, ModelPlan, Plan, merge_advice
from llmd_oke.planning.conditions import forecast_differences
from llmd_oke.planning.container_images import chart_archives, images_of, tag_only_sentence, unchecked_archives_sentence
from llmd_oke.planning.estimates import ASSUMED, BringUp, Costs, ServerStartForecast, bring_up, costs, server_start
from llmd_oke.policies.organisation import with_policies


def check(
    stack: options.Stack,
    project: options.Project = options.HERE,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="On a terminal too, all of the plan, its forecasts and advice; not one screen."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Check a stack file without contacting anything: show all problems at once, or the plan and advice."""
    try:
        plan = _plan(project, stack)
    except InvalidStack as refused:
        if not as_json:
            raise
        console.show_json(
            {"stack": stack, "ok": False, "problems": [problem_document(problem) for problem in refused.problems]}
        )
        raise typer.Exit(1) from refused
    if as_json:
        deployed = plan_document(plan) | {"not_as_measured": forecast_differences(plan)}
        console.show_json({"stack": stack, "ok": True, "problems": [], **deployed})
    elif shows_all(explain=explain):
        show_plan(stack, plan)
        for name, texts in forecast_differences(plan).items():
            console.output().print(f"\n[dim]forecasts[/] {escape(name)}: not as measured: {escape('; '.join(texts))}")
    else:
        show_summary(stack, plan)


def shows_all(*, explain: bool = False) -> bool:
    """Tell whether `llmd-oke check` shows the whole plan: with --explain, and if standard output is no terminal."""
    return explain or not console.output().is_terminal


def _plan(project: Path, stack: str) -> Plan:
    """Return the plan of a stack, with the project's policies applied.

    Raises:
        InvalidStack: the stack file has problems, or the project's latency figures or policies have.
    """
    try:
        plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    except InvalidStack as refused:
        raise InvalidStack([*project_problems(), *refused.problems]) from refused
    if problems := project_problems():
        raise InvalidStack(problems)
    return with_policies(project, stack, plan)


def schema(project: options.Project = options.HERE) -> None:
    """Print the JSON Schema of stack files (committed as stacks/schema.json). With it, editors also suggest the names
    of a project's own entries.
    """
    del project  # its option has opened it
    suggested = {place: names(folder) for place, folder in NAMED_IN_STACKS.items() if project_names(folder)}
    console.show_json(stack_file_schema(suggested))


def show_plan(stack: str, plan: Plan, release: str | None = None) -> None:
    """Print a stack's plan and its advice. `release` is shown instead of the release's name if given."""
    console.output().print(f"[bold]{escape(stack)}[/] can be deployed")
    cost, forecast = costs(plan), bring_up(plan)
    published = [f"{leg.name}: {leg.source}" for leg in forecast.legs if leg.source != ASSUMED]
    left_out = Padding(f"[dim]not included: {escape('; '.join(cost.not_included))}[/]", (0, 0, 0, 2))
    console.output().print(
        Group(
            _cluster(plan, release or plan.release.name),
            "",
            FittingTable(_costs(cost)),
            left_out,
            "",
            FittingTable(_models(plan)),
            "",
            FittingTable(_bring_up(forecast)),
            Padding(f"[dim]{escape('; '.join(published))}[/]", (0, 0, 0, 2)),
        )
    )
    if start := server_start(plan):
        console.output().print(f"\n  [dim]start of a server[/] {escape(_server_start_sentence(start))}", soft_wrap=True)
    for accepted in plan.acceptance:
        if accepted.in_update:
            console.output().print(f"\n  [dim]acceptance[/] {escape(accepted.cost_sentence)}", soft_wrap=True)
    for entry in plan.project_entries:
        first = "\n" if entry is plan.project_entries[0] else ""
        instead = ", instead of the kit's" if entry.replaces_kit else ""
        console.output().print(f"{first}  [dim]{entry.kind}[/] {escape(entry.name)}: {escape(entry.file)}{instead}")
    for note in merge_advice(Advice(model.name, model.update_note) for model in plan.models):
        console.output().print(f"\n  [dim]updates of {escape(note.path)}:[/] {escape(note.text)}")
    if sentence := tag_only_sentence(images_of(plan)):
        console.output().print(f"\n[magenta]images[/] {escape(sentence)}")
    if sentence := unchecked_archives_sentence(chart_archives(plan)):
        console.output().print(f"\n[magenta]charts[/] {escape(sentence)}")
    for advice in merge_advice(plan.advice):
        console.output().print(f"\n[magenta]advice[/] [bold]{escape(advice.path)}[/]: {escape(advice.text)}")


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a stack's plan as plain data for JSON. Prices are list prices in US dollars, `price_usd_per_hour` that of
    all GPU nodes. `key_value_tokens` and `host_key_value_tokens` are upper bounds for one server, computed from its
    memory and not measured.
    """
    cost, start = costs(plan), server_start(plan)
    parts = [document("part", part, usd_per_hour=_cents(part.usd_per_hour)) for part in cost.parts]
    return document(
        "release namespace nodes idle_nodes gpus used_gpus price_usd_per_hour costs models bring_up server_start"
        " acceptance images project_entries advice",
        plan,
        release=plan.release.name,
        nodes=len(plan.nodes_at_first),
        idle_nodes=len(plan.idle_nodes),
        costs=document(
            "usd_per_hour as_of parts not_included", cost, usd_per_hour=_cents(cost.usd_per_hour), parts=parts
        ),
        models=[_model(model) for model in plan.models],
        bring_up=_bring_up_document(bring_up(plan)),
        server_start=None if start is None else document("first_s again_s source", start),
        acceptance=[
            document(
                "pool in_update checks needed_nodes on_failure limit_s price_usd",
                accepted,
                pool=accepted.pool.name,
                needed_nodes=accepted.needed,
                price_usd=_cents(accepted.price_usd),
            )
            for accepted in plan.acceptance
        ],
        images=[
            document("image digest used_by path", used, used.image, image=used.image.reference)
            for used in images_of(plan)
        ],
        project_entries=[document("kind name file replaces_kit", entry) for entry in plan.project_entries],
        advice=[asdict(advice) for advice in plan.advice],
    )


def _bring_up_document(forecast: BringUp) -> dict[str, Any]:
    legs = [
        document(
            "name starts_s seconds source after critical",
            leg,
            starts_s=round(forecast.starts[leg.name]),
            seconds=round(leg.seconds),
            critical=leg.name in forecast.critical,
        )
        for leg in forecast.legs
    ]
    return {"seconds": round(forecast.seconds), "legs": legs}


def _server_start_sentence(start: ServerStartForecast) -> str:
    """Return the sentence on how long a server takes to start when its node has weights and image."""
    where = f"({start.source}; weights and image are there)"
    if start.again_s == start.first_s:
        return f"{minutes(start.first_s)} {where}: it compiles each time"
    later = f"{minutes(start.again_s)} with the code that another of its kind compiled on the node"
    return f"{minutes(start.first_s)}, {later} {where}"


def _cents(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 2)


def _model(model: ModelPlan) -> dict[str, Any]:
    spread_keys = "tensor_parallel_size data_parallel_size expert_parallel"
    role_keys = (
        f"role replicas {spread_keys} key_value_tokens host_key_value_tokens disk_key_value_tokens adapters_gib"
        " draft_gib max_surge max_unavailable"
    )
    return document(
        "name model topology copies gpus router updates max_model_len roles",
        model,
        model=model.model.repository,
        topology=str(model.topology),
        copies=len(model.units),
        router=model.router.mode,
        updates={"way": model.update_way, "note": model.update_note},
        roles=[document(role_keys, role, role.parallelism, role.memory, role.rollout) for role in model.units[0].roles],
    )


def _cluster(plan: Plan, release: str) -> Table:
    sizes = [
        f"{pool.size} ({pool.limits.least} to {pool.limits.most})" if pool.autoscaled else str(pool.size)
        for pool in plan.pools
    ]
    pools = ", ".join(f"{size} x {pool.shape.name}" for size, pool in zip(sizes, plan.pools, strict=True))
    table = Table.grid(padding=(0, 2))
    table.add_row("  [dim]release[/]", escape(release))
    table.add_row("  [dim]nodes[/]", f"{pools}, {plan.gpus} GPUs, {plan.used_gpus} used")
    return table


def _costs(cost: Costs) -> Table:
    """Return the table of all parts with their prices, and the sum."""
    table = open_table(f"  cost at list price, {cost.as_of}", "$/hour", right={"$/hour"})
    for part in cost.parts:
        table.add_row(f"  {escape(part.part)}", "unknown" if part.usd_per_hour is None else f"{part.usd_per_hour:,.2f}")
    if len(cost.parts) > 1:
        table.add_row("  all of it", f"{cost.usd_per_hour:,.2f}")
    return table


def _bring_up(forecast: BringUp) -> Table:
    """Return the table of the phases with their times. Phases in brackets aren't on the critical path."""
    starts, critical = forecast.starts, forecast.critical
    table = open_table("  from up to the first token, forecast", "from", "takes", "figure", right={"from", "takes"})
    for leg in forecast.legs:
        takes = minutes(leg.seconds)
        longest = leg.name in critical
        cells = (
            minutes(starts[leg.name]),
            takes if longest else f"({takes})",
            leg.source if leg.source == ASSUMED else "published",
        )
        table.add_row(f"  {leg.name}", *cells, style=None if longest else "dim")
    table.add_row("  all of it", "", minutes(forecast.seconds), "")
    return table


def _models(plan: Plan) -> Table:
    room = "KV tokens per server (bound)"
    table = open_table("  model", "topology", "copies", "GPUs", "router", room, right={"copies", "GPUs", room})
    for model in plan.models:
        tokens = "\n".join(
            f"{role.role} {role.memory.key_value_tokens:,}"
            + (f", {role.host_key_value_tokens:,} in the node's memory" if role.host_key_value_tokens else "")
            + (f", {role.disk_key_value_tokens:,} on the node's disks" if role.disk_key_value_tokens else "")
            for role in model.units[0].roles
        )
        cells = (str(model.topology), str(len(model.units)), str(model.gpus), model.router.mode, tokens)
        table.add_row(f"  {model.name}", *cells)
    return table
