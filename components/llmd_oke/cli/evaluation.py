"""`llmd-oke eval`: questions with known answers, by which the answers of a deployment are judged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_bench.evals import EvalResult, EvaluationJudgement, judge
from rich.table import Table
from rich.text import Text

from llmd_oke import planning
from llmd_oke.catalogue import benchmarks as evaluations
from llmd_oke.cli import console, options
from llmd_oke.cli.rehearsals import run_rehearsed
from llmd_oke.cli.smoke import write_passports

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
Limit = Annotated[float, options.time_option(about="Time after which the whole ends", least_s=1, default_s=TIMEOUT_S)]


@dataclass(frozen=True)
class EvaluationOutcome:
    """Result of the evaluation of one model, the verdict on it, and the path of the result's file."""

    result: EvalResult
    judgement: EvaluationJudgement
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
    """Ask every model of a deployed stack questions with known answers, and compare the score with a floor.

    An unanswered question counts as wrong, and an unknown floor as a failure. With --against, the answers are also
    compared question by question with those of another stack of the same model and image (the aggregated one, say); a
    statistically significant loss fails.
    """
    known = [evaluations.BUILTIN, *evaluations.evals().packages]
    if set_ not in known:
        raise KitError(f"There is no set of questions {set_!r}.", f"Known: {', '.join(known)}.")
    folder = reports or project / "reports"
    if rehearse:
        if set_ != evaluations.BUILTIN:
            message = "Packages of questions are not run in a rehearsal: their image does not start there."
            raise KitError(message, "Use --set builtin.")
        own = {"--set": set_, "--concurrency": concurrency, "--timeout": timeout, "--against": against or None}
        own |= {"--floor": floor, "--json": as_json}
        run_rehearsed(project, stack, "eval", own, folder, time_scale=False)
    from llmd_oke.operations import evals  # noqa: PLC0415 - loads Pulumi, --help does without

    plan, progress = planning.plan_stack_file(project, stack), console.progress()
    outcomes: list[EvaluationOutcome] = []
    for model in plan.models:
        baseline = evals.baseline(folder, against, model.name, set_) if against else None
        progress.step(f"evaluating {model.name}: {set_}")
        how = evals.EvalOptions(concurrency, timeout, tuple(simulated or ()))
        if set_ == evaluations.BUILTIN:
            result = evals.evaluate_builtin(plan, model, how, progress)
        else:
            result = evals.evaluate_package(set_, plan, model, how, progress)
        published = evaluations.evals().floor(set_, model.model.name)
        least = floor if floor is not None else published.score if published else None
        judgement = judge(result, least, baseline)
        outcomes.append(EvaluationOutcome(result, judgement, evals.store_result(result, folder, stack, model.name)))
    if as_json:
        console.show_json([_document(outcome) for outcome in outcomes])
    for outcome in outcomes if not as_json else ():
        _show(outcome)
    write_passports(stack, plan, folder)
    if not all(outcome.judgement.passed for outcome in outcomes):
        raise typer.Exit(1)


def _document(outcome: EvaluationOutcome) -> dict[str, Any]:
    return {
        **outcome.result.model_dump(mode="json", exclude={"answers"}),
        **document(
            "score interval_95 judgement file",
            outcome.result,
            interval_95=list(outcome.result.interval),
            judgement={**outcome.judgement.model_dump(mode="json"), **document("passed", outcome.judgement)},
            file=str(outcome.file),
        ),
    }


def _show(outcome: EvaluationOutcome) -> None:
    result, judgement = outcome.result, outcome.judgement
    low, high = result.interval
    not_real = f"; simulated: {', '.join(result.simulated)}" if result.simulated else ""
    table = Table.grid(padding=(0, 2))
    table.add_row("score", f"{result.score:.1%} of {len(result.answers)} ({low:.1%} to {high:.1%}, 95 % confidence)")
    table.add_row("numbers", f"{result.basis}{not_real}")
    if judgement.floor is not None:
        table.add_row("floor", f"{judgement.floor:.1%}")
    if judgement.baseline_score is not None:
        change = f"change {judgement.difference:+.1%}, p = {judgement.p_value:.2g}"
        table.add_row("baseline", f"{judgement.baseline_score:.1%}; {change}")
    console.output().print(Text.assemble((f"{result.model} {result.topology}", "bold"), f" {result.evaluation}"))
    console.output().print(table)
    console.show_line(f"result   {outcome.file}")
    for example in result.examples if not judgement.passed else ():
        console.output().print(f"  wrong: {example}", markup=False)
    for failure in judgement.failures:
        console.show_error(KitError(f"{result.model}: {failure}"))
