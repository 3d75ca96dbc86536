"""The real Pulumi engine inside a rehearsal's world: `python -m llmd_oke.rehearsal.engine --project DIR --stack S up`.

The project's own `__main__.py` runs in this process (an inline program, so no language plug-in is needed), and the
engine attaches to the stand-in plug-ins instead of starting real ones.
"""

import argparse
import gc
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import grpc
from pulumi import automation
from pulumi.automation import events as engine_events

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.engine_drift import everywhere, read_drift
from llmd_oke.rehearsal.engine_events import Narrator
from llmd_oke.rehearsal.engine_protection import release
from llmd_oke.rehearsal.engine_recovery import adopt, adopt_unanswered, is_wrong, remove_unfinished_locks
from llmd_oke.rehearsal.engine_steps import Steps
from llmd_oke.rehearsal.exclusive import exclusive
from llmd_oke.rehearsal.placeholders import placeholder_images
from llmd_oke.rehearsal.state_files import checkpoint_file, journal_file, mend

PLUGIN_ANSWER_TIMEOUT_S = 5.0
PARALLEL = 64
BUSY_TIMEOUT_S = 600.0
"""How long to wait for an engine whose command was killed and that goes on without it."""


@dataclass(frozen=True)
class EngineResult:
    """What an operation did: resources by what happened to them, stack outputs, seconds.

    `placeholders` are the images without a program that pods have since, each with the number of its pods; `steps` are
    those of a preview, as `pulumi preview --json` lists them; `changed_by_hand` is what an update has taken back, and
    `drift` what a look for it has found.
    """

    operation: str
    changes: dict[str, int]
    outputs: dict[str, Any]
    duration_s: float
    plugins: dict[str, int]
    placeholders: dict[str, int]
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    changed_by_hand: list[str] = field(default_factory=list[str])
    drift: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def changed(self) -> int:
        """Resources that did not stay the same."""
        return sum(count for kind, count in self.changes.items() if kind not in {"same", "read"})


def require_plugins(ports: dict[str, int]) -> None:
    """Makes sure that every stand-in answers: without it the engine would look for the real plug-in.

    Raises:
        KitError: one doesn't answer.
    """
    for name, port in ports.items():
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=PLUGIN_ANSWER_TIMEOUT_S)
            except grpc.FutureTimeoutError as error:
                raise KitError(f"The stand-in for the plug-in {name!r} does not answer on port {port}.") from error


def plugins_from_environment() -> dict[str, int]:
    """Names and ports in `PULUMI_DEBUG_PROVIDERS`."""
    pairs = [pair.split(":") for pair in os.environ.get("PULUMI_DEBUG_PROVIDERS", "").split(",") if pair]
    return {name: int(port) for name, port in pairs}


def run(
    project: Path,
    stack: str,
    operation: str,
    progress: Progress,
    targets: Sequence[str] = (),
    modules: Sequence[str] = (),
    *,
    unprotect: bool = False,
    replace: "Run | None" = None,
    parallel: int = PARALLEL,
) -> EngineResult:
    """Runs one operation (`up`, `preview`, `refresh`, `destroy`, `drift`, `replace`) to its end.

    `modules` are those that the program will need; they are loaded while the engine starts. Without `unprotect`,
    `destroy` refuses what is protected. `replace` is that operation, which launches nodes
    anew. An update works on `parallel` resources at the same time.

    Raises:
        KitError: a stand-in does not answer, something is protected, or the operation failed; says why in the engine's
            words.
    """
    plugins = plugins_from_environment()
    require_plugins(plugins)
    began = time.monotonic()
    loaded = _loading(modules)
    narrator = Narrator(progress, is_preview=operation == "preview")
    steps = Steps(narrator.hear)
    workspace = _Workspace(work_dir=str(project), program=lambda: _program(project, loaded))
    checkpoint = checkpoint_file(project.parent, stack)
    remove_unfinished_locks(checkpoint)
    if copy := mend(checkpoint):
        progress.step(f"the stack's state was not whole, as where its disk was full: going on from {copy.name}")
    handle = automation.Stack.create_or_select(stack, workspace)
    if operation not in _LOOKS:
        adopt(handle, checkpoint, journal_file(project.parent), progress)
    if operation == "destroy" and not targets:
        release(handle, progress, allowed=unprotect)
    try:
        by_hand = _unlocked(handle, lambda: read_drift(handle, checkpoint, progress)) if operation == "up" else []
        drifted: list[dict[str, Any]] = []
        operate = replace or _operation(operation, targets, is_wrong(checkpoint), drifted, parallel)
        changes, outputs = _unlocked(handle, lambda: operate(handle, steps.hear))
    except automation.CommandError as error:
        adopt_unanswered(handle, steps.log, journal_file(project.parent), progress)
        raise narrator.failure(operation, str(error)) from error
    duration_s = time.monotonic() - began
    listed = steps.recorded if operation == "preview" else []
    return EngineResult(
        operation, changes, outputs, duration_s, plugins, placeholder_images(), listed, by_hand, drifted
    )


class _Workspace(automation.LocalWorkspace):
    """Asks for a stack's outputs once, not once more for which of them are secret: all are treated as if they were."""

    def stack_outputs(self, stack_name: str) -> automation.OutputMap:
        asked = ["stack", "output", "--json", "--show-secrets", "--stack", stack_name]
        printed = self.pulumi_command.run(asked, self.work_dir, self.env_vars)
        return {key: automation.OutputValue(value, secret=True) for key, value in json.loads(printed.stdout).items()}


def _loading(modules: Sequence[str]) -> threading.Thread:
    """Loads modules beside the engine's start: Pulumi's packages take a second, a third of it to collect nothing."""

    def load() -> None:
        if modules:
            gc.disable()
        for module in modules:
            import_module(module)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    return thread


def _program(project: Path, loaded: threading.Thread) -> None:
    loaded.join()
    runpy.run_path(str(project / "__main__.py"), run_name="__main__")


Hear = Callable[[engine_events.EngineEvent], Any]
Outcome = tuple[dict[str, int], dict[str, Any]]
Run = Callable[[automation.Stack, Hear], Outcome]
Found = TypeVar("Found")
_OPERATIONS = ("destroy", "drift", "preview", "refresh", "replace", "up")
_LOOKS = ("drift", "preview")
"""Operations that change nothing."""


def _operation(
    name: str, targets: Sequence[str], reads_first: bool, drifted: list[dict[str, Any]], parallel: int
) -> Run:
    """What runs an operation; `up` and `preview` may have to read first what is there, `drift` tells what it found."""
    match name:
        case "drift":
            return partial(_drift, drifted=drifted)
        case "up":
            return partial(_up, refresh=reads_first, parallel=parallel)
        case "preview":
            return partial(_preview, refresh=reads_first)
        case "refresh":
            return _refresh
        case _:
            return partial(_destroy, targets=targets)


def _unlocked(stack: automation.Stack, run: Callable[[], Found]) -> Found:
    """What an operation gives; a lock on the stack is one that a killed engine left, for no other runs beside this."""
    try:
        return run()
    except automation.ConcurrentUpdateError:
        stack.cancel()
        return run()


def _up(stack: automation.Stack, hear: Hear, *, refresh: bool, parallel: int) -> Outcome:
    done = stack.up(
        on_event=hear, on_output=_drop, parallel=parallel, suppress_outputs=True, color="never", refresh=refresh
    )
    return _counts(done.summary.resource_changes), {key: value.value for key, value in done.outputs.items()}


def _preview(stack: automation.Stack, hear: Hear, *, refresh: bool) -> Outcome:
    done = stack.preview(on_event=hear, on_output=_drop, parallel=PARALLEL, color="never", refresh=refresh)
    return _counts(done.change_summary), {}


def _drift(stack: automation.Stack, _: Hear, drifted: list[dict[str, Any]]) -> Outcome:
    drifted[:] = [asdict(each) for each in everywhere(stack)]
    return {}, {}


def _refresh(stack: automation.Stack, hear: Hear) -> Outcome:
    done = stack.refresh(on_event=hear, on_output=_drop, parallel=PARALLEL, color="never")
    return _counts(done.summary.resource_changes), {}


def _destroy(stack: automation.Stack, hear: Hear, targets: Sequence[str] = ()) -> Outcome:
    done = stack.destroy(
        on_event=hear,
        on_output=_drop,
        parallel=PARALLEL,
        color="never",
        target=list(targets) or None,
        target_dependents=bool(targets),
    )
    return _counts(done.summary.resource_changes), {}


def _counts(changes: Mapping[Any, int] | None) -> dict[str, int]:
    """By the names of operations; the SDK gives them as text or as an enum."""
    return {str(getattr(kind, "value", kind)): count for kind, count in (changes or {}).items()}


def _drop(_: str) -> None:
    """The engine's own text is not shown: its events are."""


def _leave_to_the_engine(_signal: int, _frame: object) -> None:
    """The engine gets the signal too: it cancels, saves its state and ends, and this process has to outlive it."""


def _replacement(arguments: argparse.Namespace) -> Run:
    from llmd_oke.rehearsal.engine_nodes import replace_rehearsed  # noqa: PLC0415 - the others do without its modules

    how = (arguments.target, arguments.at_once, arguments.drain_limit)

    def replace(stack: automation.Stack, hear: Hear) -> Outcome:
        replace_rehearsed(stack, arguments.project, hear, _Lines(), *how, force=arguments.force)
        return {}, {}

    return replace


class _Lines:
    """Progress as lines on standard output, for the process that runs this one."""

    def step(self, text: str) -> None:
        """A line."""
        print(text, flush=True)

    def detail(self, text: str) -> None:
        """A line, too."""
        print(text, flush=True)


def main() -> None:
    """Runs the operation that the command line names and writes its result as JSON."""
    parser = argparse.ArgumentParser(prog="llmd_oke.rehearsal.engine")
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--stack", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--unprotect", action="store_true")
    parser.add_argument("--load", action="append", default=[], metavar="MODULE")
    parser.add_argument("--one-at-a-time", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--drain-limit", type=float)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("operation", choices=_OPERATIONS)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave_to_the_engine)
    running = arguments.result.with_suffix(".running")
    try:
        with exclusive(running, "finish with the engine", _Lines(), BUSY_TIMEOUT_S):
            own = (arguments.project, arguments.stack, arguments.operation, _Lines())
            replace = _replacement(arguments) if arguments.operation == "replace" else None
            parallel = 1 if arguments.one_at_a_time else PARALLEL
            chosen = (*own, arguments.target, arguments.load)
            result = run(*chosen, unprotect=arguments.unprotect, replace=replace, parallel=parallel)
    except KitError as error:
        arguments.result.write_text(json.dumps({"error": error.message, "remedy": error.remedy}))
        sys.exit(1)
    arguments.result.write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
