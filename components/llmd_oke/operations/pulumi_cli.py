"""The Pulumi CLI, as far as the kit uses it: it is never left behind, and told only once to end."""

import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, TypeVar

from llmd_base.errors import KitError

from llmd_oke.access.sign_in import of_environment
from llmd_oke.operations.locks import until
from llmd_oke.operations.previews import Preview, ResourceChange, errors_of_events, of_events, parse

Answer = TypeVar("Answer")


_STANDARD_ERROR = 2


_EVENT_LOG = ("PULUMI_DEBUG_COMMANDS=true",)
"""Without it the CLI doesn't know `--event-log` (Pulumi's automation API sets it too)."""


_STREAMING = ("PULUMI_ENABLE_STREAMING_JSON_PREVIEW=true",)
"""Has a preview tell every event, of resources that stay the same too, instead of its steps."""


_LOOKS = {
    ("config", "get"),
    ("preview", "--json"),
    ("refresh", "--preview-only"),
    ("stack", "export"),
    ("stack", "history"),
    ("stack", "output"),
}
"""How commands begin that leave the state as it is."""


NOT_SIGNED_IN, NO_SUCH_STACK = 3, 6
"""Exit codes of the Pulumi CLI: https://github.com/pulumi/pulumi/blob/v3.250.0/sdk/go/common/util/cmdutil/exit.go"""

LOGIN = (
    "Sign in: pulumi login (Pulumi Cloud; in CI set PULUMI_ACCESS_TOKEN), or pulumi login with the address of your own "
    "backend, for example s3://BUCKET?endpoint=... or file://FOLDER."
)

_NEWEST = ("history", "--json", "--page-size", "1")


LOOK_S = 0.5


GROUP_S = 1.0
"""How long a signal to a process group may take to reach all of it: `timeout` and service managers send it to their own
child first, and to the others after that.
"""


class NoStackError(KitError):
    """Error for a stack that the state backend doesn't have."""


@dataclass(frozen=True)
class CommandResult:
    """A command that ended; `output` is empty where it went to the terminal."""

    status: int
    output: str = ""
    errors: str = ""


Run = Callable[[Sequence[str], bool], CommandResult]
"""Runs a command; the second argument says whether its output is wanted instead of shown."""


def run(argv: Sequence[str], capture: bool, *, aside: bool = False) -> CommandResult:
    """Run a command; with `aside` what it shows goes to standard error. It may ask the user, so it has no limit; the
    engine's waits have theirs. Ctrl-C reaches it too, and ends this only once it has saved what it did.
    """
    pipe = subprocess.PIPE if capture else None
    shown = _STANDARD_ERROR if aside else None
    options: dict[str, Any] = {"stdout": pipe or shown, "stderr": pipe, "env": _environment()}
    return CommandResult(*run_to_end(lambda: subprocess.Popen(list(argv), text=True, **options)))


def _environment() -> dict[str, str]:
    """Programs and plug-ins find the `llmd-oke` that kubeconfigs name, also where its folder is not on PATH.

    They sign in to OCI as that does: the plug-in doesn't read `OCI_CLI_AUTH`.

    Raises:
        KitError: the environment says two ways to sign in.
    """
    own, (_, auth) = sysconfig.get_path("scripts"), of_environment(os.environ) or ("", "")
    signing_in = {"OCI_AUTH": auth} if auth else {}
    return {**os.environ, **signing_in, "PATH": os.pathsep.join(filter(None, (own, os.environ.get("PATH"))))}


@dataclass(frozen=True)
class HistoryRecord:
    """An operation in a stack's history; `changes` has how many resources were created, updated and so on."""

    started: str
    changes: Mapping[str, int]


@dataclass(frozen=True)
class PulumiCli:
    """Operations of one stack; with `refresh`, previews and updates read first what others have changed."""

    project: Path
    stack: str
    program: str
    run: Run = run
    refresh: bool = False
    _exported: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], repr=False, compare=False)
    """The state as it was read last, until something changes it."""

    def preview(self, plan: Path | None = None) -> Preview:
        """Return what an update would do. With `plan` a file keeps it, secrets encrypted, and an update can be bound to
        it.

        Raises:
            KitError: the CLI gave no preview; says why.
        """
        save = ["--save-plan", str(plan)] if plan else []
        words = ["preview", "--json", "--show-sames", "--non-interactive", *save, *self._refreshed()]
        ended = self._run(*words, capture=True)
        if ended.status and not ended.output.strip().startswith("{"):
            raise KitError(f"`pulumi preview` failed:\n{(ended.errors or ended.output).strip()}")
        preview = parse(ended.output)
        if ended.status and not preview.errors:
            return replace(preview, errors=(ended.errors.strip() or f"the CLI ended with status {ended.status}",))
        return preview

    def look(self, target: str | None = None) -> tuple[ResourceChange, ...]:
        """Return what a refresh of those resources, or of all, would find; the stack's state stays as it is.

        Raises:
            KitError: they can't be read; says why.
        """
        chosen = ["--target", target] if target else []
        words = ["refresh", "--preview-only", "--json", "--non-interactive", *chosen]
        ended = self._run(*words, capture=True, variables=_STREAMING)
        if ended.status:
            raise KitError("\n".join(errors_of_events(ended.output)) or (ended.errors or ended.output).strip())
        return of_events(ended.output)

    def read(self, urns: Sequence[str]) -> int:
        """Refresh these resources in the state; return the CLI's exit code."""
        targets = [word for urn in urns for word in ("--target", urn)]
        return self._run("refresh", "--yes", "--skip-preview", *targets, capture=True).status

    def up(
        self,
        *,
        yes: bool,
        skip_preview: bool = False,
        one_at_a_time: bool = False,
        plan: Path | None = None,
        event_log: Path | None = None,
    ) -> int:
        """Update the stack, on request one resource after the other; return the CLI's exit code. The engine refuses
        each step that a `plan` of a preview doesn't have, and writes its events to `event_log`.
        """
        how = [*(["--skip-preview"] if skip_preview else []), *(["--parallel", "1"] if one_at_a_time else [])]
        how += ["--plan", str(plan)] if plan else []
        how += ["--event-log", str(event_log)] if event_log else []
        variables = _EVENT_LOG if event_log else ()
        return self._run("up", *_yes(yes), *how, *self._refreshed(), variables=variables).status

    def replace(self, urns: Sequence[str]) -> int:
        """Update the stack and make these resources anew; return the CLI's exit code."""
        chosen = [word for urn in urns for word in ("--replace", urn)]
        return self._run("up", "--yes", "--skip-preview", *chosen, *self._refreshed()).status

    def destroy(self, *, yes: bool, targets: Sequence[str] = ()) -> int:
        """Destroy the stack, or the targets and what depends on them; return the CLI's exit code."""
        chosen = [word for urn in targets for word in ("--target", urn)]
        return self._run("destroy", *_yes(yes), *chosen, *(["--target-dependents"] if targets else [])).status

    def unprotect(self, urns: Sequence[str]) -> int:
        """Take the protection of resources away; 0 where all went well."""
        return max((self._run("state", "unprotect", urn, "--yes").status for urn in urns), default=0)

    def resources(self) -> list[dict[str, Any]]:
        """The resources of the stack's state.

        Raises:
            KitError: the state can't be read.
        """
        deployment: Mapping[str, Any] = self.export()["deployment"] or {}
        return list(deployment.get("resources") or [])

    def export(self) -> dict[str, Any]:
        """The stack's state: `version` and `deployment`, secrets encrypted. It is read once, until this changes it.

        Raises:
            KitError: it can't be read.
        """

        def state(document: Mapping[str, Any]) -> dict[str, Any]:
            # A document without a deployment is an error, not an empty stack of which nothing is protected.
            return {**document, "deployment": document["deployment"]}

        if not self._exported:
            self._exported.append(self._answer("state", state, "export"))
        return self._exported[0]

    def export_with_secrets(self) -> dict[str, Any]:
        """The stack's state with its secrets in the clear. It is not kept.

        Raises:
            KitError: it can't be read.
        """
        return self._answer("state", dict, "export", "--show-secrets")

    def import_state(self, document: Mapping[str, Any]) -> None:
        """Replace the stack's state by what `export` gave, changed.

        Raises:
            KitError: the backend refuses it, as where another engine holds the stack's lock.
        """
        with TemporaryDirectory(prefix="llmd-oke-") as folder:  # for its owner alone
            path = Path(folder) / "state.json"
            path.write_text(json.dumps(document))
            ended = self._run("stack", "import", "--file", str(path), capture=True)
        if ended.status:
            raise KitError(
                f"The stack's state can't be changed:\n{(ended.errors or ended.output).strip()}",
                f"If it is locked and no other engine runs: llmd-oke recover --stack {self.stack} --yes --unlock",
            )

    def unlock(self) -> int:
        """Remove the lock of an engine that was killed; return the CLI's exit code."""
        return self._run("cancel", "--yes").status

    def outputs(self) -> dict[str, Any]:
        """The stack's outputs; secret ones are masked.

        Raises:
            KitError: they can't be read.
        """
        return self._answer("outputs", dict, "output", "--json")

    def output(self, name: str, stack: str | None = None) -> str:
        """One output of this stack, or of another one, in the clear.

        Raises:
            KitError: there is none of that name, or it can't be read.
        """
        ended = replace(self, stack=stack or self.stack)._run("stack", "output", name, "--show-secrets", capture=True)
        if ended.status:
            raise KitError(f"The output {name} of the stack can't be read:\n{(ended.errors or ended.output).strip()}")
        return ended.output

    def secret(self, key: str) -> str | None:
        """A value of the stack's config by its path (`llmd-oke:imageLinks.mi300x`), in the clear; None without one."""
        ended = self._run("config", "get", "--path", key, capture=True)
        return ended.output.strip() or None if not ended.status else None

    def last_record(self) -> HistoryRecord | None:
        """The newest operation in the stack's history, None where it has none.

        Raises:
            KitError: the history can't be read.
        """

        def records(items: Sequence[Mapping[str, Any]]) -> list[HistoryRecord]:
            return [HistoryRecord(str(item["startTime"]), dict(item.get("resourceChanges") or {})) for item in items]

        return next(iter(self._answer("history", records, *_NEWEST)), None)

    def _answer(self, what: str, of: Callable[[Any], Answer], *words: str) -> Answer:
        ended = self._run("stack", *words, capture=True)
        self._require_backend(ended)
        try:
            return of(json.loads(ended.output))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            reason = (ended.errors or ended.output).strip()
            unfinished = reason.endswith(("EOF", "unexpected end of JSON input"))
            remedy = f"If no other engine runs: llmd-oke recover --stack {self.stack} --yes --unlock"
            raise KitError(f"The stack's {what} can't be read:\n{reason}", remedy if unfinished else None) from error

    def backend_url(self) -> str:
        """The address of the state backend that the CLI is signed in to; `https://...` for Pulumi Cloud.

        Raises:
            KitError: it is signed in to none, or that one doesn't answer.
        """
        answer = self.run([self.program, "whoami", "--json", "--non-interactive", "--cwd", str(self.project)], True)
        self._require_backend(answer)
        if answer.status:
            raise KitError(f"The state backend doesn't answer:\n{(answer.errors or answer.output).strip()}")
        return str(json.loads(answer.output).get("url", ""))

    def create_stack(self) -> int:
        """Create the stack in the backend; return the CLI's exit code."""
        return self._run("stack", "init").status

    def _require_backend(self, answer: CommandResult) -> None:
        if answer.status == NOT_SIGNED_IN:
            raise KitError("The Pulumi CLI is not signed in to a state backend.", LOGIN)
        if answer.status == NO_SUCH_STACK:
            remedy = f"Create it: pulumi stack init {self.stack}"
            raise NoStackError(f"The state backend has no stack {self.stack}.", remedy)

    def _refreshed(self) -> list[str]:
        return ["--refresh"] if self.refresh else []

    def _run(self, *words: str, capture: bool = False, variables: Sequence[str] = ()) -> CommandResult:
        if words[:2] not in _LOOKS:
            self._exported.clear()
        program = ["env", *variables, self.program] if variables else [self.program]
        return self.run([*program, *words, "--stack", self.stack, "--cwd", str(self.project)], capture)


def pulumi_cli(project: Path, stack: str, *, aside: bool = False) -> PulumiCli:
    """The Pulumi CLI on PATH; with `aside` what it shows goes to standard error.

    Raises:
        KitError: there is none.
    """
    program = shutil.which("pulumi")
    if program is None:
        raise KitError("`pulumi` is not on PATH.", "Install the Pulumi CLI: https://www.pulumi.com/docs/install/")
    return PulumiCli(project, stack, program, partial(run, aside=aside))


def _yes(yes: bool) -> list[str]:
    return ["--yes"] if yes else []


def run_to_end(start: Callable[[], subprocess.Popen[str]]) -> tuple[int, str, str]:
    """Run a program to its end, whatever signals come; return its exit code, output and errors.

    Ctrl-C and SIGTERM are handled after that. The first one is passed on, unless all of the process group got it (a
    terminal, `timeout`, a service manager): the Pulumi CLI takes a second signal for the wish to stop without saving.
    Signals are for the main thread, which this has to be called from.
    """
    with _deferred_signals() as signals, _group_member() as member:
        process, passed_on = start(), False
        while True:
            try:
                output, errors = process.communicate(timeout=LOOK_S)
                return process.returncode, output or "", errors or ""
            except subprocess.TimeoutExpired:
                if signals and not passed_on:
                    passed_on = True
                    if _is_running(member):
                        process.send_signal(signals[0])


@contextmanager
def _deferred_signals() -> Generator[list[int]]:
    """Signals that come during the block. The last one is raised after it, for whoever handles it otherwise."""
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        signal.raise_signal(signals[-1])


def _group_member() -> subprocess.Popen[bytes]:
    """A process of the same group, which signals to the group end. It ends with its input, so with this process too."""
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _is_running(member: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process runs and no signal ended it. One that was signalled is not seen to be dead at once."""
    try:
        member.wait(GROUP_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def end_group(process: subprocess.Popen[str], grace_s: float = 5, first: signal.Signals = signal.SIGTERM) -> None:
    """End whatever is left of the process group that this process leads: SIGTERM, then SIGKILL after `grace_s`."""

    def has_ended() -> bool:
        process.poll()  # a leader that nobody waited for is part of its group
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    for number in (first, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if until(has_ended, grace_s):
            return
