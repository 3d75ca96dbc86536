"""Commands of the Pulumi CLI. The kit never exits before the CLI, and passes on only the first signal to end."""

import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, TypeVar

from llmd_base.errors import KitError

from llmd_oke.access.sign_in import of_environment
from llmd_oke.operations.locks import until
from llmd_oke.operations.previews import (
    Preview,
    ResourceChange,
    errors_of_events,
    of_events,
    parse,
    refusals_of_events,
)
from llmd_oke.values import POLICY_PACK

Answer = TypeVar("Answer")


_STANDARD_ERROR = 2


_EVENT_LOG = ("PULUMI_DEBUG_COMMANDS=true",)
"""Environment variable that enables the CLI's option `--event-log` (Pulumi's automation API sets it too)."""


_STREAMING = ("PULUMI_ENABLE_STREAMING_JSON_PREVIEW=true",)
"""Environment variable with which a preview prints all engine events, also of unchanged resources, instead of steps."""


_LOOKS = {
    ("config", "get"),
    ("preview", "--json"),
    ("refresh", "--preview-only"),
    ("stack", "export"),
    ("stack", "history"),
    ("stack", "output"),
}
"""First two words of CLI commands that don't change the state."""


NOT_SIGNED_IN, NO_SUCH_STACK = 3, 6
"""Exit codes of the Pulumi CLI: https://github.com/pulumi/pulumi/blob/v3.250.0/sdk/go/common/util/cmdutil/exit.go"""

LOGIN = (
    "Sign in: pulumi login (Pulumi Cloud; in CI set PULUMI_ACCESS_TOKEN), or pulumi login with the address of your own "
    "backend, for example s3://BUCKET?endpoint=... or file://FOLDER."
)

_NEWEST = ("history", "--json", "--page-size", "1")


LOOK_S = 0.5


GROUP_S = 1.0
"""Longest time in seconds between the arrival of a signal at this process and at the others of its process group:
`timeout` and service managers signal their own child first.
"""


class NoStackError(KitError):
    """Error for a stack that the state backend doesn't have."""


@dataclass(frozen=True)
class CommandResult:
    """Exit status of a command and its standard output and error, which are empty if they weren't captured."""

    status: int
    output: str = ""
    errors: str = ""


Run = Callable[[Sequence[str], bool], CommandResult]
"""Function that runs a command. If the second argument is true, its output is captured, otherwise it is shown."""


def run(argv: Sequence[str], capture: bool, *, aside: bool = False, given: Path | None = None) -> CommandResult:
    """Run a command to its end and return its exit status and output. Output that isn't captured goes to the terminal,
    with `aside` to standard error. The command reads the file `given` as its standard input.

    There is no timeout, as the command may prompt the user, and the engine's own waits have limits. Ctrl-C reaches the
    command too; this function returns only once the command has ended, so that it can save its state.
    """
    pipe = subprocess.PIPE if capture else None
    shown = _STANDARD_ERROR if aside else None
    options: dict[str, Any] = {"stdout": pipe or shown, "stderr": pipe, "env": _environment()}
    with given.open() if given else nullcontext() as source:
        return CommandResult(*run_to_end(lambda: subprocess.Popen(list(argv), text=True, stdin=source, **options)))


def _environment() -> dict[str, str]:
    """Return the environment of commands. PATH contains the directory of `llmd-oke`, the exec plug-in of kubeconfigs,
    and `OCI_AUTH` has the sign-in method that `llmd-oke` uses: OCI's provider doesn't read `OCI_CLI_AUTH`.

    Raises:
        KitError: environment variables select different sign-in methods.
    """
    own, (_, auth) = sysconfig.get_path("scripts"), of_environment(os.environ) or ("", "")
    signing_in = {"OCI_AUTH": auth} if auth else {}
    return {**os.environ, **signing_in, "PATH": os.pathsep.join(filter(None, (own, os.environ.get("PATH"))))}


@dataclass(frozen=True)
class HistoryRecord:
    """An operation in a stack's history: its start time, and the number of resources by kind of
    change (`create`, …).
    """

    started: str
    changes: Mapping[str, int]


@dataclass(frozen=True)
class PulumiCli:
    """Operations of the Pulumi CLI on one stack. With `refresh`, previews and updates first read the resources' actual
    state from their providers.
    """

    project: Path
    stack: str
    program: str
    run: Run = run
    refresh: bool = False
    _exported: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], repr=False, compare=False)
    """Cache of the exported state: empty, or the state as its only item; cleared by commands that change the state."""

    def preview(self, plan: Path | None = None) -> Preview:
        """Run a preview of an update. With `plan`, the CLI saves the preview in that file, with encrypted secrets, so
        that an update can be restricted to its steps.

        Raises:
            KitError: the CLI failed without a preview.
        """
        save = ["--save-plan", str(plan)] if plan else []
        words = ["preview", "--json", "--show-sames", "--non-interactive", *save, *self._refreshed(), *self._policies()]
        ended = self._run(*words, capture=True)
        if ended.status and not ended.output.strip().startswith("{"):
            raise KitError(f"`pulumi preview` failed:\n{(ended.errors or ended.output).strip()}")
        preview = parse(ended.output)
        if preview.errors and self._policies():
            refusals = refusals_of_events(self._run(*words, capture=True, variables=_STREAMING).output)
            preview = replace(preview, errors=(*refusals, *preview.errors))  # the document has none of policies
        if ended.status and not preview.errors:
            return replace(preview, errors=(ended.errors.strip() or f"the CLI ended with status {ended.status}",))
        return preview

    def look(self, target: str | None = None) -> tuple[ResourceChange, ...]:
        """Run a refresh of `target` (a URN), or of all resources if left out, as a preview that doesn't change the
        state; return the changes that it finds.

        Raises:
            KitError: the resources can't be read.
        """
        chosen = ["--target", target] if target else []
        words = ["refresh", "--preview-only", "--json", "--non-interactive", *chosen]
        ended = self._run(*words, capture=True, variables=_STREAMING)
        if ended.status:
            raise KitError("\n".join(errors_of_events(ended.output)) or (ended.errors or ended.output).strip())
        return of_events(ended.output)

    def read(self, urns: Sequence[str]) -> int:
        """Refresh the resources `urns` in the state; return the CLI's exit code."""
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
        """Update the stack; return the CLI's exit code.

        Args:
            yes: don't ask for confirmation.
            skip_preview: don't show a preview first.
            one_at_a_time: change one resource after the other (`--parallel 1`).
            plan: saved plan of a preview; the engine refuses steps that aren't part of it.
            event_log: file to which the engine writes its events.
        """
        how = [*(["--skip-preview"] if skip_preview else []), *(["--parallel", "1"] if one_at_a_time else [])]
        how += ["--plan", str(plan)] if plan else []
        how += ["--event-log", str(event_log)] if event_log else []
        variables = _EVENT_LOG if event_log else ()
        return self._run("up", *_yes(yes), *how, *self._refreshed(), *self._policies(), variables=variables).status

    def replace(self, urns: Sequence[str]) -> int:
        """Update the stack with a replacement of the resources `urns`; return the CLI's exit code."""
        chosen = [word for urn in urns for word in ("--replace", urn)]
        return self._run("up", "--yes", "--skip-preview", *chosen, *self._refreshed(), *self._policies()).status

    def destroy(self, *, yes: bool, targets: Sequence[str] = ()) -> int:
        """Destroy the stack, or only the `targets` (URNs) and their dependents; return the CLI's exit code."""
        chosen = [word for urn in targets for word in ("--target", urn)]
        return self._run("destroy", *_yes(yes), *chosen, *(["--target-dependents"] if targets else [])).status

    def unprotect(self, urns: Sequence[str]) -> int:
        """Remove the protection of resources in the state; return the highest exit code, 0 if all
        commands succeeded.
        """
        return max((self._run("state", "unprotect", urn, "--yes").status for urn in urns), default=0)

    def resources(self) -> list[dict[str, Any]]:
        """Return the resources of the stack's state.

        Raises:
            KitError: the state can't be read.
        """
        deployment: Mapping[str, Any] = self.export()["deployment"] or {}
        return list(deployment.get("resources") or [])

    def export(self) -> dict[str, Any]:
        """Return the stack's state, with keys `version` and `deployment` and encrypted secrets. The result is cached
        until a command of this object changes the state.

        Raises:
            KitError: the state can't be read.
        """

        def state(document: Mapping[str, Any]) -> dict[str, Any]:
            # A document without a deployment is an error, not an empty stack of which nothing is protected.
            return {**document, "deployment": document["deployment"]}

        if not self._exported:
            self._exported.append(self._answer("state", state, "export"))
        return self._exported[0]

    def export_with_secrets(self) -> dict[str, Any]:
        """Return the stack's state with secrets in plain text. The result isn't cached.

        Raises:
            KitError: the state can't be read.
        """
        return self._answer("state", dict, "export", "--show-secrets")

    def import_state(self, document: Mapping[str, Any]) -> None:
        """Replace the stack's state by `document`, a changed result of `export`.

        Raises:
            KitError: the backend refuses the state, for example because another engine holds the stack's lock.
        """
        with TemporaryDirectory(prefix="llmd-oke-") as folder:  # mode 0700
            path = Path(folder) / "state.json"
            path.write_text(json.dumps(document))
            ended = self._run("stack", "import", "--file", str(path), capture=True)
        if ended.status:
            raise KitError(
                f"The stack's state can't be changed:\n{(ended.errors or ended.output).strip()}",
                f"If it is locked and no other engine runs: llmd-oke recover --stack {self.stack} --yes --unlock",
            )

    def change_secrets_provider(self, provider: str, passphrase: Path | None = None) -> None:
        """Encrypt the secrets of the stack's state and of its stack file again, with another provider or passphrase.

        Args:
            provider: `passphrase`, `default` (Pulumi Cloud's own), or the URL of a key (`awskms://…`).
            passphrase: file whose first line is the new passphrase, where the old provider is a passphrase too.

        Raises:
            KitError: the secrets can't be read, or not be encrypted.
        """
        cli = replace(self, run=partial(run, given=passphrase)) if passphrase else self
        ended = cli._run("stack", "change-secrets-provider", provider, capture=True)
        self._exported.clear()
        if ended.status:
            raise KitError(f"The secrets can't be encrypted anew:\n{(ended.errors or ended.output).strip()}")

    def remove_stack(self) -> None:
        """Remove the stack from the backend, with its state and history; its stack file and resources stay.

        Raises:
            KitError: the backend refuses, for example because an engine holds the stack's lock.
        """
        ended = self._run("stack", "rm", "--yes", "--force", "--preserve-config", capture=True)
        if ended.status:
            raise KitError(f"The stack can't be removed from its backend:\n{(ended.errors or ended.output).strip()}")

    def unlock(self) -> int:
        """Remove the lock of an engine that was killed; return the CLI's exit code."""
        return self._run("cancel", "--yes").status

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs, with secret values masked.

        Raises:
            KitError: the outputs can't be read.
        """
        return self._answer("outputs", dict, "output", "--json")

    def output(self, name: str, stack: str | None = None) -> str:
        """Return an output of this stack, or of `stack`, in plain text.

        Raises:
            KitError: the stack has no output of that name, or the output can't be read.
        """
        ended = replace(self, stack=stack or self.stack)._run("stack", "output", name, "--show-secrets", capture=True)
        if ended.status:
            raise KitError(f"The output {name} of the stack can't be read:\n{(ended.errors or ended.output).strip()}")
        return ended.output

    def secret(self, key: str) -> str | None:
        """Return the value at a path of the stack's config (`llmd-oke:imageLinks.mi300x`) in plain text; None if the
        path has no value.
        """
        ended = self._run("config", "get", "--path", key, capture=True)
        return ended.output.strip() or None if not ended.status else None

    def last_record(self) -> HistoryRecord | None:
        """Return the newest operation in the stack's history; None if the history is empty.

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
        """Return the URL of the state backend that the CLI is logged in to; `https://…` for Pulumi Cloud.

        Raises:
            KitError: the CLI isn't logged in to a backend, or the backend doesn't answer.
        """
        answer = self.run([self.program, "whoami", "--json", "--non-interactive", "--cwd", str(self.project)], True)
        self._require_backend(answer)
        if answer.status:
            raise KitError(f"The state backend doesn't answer:\n{(answer.errors or answer.output).strip()}")
        return str(json.loads(answer.output).get("url", ""))

    def create_stack(self) -> int:
        """Create the stack in the backend; return the CLI's exit code."""
        return self._run("stack", "init").status

    def create_stack_unasked(self) -> None:
        """Create the stack in the backend without a question or output, with the encryption of its stack file.

        Raises:
            KitError: the stack exists already, the passphrase is wrong, or the backend refuses.
        """
        ended = self._run("stack", "init", "--no-select", "--non-interactive", capture=True)
        if ended.status:
            raise KitError(f"The stack can't be created in the backend:\n{(ended.errors or ended.output).strip()}")

    def _require_backend(self, answer: CommandResult) -> None:
        if answer.status == NOT_SIGNED_IN:
            raise KitError("The Pulumi CLI is not signed in to a state backend.", LOGIN)
        if answer.status == NO_SUCH_STACK:
            remedy = f"Create it: pulumi stack init {self.stack}"
            raise NoStackError(f"The state backend has no stack {self.stack}.", remedy)

    def _refreshed(self) -> list[str]:
        return ["--refresh"] if self.refresh else []

    def _policies(self) -> list[str]:
        """The option for the project's policy pack, if it has one.

        Raises:
            KitError: it has one, and what packs need isn't installed.
        """
        pack = self.project / POLICY_PACK
        if not (pack / "PulumiPolicy.yaml").is_file():
            return []
        if find_spec("pulumi_policy") is None:
            raise KitError(f"{pack} is a policy pack, which needs pulumi-policy.", "Install llmd-oke[policies].")
        return ["--policy-pack", str(pack)]

    def _run(self, *words: str, capture: bool = False, variables: Sequence[str] = ()) -> CommandResult:
        if words[:2] not in _LOOKS:
            self._exported.clear()
        program = ["env", *variables, self.program] if variables else [self.program]
        return self.run([*program, *words, "--stack", self.stack, "--cwd", str(self.project)], capture)


def pulumi_cli(project: Path, stack: str, *, aside: bool = False) -> PulumiCli:
    """Return the operations of the Pulumi CLI on PATH; with `aside`, its output goes to standard error.

    Raises:
        KitError: PATH has no Pulumi CLI.
    """
    program = shutil.which("pulumi")
    if program is None:
        raise KitError("`pulumi` is not on PATH.", "Install the Pulumi CLI: https://www.pulumi.com/docs/install/")
    return PulumiCli(project, stack, program, partial(run, aside=aside))


def _yes(yes: bool) -> list[str]:
    return ["--yes"] if yes else []


def run_to_end(start: Callable[[], subprocess.Popen[str]]) -> tuple[int, str, str]:
    """Run a program to its end even if this process gets SIGINT or SIGTERM; return exit code, standard output and
    error.

    The signals' own handlers run afterwards. The first signal is passed on to the program, unless the whole process
    group got it (from a terminal, `timeout` or a service manager): on a second signal the Pulumi CLI stops without
    saving the state. Must be called from the main thread, as Python handles signals there.
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
    """Collect the numbers of SIGINT and SIGTERM signals during the block; raise the last one again after the block,
    with the previous handlers.
    """
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
    """Start a child process in the same process group, which a signal to the group ends. The child also ends when its
    standard input is closed, hence with this process.
    """
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _is_running(member: subprocess.Popen[bytes]) -> bool:
    """Return True if a process still runs after `GROUP_S`, the time that a signal to the group may take."""
    try:
        member.wait(GROUP_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def end_group(process: subprocess.Popen[str], grace_s: float = 5, first: signal.Signals = signal.SIGTERM) -> None:
    """End the processes that are left of the group that `process` leads: by `first`, then by SIGKILL after `grace_s`
    seconds.
    """

    def has_ended() -> bool:
        process.poll()  # an unreaped leader still belongs to the group
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
