"""The real Pulumi engine inside a local cluster: `python -m llmd_rehearsal.engine --project DIR --stack S up`.

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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx2
import lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.resources.core_v1 import Pod
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import planning
from llmd_oke.operations import drift, guards
from llmd_oke.operations.backend import remove_unfinished
from llmd_oke.operations.locks import file_lock
from llmd_oke.operations.objects import SIMULATED_ANNOTATION, metadata, texts
from llmd_oke.operations.previews import ResourceChange, of_document
from llmd_oke.operations.recovery import Find, Pending, look, recovered_state, unanswered_creations, with_pending
from llmd_oke.operations.updates import is_gone_after_failure
from pulumi import automation
from pulumi.automation import events
from pulumi.automation._stack import StackInitMode

from llmd_rehearsal.engine_events import (
    EventReporter,
    StepRecorder,
    failed_container,
    prepare_decoding,
    step_with_outputs,
)
from llmd_rehearsal.engine_nodes import replace_rehearsed_nodes
from llmd_rehearsal.engine_project import checkpoint_file, in_oci, journal_file, latest, mend
from llmd_rehearsal.oci_plugin.bridge import without_defaults

PLUGIN_ANSWER_TIMEOUT_S = 5.0
PARALLEL = 64

BUSY_TIMEOUT_S = 600.0
"""Seconds to wait for an engine whose command was killed and that goes on without it."""

_OPERATIONS = ("destroy", "drift", "preview", "refresh", "replace", "up")

_READING_OPERATIONS = ("drift", "preview")
"""Operations that change nothing."""

EventHandler = Callable[[events.EngineEvent], Any]
Outputs = dict[str, Any]
Operation = Callable[[automation.Stack, EventHandler], Outputs]
T = TypeVar("T")


@dataclass(frozen=True)
class EngineResult:
    """Result of an operation: resources by what happened to them, stack outputs, seconds.

    `placeholders` are the images without a program that pods have since, each with the number of its pods; `steps` are
    those of a preview, as `pulumi preview --json` lists them; `changed_by_hand` is what an update has taken back, and
    `drift` what differs from the state.
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
    """Check that every stand-in answers: without it the engine would look for the real plug-in.

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
    replace: "Operation | None" = None,
    parallel: int = PARALLEL,
    prelude: Callable[[], None] | None = None,
) -> EngineResult:
    """Run one operation (`up`, `preview`, `refresh`, `destroy`, `drift`, `replace`) to its end.

    `modules` are those that the program will need; they are loaded while the engine starts. Without `unprotect`,
    `destroy` refuses what is protected. `replace` is that operation, which launches nodes
    anew. An update works on `parallel` resources at the same time. `prelude` runs inside the program before it.

    Raises:
        KitError: a stand-in does not answer, something is protected, or the operation failed; says why in the engine's
            words.
    """
    plugins = plugins_from_environment()
    require_plugins(plugins)
    started_s = time.monotonic()
    loading = _start_loading(modules, project, stack)
    prepare_decoding()  # the reporter lists pods in a thread of its own
    reporter = EventReporter(progress, is_preview=operation == "preview", trouble=_trouble)
    steps = StepRecorder(reporter.hear)
    workspace = Workspace(work_dir=str(project), program=lambda: _program(project, loading, prelude))
    checkpoint = checkpoint_file(project.parent, stack)
    remove_unfinished(checkpoint.parents[2])
    if copy := mend(checkpoint):
        progress.step(f"the stack's state was not whole, as where its disk was full: going on from {copy.name}")
    handle = EngineStack(stack, workspace, StackInitMode.SELECT if checkpoint.is_file() else StackInitMode.CREATE)
    if operation not in _READING_OPERATIONS:
        adopt_pending(handle, checkpoint, journal_file(project.parent), progress)
    if operation == "destroy" and not targets:
        unprotect_resources(handle, progress, allowed=unprotect)
    try:
        by_hand = _unlocked(handle, lambda: read_drift(handle, checkpoint, progress)) if operation == "up" else []
        drift_rows: list[dict[str, Any]] = []
        operate = replace or _operation(operation, targets, needs_refresh(checkpoint), drift_rows, parallel)
        outputs = _unlocked(handle, lambda: operate(handle, steps.hear))
    except automation.CommandError as error:
        adopt_unanswered(handle, steps.log, journal_file(project.parent), progress)
        raise reporter.failure(operation, str(error)) from error
    duration_s = time.monotonic() - started_s
    preview_steps = steps.recorded if operation == "preview" else []
    return EngineResult(
        operation, steps.changes, outputs, duration_s, plugins, placeholder_images(), preview_steps, by_hand, drift_rows
    )


class Workspace(automation.LocalWorkspace):
    """Pulumi's CLI, started only for operations that need it: a start takes a quarter of a second of processor time."""

    def select_stack(self, stack_name: str) -> None:
        """Do nothing: each command names its stack."""

    def stack_outputs(self, stack_name: str) -> automation.OutputMap:
        """The outputs of a stack, by name; not asked for once more to know which are secret: all are treated so."""
        argv = ["stack", "output", "--json", "--show-secrets", "--stack", stack_name]
        output = self.pulumi_command.run(argv, self.work_dir, self.env_vars)
        return {key: automation.OutputValue(value, secret=True) for key, value in json.loads(output.stdout).items()}


class EngineStack(automation.Stack):
    """Stack that leaves out the CLI's look into its history after operations: the engine's events say what changed."""

    def info(self, show_secrets: bool = True) -> automation.UpdateSummary:  # noqa: ARG002 - the SDK's
        """Result of an operation that has ended well; empty, because no caller reads it."""
        return automation.UpdateSummary("update", datetime.now(UTC), "", {}, {}, "succeeded")


def _start_loading(modules: Sequence[str], project: Path, stack: str) -> threading.Thread:
    """Import modules and read the kit's data beside the engine's start: Pulumi's packages take a second, 0.31 s of it
    to collect nothing.
    """

    def load() -> None:
        if not modules:
            return
        gc.disable()
        for module in modules:
            import_module(module)
        with suppress(KitError):  # the program says the same
            planning.plan_stack_file(project, stack)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    return thread


def _program(project: Path, loading: threading.Thread, prelude: Callable[[], None] | None) -> None:
    loading.join()
    if prelude is not None:
        prelude()
    runpy.run_path(str(project / "__main__.py"), run_name="__main__")


def _operation(
    name: str, targets: Sequence[str], reads_first: bool, drifted: list[dict[str, Any]], parallel: int
) -> Operation:
    """Function that runs an operation; `up` and `preview` may have to read the state first, `drift` fills `drifted`."""
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


def _unlocked(stack: automation.Stack, run: Callable[[], T]) -> T:
    """Result of an operation; a lock on the stack is one that a killed engine left, for no other runs beside this."""
    try:
        return run()
    except automation.ConcurrentUpdateError:
        stack.cancel()
        return run()


def _up(stack: automation.Stack, hear: EventHandler, *, refresh: bool, parallel: int) -> Outputs:
    result = stack.up(
        on_event=hear, on_output=_drop, parallel=parallel, suppress_outputs=True, color="never", refresh=refresh
    )
    return {key: value.value for key, value in result.outputs.items()}


def _preview(stack: automation.Stack, hear: EventHandler, *, refresh: bool) -> Outputs:
    stack.preview(on_event=hear, on_output=_drop, parallel=PARALLEL, color="never", refresh=refresh)
    return {}


def _drift(stack: automation.Stack, _: EventHandler, drifted: list[dict[str, Any]]) -> Outputs:
    changes = _refreshed(stack, None)
    drifted[:] = [asdict(change) for change in drift.drift_of_refresh(changes, objects_only=False)]
    return {}


def _refresh(stack: automation.Stack, hear: EventHandler) -> Outputs:
    stack.refresh(on_event=hear, on_output=_drop, parallel=PARALLEL, color="never")
    return {}


def _destroy(stack: automation.Stack, hear: EventHandler, targets: Sequence[str] = ()) -> Outputs:
    stack.destroy(
        on_event=hear,
        on_output=_drop,
        parallel=PARALLEL,
        color="never",
        target=list(targets) or None,
        target_dependents=bool(targets),
    )
    return {}


def _drop(_: str) -> None:
    """Drop a line of the engine's text, whose events are shown instead."""


def read_drift(stack: automation.Stack, checkpoint: Path, progress: Progress) -> list[str]:
    """Report each change by hand, record the objects' present values in the state, and return the reports.

    `checkpoint` is the engine's file of the stack; without objects in it there is nothing to look for.
    """
    if not any(resource["type"].startswith("kubernetes:") for resource in latest(checkpoint).get("resources") or ()):
        return []
    changes = drift.drift_of_refresh(_refreshed(stack, [drift.OBJECTS]))
    for change in changes:
        progress.step(f"changed by hand: {change}")
    urns = drift.to_read(changes)
    if urns:
        stack.refresh(target=urns, color="never")
    return [str(change) for change in changes]


def _refreshed(stack: automation.Stack, targets: list[str] | None) -> Sequence[ResourceChange]:
    """Differences that a refresh of these resources, or of all, would find in OCI's stand-in and the cluster."""
    steps: list[dict[str, Any]] = []

    def hear(event: events.EngineEvent) -> None:
        if event.res_outputs_event:
            steps.append(step_with_outputs(event.res_outputs_event.metadata))

    stack.preview_refresh(target=targets, on_event=hear, color="never")
    return of_document({"steps": steps}).changes


def unprotect_resources(stack: automation.Stack, progress: Progress, *, allowed: bool) -> None:
    """Remove the protection of all resources.

    Raises:
        KitError: something is protected and that isn't allowed.
    """
    state = stack.export_stack()
    resources: list[dict[str, Any]] = (state.deployment or {}).get("resources") or []
    protected = [resource for resource in resources if resource.get("protect")]
    urns = [str(resource["urn"]) for resource in protected]
    guards.refuse_protected(urns, allowed=allowed)
    if not protected:
        return
    for resource in protected:
        resource["protect"] = False
    progress.detail("no longer protected: " + ", ".join(urn.rsplit("::", 1)[-1] for urn in urns))
    stack.import_stack(state)


def adopt_pending(stack: automation.Stack, checkpoint: Path, journal: Path, progress: Progress) -> None:
    """Resolve operations that a killed engine left half done, and read their results.

    `checkpoint` is the engine's file of the stack, `journal` that of the stand-in for OCI; neither need be there.
    """
    if latest(checkpoint).get("pending_operations"):
        progress.step("taking up what an engine had begun and did not end")
        _import_recovered(stack, (), journal)


def adopt_unanswered(
    stack: automation.Stack, log: Iterable[Mapping[str, Any]], journal: Path, progress: Progress
) -> None:
    """Import resources of requests that got no answer; `log` has the events of the engine that sent them."""
    if requests := unanswered_creations(log):
        progress.step("looking for what was created by a request that got no answer")
        _import_recovered(stack, requests, journal)


def _import_recovered(stack: automation.Stack, requests: Sequence[Mapping[str, Any]], journal: Path) -> None:
    state = stack.export_stack()
    deployment = with_pending(state.deployment or {}, requests)
    recovery = look(deployment, journal_finder(journal))
    state.deployment = recovered_state(deployment, recovery)
    try:
        stack.import_stack(state)
    except automation.ConcurrentUpdateError:  # the killed engine's lock: no other engine runs beside this one
        stack.cancel()
        stack.import_stack(state)
    if urns := recovery.urns:
        stack.refresh(target=list(urns), color="never")


def needs_refresh(checkpoint: Path) -> bool:
    """Tell whether OCI's plug-in took back something of the state, so that an operation has to read first."""
    return any(is_gone_after_failure(resource) for resource in latest(checkpoint).get("resources") or ())


def journal_finder(journal: Path) -> Find:
    """Finder of the stand-in's resources by type and inputs."""
    resources = in_oci(journal)

    def find(pending: Pending, recorded_ids: Set[str]) -> str | None:
        inputs = without_defaults(dict(pending.inputs))
        ids = (id_ for id_, row in resources.items() if row["token"] == pending.type and row["inputs"] == inputs)
        return next((id_ for id_ in ids if id_ not in recorded_ids), None)

    return find


def _trouble() -> str | None:
    try:
        return failed_container(lightkube.Client(KubeConfig.from_env(), trust_env=False))
    except ConfigError:
        return None


def placeholder_images() -> dict[str, int]:
    """Images without a program in the cluster of the environment's kubeconfig, and how many pods have each.

    Raises:
        KitError: the API server doesn't answer, or refuses.
    """
    try:
        return count_images(lightkube.Client(KubeConfig.from_env(), trust_env=False).list(Pod, namespace="*"))
    except (ApiError, ConfigError, httpx2.HTTPError) as error:
        raise KitError(f"The pods of the rehearsal can't be listed: {error}") from error


def count_images(pods: Iterable[Pod]) -> dict[str, int]:
    """The images of the containers that the node agent marked, by the number of pods."""
    counts = Counter[str]()
    for pod in pods:
        names = texts(metadata(pod), "annotations").get(SIMULATED_ANNOTATION, "").split(",")
        containers = [*(pod.spec.initContainers or []), *pod.spec.containers] if pod.spec else []
        counts.update({container.image or container.name for container in containers if container.name in names})
    return dict(sorted(counts.items()))


def _prelude(arguments: argparse.Namespace) -> Callable[[], None] | None:
    """Environment that makes the program declare ScaledObjects with a rehearsal's times, where they are given."""
    if arguments.scaling_speed is None:
        return None

    def prelude() -> None:
        from llmd_rehearsal.autoscaling import (  # noqa: PLC0415 - the program's modules are loaded first
            ScalingTime,
            rehearse_scaled_objects,
        )

        rehearse_scaled_objects(ScalingTime(arguments.scaling_speed, arguments.time_scale))

    return prelude


def _replacement(arguments: argparse.Namespace) -> Operation:
    options = (arguments.target, arguments.at_once, arguments.drain_limit)

    def replace(stack: automation.Stack, hear: EventHandler) -> Outputs:
        replace_rehearsed_nodes(stack, arguments.project, hear, _Lines(), *options, force=arguments.force)
        return {}

    return replace


class _Lines:
    """Progress as lines on standard output, for the process that runs this one."""

    def step(self, text: str) -> None:
        """Print a line about a new step."""
        print(text, flush=True)

    def detail(self, text: str) -> None:
        """Print a line about the step's progress."""
        print(text, flush=True)


def _ignore_signal(_signal: int, _frame: object) -> None:
    """Outlive a signal, which the engine gets too: it cancels, saves its state and ends."""


def main() -> None:
    """Run the operation that the command line names and write its result as JSON."""
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.engine")
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
    parser.add_argument("--scaling-speed", type=float)
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("operation", choices=_OPERATIONS)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore_signal)
    running = arguments.result.with_suffix(".running")
    try:
        with file_lock(running, "finish with the engine", _Lines(), BUSY_TIMEOUT_S):
            result = run(
                arguments.project,
                arguments.stack,
                arguments.operation,
                _Lines(),
                arguments.target,
                arguments.load,
                unprotect=arguments.unprotect,
                replace=_replacement(arguments) if arguments.operation == "replace" else None,
                parallel=1 if arguments.one_at_a_time else PARALLEL,
                prelude=_prelude(arguments),
            )
    except KitError as error:
        arguments.result.write_text(json.dumps({"error": error.message, "remedy": error.remedy}))
        sys.exit(1)
    arguments.result.write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
