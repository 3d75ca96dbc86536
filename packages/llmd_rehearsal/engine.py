"""The real Pulumi engine inside a local cluster: `python -m llmd_rehearsal.engine --project DIR --stack S up`.

The project's own `__main__.py` runs in this process as an inline program, so that no language plug-in is needed; a
program in another language is run by its language plug-in. The engine attaches to the stand-in plug-ins instead of
starting real ones.
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
from llmd_rehearsal.engine_project import PYTHON, checkpoint_file, in_oci, journal_file, latest, runtime
from llmd_rehearsal.oci_plugin.bridge import without_defaults

PLUGIN_ANSWER_TIMEOUT_S = 5.0
PARALLEL = 64

BUSY_TIMEOUT_S = 600.0
"""Seconds to wait for an engine that still runs after the command that started it was killed."""

_OPERATIONS = ("destroy", "drift", "forget", "preview", "refresh", "replace", "up")

_READING_OPERATIONS = ("drift", "preview")
"""Operations that change nothing."""

EventHandler = Callable[[events.EngineEvent], Any]
Outputs = dict[str, Any]
Operation = Callable[[automation.Stack, EventHandler], Outputs]
T = TypeVar("T")


@dataclass(frozen=True)
class EngineResult:
    """Result of an engine operation: counts of resources by what the operation did to them, stack outputs, duration in
    seconds.

    `placeholders` maps each image for which no program runs on this machine to its number of pods after the operation.
    `steps` are a preview's steps, in the format of `pulumi preview --json`. `changed_by_hand` are the manual changes
    that an update reverted, and `drift` the differences between the resources and the state.
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
        """Number of resources that the engine's operation changed."""
        return sum(count for kind, count in self.changes.items() if kind not in {"same", "read"})


def require_plugins(ports: dict[str, int]) -> None:
    """Check that every stand-in plug-in answers: if one doesn't, the engine would look for the real plug-in.

    Raises:
        KitError: a stand-in plug-in doesn't answer.
    """
    for name, port in ports.items():
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=PLUGIN_ANSWER_TIMEOUT_S)
            except grpc.FutureTimeoutError as error:
                raise KitError(f"The stand-in for the plug-in {name!r} does not answer on port {port}.") from error


def run(
    project: Path,
    stack: str,
    operation: str,
    progress: Progress,
    targets: Sequence[str] = (),
    modules: Sequence[str] = (),
    *,
    unprotect: bool = False,
    of_kit: "Operation | None" = None,
    parallel: int = PARALLEL,
    prelude: Callable[[], None] | None = None,
) -> EngineResult:
    """Run one engine operation (`up`, `preview`, `refresh`, `destroy`, `drift`, `replace`, `forget`) and return its
    result.

    Args:
        project: folder of the rehearsal's copy of the project.
        stack: name of the stack.
        operation: name of the operation.
        progress: reports the engine's steps to the user.
        targets: URNs that `destroy` is limited to.
        modules: Python modules that the program needs, imported while the engine starts.
        unprotect: lets `destroy` delete protected resources.
        of_kit: function that runs an operation of the kit's own: `replace` launches nodes anew, `forget` removes
            from the state the resources that OCI no longer has.
        parallel: limit of resources that an update works on at the same time.
        prelude: function that is called inside the Pulumi program before the program itself.

    Raises:
        KitError: a stand-in plug-in doesn't answer, a resource is protected, or the operation failed, with the engine's
            reason.
    """
    pairs = [pair.split(":") for pair in os.environ.get("PULUMI_DEBUG_PROVIDERS", "").split(",") if pair]
    plugins = {package: int(port) for package, port in pairs}
    require_plugins(plugins)
    started_s = time.monotonic()
    loading = _start_loading(modules, project, stack)
    prepare_decoding()  # needed because the reporter lists pods in another thread
    reporter = EventReporter(progress, is_preview=operation == "preview", trouble=_trouble)
    steps = StepRecorder(reporter.hear)
    is_inline = runtime(project) == PYTHON
    program = partial(_program, project, loading, prelude) if is_inline else None
    workspace = Workspace(work_dir=str(project), program=program)
    checkpoint = checkpoint_file(project.parent, stack, (project.name,))
    remove_unfinished(checkpoint.parents[2])
    handle = EngineStack(stack, workspace, StackInitMode.SELECT if checkpoint.is_file() else StackInitMode.CREATE)
    if operation not in _READING_OPERATIONS:
        adopt_pending(handle, checkpoint, journal_file(project.parent), progress)
    if operation == "destroy" and not targets:
        unprotect_resources(handle, progress, allowed=unprotect)
    try:
        by_hand = _unlocked(handle, lambda: read_drift(handle, checkpoint, progress)) if operation == "up" else []
        drift_rows: list[dict[str, Any]] = []
        operate = of_kit or _operation(operation, targets, needs_refresh(checkpoint), drift_rows, parallel)
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
    """Automation API workspace that starts the Pulumi CLI only where needed: a start takes 0.25 CPU-seconds."""

    def select_stack(self, stack_name: str) -> None:
        """Do nothing, because each command of the Pulumi CLI names its stack."""

    def stack_outputs(self, stack_name: str) -> automation.OutputMap:
        """Return a stack's outputs by name, all marked secret, as it would take a second start of the Pulumi CLI to
        learn which outputs are.
        """
        argv = ["stack", "output", "--json", "--show-secrets", "--stack", stack_name]
        output = self.pulumi_command.run(argv, self.work_dir, self.env_vars)
        return {key: automation.OutputValue(value, secret=True) for key, value in json.loads(output.stdout).items()}


class EngineStack(automation.Stack):
    """Automation API stack that doesn't read the stack's history after operations, as the engine's events say what
    changed.
    """

    def info(self, show_secrets: bool = True) -> automation.UpdateSummary:  # noqa: ARG002 - the SDK's
        """Return an empty summary of an operation that says `succeeded`; no caller reads its other fields."""
        return automation.UpdateSummary("update", datetime.now(UTC), "", {}, {}, "succeeded")


def _start_loading(modules: Sequence[str], project: Path, stack: str) -> threading.Thread:
    """Start a thread that imports modules and plans the stack file while the engine starts, and return the thread.

    Importing Pulumi's packages takes one second; without garbage collection 0.31 s less.
    """

    def load() -> None:
        if not modules:
            return
        gc.disable()
        for module in modules:
            import_module(module)
        with suppress(KitError):  # the Pulumi program raises the same error
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
    """Return the function that runs an operation. `reads_first` makes `up` and `preview` refresh first; `drift` appends
    its rows to `drifted`.
    """
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
    """Return the result of `run`; if the stack is locked, remove the lock and retry: only a killed engine can have left
    the lock, as no other engine runs beside this one.
    """
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
    """Ignore a line of the engine's text output; the engine's events are reported instead."""


def read_drift(stack: automation.Stack, checkpoint: Path, progress: Progress) -> list[str]:
    """Report each manual change of the stack's Kubernetes objects, record the objects' present values in the state, and
    return the reports.

    `checkpoint` is the engine's state file; a state without Kubernetes objects isn't examined.
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
    """Return the differences that a refresh of these resources (None: of all) would find at the stand-in for OCI and in
    the cluster.
    """
    steps: list[dict[str, Any]] = []

    def hear(event: events.EngineEvent) -> None:
        if event.res_outputs_event:
            steps.append(step_with_outputs(event.res_outputs_event.metadata))

    stack.preview_refresh(target=targets, on_event=hear, color="never")
    return of_document({"steps": steps}).changes


def unprotect_resources(stack: automation.Stack, progress: Progress, *, allowed: bool) -> None:
    """Remove Pulumi's protection (`protect`) from all resources in the stack's state.

    Raises:
        KitError: a resource is protected and `allowed` is False.
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
    """Resolve the pending operations that a killed engine left in the state, and refresh the resources that these
    operations created.

    `checkpoint` is the engine's state file and `journal` the journal of the stand-in for OCI; both may be missing.
    """
    if latest(checkpoint).get("pending_operations"):
        progress.step("taking up what an engine had begun and did not end")
        _import_recovered(stack, (), journal)


def adopt_unanswered(
    stack: automation.Stack, log: Iterable[Mapping[str, Any]], journal: Path, progress: Progress
) -> None:
    """Import into the stack's state the resources whose creation requests got no answer but that the stand-in for OCI
    created.

    `log` has the events of the engine that sent the requests, and `journal` is the journal of the stand-in for OCI.
    """
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
    except automation.ConcurrentUpdateError:  # the lock is a killed engine's, as no other engine runs beside this one
        stack.cancel()
        stack.import_stack(state)
    if urns := recovery.urns:
        stack.refresh(target=list(urns), color="never")


def needs_refresh(checkpoint: Path) -> bool:
    """Tell whether the engine's state has a resource that the OCI plug-in deleted after its creation failed, so that an
    operation must refresh first.
    """
    return any(is_gone_after_failure(resource) for resource in latest(checkpoint).get("resources") or ())


def journal_finder(journal: Path) -> Find:
    """Return a function that finds a resource of the simulated OCI in its journal, by resource type and inputs."""
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
    """Return the images of containers for which no program runs on this machine, with the number of pods of each image,
    in the cluster of the environment's kubeconfig.

    Raises:
        KitError: the API server doesn't answer or refuses.
    """
    try:
        return count_images(lightkube.Client(KubeConfig.from_env(), trust_env=False).list(Pod, namespace="*"))
    except (ApiError, ConfigError, httpx2.HTTPError) as error:
        raise KitError(f"The pods of the rehearsal can't be listed: {error}") from error


def count_images(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the number of containers of each image for which no program runs on this machine, as the node agent marked
    the pods.
    """
    counts = Counter[str]()
    for pod in pods:
        names = texts(metadata(pod), "annotations").get(SIMULATED_ANNOTATION, "").split(",")
        containers = [*(pod.spec.initContainers or []), *pod.spec.containers] if pod.spec else []
        counts.update({container.image or container.name for container in containers if container.name in names})
    return dict(sorted(counts.items()))


def _prelude(arguments: argparse.Namespace) -> Callable[[], None] | None:
    """Return a function that makes the Pulumi program declare ScaledObjects adapted to the rehearsal; None without a
    scaling speed on the command line.
    """
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
    from llmd_rehearsal.engine_nodes import replace_rehearsed_nodes  # noqa: PLC0415 - plans clusters, which few operations need

    options = (arguments.target, arguments.at_once, arguments.drain_limit)

    def replace(stack: automation.Stack, hear: EventHandler) -> Outputs:
        replace_rehearsed_nodes(stack, arguments.project, hear, _Lines(), *options, force=arguments.force)
        return {}

    return replace


def _forgetting(arguments: argparse.Namespace) -> Operation:
    from llmd_rehearsal.engine_nodes import forget_rehearsed_losses  # noqa: PLC0415 - plans clusters, which few operations need

    def forget(stack: automation.Stack, hear: EventHandler) -> Outputs:
        return {"losses": forget_rehearsed_losses(stack, arguments.project, hear, _Lines())}

    return forget


class _Lines:
    """Progress as lines on standard output, read by the process that started this one."""

    def step(self, text: str) -> None:
        """Print a line that names a new step."""
        print(text, flush=True)

    def detail(self, text: str) -> None:
        """Print a line on the progress of the present step."""
        print(text, flush=True)


def main() -> None:
    """Run the engine operation that the command line names and write its result, or its error, as JSON to the file that
    the command line names.
    """
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
        # The engine's process gets the signal too, cancels the operation, saves its state and ends.
        signal.signal(number, lambda _signal, _frame: None)
    of_kit = {"replace": _replacement, "forget": _forgetting}.get(arguments.operation)
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
                of_kit=of_kit(arguments) if of_kit else None,
                parallel=1 if arguments.one_at_a_time else PARALLEL,
                prelude=_prelude(arguments),
            )
    except KitError as error:
        arguments.result.write_text(json.dumps({"error": error.message, "remedy": error.remedy}))
        sys.exit(1)
    arguments.result.write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
