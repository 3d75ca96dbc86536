"""Promotion of a commit to one stack: update, smoke benchmark, regression gates, and rollback on failure.

The last good commit is deployed again by its own stack file, program and kit. It stands in the history of results,
beside the benchmark that it passed.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_bench import comparison, history
from llmd_bench.comparison import Gate
from llmd_bench.files import Hints
from llmd_bench.stores import FileStore
from llmd_bench.texts import code
from pydantic import BaseModel, ValidationError

from llmd_oke.operations.pulumi_cli import NoStackError, pulumi_cli, run_to_end
from llmd_oke.pipelines.comment import changed_text, sentence
from llmd_oke.pipelines.records import CommitName, Line, Lines, PipelineRecord, StackName
from llmd_oke.pipelines.revisions import REHEARSALS, REQUIREMENTS, kit_command, revision_folder, same_requirements
from llmd_oke.values import is_checkout

NOT_BACK = 4
"""Exit code of a promotion that failed and whose rollback failed too; 1 means that the stack is as it was before."""

Verdict = Literal["deployed", "refused", "rolled back", "not rolled back", "nothing to go back to"]

GOOD_FILE = "good.json"


class GoodDeployment(PipelineRecord):
    """Last commit of a stack that passed its promotion: the time of its benchmark in the history (None if it had none),
    and when it passed.
    """

    commit: CommitName
    run: Line | None
    deployed: Line


class DeployAttempt(PipelineRecord):
    """Update of a stack to one commit.

    Attributes:
        commit: the commit.
        passed: whether the update and its benchmark passed.
        begun: whether anything was changed; an update may be refused before.
        error: why it failed.
        changes: number of resources by operation.
        seconds: duration of the update and its benchmark.
        new_cluster: of a rehearsal, why its local cluster was started for this commit, without what was deployed
            before; empty if it was an update.
    """

    commit: CommitName
    passed: bool
    begun: bool
    error: Line = ""
    changes: Mapping[Line, int] = {}
    seconds: float = 0
    new_cluster: Line = ""


class Judgement(PipelineRecord):
    """Result of a stack's regression gates: violated gates, and remarks on figures that could not be compared."""

    breaches: Lines = ()
    notes: Lines = ()


class Promotion(PipelineRecord):
    """Promotion of a commit to a stack, and its outcome."""

    stack: StackName
    verdict: Verdict
    good: GoodDeployment | None
    attempt: DeployAttempt
    judgement: Judgement
    rollback: DeployAttempt | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the promotion: 0 if the commit is deployed, 1 if it isn't and the stack is as before, otherwise
        `NOT_BACK`.
        """
        return {"deployed": 0, "refused": 1, "rolled back": 1}.get(self.verdict, NOT_BACK)


def promote(
    stack: str,
    commit: str,
    good: GoodDeployment | None,
    deploy: Callable[[str], DeployAttempt],
    judge: Callable[[GoodDeployment | None], Judgement],
) -> Promotion:
    """Deploy a commit and compare its benchmark with that of the last good commit; on failure, deploy the last good
    commit again.

    Args:
        stack: the stack's name.
        commit: the commit to deploy.
        good: the last good commit; None if there is none.
        deploy: updates the stack to a commit, with its smoke benchmark.
        judge: applies the regression gates to the newest benchmark.
    """
    attempt, rollback = deploy(commit), None
    judgement = judge(good) if attempt.passed else Judgement()
    verdict: Verdict
    if attempt.passed and not judgement.breaches:
        verdict = "deployed"
    elif not (attempt.begun or attempt.passed):
        verdict = "refused"
    elif good is None or good.commit == commit:
        verdict = "nothing to go back to"
    else:
        rollback = deploy(good.commit)
        verdict = "rolled back" if rollback.passed else "not rolled back"
    return Promotion(stack=stack, verdict=verdict, good=good, attempt=attempt, judgement=judgement, rollback=rollback)


class _Told(BaseModel):
    error: str | None = None


class _Check(BaseModel):
    name: str
    passed: bool


class _Benchmark(BaseModel):
    checks: tuple[_Check, ...] = ()


class _Problem(BaseModel):
    why: str


class _Update(BaseModel):
    changes: dict[str, int] = {}


class _Document(_Told):
    """Parts of the JSON document that `llmd-oke up` and `llmd-oke rehearse` print of an update."""

    changes: dict[str, int] = {}
    problems: tuple[_Problem, ...] = ()
    smoke: tuple[_Benchmark, ...] = ()
    smoke_error: _Told = _Told()
    update: _Update = _Update()
    cluster_begun: str = ""

    def failure(self, status: int) -> str:
        """Return why the update failed."""
        told = [self.error, *(problem.why for problem in self.problems), self.smoke_error.error]
        missed = [check.name for item in self.smoke for check in item.checks if not check.passed]
        told += [f"its benchmark missed {', '.join(missed)}"] if missed else []
        return "; ".join(filter(None, told)) or f"the update ended with exit code {status}; the log says why"


@dataclass(frozen=True)
class StackDeployer:
    """Deployer of commits to one stack, each by the kit's own command in a process of its own.

    `rehearse` updates the stack's rehearsal instead; `options` are further options of `llmd-oke up`.
    """

    project: Path
    stack: str
    head: str
    progress: Progress
    rehearse: bool = False
    options: Sequence[str] = ()

    def deploy(self, commit: str) -> DeployAttempt:
        """Update the stack to a commit: that of the project's files, or an earlier one in a folder of its own."""
        if commit == self.head:
            return self.deploy_files(commit, self.project)
        try:
            with revision_folder(self.project, commit) as folder:
                attempt = self.deploy_files(commit, folder)
                if attempt.new_cluster and is_checkout(folder):
                    self.progress.step("ending the rehearsal, whose programs are those of a folder that goes")
                    self.end_rehearsal()
                return attempt
        except KitError as error:
            return _refused(commit, error)

    def deploy_files(self, commit: str, folder: Path) -> DeployAttempt:
        """Update the stack to a commit whose files lie in `folder`."""
        started_s, before = time.monotonic(), self._last_update()
        self.progress.step(f"updating {self.stack} to {commit[:12]}")
        try:
            status, document = self._run(folder)
        except KitError as error:
            return _refused(commit, error)
        return DeployAttempt(
            commit=commit,
            passed=status == 0,
            begun=self._last_update() != before,
            error=document.failure(status) if status else "",
            changes=document.changes or document.update.changes,
            seconds=round(time.monotonic() - started_s, 1),
            new_cluster=document.cluster_begun,
        )

    def end_rehearsal(self) -> None:
        """End the stack's rehearsal by `llmd-oke rehearse down`, which shows on standard error what it can't end."""
        argv, variables = kit_command(
            self.project, ["rehearse", "down", "--stack", self.stack, "--project", str(self.project)]
        )
        environment = {**os.environ, **variables}
        run_to_end(lambda: subprocess.Popen(argv, env=environment, text=True, stdout=2))

    def _run(self, folder: Path) -> tuple[int, _Document]:
        """Run the update on a folder; return its exit code, and what it printed, if anything."""
        words = ["rehearse"] if self.rehearse else ["up", "--yes", *self.options]
        argv, variables = kit_command(folder, [*words, "--json", "--stack", self.stack, "--project", str(folder)])
        setup = folder / "scripts" / "setup"
        if setup.is_file() and not same_requirements(folder, self.project):
            self.progress.step(f"installing what it was locked with ({', '.join(REQUIREMENTS[:1])})")
            ended, _, _ = run_to_end(lambda: subprocess.Popen([str(setup)], cwd=folder, text=True, stdout=2))
            if ended:
                raise KitError(f"scripts/setup of the earlier commit ended with {ended}.")
            argv[0] = str(folder / ".venv" / "bin" / "python")
        environment = {**os.environ, **variables}
        status, output, _ = run_to_end(
            lambda: subprocess.Popen(argv, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE)
        )
        try:
            return status, _Document.model_validate_json(output)
        except ValidationError:
            return status, _Document()

    def _last_update(self) -> object:
        """Return the newest record in the stack's history; None for a stack that isn't there. The history of a
        rehearsal lies in its own backend, a folder.
        """
        if self.rehearse:
            history = (self.project / REHEARSALS / self.stack / "backend").rglob("*.history.json")
            return max((file.name for file in history), default=None)
        try:
            return pulumi_cli(self.project, self.stack).last_record()
        except NoStackError:
            return None


def judge(store: FileStore, stack: str, gates: Sequence[Gate], good: GoodDeployment | None) -> Judgement:
    """Apply regression gates to the newest benchmark of a stack, compared with that of the last good commit. If one of
    the two is missing, nothing is compared, which a note says.

    Raises:
        KitError: the history doesn't answer.
    """
    if not gates:
        return Judgement(notes=("there are no regression gates",))
    newest = newest_run(store, stack)
    if good is None or good.run is None:
        return Judgement(notes=("there is no earlier benchmark that passed, so that the gates compare nothing",))
    if newest is None or newest == good.run:
        return Judgement(notes=("the update made no new benchmark, so that the gates compare nothing",))
    name = history.stack_folder(stack)
    try:
        old, new = (history.load_side(f"{name}:{run}", store, Hints()).side for run in (good.run, newest))
        compared = comparison.compare(old, new)
    except KitError as error:
        return Judgement(notes=(f"the benchmarks can't be compared: {error.message}",))
    return Judgement(breaches=tuple(map(str, comparison.breaches(gates, compared))), notes=compared.notes)


def newest_run(store: FileStore, stack: str) -> str | None:
    """Return the time of a stack's newest smoke benchmark; None if there is none.

    Raises:
        KitError: the history doesn't answer.
    """
    return next((run.time for run in history.runs(store, stack)), None)


def last_good(store: FileStore, stack: str, *, rehearsed: bool = False) -> GoodDeployment | None:
    """Return the last good commit in the history, or that of the stack's rehearsals; None if the history has none.

    Raises:
        KitError: the history doesn't answer, or its record is damaged.
    """
    name = _good_file(stack, rehearsed)
    if name not in store.names(history.stack_folder(stack)):
        return None
    try:
        return GoodDeployment.model_validate_json(store.read(name))
    except ValidationError as error:
        raise KitError(
            f"{name} in the history names no commit.", "Remove it: the next deployment writes it."
        ) from error


def remember_good(store: FileStore, promotion: Promotion, *, rehearsed: bool = False) -> None:
    """Record in the history that the commit of a promotion passed, with its newest benchmark, as the last good commit
    of the stack; with `rehearsed`, of the stack's rehearsals.

    Raises:
        KitError: the history can't be read or written.
    """
    run = newest_run(store, promotion.stack)
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    good = GoodDeployment(commit=promotion.attempt.commit, run=run, deployed=moment)
    store.write(_good_file(promotion.stack, rehearsed), good.model_dump_json(indent=2).encode())


def _good_file(stack: str, rehearsed: bool) -> str:
    return f"{history.stack_folder(stack)}/{'rehearsed-' if rehearsed else ''}{GOOD_FILE}"


def promotion_markdown(promotion: Promotion) -> str:
    """Return a promotion's outcome as Markdown, for the summary of its job."""
    return "\n\n".join(_promotion_parts(promotion)) + "\n"


def _promotion_parts(promotion: Promotion) -> Iterator[str]:
    attempt, good, back = promotion.attempt, promotion.good, promotion.rollback
    yield f"### {code(promotion.stack)}: {promotion.verdict}"
    result = "passed" if attempt.passed else f"failed: {sentence(attempt.error)}"
    yield f"Update to {code(attempt.commit[:12])} {result}" + (
        f" ({changed_text(attempt.changes)})." if attempt.changes else "."
    )
    for tried in filter(None, (attempt, back)):
        if tried.new_cluster:
            reason = f"the rehearsal's local cluster began for it: {sentence(tried.new_cluster)}"
            yield f"{code(tried.commit[:12])} was no update, as {reason}."
    for title, items in (("Gates", promotion.judgement.breaches), ("Comparison", promotion.judgement.notes)):
        if items:
            yield "\n".join([f"**{title}**", "", *(f"- {sentence(item)}" for item in items)])
    match promotion.verdict:
        case "refused":
            yield "Nothing was changed, so that there is nothing to take back."
        case "nothing to go back to":
            yield "**The stack is as the failed update left it.** " + (
                "No earlier commit of it is known to have passed."
                if good is None
                else f"The last good commit is this one, of {sentence(good.deployed)}."
            )
        case "rolled back" if back is not None:
            own = "by that commit's stack file, program and kit"
            yield f"The stack is at {code(back.commit[:12])} again, {own}. {NOT_UNDONE}"
        case "not rolled back" if back is not None:
            yield f"**The stack is neither at this commit nor at {code(back.commit[:12])}**: {sentence(back.error)}"
            yield f"{NOT_UNDONE} See docs/how-to/recover.md."
        case _:
            pass


NOT_UNDONE = (
    "What a rollback doesn't undo: an upgrade of Kubernetes (OKE takes no control plane down, so the whole update back "
    "is refused), replaced clusters, networks and pools, what was deleted with its data, values that others wrote, and "
    "requests that failed meanwhile."
)
"""Sentence on the changes that a rollback doesn't undo."""


def _refused(commit: str, error: KitError) -> DeployAttempt:
    return DeployAttempt(commit=commit, passed=False, begun=False, error=error.message)
