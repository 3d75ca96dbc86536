"""`llmd-oke pipeline`: the commands for continuous integration: preview with a summary, deployment, rights,
time limit.
"""

import html
import json
import os
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import httpx2
import typer
import yaml
from llmd_base.errors import KitError

from llmd_oke import planning
from llmd_oke.access import federation
from llmd_oke.catalogue.operations import PipelineLimits, pipeline_identities, pipeline_limits
from llmd_oke.cli import console, options, tunnel, up
from llmd_oke.cli.recover import DRIFTED, changes_by_hand
from llmd_oke.cli.rehearsals import rehearsals
from llmd_oke.config import CONFIG_KEY, load, stacks
from llmd_oke.operations import drift as drifts
from llmd_oke.operations import guards
from llmd_oke.operations.backend import PASSPHRASE, cloud_audience, environment, signed_in_to_cloud
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.guards import displacement
from llmd_oke.operations.previews import Preview, ResourceChange
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.operations.redaction import compared, preview_project, without_secrets
from llmd_oke.operations.updates import with_refresh
from llmd_oke.planning import Plan, advice_of_update
from llmd_oke.planning.pipeline_rights import pipeline_statements
from llmd_oke.policies.organisation import with_policies

if TYPE_CHECKING:
    from llmd_oke.program.declare import Declared


MARK = "<!-- llmd-oke preview of {stack} -->"
"""First line of a comment on a pull request, by which the next run finds the comment."""


MAX_ROWS = 60


_MARKS = re.compile(r"[\\`*_\[\]|~]")


_ORDER = ("delete", "replace", "create", "update")


_WITHOUT_EXISTENCE = ("llmd-oke:index:", "pulumi:")


_UNITS_S = {"s": 1, "m": 60, "h": 3600}


_PART = re.compile(r"(\d+)([smh])")


_VERSION = "kubernetesVersion"


ORGANIZATION, LIFETIME = "LLMD_OKE_PULUMI_ORGANIZATION", "LLMD_OKE_PULUMI_TOKEN_LIFETIME"
"""Environment variables: the organization of Pulumi Cloud that trusts the job's token, and the lifetime of Pulumi's
access token (`6h`)."""

_MAY_BE_EMPTY = (
    *("PULUMI_ACCESS_TOKEN", "PULUMI_BACKEND_URL", PASSPHRASE, "OCI_AUTH"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
)
"""Environment variables that a workflow sets to an empty string if the repository lacks the variable or secret. They
are unset then, since Pulumi would use an empty passphrase, for example."""


app = typer.Typer(help="Preview and deploy a stack as continuous integration does.", no_args_is_help=True)


Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="Against the rehearsal on this machine.", envvar="LLMD_OKE_REHEARSE")
]


States = Annotated[
    Path | None,
    typer.Option(
        "--states",
        help="Folder with states without secrets (STACK.json, of `pipeline state`) to preview by, without a backend.",
        exists=True,
        file_okay=False,
    ),
]


Summary = Annotated[
    Path | None,
    typer.Option("--summary", help="File for the Markdown summary; standard output if left out.", dir_okay=False),
]


@app.command()
def preview(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    allow_replace: options.AllowReplace = False,
    states: States = None,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Preview an update and write a Markdown summary. Ends with 1 if the update would be refused.

    With --states the command uses no backend and no secrets: changes by hand and changed secrets are not detected.
    """
    _require_stack_file(project, stack)
    plan = with_policies(project, stack, planning.plan_stack_file(project, stack, nodes_pull=True))
    by_hand: list[Drift] = []
    not_compared = 0
    if rehearse:
        changes = rehearsals().preview(project, stack, console.progress())
    elif states:
        with (
            signed_in(backend=False),
            preview_project(project, stack, states) as pulumi,
            tunnel.api_server_access(project, stack, through_tunnel),
        ):
            changes, not_compared = compared(with_refresh(pulumi, plan).preview())
    else:
        with signed_in(), tunnel.api_server_access(project, stack, through_tunnel):
            pulumi = with_refresh(pulumi_cli(project, stack), plan)
            by_hand = drifts.look(pulumi, console.progress())
            changes = pulumi.preview()
    if not states:
        by_hand += drifts.drift_of_preview(changes.changes, by_hand)
    judged = summarise(stack, plan, changes, by_hand=by_hand, allow_replace=allow_replace, not_compared=not_compared)
    _write(judged.markdown, summary)
    if judged.refusals:
        raise typer.Exit(1)


@app.command()
def drift(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Look for changes by hand and write a Markdown summary. Ends with 3 if there are any, as `llmd-oke drift` does."""
    _require_stack_file(project, stack)
    with nullcontext() if rehearse else signed_in():
        changes = changes_by_hand(project, stack, rehearse=rehearse, through_tunnel=through_tunnel)
    title = "nothing was changed by hand" if not changes else f"changed by hand: {len(changes)}"
    parts = [f"### `{stack}`: {title}", *_listed("Changes", [_plain(str(change)) for change in changes])]
    _write("\n\n".join(parts) + "\n", summary)
    if changes:
        raise typer.Exit(DRIFTED)


@app.command()
def deploy(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    allow_replace: options.AllowReplace = False,
    scale_to_zero_on_failure: options.ScaleToZeroOnFailure = False,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Update a stack without questions, then run the smoke benchmark, which determines the exit code."""
    _require_stack_file(project, stack)
    if not rehearse:
        with signed_in():
            up.up(
                stack,
                project,
                yes=True,
                allow_replace=allow_replace,
                benchmark=True,
                scale_to_zero_on_failure=scale_to_zero_on_failure,
                through_tunnel=through_tunnel,
            )
        return
    argv = [sys.executable, "-m", "llmd_oke", "rehearse", "--stack", stack, "--project", str(project)]
    os.execv(argv[0], argv)  # noqa: S606 - in place of this process, so that signals reach it


@app.command()
def state(
    stack: options.Stack,
    output: Annotated[Path, typer.Option("--output", help="File for the state.", dir_okay=False)],
    project: options.Project = options.HERE,
) -> None:
    """Write a stack's state without its secrets, for previews of pull requests (`pipeline preview --states`).

    It contains everything else in the state, such as OCIDs, addresses and boot scripts.
    """
    _require_stack_file(project, stack)
    with signed_in(oci=False):
        public = without_secrets(pulumi_cli(project, stack, aside=True).export_with_secrets())
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(public))


@app.command()
def rights(
    stack: options.Stack,
    identity: Annotated[str, typer.Argument(help="deploy, drift or preview.", show_default=False)],
    group: Annotated[str, typer.Option(help="Name of the identity's group.")],
    group_id: Annotated[str, typer.Option(help="OCID of the group, by which the cluster knows it.")],
    project: options.Project = options.HERE,
) -> None:
    """Print the rights of an identity of continuous integration: policy statements, and RBAC objects for the cluster.

    The statements belong into a policy of the root compartment. `kubectl apply -f -` accepts the output.
    """
    known = pipeline_identities()
    if identity not in known:
        raise KitError(f"There is no identity {identity}.", f"One of: {', '.join(known)}.")
    if not re.fullmatch(r"ocid1\.group\.[\w.-]+", group_id):
        raise KitError(f"--group-id {group_id} is no OCID of a group.", "Such as ocid1.group.oc1..aaaa")
    config = load(project, stack)
    allowed = known[identity]
    typer.echo(f"# {identity}: {allowed.why}")
    for statement in pipeline_statements(allowed, config, group):
        typer.echo(f"# {statement}")
    name, api_group = f"llmd-oke-{identity}", "rbac.authorization.k8s.io"
    if allowed.rules:
        rules = [rule.model_dump(by_alias=True, mode="json") for rule in allowed.rules]
        kind = {"apiVersion": f"{api_group}/v1", "metadata": {"name": name}}
        role = {**kind, "kind": "ClusterRole", "rules": rules}
        subject = {"kind": "Group", "name": group_id, "apiGroup": api_group}
        reference = {"kind": "ClusterRole", "name": name, "apiGroup": api_group}
        binding = {**kind, "kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference}
        typer.echo(yaml.safe_dump_all([role, binding], sort_keys=False), nl=False)


@app.command()
def limit(
    stack: options.Stack,
    project: options.Project = options.HERE,
    own_runner: Annotated[
        bool, typer.Option("--own-runner", help="The job runs on a runner of one's own, not on one that GitHub hosts.")
    ] = False,
) -> None:
    """Print the time limit in minutes of a CI job that updates this stack: the sum of the kit's own limits, at most
    GitHub's.

    The parts of the sum, and whether GitHub's limit is lower, are shown on standard error.
    """

    _require_stack_file(project, stack)
    needed = time_limit(project, stack, planning.plan_stack_file(project, stack, nodes_pull=True))
    known = pipeline_limits()
    most = known.own_job_minutes if own_runner else known.hosted_job_minutes
    for line in needed.lines():
        console.errors().print(line, markup=False, soft_wrap=True)
    console.errors().print(f"An update of {stack} may take {needed.minutes} minutes.", markup=False, soft_wrap=True)
    if needed.minutes > most:
        longer = "" if own_runner else f", on a runner of one's own (LLMD_OKE_RUNNER) after {known.own_job_minutes}"
        text = f"GitHub ends the job after {most}{longer}; the next one goes on where it ended."
        console.errors().print(text, markup=False, soft_wrap=True)
    typer.echo(min(needed.minutes, most))


@contextmanager
def signed_in(*, oci: bool = True, backend: bool = True) -> Generator[None]:
    """Sign in with the job's own token during the block, to OCI and to Pulumi Cloud, if environment variables configure
    it. Variables that are empty count as missing.

    Raises:
        KitError: the configuration is incomplete, or OCI or Pulumi Cloud refuses the token.
    """
    empty = {name: None for name in _MAY_BE_EMPTY if os.environ.get(name) == ""}
    organization = os.environ.get(ORGANIZATION) if backend else None
    exchange = federation.exchange_of(os.environ) if oci else None

    def report(text: str) -> None:
        console.progress().step(text)

    with environment(empty), ExitStack() as stack:
        if exchange:
            stack.enter_context(federation.signed_in(exchange, report))
        if organization:
            with httpx2.Client(timeout=federation.TIMEOUT_S) as http:
                token = federation.job_token(cloud_audience(organization), os.environ, http)
            stack.enter_context(signed_in_to_cloud(organization, token, os.environ.get(LIFETIME) or None))
        yield


def _write(markdown: str, summary: Path | None) -> None:
    if summary is None:
        typer.echo(markdown, nl=False)
        return
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(markdown)
    console.errors().print(f"summary  {summary}", markup=False, soft_wrap=True)


def _require_stack_file(project: Path, stack: str) -> None:
    """Check that the stack has a stack file of this name.

    Approvals and locks use the name, and `organization/project/stack` would be a second name of the same stack.

    Raises:
        KitError: no stack file has this name.
    """
    known = stacks(project)
    if stack not in known:
        raise KitError(f"{stack!r} is no name of a stack file.", f"Stacks here: {', '.join(known) or 'none'}.")


@dataclass(frozen=True)
class PreviewSummary:
    """Summary of a preview as Markdown, and the reasons against the update."""

    markdown: str
    refusals: Sequence[str]


def summarise(
    stack: str,
    plan: Plan,
    preview: Preview,
    *,
    by_hand: Sequence[Drift] = (),
    allow_replace: bool = False,
    not_compared: int = 0,
) -> PreviewSummary:
    """Return the comment on a pull request, and the reasons to refuse the update. `by_hand` are changes by hand to
    list, `not_compared` is the number of resources with secrets that the preview doesn't know.
    """
    lost = [] if allow_replace else [guards.describe(change) for change in guards.losses(preview)]
    refusals = [*preview.errors, *lost]
    first = displacement(preview, plan.gpus)
    existing = Preview(tuple(change for change in preview.changes if _exists(change)))
    least, most = sum(pool.limits.least for pool in plan.pools), sum(pool.limits.most for pool in plan.pools)
    scaled = "" if least == most else f" ({least} to {most})"  # by the cluster autoscaler
    parts = [
        MARK.format(stack=stack),
        f"### `{stack}`: {headline(existing.counts)}",
        *_listed("The update is refused", map(_plain, refusals)),
        *_listed("Changed by hand", [_plain(str(drift)) for drift in by_hand]),
        *_listed("Before the update", [str(first)] if first else []),
        *_table(preview.effective),
        *_listed("Advice", [f"`{advice.path}`: {advice.text}" for advice in advice_of_update(plan)]),
        f"{len(plan.nodes_at_first)} GPU nodes{scaled}, {plan.used_gpus} of {plan.gpus} GPUs used, "
        f"{plan.price_usd_per_hour:.2f} $/hour at list price.",
        *(
            [f"Secrets of {not_compared} resources are not known here, nor what was changed by hand."]
            * bool(not_compared)
        ),
    ]
    return PreviewSummary("\n\n".join(parts) + "\n", refusals)


def headline(counts: Mapping[str, int]) -> str:
    """Return the counts of a preview: `2 to create, 1 to replace, 5 unchanged`. The steps of a replacement count as
    one.
    """
    known = [f"{counts[kind]} to {kind}" for kind in _ORDER if counts.get(kind)]
    return ", ".join([*known, f"{counts.get('same', 0)} unchanged"]) if known else "no changes"


def _exists(change: ResourceChange) -> bool:
    """Tell whether a resource exists outside the state, which components, providers and the stack itself don't."""
    return not change.type.startswith(_WITHOUT_EXISTENCE)


def _table(changes: Iterable[ResourceChange]) -> list[str]:
    rows = sorted(
        (change for change in changes if change.operation in _ORDER and _exists(change)),
        key=lambda change: (_ORDER.index(change.operation), change.type, change.name),
    )
    if not rows:
        return []
    lines = ["| | resource | changes |", "|---|---|---|", *(_row(change) for change in rows[:MAX_ROWS])]
    more = [f"\nand {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
    return ["\n".join([*lines, *more])]


def _row(change: ResourceChange) -> str:
    paths = [*(f"**{_plain(path)}**" for path in change.replaced_by)]
    paths += [_plain(path) for path in change.changed if path not in change.replaced_by]
    named = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    return f"| {change.operation} | {_plain(change.short_name)} | {named} |"


def _plain(text: str) -> str:
    """Return a text on one line with Markdown and HTML escaped."""
    return _MARKS.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def _listed(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {item}" for item in items]
    return ["\n".join([f"**{title}**", "", *lines])] if lines else []


@dataclass(frozen=True)
class TimeLimit:
    """Longest duration of an update in minutes. `path` is the longest chain of dependent resources with each resource's
    timeout, `upgraded` are the further resources that only an upgrade of Kubernetes changes, one after the other, and
    `around` is the time before and after the update.
    """

    path: tuple[tuple[str, float], ...]
    upgraded: tuple[tuple[str, float], ...]
    around: float

    @property
    def minutes(self) -> int:
        """Sum of all parts, rounded up to whole minutes."""
        return ceil(sum(minutes for _, minutes in (*self.path, *self.upgraded)) + self.around)

    def lines(self) -> Iterator[str]:
        """Yield a line for each part that takes more than seconds."""
        for name, minutes in self.path:
            if minutes:
                yield f"{minutes:5.0f} min  {name}"
        for name, minutes in self.upgraded:
            yield f"{minutes:5.0f} min  {name}, in an upgrade of Kubernetes"
        yield f"{self.around:5.0f} min  setup, preview and reports"


def time_limit(project: Path, stack: str, plan: Plan) -> TimeLimit:
    """Return the time limit of a stack, from the resources that its program declares without the Pulumi engine.

    Raises:
        InvalidStack: the stack can't be deployed.
        KitError: there is no such stack, or the program does not end.
    """
    from llmd_oke.program import program  # noqa: PLC0415 - loads Pulumi, which only this command needs
    from llmd_oke.program.declare import declared  # noqa: PLC0415

    config = load(project, stack).model_dump(mode="json", by_alias=True, exclude_unset=True)
    settings = {CONFIG_KEY: json.dumps(config), "llmd-oke:rehearsed": "true"}  # nothing is pulled or downloaded
    resources = declared(program, config=settings).resources
    known = pipeline_limits()
    client_s = plan.smoke.timeout_s * len(plan.models) if plan.smoke.where == "client" else 0
    return time_limit_of(resources, known, known.around_minutes + client_s / 60)


def time_limit_of(resources: Sequence["Declared"], known: PipelineLimits, around: float) -> TimeLimit:
    """Return the time limit for declared resources."""
    by_urn = {resource.urn: resource for resource in resources}
    own = {resource.urn: _minutes(resource, known) for resource in resources}
    path = [by_urn[urn] for urn in _longest(by_urn, own)]
    others = [resource for resource in resources if _VERSION in resource.inputs and resource not in path]
    steps, upgrades = (
        tuple((f"{item.type.rsplit(':', 1)[-1]} {item.name}", own[item.urn]) for item in items)
        for items in (path, others)
    )
    return TimeLimit(steps, upgrades, around)


def _longest(by_urn: Mapping[str, "Declared"], own: Mapping[str, float]) -> list[str]:
    """Return the URNs of the longest chain of dependent resources, first to last."""
    ends: dict[str, float] = {}
    before: dict[str, str | None] = {}

    def end(urn: str) -> float:
        if urn not in ends:
            resource = by_urn[urn]
            needed = [name for name in (*resource.depends_on, resource.provider.rpartition("::")[0]) if name in by_urn]
            before[urn] = max(needed, key=end, default=None)
            ends[urn] = own[urn] + max(map(end, needed), default=0.0)
        return ends[urn]

    path: list[str] = []
    at = max(by_urn, key=end, default=None)
    while at is not None:
        path.insert(0, at)
        at = before[at]
    return path


def _minutes(resource: "Declared", known: PipelineLimits) -> float:
    """Return the longest time in minutes that the engine waits for one resource; the times of deletion and creation add
    up if a replacement deletes first.
    """
    if resource.type.startswith(("llmd-oke:", "pulumi:")):
        return 0.0
    default = known.oci_minutes if resource.type.startswith("oci:") else known.kubernetes_minutes
    step = {name: _limit_minutes(resource.timeouts.get(name), default) for name in ("create", "update", "delete")}
    anew = step["create"] + (step["delete"] if resource.delete_before_replace else 0.0)
    return max(anew, step["update"])


def _limit_minutes(text: str | None, default: float) -> float:
    """Return the minutes of a timeout in Pulumi's format: `90m`, `1h30m`, `600s`."""
    if text is None:
        return default
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(text)) / 60
