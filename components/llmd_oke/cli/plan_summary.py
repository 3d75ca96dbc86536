"""Plan of a stack on one screen: verdict, servers, price, time until it serves, and advice that needs a decision."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from llmd_oke.cli import console
from llmd_oke.planning import Advice, ModelPlan, Plan, limits_sentence, merge_advice
from llmd_oke.planning.estimates import bring_up, costs
from llmd_oke.planning.model_plan import UpdateWay

MOST_DECISIONS = 5
"""Maximum number of pieces of advice that the summary of a plan shows."""

MOST_MODELS = 6
"""Maximum number of models that the summary of a plan lists."""

LONGEST_LEGS = 2
"""Number of steps of the bring-up that the summary names: those that take longest before the first token."""

_LEAST_LINES = 2
"""Least number of lines of a piece of advice before it is truncated, however small the terminal is."""

_MARGIN = 4

_UPDATES: Mapping[UpdateWay, str] = {
    "rolling": "rolls out pod by pod",
    "beside": "starts beside the old one",
    "one by one": "rolls out unit by unit",
    "outage": "needs an outage",
}
"""Descriptions of the ways to update, which follow the words `a new version`."""


def minutes(seconds: float) -> str:
    """Return a duration in seconds as text in minutes and seconds: `66:40`."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def show_summary(stack: str, plan: Plan, release: str | None = None) -> None:
    """Print a plan's summary on one screen: at most five pieces of advice that need a decision, and the command that
    shows the rest. `release` is shown instead of the release's name if given.
    """
    output = console.output()
    table = Table.grid(padding=(0, 2))
    pools = ", ".join(f"{pool.size} x {pool.shape.name}" for pool in plan.pools)
    nodes = f"{pools}: {plan.gpus} GPUs, {plan.used_gpus} used"
    known, forecast = costs(plan), bring_up(plan)
    unknown = "" if all(part.usd_per_hour is not None for part in known.parts) else ", without parts of unknown price"
    critical = (leg for leg in forecast.legs if leg.name in forecast.critical)
    longest = sorted(critical, key=lambda leg: -leg.seconds)[:LONGEST_LEGS]
    legs = ", ".join(f"{leg.name} {minutes(leg.seconds)}" for leg in longest)
    rows = [
        ("release", release or plan.release.name),
        ("nodes", nodes),
        *_models(plan.models),
        ("cost", f"{known.usd_per_hour:,.2f} $/hour (list prices of {known.as_of}{unknown})"),
        ("time", f"{minutes(forecast.seconds)} from up to the first token (forecast); longest: {legs}"),
    ]
    for name, text in rows:
        table.add_row(f"  [dim]{name}[/]", escape(text))
    head = [Text.assemble((stack, "bold"), " can be deployed"), table, Text()]
    for part in head:
        output.print(part)
    advice = merge_advice(plan.advice)
    decisions = [item for item in advice if item.kind == "decision"]
    rest = _rest(stack, plan, advice)
    used = sum(len(output.render_lines(part, pad=False)) for part in (*head, rest)) + 3
    shown = list(_fitting(output, decisions[:MOST_DECISIONS], output.height - used))
    if shown:
        number = f"{len(decisions)}" if len(shown) == len(decisions) else f"{len(shown)} of {len(decisions)}"
        output.print(Text.assemble(("to decide", "magenta"), f" ({number})"))
        for lines in shown:
            output.print(lines)
        output.print()
    output.print(rest)


def _models(models: Sequence[ModelPlan]) -> Iterator[tuple[str, str]]:
    for model in models[:MOST_MODELS]:
        copies = f"{model.copies} x " if model.copies > 1 else ""
        servers = f"{model.name}: {copies}{model.topology} on {model.gpus} GPUs"
        yield "model", f"{servers}; a new version {_UPDATES[model.update_way]}"
    if more := len(models) - MOST_MODELS:
        yield from [("", f"and {more} more")] if more > 0 else ()


def _fitting(output: Console, decisions: Sequence[Advice], room: int) -> Iterator[Text]:
    """Yield pieces of advice that fit into `room` lines. The last piece may be truncated; the first is always shown."""
    for index, item in enumerate(decisions):
        text = Text.assemble("  ", (item.path, "bold"), f": {item.text}")
        lines = text.wrap(output, output.width - _MARGIN)
        if len(lines) > room:
            if index and room < _LEAST_LINES:
                return
            kept = max(room, _LEAST_LINES)
            lines = lines[:kept]
            lines[-1].append(" …")
        room -= len(lines)
        yield Text(f"\n{' ' * _MARGIN}").join(lines)


def _rest(stack: str, plan: Plan, advice: Sequence[Advice]) -> Text:
    """Return the last line: the parts of the plan that the screen omits, and the command that shows them."""
    others = sum(item.kind != "limit" for item in advice)
    parts = [f"{others} pieces of advice" if others else "", limits_sentence(plan), "tables of cost, memory and time"]
    command = f"llmd-oke check --stack {stack} --explain"
    return Text.assemble(("all of it", "dim"), f" ({'; '.join(filter(None, parts))}): ", (command, "bold"))
