"""`llmd-oke up` and `llmd-oke destroy`: the real Pulumi CLI, with a look at what it would do before it does it."""

import json
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
from llmd_oke.operations.nodes import scale_command, scale_pool, unready_pools
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli
from llmd_oke.operations.registries import refuse_other_archives
from llmd_oke.operations.updates import with_refresh
from llmd_oke.planning import Plan, advice_of_update
from llmd_oke.planning.container_images import chart_archives


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
    plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    for advice in advice_of_update(plan):
        console.errors().print(f"advice {advice.path}: {advice.text}", markup=False)
    if not benchmark:
        _refuse_unevaluated(plan)
    if charts := chart_archives(plan):
        refuse_other_archives(charts, console.progress(), plan.registry_mirror)
    cli = pulumi_cli(project, stack, aside=as_json)
    require_stack(cli, None if as_json or not sys.stdin.isatty() else Terminal(typer.confirm, _ask_passphrase))
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
    """Tell whether somebody may be asked about nodes that can't be used, and whether these are given back unasked."""

    asks: bool
    scales: bool


def _offer_to_scale(pulumi: PulumiCli, plan: Plan, project: Path, offers: _Offers) -> str:
    """Tell, after an update that failed, what the nodes of pools cost whose gate nobody has passed, and the commands
    that give them back, unless they were given back; return the remedy, empty where nothing is left to give back.
    """
    try:
        pools = unready_pools(pulumi.resources(), plan)
    except KitError:
        return ""
    commands: list[str] = []
    for pool in pools:
        cost = f"{pool.name}: its nodes are not ready to serve, and its {pool.size} nodes cost"
        text = f"{cost} {pool.price_usd_per_hour:,.0f} US dollars an hour (list price) as long as they stay"
        console.errors().print(text, markup=False, soft_wrap=True)
        asked = offers.asks and sys.stdin.isatty()
        if offers.scales or (asked and typer.confirm(f"Scale {pool.name} to zero now?")):
            try:
                scale_pool(pulumi, console.progress(), recover.client_for(project, pulumi.stack)(), pool, 0)
                continue
            except KitError as error:  # the update's own failure is what the command ends with
                console.show_error(error)
        commands.append(scale_command(pool.name, pulumi.stack))
        console.errors().print(f"to give them back: {commands[-1]}", markup=False, soft_wrap=True)
    return f"Standard error says why. To stop paying for nodes meanwhile: {'; '.join(commands)}" if commands else ""


def _ask_passphrase(new: bool) -> str:
    text = "Passphrase for the secrets of the new stack" if new else "Passphrase of the stack's secrets"
    return str(typer.prompt(text, hide_input=True, confirmation_prompt=new))


def _refuse_unevaluated(plan: Plan) -> None:
    """Refuse a client's update without its benchmark where that alone evaluates what changes answers.

    Raises:
        KitError: something changes answers, and this command is what evaluates them.
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
    """Destroy a stack for real. Where clusters or pools are protected it is refused without --unprotect."""
    pulumi = pulumi_cli(project, stack, aside=as_json)
    account = _Account(pulumi, yes=yes) if as_json else None
    with tunnel.api_server_access(project, stack, through_tunnel):
        client = recover.client_for(project, stack)
        status = updates.destroy(pulumi, console.progress(), yes=yes, unprotect=unprotect, client=client)
    _end(status, _failure("destroy", status), account, UpdateBenchmark())


def _end(status: int, error: KitError | None, account: "_Account | None", benchmark: UpdateBenchmark) -> None:
    """Print the account with --json, and end with the exit code that belongs to the operation."""
    if account:
        typer.echo(json.dumps(account.document(benchmark, error), indent=2))
    if error:
        raise typer.Exit(status or 1)


class _Account:
    """Account of an operation of the Pulumi CLI on a stack, as one JSON object.

    It begins before the operation, so that changes and duration are its own.

    Raises:
        KitError: nobody could be asked and --yes is not given, or the stack's history can't be read.
    """

    def __init__(self, pulumi: PulumiCli, *, yes: bool) -> None:
        if not yes:
            raise KitError("With --json nobody can be asked.", "Add --yes.")
        self._pulumi = pulumi
        self._before = pulumi.last_record()
        self._started_s = time.monotonic()

    def document(self, benchmark: UpdateBenchmark, error: KitError | None) -> dict[str, Any]:
        """The operation as plain data: how many resources were created, updated and so on; the stack's outputs (secret
        ones masked); the summary of each model's benchmark, and why there is none where it could not be run or read;
        the passports' files; why it failed, if it did.

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
    """Return the error for the Pulumi CLI's exit code, None where all went well."""
    if not status:
        return None
    return KitError(f"`pulumi {operation}` ended with exit code {status}.", remedy)
