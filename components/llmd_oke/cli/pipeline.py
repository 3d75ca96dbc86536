"""`llmd-oke pipeline`: what continuous integration does with stacks, for pull requests, merges and nights."""

import html
import json
import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
import yaml
from llmd_base.errors import KitError
from llmd_bench import history as runs
from llmd_bench.comparison import parse_gates
from llmd_bench.files import write_whole
from llmd_bench.texts import code

from llmd_oke import planning
from llmd_oke.catalogue.operations import pipeline_identities, pipeline_limits
from llmd_oke.cli import console, options, tunnel, up
from llmd_oke.cli.recover import DRIFTED, changes_by_hand
from llmd_oke.cli.rehearsals import rehearsals
from llmd_oke.cli.results import History
from llmd_oke.config import load, stacks
from llmd_oke.operations import drift as drifts
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.job_sign_in import job_signed_in
from llmd_oke.operations.pulumi_cli import NoStackError, pulumi_cli
from llmd_oke.operations.redaction import compared, preview_project, without_secrets
from llmd_oke.operations.updates import with_refresh
from llmd_oke.pipelines import comment as comments
from llmd_oke.pipelines.records import (
    PipelineRecord,
    PreviewReport,
    ProjectChanges,
    Record,
    RehearsalReport,
    read_record,
    write_record,
)
from llmd_oke.planning.pipeline_rights import pipeline_statements
from llmd_oke.policies.organisation import with_policies

CHANGES_FILE = "changes.json"

app = typer.Typer(help="What continuous integration does with stacks.", no_args_is_help=True)


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


Report = Annotated[
    Path | None,
    typer.Option("--report", help="File for the result as JSON, for `pipeline comment`.", dir_okay=False),
]


GitLab = Annotated[
    Path | None,
    typer.Option("--gitlab", help="File for a child pipeline of GitLab with a job for each.", dir_okay=False),
]


@app.command()
def changes(
    base: Annotated[str, typer.Option("--base", help="Commit or branch to compare with, where this one left it.")],
    output: Annotated[Path, typer.Option("--output", help="Folder for changes.json and diagrams.", file_okay=False)],
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Find the stacks that a change touches: those whose plan, settings or declared resources differ from the base's.

    Needs no backend, no cloud and no secrets. Ends with 1 if a touched stack can't be deployed or a policy refuses it.
    """
    from llmd_oke.pipelines.changes import changes_since  # noqa: PLC0415

    output.mkdir(parents=True, exist_ok=True)
    found = changes_since(project, base, console.progress(), output.resolve())
    write_record(output / CHANGES_FILE, found)
    if as_json:
        console.show_json({**found.model_dump(mode="json"), "touched": found.touched})
    else:
        _write(comments.comment(comments.Reports(found, {}, {}), comments.LIMITS["gitlab"]), None)
    if any(item.after is not None and not item.after.deployable for item in found.changes):
        raise typer.Exit(1)


@app.command(hidden=True)
def snapshot(
    output: Annotated[Path, typer.Option("--output", help="File for the snapshots.", dir_okay=False)],
    commit: Annotated[str | None, typer.Option("--commit", help="Commit of the project's files.")] = None,
    diagrams: Annotated[Path | None, typer.Option("--diagrams", help="Folder for diagrams.", file_okay=False)] = None,
    project: options.Project = options.HERE,
) -> None:
    """Write what all stacks plan, cost and declare: one side of `pipeline changes`."""
    from llmd_oke.operations.diagram import diagram  # noqa: PLC0415
    from llmd_oke.pipelines.snapshots import snapshots  # noqa: PLC0415

    found = snapshots(project, commit)
    write_record(output, found)
    for item in found.stacks if diagrams else ():
        if not item.problems and diagrams:
            plan = planning.plan_stack_file(project, item.stack, nodes_pull=True)
            write_whole(diagrams / f"{item.stack}.svg", diagram(item.stack, plan))


@app.command("stacks")
def list_stacks(
    project: options.Project = options.HERE,
    changed: Annotated[
        Path | None,
        typer.Option(
            "--changes", help="Only those that changes.json of `pipeline changes` has as touched.", exists=True
        ),
    ] = None,
    jobs: Annotated[
        list[str] | None, typer.Option("--job", help="Kind of job in the child pipeline; several times.")
    ] = None,
    gitlab: GitLab = None,
    comments_on: Annotated[
        bool, typer.Option("--comment", help="The child pipeline comments on the merge request.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the stacks that have a file, or those that a change touches: what the jobs of a pipeline run for."""
    names = list(read_record(changed, ProjectChanges).touched) if changed else stacks(project)
    if gitlab:
        from llmd_oke.pipelines.gitlab import stacks_pipeline  # noqa: PLC0415

        write_whole(gitlab, stacks_pipeline(jobs or (), names, comments=comments_on))
    typer.echo(json.dumps(names) if as_json else "\n".join(names))


@app.command()
def preview(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    report: Report = None,
    allow_replace: options.AllowReplace = False,
    states: States = None,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Preview an update and write a Markdown summary. Ends with 1 if the update would be refused.

    With --states the command uses no backend and no secrets: changes by hand and changed secrets are not detected. A
    stack without a state there has no preview, which the summary says.
    """
    from llmd_oke.pipelines.preview_report import preview_report  # noqa: PLC0415

    _require_stack_file(project, stack)
    if states and not rehearse and not (states / f"{stack}.json").is_file():
        missing = "there is no state of it: it isn't deployed, or main has left none (run the nightly jobs once)"
        _write_preview(PreviewReport(stack=stack, missing=missing), summary, report)
        return
    plan = with_policies(project, stack, planning.plan_stack_file(project, stack, nodes_pull=True))
    by_hand: list[Drift] = []
    not_compared = 0
    if rehearse:
        previewed = rehearsals().preview(project, stack, console.progress())
    elif states:
        with (
            _signed_in(backend=False),
            preview_project(project, stack, states) as pulumi,
            tunnel.api_server_access(project, stack, through_tunnel),
        ):
            previewed, not_compared = compared(with_refresh(pulumi, plan).preview())
    else:
        with _signed_in(), tunnel.api_server_access(project, stack, through_tunnel):
            pulumi = with_refresh(pulumi_cli(project, stack), plan)
            by_hand = drifts.look(pulumi, console.progress())
            previewed = pulumi.preview()
    if not states:
        by_hand += drifts.drift_of_preview(previewed.changes, by_hand)
    found = preview_report(
        stack, plan, previewed, by_hand=by_hand, allow_replace=allow_replace, not_compared=not_compared
    )
    _write_preview(found, summary, report)
    if found.refusals:
        raise typer.Exit(1)


@app.command("rehearse")
def rehearse_stack(
    stack: options.Stack,
    project: options.Project = options.HERE,
    base: Annotated[
        str | None, typer.Option("--base", help="Rehearse the update from where the branch left this one.")
    ] = None,
    report: Report = None,
    as_json: options.Json = False,
) -> None:
    """Rehearse a stack's change here: the update from --base, or a new deployment. Ends with 1 if it fails."""
    from llmd_oke.pipelines.rehearsed_change import rehearse_change  # noqa: PLC0415

    _require_stack_file(project, stack)
    found = rehearse_change(project, stack, base, console.progress())
    if report:
        write_record(report, found)
    _show(found, as_json=as_json, markdown=comments.rehearsal_markdown(found), summary=None)
    if not found.passed:
        raise typer.Exit(1)


@app.command()
def comment(
    reports: Annotated[
        Path, typer.Option("--reports", help="Folder with the files of the other jobs.", exists=True, file_okay=False)
    ],
    output: Annotated[Path, typer.Option("--output", help="File for the comment.", dir_okay=False)],
    system: Annotated[str, typer.Option("--for", help="github or gitlab, for the longest comment.")] = "github",
    artifacts: Annotated[str, typer.Option("--artifacts", help="Address of the run's files, for a link.")] = "",
) -> None:
    """Write the one comment on a pull request: checks, policies, prices, previews, rehearsals and diagrams.

    The files come from jobs that ran the pull request's code, so this belongs into a job that runs code of main. Files
    that can't be read are named in the comment.
    """
    if system not in comments.LIMITS:
        raise KitError(f"--for {system} is no system with comments.", f"One of: {', '.join(comments.LIMITS)}.")
    missing: list[str] = []

    def read(pattern: str, kind: type[Record]) -> list[Record]:
        found: list[Record] = []
        for path in sorted(reports.rglob(pattern)):
            try:
                found.append(read_record(path, kind))
            except KitError as error:
                missing.append(error.message)
        return found

    changed = read(CHANGES_FILE, ProjectChanges)
    previews = {item.stack: item for item in read("preview-*.json", PreviewReport)}
    rehearsed = {item.stack: item for item in read("rehearsal-*.json", RehearsalReport)}
    all_reports = comments.Reports(
        changed[-1] if changed else None, previews, rehearsed, missing, html.escape(artifacts)
    )
    text = comments.comment(all_reports, comments.LIMITS[system])
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, text)
    console.tell(f"comment  {output}, {len(text.encode()):,} bytes")


@app.command()
def drift(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Look for changes by hand and write a Markdown summary. Ends with 3 if there are any, as `llmd-oke drift` does. A
    stack that isn't deployed has none.
    """
    _require_stack_file(project, stack)
    changes: list[Drift] = []
    try:
        with nullcontext() if rehearse else _signed_in():
            changes = list(changes_by_hand(project, stack, rehearse=rehearse, through_tunnel=through_tunnel))
        title = "nothing was changed by hand" if not changes else f"changed by hand: {len(changes)}"
    except NoStackError:
        title = "not deployed"
    parts = [f"### {code(stack)}: {title}"]
    if changes:
        parts.append("\n".join(["**Changes**", "", *(f"- {comments.sentence(str(change))}" for change in changes)]))
    _write("\n\n".join(parts) + "\n", summary)
    if changes:
        raise typer.Exit(DRIFTED)


@app.command()
def stages(
    project: options.Project = options.HERE,
    environments: Annotated[
        Path | None,
        typer.Option(
            "--environments",
            help="Folder with GitHub's answers about environments (STACK.json): one without reviewers is refused for a "
            "stage with approval.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    gitlab: GitLab = None,
    as_json: options.Json = False,
) -> None:
    """Show the stages of `stacks/pipeline.yaml`, in the order in which a merge is deployed to them."""
    from llmd_oke.pipelines.stages import read_stages, unprotected_stages  # noqa: PLC0415

    file = read_stages(project)
    if environments and (unprotected := unprotected_stages(file, environments)):
        remedy = "Settings, Environments: make each one, with required reviewers and the branch main only."
        raise KitError(f"Nobody would be asked before deployments of {', '.join(unprotected)}.", remedy)
    if gitlab:
        from llmd_oke.pipelines.gitlab import promotion_pipeline  # noqa: PLC0415
        from llmd_oke.pipelines.time_limit import time_limit  # noqa: PLC0415

        plans = {stage.stack: planning.plan_stack_file(project, stage.stack, nodes_pull=True) for stage in file.stages}
        minutes = {name: 2 * time_limit(project, name, plan).minutes for name, plan in plans.items()}
        write_whole(gitlab, promotion_pipeline(file, minutes))
    names = [stage.stack for stage in file.stages]
    lines = [f"{stage.stack}{', after an approval' if stage.approval else ''}" for stage in file.stages]
    typer.echo(json.dumps(names) if as_json else "\n".join(lines))


@app.command()
def promote(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    history: History = None,
    scale_to_zero_on_failure: options.ScaleToZeroOnFailure = False,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Deploy the project's commit to a stage: update, smoke benchmark, regression gates. On failure the last good
    commit is deployed again, by its own stack file, program and kit.

    Ends with 0 if the commit is deployed, with 1 if it isn't and the stack is as before, with 4 if it is neither. With
    --rehearse it neither reads nor writes a --history: benchmarks and the last good commit stay in `reports`.
    """
    from llmd_oke.pipelines import promotion as operation  # noqa: PLC0415
    from llmd_oke.pipelines.revisions import REPORTS, commit_of  # noqa: PLC0415
    from llmd_oke.pipelines.stages import read_stages  # noqa: PLC0415

    _require_stack_file(project, stack)
    file = read_stages(project)
    if stack not in {stage.stack for stage in file.stages}:
        raise KitError(f"{stack} is no stage of a merge.", "`llmd-oke pipeline stages` lists them.")
    (project / REPORTS).mkdir(exist_ok=True)
    local = runs.open_store(str(project / REPORTS))
    store = runs.open_store(history) if history and not rehearse else local
    chosen = {"--scale-to-zero-on-failure": scale_to_zero_on_failure, "--tunnel": through_tunnel}
    with nullcontext() if rehearse else _signed_in():
        deployer = operation.StackDeployer(
            project,
            stack,
            commit_of(project, "HEAD"),
            console.progress(),
            rehearse,
            [name for name, is_chosen in chosen.items() if is_chosen],
        )

        def judge(good: operation.GoodDeployment | None) -> operation.Judgement:
            if store is not local and operation.newest_run(local, stack):
                runs.copy_runs(local, store, stack, console.progress().detail)
            return operation.judge(store, stack, parse_gates(file.gates), good)

        good = operation.last_good(store, stack, rehearsed=rehearse)
        done = operation.promote(stack, deployer.head, good, deployer.deploy, judge)
    if done.verdict == "deployed":
        operation.remember_good(store, done, rehearsed=rehearse)
    _show(done, as_json=as_json, markdown=operation.promotion_markdown(done), summary=summary)
    if done.exit_code:
        raise typer.Exit(done.exit_code)


@app.command()
def upstream(
    project: options.Project = options.HERE,
    recipes: Annotated[
        str | None, typer.Option("--recipes", help="Repository of vLLM's recipes, instead of its own.")
    ] = None,
    summary: Summary = None,
    as_json: options.Json = False,
) -> None:
    """Look for what moved upstream: tags of images, recipes of vLLM, releases of llm-d.

    Ends with 1 if a tag names another image than in the lock, and with 3 if a source gave no answer.
    """
    from llmd_oke.catalogue import model, model_names  # noqa: PLC0415
    from llmd_oke.pipelines import upstream as operation  # noqa: PLC0415

    sources = operation.upstream_sources()
    sources = sources.model_copy(update={"recipes": recipes}) if recipes else sources
    models = [known for name in model_names() if (known := model(name))]
    news = operation.upstream_news(project, models, sources, console.progress())
    _show(news, as_json=as_json, markdown=operation.upstream_markdown(news), summary=summary)
    if news.images or news.unanswered:
        raise typer.Exit(1 if news.images else DRIFTED)


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
        with _signed_in():
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

    It contains everything else in the state, such as OCIDs, addresses and boot scripts. A stack that isn't deployed has
    none, which is told.
    """
    _require_stack_file(project, stack)
    try:
        with _signed_in(oci=False):
            public = without_secrets(pulumi_cli(project, stack, aside=True).export_with_secrets())
    except NoStackError as error:
        console.tell(f"no state: {error.message}")
        return
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
    with_rollback: Annotated[
        bool, typer.Option("--with-rollback", help="The job may update twice: to a commit, and back (`promote`).")
    ] = False,
) -> None:
    """Print the time limit in minutes of a CI job that updates this stack: the sum of the kit's own limits, at most
    GitHub's.

    The parts of the sum, and whether GitHub's limit is lower, are shown on standard error.
    """
    from llmd_oke.pipelines.time_limit import time_limit  # noqa: PLC0415

    _require_stack_file(project, stack)
    needed = time_limit(project, stack, planning.plan_stack_file(project, stack, nodes_pull=True))
    known = pipeline_limits()
    most = known.own_job_minutes if own_runner else known.hosted_job_minutes
    for line in needed.lines():
        console.tell(line)
    minutes = needed.minutes * (2 if with_rollback else 1)
    twice = ", and one back as long" if with_rollback else ""
    console.tell(f"An update of {stack} may take {needed.minutes} minutes{twice}.")
    if minutes > most:
        longer = "" if own_runner else f", on a runner of one's own (LLMD_OKE_RUNNER) after {known.own_job_minutes}"
        console.tell(f"GitHub ends the job after {most}{longer}; the next one goes on where it ended.")
    typer.echo(min(minutes, most))


def _signed_in(*, oci: bool = True, backend: bool = True) -> AbstractContextManager[None]:
    """Sign in by the job's own token; see `job_signed_in`."""
    return job_signed_in(lambda text: console.progress().step(text), oci=oci, backend=backend)


def _show(record: PipelineRecord, *, as_json: bool, markdown: str, summary: Path | None) -> None:
    """Print a record as JSON and write its Markdown if a file is given; without --json print the Markdown."""
    if as_json:
        typer.echo(record.model_dump_json(indent=2))
    if summary or not as_json:
        _write(markdown, summary)


def _write_preview(found: PreviewReport, summary: Path | None, report: Path | None) -> None:
    if report:
        write_record(report, found)
    _write(comments.preview_markdown(found), summary)


def _write(markdown: str, summary: Path | None) -> None:
    if summary is None:
        typer.echo(markdown, nl=False)
        return
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(markdown)
    console.tell(f"summary  {summary}")


def _require_stack_file(project: Path, stack: str) -> None:
    """Check that the stack has a stack file of this name.

    Approvals and locks use the name, and `organization/project/stack` would be a second name of the same stack.

    Raises:
        KitError: no stack file has this name.
    """
    known = stacks(project)
    if stack not in known:
        raise KitError(f"{stack!r} is no name of a stack file.", f"Stacks here: {', '.join(known) or 'none'}.")
