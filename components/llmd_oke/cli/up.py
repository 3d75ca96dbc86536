"""`llmd-oke up` and `llmd-oke destroy`: updates by the real Pulumi CLI, after a check of the preview."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError

from llmd_oke import planning
from llmd_oke.cli import console, options, recover, smoke, tunnel
from llmd_oke.cli.console import error_document
from llmd_oke.cli.smoke import UpdateBenchmark
from llmd_oke.operations import updates
from llmd_oke.operations.backend import Terminal, require_stack
from llmd_oke.operations.cluster_checks import refuse_certificates
from llmd_oke.operations.nodes import scale_pool, unready_pools
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli
from llmd_oke.operations.registries import refuse_other_archives
from llmd_oke.operations.updates import with_refresh
from llmd_oke.planning import Plan, advice_of_update
from llmd_oke.planning.container_images import chart_archives
from llmd_oke.policies.organisation import with_policies


def up(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    allow_replace: options.AllowReplace = False,
    benchmark: Annotated[
        bool, typer.Option(help="Show the smoke benchmark's result, or run it if it is the client's.")
    ] = True,
    bound: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Hold the update to the preview that was judged (a Pulumi plan).")
    ] = True,
    scale_to_zero_on_failure: options.ScaleToZeroOnFailure = False,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Check the stack file, preview, update the stack for real with the Pulumi CLI, and show its smoke benchmark.

    A preview that would replace or delete a cluster, a network or a pool is refused, with the input that causes it.
    """
    plan = with_policies(project, stack, planning.plan_stack_file(project, stack, nodes_pull=True))
    for advice in advice_of_update(plan):
        console.errors().print(f"advice {advice.path}: {advice.text}", markup=False)
    if not benchmark:
        _refuse_unevaluated(plan)
    if charts := chart_archives(plan):
        refuse_other_archives(charts, console.progress(), plan.registry_mirror)
    cli = pulumi_cli(project, stack, aside=as_json)
    require_stack(cli, None if as_json else terminal())
    pulumi = with_refresh(cli, plan)
    account = _Account(pulumi, yes=yes) if as_json else None
    with tunnel.api_server_access(project, stack, through_tunnel):
        refuse_certificates(plan)
        status = updates.update(
            pulumi,
            plan,
            console.progress(),
            typer.confirm,
            yes=yes,
            allow_replace=allow_replace,
            client=recover.client_for(project, stack),
            bound=bound,
        )
        result = UpdateBenchmark()
        if benchmark:
            result = smoke.after_update(pulumi, plan, failed=bool(status), as_json=as_json)
        offers = _Offers(asks=not (yes or as_json), scales=scale_to_zero_on_failure)
        remedy = _offer_to_scale(pulumi, plan, project, offers) if status else ""
    _end(status, _failure("up", status, remedy or "Standard error says why.") or result.failure, account, result)


@dataclass(frozen=True)
class _Offers:
    """Treatment of nodes that can't be used after a failed update: `asks` tells whether the user may be asked, `scales`
    whether their pools are scaled to zero without a question.
    """

    asks: bool
    scales: bool


def _offer_to_scale(pulumi: PulumiCli, plan: Plan, project: Path, offers: _Offers) -> str:
    """Show, after a failed update, the costs of the pools whose gate or acceptance isn't passed, and scale them to zero
    if wanted. Return the remedy with the commands for the remaining pools; empty if none remain.
    """
    try:
        pools = unready_pools(pulumi.resources(), plan)
    except KitError:
        return ""
    commands: list[str] = []
    for pool in pools:
        cost = f"{pool.name}: its nodes are not ready to serve, and its {pool.size} nodes cost"
        text = f"{cost} {pool.price_usd_per_hour:,.0f} US dollars an hour (list price) as long as they stay"
        console.tell(text)
        asked = offers.asks and sys.stdin.isatty()
        if offers.scales or (asked and typer.confirm(f"Scale {pool.name} to zero now?")):
            try:
                scale_pool(pulumi, console.progress(), recover.client_for(project, pulumi.stack)(), pool, 0)
                continue
            except KitError as error:  # the update's own failure is what the command ends with
                console.show_error(error)
        commands.append(f"llmd-oke nodes scale {pool.name} 0 --stack {pulumi.stack}")
        console.tell(f"to give them back: {commands[-1]}")
    return f"Standard error says why. To stop paying for nodes meanwhile: {'; '.join(commands)}" if commands else ""


def terminal() -> Terminal | None:
    """Return functions that ask the user on the terminal; None if standard input isn't a terminal."""
    return Terminal(typer.confirm, _ask_passphrase) if sys.stdin.isatty() else None


def _ask_passphrase(new: bool) -> str:
    text = "Passphrase for the secrets of the new stack" if new else "Passphrase of the stack's secrets"
    return str(typer.prompt(text, hide_input=True, confirmation_prompt=new))


def _refuse_unevaluated(plan: Plan) -> None:
    """Refuse an update without the client's benchmark if only this benchmark evaluates changed answers.

    Raises:
        KitError: the stack file contains a change of answers, and this command would evaluate it.
    """
    change = next((change for model in plan.models for change in model.answer_changes), None)
    if change and plan.smoke.where == "client":
        raise KitError(
            f"{change.what} changes answers ({change.path}), and with smoke.where: client this command evaluates them.",
            "Leave --no-benchmark out, or let the cluster evaluate (smoke.where: cluster).",
        )


def destroy(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    unprotect: options.Unprotect = False,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Destroy a stack for real. Refused without --unprotect if clusters or pools are protected."""
    pulumi = pulumi_cli(project, stack, aside=as_json)
    account = _Account(pulumi, yes=yes) if as_json else None
    with tunnel.api_server_access(project, stack, through_tunnel):
        client = recover.client_for(project, stack)
        status = updates.destroy(pulumi, console.progress(), yes=yes, unprotect=unprotect, client=client)
    _end(status, _failure("destroy", status), account, UpdateBenchmark())


def _end(status: int, error: KitError | None, account: "_Account | None", benchmark: UpdateBenchmark) -> None:
    """Print the result with --json, and end with the exit code of the operation."""
    if account:
        console.show_json(account.document(benchmark, error))
    if error:
        raise typer.Exit(status or 1)


class _Account:
    """Result of an operation of the Pulumi CLI on a stack, as one JSON object.

    It is created before the operation, so that it covers only the changes and the duration of the operation.

    Raises:
        KitError: --yes is missing, or the stack's history can't be read.
    """

    def __init__(self, pulumi: PulumiCli, *, yes: bool) -> None:
        if not yes:
            raise KitError("With --json nobody can be asked.", "Add --yes.")
        self._pulumi = pulumi
        self._before = pulumi.last_record()
        self._started_s = time.monotonic()

    def document(self, benchmark: UpdateBenchmark, error: KitError | None) -> dict[str, Any]:
        """Return the operation as plain data: counts of created, updated and otherwise changed resources; the stack's
        outputs (secret ones masked); the summary of each model's benchmark, or the reason if it could not be run or
        read; the passports' paths; the error if the operation failed.

        Raises:
            KitError: the stack's history or outputs can't be read.
        """
        duration_s = time.monotonic() - self._started_s
        last = self._pulumi.last_record()
        return {
            "stack": self._pulumi.stack,
            "ok": error is None,
            "changes": dict(last.changes) if last and last != self._before else {},
            "outputs": self._pulumi.outputs(),
            "duration_s": round(duration_s, 1),
            "smoke": list(benchmark.summaries),
            "passports": [str(path) for path in benchmark.passports],
            **({"smoke_error": error_document(benchmark.error)} if benchmark.error else {}),
            **(error_document(error) if error else {}),
        }


def _failure(operation: str, status: int, remedy: str = "Standard error says why.") -> KitError | None:
    """Return the error for the Pulumi CLI's exit code; None for 0."""
    if not status:
        return None
    return KitError(f"`pulumi {operation}` ended with exit code {status}.", remedy)
