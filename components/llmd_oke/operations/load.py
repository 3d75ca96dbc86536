"""Load on one model of a deployed stack from inside its cluster, by the kit's generator or by inference-perf.

A Job sends the load and is deleted afterwards; rows, records of requests and inference-perf's files are kept in the
reports.
"""

import math
import secrets
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from llmd_base.config_maps import PART_KEY, count_of, join_pieces
from llmd_base.documents import explain
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.records import record
from llmd_base.row import Row
from llmd_bench import rows
from llmd_bench.deployment import Stability, stability
from llmd_bench.files import REQUESTS_FILE, CatalogueNames, Hints, ReadResults, make_folder, write_rows
from llmd_bench.history import ROWS_FILE, safe_names, stack_folder
from llmd_bench.jobs.load import LEAD_S
from llmd_bench.load import pod_load
from llmd_bench.load.notation import read_trim
from llmd_bench.load.pod_load import LoadRequest, PodResult, unpack
from llmd_bench.load.records import MIN_SENT_SHARE, write_file
from llmd_bench.load.stages import StageResult, check, mark_restarts, unmeasured
from llmd_bench.load.workload import ConstantRate, PoissonRate
from llmd_bench.readers import read
from llmd_bench.readers.inference_perf import ToolLoad, config
from llmd_bench.run_context import RunContext
from llmd_pods.prewarm.places import inside
from pydantic import TypeAdapter, ValidationError

from llmd_oke.catalogue import gpu_names
from llmd_oke.catalogue.benchmarks import bench_jobs, inference_perf
from llmd_oke.catalogue.models import model_name, names_by_repository
from llmd_oke.objects import Manifest
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.jobs import ClusterJobs, place_of, why_ended
from llmd_oke.operations.objects import SIMULATED_ANNOTATION, metadata, texts
from llmd_oke.operations.smoke import running_servers
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.smoke import conditions
from llmd_oke.serving import jobs
from llmd_oke.serving.jobs import RESULTS_FOLDER, STARTING_S, JobSettings

STOPPING_S = 40.0
"""Seconds in which pods must publish their results after the Job was suspended: their grace period
of 30 s, plus 10 s."""

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"

GRACE_S = 120.0
"""Maximum time in seconds, beyond a stage's duration, for the answers to its last requests."""

UNKNOWN_UID = "known-once-the-job-is-there"

UNLIMITED_S = 3600.0
"""Maximum duration in seconds of a load's stage that ends after a number of requests."""

_FILES = TypeAdapter(Mapping[str, str])

TOOL_FOLDER = "inference-perf"
"""Subdirectory of a load's directory for inference-perf's files."""


@dataclass(frozen=True)
class LoadMeasurement:
    """Results of a load: rows, the stages of the kit's generator with their records of requests, and the files of
    another tool (inference-perf) by relative path.
    """

    rows: tuple[Row, ...]
    stages: tuple[StageResult, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class LoadFolder:
    """Directory for the results of a load; `hints` has facts about the deployment that another tool's files lack."""

    folder: Path
    hints: Hints


@dataclass(frozen=True)
class StoredLoad:
    """Stored results of a load: rows, and the unreadable parts of a tool's files. `unmeasured` has a text for each
    stage without a row because not all of its requests were sent, with the reason; `interrupted` is true after Ctrl-C.
    """

    found: ReadResults
    interrupted: bool = False
    unmeasured: tuple[str, ...] = ()


def new_folder(reports: Path, stack: str) -> Path:
    """Return the directory for the results of a load that begins now."""
    return reports / stack_folder(stack) / "bench" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def hints(plan: Plan, model: ModelPlan, how: RunContext) -> Hints:
    """Return the facts about a deployment that inference-perf's files lack: model, GPUs, topology, copies, conditions
    and basis.
    """
    return Hints(
        names=CatalogueNames(names_by_repository(), tuple(gpu_names())),
        model=model.model.repository,
        gpu=plan.pools[0].shape.gpu.product,
        gpus=model.gpus,
        topology=str(model.topology),
        copies=len(model.units),
        **conditions(plan, model),
        basis=how.basis_of(model.model.repository),
    )


@contextmanager
def folder_for_results(path: Path) -> Generator[None]:
    """Create a directory before the block, and remove the directory after the block if it is empty.

    Raises:
        KitError: the directory can't be created, or isn't writable.
    """
    make_folder(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.rmdir()


def store_load(measurement: LoadMeasurement, target: LoadFolder) -> StoredLoad:
    """Write rows, records of requests and another tool's files (inference-perf) into a directory; return all rows,
    including those that are read from the tool's files.

    Raises:
        KitError: a file can't be written.
    """
    folder, results = target.folder, ReadResults(measurement.rows)
    try:
        if measurement.files:
            _write_files(measurement.files, folder / TOOL_FOLDER)
            results += read(folder / TOOL_FOLDER, target.hints)
        write_rows(results.rows, folder / ROWS_FILE)
        if measurement.stages:
            write_file(folder / REQUESTS_FILE, *(stage.records for stage in measurement.stages))
    except OSError as error:
        raise KitError(f"{error.filename or folder} can't be written: {error.strerror}") from error
    return StoredLoad(results)


def _write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write files at their relative paths in a directory.

    Raises:
        KitError: a path leads out of the directory.
    """
    for name, text in files.items():
        with safe_names("The pod's result"):
            path = inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class PodResults:
    """Results that the pods of a load published; `missing` maps the index of each pod without result to the reason."""

    pods: tuple[PodResult, ...]
    missing: Mapping[int, str]
    interrupted: bool = False


def new_name(model: str) -> str:
    """Return a new name for a load Job of a model, short enough for the names of its pods."""
    return f"load-{model}-{secrets.token_hex(3)}"


class LoadJobs(ClusterJobs):
    """Execution of Jobs that send load to a model."""

    @contextmanager
    def send(self, place: JobSettings, request: LoadRequest) -> Generator[PodResults]:
        """Send a load from `request.parallelism` pods; yield the results of the pods, and delete the Job after the
        block, which should store them.

        The load begins once the generators of all pods are ready. The failure of a pod after that doesn't affect the
        results of others. On Ctrl-C the pods publish what they have measured.

        Raises:
            KitError: a pod doesn't become ready, or no pod published a result.
        """
        manifest = jobs.load_job(place, request, bench_jobs())
        with self.running(manifest, lambda uid: jobs.load_objects(place, request, uid)) as uid:
            self.await_pods(place, request.parallelism)
            self._await_generators(place, request)
            self.create([jobs.start_config_map(place, request, uid)])
            self.progress.step(f"{request.parallelism} pods begin together in {LEAD_S:.0f} s")
            yield self._collected(place, request, self._failure_of(place, LEAD_S + request.limit_s + STOPPING_S))

    def _await_generators(self, place: JobSettings, request: LoadRequest) -> None:
        """Wait until each pod has created the ConfigMap by which it reports readiness.

        Raises:
            KitError: a pod fails, or isn't ready after `STARTING_S`.
        """
        unready = set(range(request.parallelism))

        def missing() -> str | None:
            self.refuse_failed(place)
            unready.difference_update([pod for pod in unready if self.config_map(place, request.ready_name(pod))])
            return f"pods {', '.join(map(str, sorted(unready)))} are not ready to send" if unready else None

        self.await_that(place, missing, STARTING_S, "for the generators")

    def _failure_of(self, place: JobSettings, limit_s: float) -> KitError | KeyboardInterrupt | None:
        """Wait for the Job's end; return None if it succeeded, otherwise the error, or the interrupt after which the
        pods were ended.
        """
        try:
            self.await_end(place, limit_s)
        except KeyboardInterrupt as interrupt:
            self.progress.step("interrupted: the pods publish what they have measured; once more gives it up")
            self.stop(place, STOPPING_S)
            return interrupt
        except KitError as error:
            return error
        return None

    @contextmanager
    def run_tool(self, place: JobSettings, config: str, limit_s: float) -> Generator[Mapping[str, str]]:
        """Run inference-perf with a configuration (YAML); yield its files by relative path, and delete the Job after
        the block.

        Raises:
            KitError: the Job fails or takes too long, or leaves no complete result.
        """
        manifest = jobs.tool_job(place, inference_perf(), bench_jobs(), limit_s)
        with self.running(manifest, lambda uid: jobs.tool_objects(place, config, uid)):
            try:
                self.await_end(place, limit_s + STARTING_S)
            except KitError as error:
                if any(texts(metadata(pod), "annotations").get(SIMULATED_ANNOTATION) for pod in self.pods(place)):
                    raise KitError("inference-perf did not run: a rehearsal has no program for its image.") from error
                raise
            content = self._content(place, 0)
            if content is None:
                raise KitError(f"Job {place.job} left no result, or not all of it.")
            yield _texts(content)

    def _collected(
        self, place: JobSettings, request: LoadRequest, failure: KitError | KeyboardInterrupt | None
    ) -> PodResults:
        contents = [self._content(place, pod) for pod in range(request.parallelism)]
        results = tuple(unpack(content) for content in contents if content is not None)
        if not results:
            raise failure or KitError(f"No pod of Job {place.job} left a result.")
        lost = [pod for pod, content in enumerate(contents) if content is None]
        pods = self.pods(place) if lost else ()
        indexes = ((texts(metadata(pod), "annotations").get(INDEX_ANNOTATION), pod) for pod in pods)
        why = {int(index): why_ended(pod) for index, pod in indexes if index is not None}
        missing = {pod: why.get(pod, "it is gone") for pod in lost}
        return PodResults(results, missing, isinstance(failure, KeyboardInterrupt))

    def _content(self, place: JobSettings, pod: int) -> bytes | None:
        """Return the result that a pod published in ConfigMaps; None if a part of it is missing."""
        parts = [self.config_map(place, f"{place.job}-{pod}-0")]
        if parts[0] is not None:
            rest = range(1, count_of(parts[0].annotations))
            parts += [self.config_map(place, f"{place.job}-{pod}-{chunk}") for chunk in rest]
        whole = [part.data.get(PART_KEY, b"") for part in parts if part is not None]
        return join_pieces(whole) if len(whole) == len(parts) else None


def _texts(content: bytes) -> Mapping[str, str]:
    """Parse the result of a tool's pod: files by relative path.

    Raises:
        KitError: the result has another form.
    """
    try:
        return _FILES.validate_json(content)
    except ValidationError as error:
        raise KitError(f"The pod's result is no set of files: {explain(error, 'result')}") from error


@dataclass(frozen=True)
class LoadOptions:
    """Options of a load in the notation of `llmd_bench.load.notation`. Lengths in tokens that are None are those of the
    model's workload.
    """

    shapes: tuple[str, ...]
    requests: int | None = None
    duration_s: float | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    parallelism: int = 1
    processes: int = 1
    trim: str = "none"
    seed: int = 0
    time_scale: float = 1.0
    request_timeout_s: float = 300.0


def load_request(plan: Plan, model: ModelPlan, options: LoadOptions, job: str) -> LoadRequest:
    """Return the request by which a Job runs the load.

    Raises:
        InvalidStack: the load can't be run; the exception has all problems.
        KitError: the load's notation can't be parsed, or the load is a trace, which only this machine can read.
    """
    if any(shape.startswith("trace:") for shape in options.shapes):
        raise KitError("A trace is read from this machine.", "Leave --in-cluster out, or give rates.")
    request = record(
        LoadRequest,
        options,
        namespace=plan.namespace,
        job=job,
        base_url=f"http://{model.name}.{plan.namespace}.svc.cluster.local",
        model=model.model.repository,
        input_tokens=options.input_tokens or str(model.workload.input_tokens),
        output_tokens=options.output_tokens or str(model.workload.output_tokens),
        run=uuid.uuid4().hex,
    )
    read_trim(request.trim)
    check(request.stages(), request.workload(), request.processes * request.parallelism)
    limit_s = sum((stage.duration_s or UNLIMITED_S) + GRACE_S for stage in request.stages())
    return replace(request, limit_s=limit_s * max(1.0, options.time_scale))


def in_cluster(
    plan: Plan, model: ModelPlan, options: LoadOptions, folder: LoadFolder, progress: Progress
) -> StoredLoad:
    """Send the load from pods, merge their results and store them.

    A second Job repeats the stages of which not all requests were sent (for example because pods are missing), and all
    stages if a model server restarted. Stages that fall short again have no row.

    Raises:
        InvalidStack: the load can't be run.
        KitError: the directory isn't writable, the cluster doesn't answer, or no pod published a result.
    """
    request = load_request(plan, model, options, new_name(model.name))
    access = ClusterAccess(plan.kubeconfig_context)
    jobs = LoadJobs(access.client, progress)
    with folder_for_results(folder.folder):
        before = running_servers(plan, model, access)
        with jobs.send(place_of(plan, request.job), request) as sent:
            stable = stability(before, running_servers(plan, model, access))
            merged = _merged(plan, model, request, sent, stable)
            stored = _keep(merged, folder, sent)
        short = [number for number, (stage, _) in enumerate(merged) if stage.shortfall]
        if not short or sent.interrupted:
            return stored
        progress.step(f"sending once more what fell short: {'; '.join(stored.unmeasured)}")
        again = replace(
            request,
            job=new_name(model.name),
            run=uuid.uuid4().hex,  # makes other prompts
            shapes=tuple(str(merged[number][0].stage.shape) for number in short),
            limit_s=request.limit_s * len(short) / len(request.stages()),
        )
        before = running_servers(plan, model, access)
        with jobs.send(place_of(plan, again.job), again) as sent:
            stable = stability(before, running_servers(plan, model, access))
            second = _merged(plan, model, again, sent, stable, [merged[number][0].shortfall for number in short])
            merged_again = dict(zip(short, second, strict=True))
            return _keep([merged_again.get(number, one) for number, one in enumerate(merged)], folder, sent)


def _keep(merged: Sequence[tuple[StageResult, Row | None]], folder: LoadFolder, sent: PodResults) -> StoredLoad:
    stages = tuple(stage for stage, _ in merged)
    stored = store_load(LoadMeasurement(tuple(row for _, row in merged if row), stages), folder)
    return replace(stored, interrupted=sent.interrupted, unmeasured=tuple(unmeasured(stages)))


def _merged(
    plan: Plan,
    model: ModelPlan,
    request: LoadRequest,
    sent: PodResults,
    stable: Stability,
    first_tries: Sequence[str | None] = (),
) -> list[tuple[StageResult, Row | None]]:
    """Return the merged stages of a load, each with its row, None if the stage fell short. For a second try,
    `first_tries` has the shortfall of each stage's first try.
    """
    stages = [mark_restarts(stage, stable) for stage in pod_load.merge(request, sent.pods)]
    if first_tries:
        stages = [replace(stage, second_try_because=why) for stage, why in zip(stages, first_tries, strict=True)]
    lost = (f"pod {pod} left no result ({why})" for pod, why in sent.missing.items())
    notes = (f"sent by {request.parallelism} pods in the cluster", *lost, *pod_load.notes(sent.pods))
    how = sent.pods[0].how
    return [(stage, None if stage.shortfall else _row(plan, model, stage, how, request, notes)) for stage in stages]


def with_tool(plan: Plan, model: ModelPlan, options: LoadOptions, folder: LoadFolder, progress: Progress) -> StoredLoad:
    """Send the load by inference-perf from a pod, store its files and read their rows.

    Raises:
        KitError: inference-perf has no such load, the directory isn't writable, the cluster doesn't answer, or the Job
            fails.
    """
    job = new_name(model.name)
    request = load_request(plan, model, options, job)
    config = tool_config(model, request)
    access = ClusterAccess(plan.kubeconfig_context)
    jobs = LoadJobs(access.client, progress)
    with folder_for_results(folder.folder):
        before = running_servers(plan, model, access)
        with jobs.run_tool(place_of(plan, job), config, request.limit_s) as files:
            stable = stability(before, running_servers(plan, model, access))
            stored = store_load(LoadMeasurement((), files=files), folder)
            disturbed = (str(stable),) if stable.restarted else ()
            return replace(stored, unmeasured=(*_short_of(request, stored.found.rows), *disturbed))


def _short_of(request: LoadRequest, measured: Sequence[Row]) -> Iterator[str]:
    """Yield a text if a tool sent fewer requests than its only stage has. For random arrivals nothing is expected, as
    their number isn't known beforehand.
    """
    (stage,) = request.stages()
    rate = stage.shape.requests_per_s if isinstance(stage.shape, ConstantRate) else 0.0
    expected = stage.requests or MIN_SENT_SHARE * rate * (stage.duration_s or 0.0)
    sent = sum(row.requests or 0 for row in measured)
    if not measured or sent < expected:
        yield f"{stage.name}: {sent} of {stage.requests or rate * (stage.duration_s or 0.0):.0f} requests were sent"


def tool_config(model: ModelPlan, request: LoadRequest) -> str:
    """Return inference-perf's configuration file (YAML) for a load.

    Raises:
        KitError: inference-perf has no such load.
    """
    stages, workload, tool = request.stages(), request.workload(), inference_perf()
    if len(stages) != 1:
        raise KitError("inference-perf is given one stage at a time here.", "Give one value: constant:45")
    (stage,) = stages
    load = ToolLoad(
        base_url=request.base_url,
        model=request.model,
        shape=stage.shape,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        duration_s=stage.duration_s,
        requests=stage.requests,
        seed=request.seed,
    )
    workers = 1
    if isinstance(stage.shape, ConstantRate | PoissonRate):
        workers = max(1, min(tool.most_workers, math.ceil(stage.shape.requests_per_s / tool.requests_per_worker)))
    document = config(
        load,
        results=RESULTS_FOLDER,
        tokenizer=model.model.repository,
        workers=workers,
        worker_concurrency=tool.worker_max_concurrency,
    )
    return yaml.safe_dump(document, sort_keys=False)


def manifests(plan: Plan, model: ModelPlan, options: LoadOptions, tool: str) -> list[Manifest]:
    """Return the manifests of a load's Job and of its ConfigMaps, without creating them; `tool` is `own` or
    `inference-perf`.

    Raises:
        InvalidStack: the load can't be run.
        KitError: the tool has no such load.
    """
    job = new_name(model.name)
    request, place = load_request(plan, model, options, job), place_of(plan, job)
    if tool == "own":
        return [jobs.load_job(place, request, bench_jobs()), *jobs.load_objects(place, request, UNKNOWN_UID)]
    text = tool_config(model, request)
    job_manifest = jobs.tool_job(place, inference_perf(), bench_jobs(), request.limit_s)
    return [job_manifest, *jobs.tool_objects(place, text, UNKNOWN_UID)]


def _row(
    plan: Plan, model: ModelPlan, stage: StageResult, how: RunContext, request: LoadRequest, notes: Sequence[str]
) -> Row:
    return rows.stage_row(
        stage,
        model=model_name(model.model.repository),
        gpu=plan.pools[0].shape.gpu.product,
        gpus_counted=model.gpus,
        basis=how.basis_of(model.model.repository),
        topology=str(model.topology),
        copies=len(model.units),
        **conditions(plan, model),
        max_num_seqs=model.max_num_seqs,
        price_usd_per_hour=round(plan.price_usd_per_hour * model.gpus / plan.gpus, 2),
        seed=request.seed,
        run=request.run,
        config_hash=plan.config_hash,
        notes=notes,
    )
