"""`llmd-oke drift` and `llmd-oke recover`: differences between the stack's state and its resources, by changes by hand
or by a killed engine.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError

from llmd_oke.access.addresses import region_of
from llmd_oke.access.oci_client import OciClient
from llmd_oke.cli import console, options, token, tunnel
from llmd_oke.cli.rehearsals import rehearsals
from llmd_oke.config import CreateCluster, StackConfig, load, project_name, settings
from llmd_oke.operations import backend, recovery
from llmd_oke.operations import drift as operation
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.operations.recovery import NONE, ClientOf, Orphan, Recovery, State
from llmd_oke.operations.tenancy import StackTenancy

DRIFTED = 3
"""Exit code of `llmd-oke drift` if something was changed by hand; 1 is an error, 2 an invalid command line."""

Take = Annotated[
    list[str] | None,
    typer.Option(
        "--take",
        metavar="NAME=ID",
        help=f"Which resource of OCI a pending creation is, or {NONE} where there is none; may be given several times.",
    ),
]


def drift(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: options.Rehearse = False,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Show changes by hand in what the stack has deployed, in OCI and in its cluster.

    Nothing is changed, not even the stack's state. Ends with 0 if everything is as the last update left it, with 3 if
    there are changes by hand, and with 1 if they can't be detected.
    """
    changes = changes_by_hand(project, stack, rehearse=rehearse, through_tunnel=through_tunnel)
    if as_json:
        console.show_json({"stack": stack, "drift": [asdict(change) for change in changes]})
        raise typer.Exit(DRIFTED if changes else 0)
    for change in changes:
        console.show_line(str(change))
    if not changes:
        console.output().print("Nothing was changed by hand.")
    raise typer.Exit(DRIFTED if changes else 0)


def changes_by_hand(project: Path, stack: str, *, rehearse: bool, through_tunnel: bool) -> Sequence[Drift]:
    """Return the changes by hand in a deployed stack, or in its rehearsal.

    Raises:
        KitError: the state, OCI or the cluster can't be read, or the rehearsal isn't up.
    """
    if rehearse:
        return rehearsals().drift(project, stack, console.progress())
    pulumi = pulumi_cli(project, stack, aside=True)
    with tunnel.api_server_access(project, stack, through_tunnel):
        return operation.everywhere(pulumi, console.progress())


def recover(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    unlock: Annotated[
        bool,
        typer.Option("--unlock", help="Take the lock of the killed engine away first; no other one may be running."),
    ] = False,
    take: Take = None,
    as_json: options.Json = False,
) -> None:
    """Show what a killed engine left behind, and with --yes settle it.

    Pending operations are operations that the engine had begun: `up` and `destroy` settle them too. Orphans are
    resources of OCI with the stack's tag that the state doesn't contain; they are shown with the command that deletes
    them, and never changed. Ends with 1 while anything is left to settle.
    """
    if unlock and not yes:
        raise KitError("--unlock changes the stack.", "Add --yes once no other engine runs.")
    config = load(project, stack)
    pulumi = pulumi_cli(project, stack, aside=as_json)
    choices: dict[str, str] = {}
    for text in take or ():
        name, _, identifier = text.partition("=")
        if not name or not identifier:
            raise KitError(f"--take {name}: an id is missing.", f"Such as --take pool=ocid1.nodepool... or pool={NONE}")
        choices[name] = identifier
    client = client_for(project, stack)
    if unlock and backend.unlock(pulumi):
        raise KitError("The stack's lock can't be taken away.", "`pulumi cancel` said why.")
    settled = recovery.recover(pulumi, console.progress(), client, choices) if yes else None
    state: State = pulumi.export().get("deployment") or {}
    result = recovery.look(state, recovery.in_oci(client), choices) if settled is None else settled
    left = _orphans(f"{project_name(project)}/{stack.rsplit('/', 1)[-1]}", config, client, state, result)
    if as_json:
        console.show_json({"pending": list(result.lines()), "orphans": [asdict(orphan) for orphan in left]})
    else:
        _show(result, left, stack, settled=yes)
    raise typer.Exit(int(bool(left) or (bool(result) and not yes)))


def client_for(project: Path, stack: str) -> ClientOf:
    """Return a function that creates a client of OCI, signed in by the stack's `oci:` config, for the
    cluster's region.
    """

    def client() -> OciClient:
        return token.client_of(token.sign_in_of(settings(project, stack)), region_of(load(project, stack)))

    return client


def _orphans(stack_tag: str, config: StackConfig, client: ClientOf, state: State, result: Recovery) -> list[Orphan]:
    """Return the orphans of a stack. Only stacks that create their cluster can have any. Resources that the recovery
    adopts into the state are not orphans.
    """
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster):
        return []
    tenancy = StackTenancy(client(), config, cluster)
    compartments = {cluster.compartment_id, cluster.tenancy_id, cluster.network.compartment_id}
    places = sorted(filter(None, compartments))
    domains, progress = tenancy.availability_domains, console.progress()
    return recovery.orphans(tenancy.client, stack_tag, places, domains, state, result, progress)


def _show(result: Recovery, left: Sequence[Orphan], stack: str, *, settled: bool) -> None:
    for line in result.lines():
        console.show_line(f"{'settled' if settled else 'pending'}  {line}")
    for orphan in left:
        kind, cost = orphan.type.rsplit(":", 1)[-1], ", which costs money" if orphan.costs else ""
        console.show_line(f"orphan   {kind} {orphan.name}{cost}: {orphan.identifier}")
        console.show_line(f"         {orphan.delete}")
    if not result and not left:
        console.show_line("Nothing is pending, and nothing carries the stack's tag that its state doesn't know.")
    elif result and not settled:
        console.show_line(f"Nothing was changed. To settle it: llmd-oke recover --stack {stack} --yes")
