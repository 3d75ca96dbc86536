"""`llmd-oke eval`: does the deployment answer as well as the model should?"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from llmd_oke import planning
from llmd_oke.bench.evals.result import EvalResult, Judgement, judge
from llmd_oke.catalogue import evals as evaluations
from llmd_oke.cli import console, options, passport, times
from llmd_oke.errors import KitError
from llmd_oke.planning import ModelPlan, Plan

TIMEOUT_S = 3600.0

Set = Annotated[
    str,
    typer.Option(
        "--set",
        help="Questions: builtin (the kit's own, a minute), or gpqa, gsm8k, which their own packages ask in a Job.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option("--against", help="Stack whose last result of the same questions this one must not be worse than."),
]
FloorOption = Annotated[
    float | None, typer.Option("--floor", help="Least score, instead of the model's own.", min=0, max=1)
]
Concurrency = Annotated[int, typer.Option(help="Questions at a time.", min=1, max=4096)]
Limit = Annotated[float, times.option(about="Time after which the whole ends", least_s=1, default_s=TIMEOUT_S)]


@dataclass(frozen=True)
class Wanted:
    """What was asked for."""

    stack: str
    set: str
    against: str | None
    floor: float | None
    concurrency: int
    timeout_s: float
    reports: Path
    simulated: tuple[str, ...]

    def words(self) -> list[str]:
        """The same as a command line, for the inside of a rehearsal."""
        words = ["eval", "--set", self.set, "--concurrency", str(self.concurrency), "--timeout", str(self.timeout_s)]
        words += ["--against", self.against] if self.against else []
        return words if self.floor is None else [*words, "--floor", str(self.floor)]


@dataclass(frozen=True)
class Outcome:
    """One model's result, what it was judged, and where it is kept."""

    result: EvalResult
    judged: Judgement
    file: Path


def evaluate(
    stack: options.Stack,
    project: options.Project = options.HERE,
    set_: Set = evaluations.BUILTIN,
    against: Against = None,
    floor: FloorOption = None,
    concurrency: Concurrency = 16,
    timeout: Limit = TIMEOUT_S,
    as_json: options.Json = False,
    reports: options.Reports = None,
    simulated: options.Simulated = None,
    rehearse: options.Rehearse = False,
) -> None:
    """Ask every model of a deployed stack questions with known answers, and hold the score against a floor.

    Fails closed: an unanswered question is wrong, an unknown floor is a failure. With --against, the same questions
    are compared one by one with those of another stack of the same model and image (the aggregated one, say), and a
    loss that chance does not explain fails too.
    """
    kept_in = reports or project / "reports"
    wanted = Wanted(stack, set_, against, floor, concurrency, timeout, kept_in, tuple(simulated or ()))
    _refuse_unknown(wanted)
    if rehearse and set_ != evaluations.BUILTIN:
        raise KitError(
            "Packages of questions are not run in a rehearsal: their image does not start there.", "Use --set builtin."
        )
    if rehearse:
        from llmd_oke.cli.inside import run_inside  # noqa: PLC0415 - not needed without a rehearsal

        raise console.Told(run_inside(project, stack, [*wanted.words(), *(["--json"] if as_json else [])], kept_in))
    plan = planning.plan_stack_file(project, stack)
    outcomes = [_evaluate(wanted, plan, model) for model in plan.models]
    if as_json:
        typer.echo(json.dumps([_described(outcome) for outcome in outcomes], indent=2))
    for outcome in outcomes if not as_json else ():
        _show(outcome)
    passport.issue(stack, plan, kept_in)
    if not all(outcome.judged.passed for outcome in outcomes):
        raise typer.Exit(1)


def _refuse_unknown(wanted: Wanted) -> None:
    known = [evaluations.BUILTIN, *evaluations.evals().packages]
    if wanted.set not in known:
        raise KitError(f"There is no set of questions {wanted.set!r}.", f"Known: {', '.join(known)}.")


def _evaluate(wanted: Wanted, plan: Plan, model: ModelPlan) -> Outcome:
    from llmd_oke.experiments.deployed import eval_jobs, evals  # noqa: PLC0415 - not needed by --help

    compared = evals.baseline(wanted.reports, wanted.against, model.name, wanted.set) if wanted.against else None
    progress = console.progress()
    progress.step(f"evaluating {model.name}: {wanted.set}")
    how = evals.Asking(wanted.concurrency, wanted.timeout_s, wanted.simulated)
    if wanted.set == evaluations.BUILTIN:
        result = evals.evaluate_builtin(plan, model, how, progress)
    else:
        result = eval_jobs.evaluate_package(wanted.set, plan, model, how, progress)
    known = evaluations.evals().floor(wanted.set, model.model.name)
    least = wanted.floor if wanted.floor is not None else known.score if known else None
    return Outcome(result, judge(result, least, compared), evals.keep(result, wanted.reports, wanted.stack, model.name))


def _described(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.result.model_dump(mode="json", exclude={"answers"}),
        "score": outcome.result.score,
        "interval_95": list(outcome.result.interval),
        "judgement": {**outcome.judged.model_dump(mode="json"), "passed": outcome.judged.passed},
        "file": str(outcome.file),
    }


def _show(outcome: Outcome) -> None:
    result, judged = outcome.result, outcome.judged
    low, high = result.interval
    not_real = f"; simulated: {', '.join(result.simulated)}" if result.simulated else ""
    table = Table.grid(padding=(0, 2))
    table.add_row("score", f"{result.score:.1%} of {len(result.answers)} ({low:.1%} to {high:.1%}, 95 % confidence)")
    table.add_row("numbers", f"{result.basis}{not_real}")
    if judged.floor is not None:
        table.add_row("floor", f"{judged.floor:.1%}")
    if judged.baseline_score is not None:
        change = f"change {judged.difference:+.1%}, p = {judged.p_value:.2g}"
        table.add_row("baseline", f"{judged.baseline_score:.1%}; {change}")
    console.output().print(Text.assemble((f"{result.model} {result.topology}", "bold"), f" {result.evaluation}"))
    console.output().print(table)
    console.output().print(f"result   {outcome.file}", soft_wrap=True)
    for example in result.examples if not judged.passed else ():
        console.output().print(f"  wrong: {example}", markup=False)
    for failure in judged.failures:
        console.show_error(KitError(f"{result.model}: {failure}"))
