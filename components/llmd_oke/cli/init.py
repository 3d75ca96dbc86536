"""`llmd-oke init`: a first stack file from a few questions or options, checked before it is written."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import InvalidStack, KitError
from llmd_base.row import Basis
from llmd_bench.deployment import parse_short_form
from llmd_bench.files import write_whole
from rich.markup import escape

from llmd_oke import catalogue
from llmd_oke.cli import console, options
from llmd_oke.cli.check import plan_document, show_plan, shows_all
from llmd_oke.cli.first_answers import FirstAnswers, OciAccess, PlaceOptions, ServersOptions, first_answers
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.plan_summary import show_summary
from llmd_oke.cli.questions import NOT_WRITTEN
from llmd_oke.cli.topology_search import FoundTopologies, FoundTopology, ServingNeeds, topology_search
from llmd_oke.config import stack_file
from llmd_oke.operations.first_stack import FirstStack, Target, checked
from llmd_oke.planning import Plan
from llmd_oke.values import require_project

_SPARE_NODES = 4
"""Additional nodes to try, beyond those that the topology's GPUs fill, until its placement is reported
as impossible."""


@with_option_groups
def init(
    where: PlaceOptions,
    servers: ServersOptions,
    stack: Annotated[str | None, typer.Option("--stack", "-s", help="Name of the new stack.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a stack file that is there.")] = False,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Write a first stack file from a few questions or options, with comments, and checked before it is written.

    Values without an option are asked for on a terminal; without a terminal they are assumed or reported as missing. If
    signing in to OCI succeeds, the tenancy's own values are offered.
    """
    require_project(project)
    if stack is not None:
        _refuse_to_overwrite(stack_file(project, stack), force=force)
    access = OciAccess(where.auth, where.profile)
    answers = first_answers(where, servers, stack, access, asks=sys.stdin.isatty() and not as_json)
    write(answers, access, project, force=force, as_json=as_json)


def write(answers: FirstAnswers, access: OciAccess, project: Path, *, force: bool, as_json: bool) -> FirstStack:
    """Write the stack file for the user's answers, show its plan, and return the stack's contents.

    Raises:
        InvalidStack: the stack can't be deployed; contains all problems.
        KitError: the file is there already and `force` is false, or no topology meets the needs.
    """
    file = stack_file(project, answers.stack.name)
    _refuse_to_overwrite(file, force=force)
    try:
        written = _written(answers, schema=(file.parent / "schema.json").is_file())
    except InvalidStack as refused:
        values = [problem.value for problem in answers.problems]
        others = [problem for problem in refused.problems if problem.value not in values]
        raise InvalidStack([*answers.problems, *others], NOT_WRITTEN) from refused
    except KitError as error:
        raise KitError(f"{error.message} Nothing is written.", error.remedy) from error
    if answers.problems:
        raise InvalidStack(answers.problems, NOT_WRITTEN)
    file.parent.mkdir(exist_ok=True)
    write_whole(file, written.text)
    if as_json:
        about = {"stack": written.stack.name, "ok": True, "file": str(file), "assumed": written.stack.assumptions}
        console.show_json({**about, "chosen_by": written.stack.forecast, **plan_document(written.plan)})
    else:
        _show(file, written, access)
    return written.stack


def _refuse_to_overwrite(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        raise KitError(f"{file} is there already; nothing is written.", "Choose another --stack, or add --force.")


@dataclass(frozen=True)
class _Written:
    stack: FirstStack
    text: str
    plan: Plan


def _written(answers: FirstAnswers, *, schema: bool) -> _Written:
    """Return the stack file for the answers, with the first of the found topologies that planning accepts.

    Raises:
        InvalidStack: the stack can't be deployed; contains all problems.
        KitError: no topology meets the needs.
    """
    first = replace(answers.stack, assumptions=answers.assumptions)
    if answers.problems:
        first = answers.without_search()
    if answers.needs is None or answers.problems:
        return _Written(*_on_enough_nodes(first, schema=schema))
    refusals: list[InvalidStack] = []
    for candidate in _searched(first, answers.needs, assumed_limits=answers.assumed_limits):
        try:
            return _Written(*checked(candidate, schema=schema))
        except InvalidStack as refused:
            refusals.append(refused)
    raise refusals[0]


def _on_enough_nodes(first: FirstStack, *, schema: bool) -> tuple[FirstStack, str, Plan]:
    """Return the stack with the least number of nodes on which the named topology can be placed. Whole servers may need
    one node more than their number of GPUs. An adopted cluster has the nodes that it has.
    """
    if first.adopted:
        return checked(first, schema=schema)
    try:
        roles = parse_short_form(first.topology).values()
    except ValueError:
        return checked(first, schema=schema)  # which tells what a topology is
    gpus = first.copies * sum(
        role["replicas"] * role["tensorParallelSize"] * role.get("dataParallelSize", 1) for role in roles
    )
    least = _nodes(gpus, first.shape)
    for nodes in range(least, least + _SPARE_NODES):
        try:
            return checked(replace(first, nodes=nodes), schema=schema)
        except InvalidStack:
            continue
    return checked(replace(first, nodes=least), schema=schema)


def _nodes(gpus: int, shape: str) -> int:
    known = catalogue.shape(shape)
    return -(-gpus // (known.gpus if known else gpus))


def _searched(first: FirstStack, needs: ServingNeeds, *, assumed_limits: bool) -> Iterator[FirstStack]:
    """Yield the stack with each topology that the search finds, best first. If no topology meets the assumed latency
    limits, the search is repeated without limits.
    """
    search = topology_search()
    assumed = [f"--ttft {needs.ttft_ms:g} --itl {needs.itl_ms:g}: our choice"] if assumed_limits else []
    try:
        found = search(needs)
    except KitError:
        if not assumed_limits:
            raise
        assumed = ["no limits of latency: nothing meets those that the kit assumes (--ttft, --itl)"]
        needs = replace(needs, ttft_ms=None, itl_ms=None)
        found = search(needs)
    assumptions = (*first.assumptions, *assumed)
    first = replace(first, ttft_ms=needs.ttft_ms, itl_ms=needs.itl_ms, assumptions=assumptions)
    for item in found.topologies:
        yield replace(
            first,
            topology=item.topology,
            copies=item.copies,
            nodes=_nodes(item.gpus, first.shape),
            purpose=f", for {needs.requests_per_s:g} requests per second" if needs.requests_per_s else "",
            forecast=_forecast(item, needs, found),
        )


def _forecast(item: FoundTopology, needs: ServingNeeds, found: FoundTopologies) -> str:
    """Return the sentence on the load that a topology carries within its limits, and on the basis of this figure."""
    limits = {"mean TTFT": needs.ttft_ms, "mean ITL": needs.itl_ms}
    within = " and ".join(f"{name} of {limit:g} ms" for name, limit in limits.items() if limit)
    strength = "at most " if found.basis is Basis.BOUND else "about "
    carried = f"carries {strength}{item.requests_per_s:.3g} requests/s{f' within a {within}' if within else ''}"
    rests_on = found.sentence.partition(";")[0]
    return f"{carried} ({rests_on}); `llmd-oke tune rank` says more, and compares others"


def _show(file: Path, written: _Written, access: OciAccess) -> None:
    name, out = written.stack.name, console.output()
    out.print(f"[green]written[/] {escape(str(file))}", soft_wrap=True)
    if access.refusals and written.stack.region is not None:
        out.print(f"[dim]OCI does not tell: {escape('; '.join(access.refusals))}[/]")
    for text in written.stack.assumptions:
        out.print(f"[magenta]assumed[/] {escape(text)}")
    if written.stack.forecast:
        out.print(f"[dim]topology[/] {escape(written.stack.forecast)}")
    out.print()
    (show_plan if shows_all() else show_summary)(name, written.plan)
    if written.stack.target is Target.REHEARSAL:
        steps = [f"llmd-oke rehearse --stack {name}"]
    else:
        steps = [f"llmd-oke preflight --stack {name}", f"llmd-oke up --stack {name}"]
    out.print(f"\n[dim]next[/] {', then '.join(f'[bold]{escape(step)}[/]' for step in steps)}")
