"""Load on one model of a deployed stack from inside its cluster, by our generator or by another tool."""

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.deployment.metrics import Stability, stability
from llmd_oke.bench.in_cluster import load_result
from llmd_oke.bench.in_cluster.inference_perf import ToolLoad, config
from llmd_oke.bench.in_cluster.load_request import LoadRequest
from llmd_oke.bench.load.checks import check
from llmd_oke.bench.load.stage import Stage, StageResult, undisturbed, unmeasured
from llmd_oke.bench.load.texts import read_trim
from llmd_oke.bench.records.health import LEAST_SENT_SHARE
from llmd_oke.bench.reporting import rows
from llmd_oke.bench.workload.shapes import ConstantRate, PoissonRate
from llmd_oke.catalogue.bench_jobs import bench_jobs, inference_perf
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_access import ClusterAccess
from llmd_oke.experiments.deployed.kept_loads import Keeping, Kept, Measured, folder_for_results, keep
from llmd_oke.experiments.deployed.load_jobs import LoadJobs, Sent, new_name
from llmd_oke.experiments.deployed.smoke import running_servers
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.progress import Progress
from llmd_oke.results.row import Row
from llmd_oke.serving import load_jobs
from llmd_oke.serving.load_jobs import RESULTS_FOLDER
from llmd_oke.serving.operation_jobs import Place
from llmd_oke.stack.smoke import conditions
from llmd_oke.stack.taints import node_taints

GRACE_S = 120.0
"""For the last answers of a stage."""

UNKNOWN_UID = "known-once-the-job-is-there"

UNLIMITED_S = 3600.0
"""Limit of a stage that ends after a number of requests."""


@dataclass(frozen=True)
class Asked:
    """A load in the notation of `bench/load/texts.py`; lengths are the model's workload's where they are None."""

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


def load_request(plan: Plan, model: ModelPlan, asked: Asked, job: str) -> LoadRequest:
    """The load as a Job gets it.

    Raises:
        Refused: it can't be run; carries everything that is wrong.
        KitError: something of it can't be read.
    """
    if any(shape.startswith("trace:") for shape in asked.shapes):
        raise KitError("A trace is read from this machine.", "Leave --in-cluster out, or give rates.")
    request = LoadRequest(
        namespace=plan.namespace,
        job=job,
        base_url=f"http://{model.name}.{plan.namespace}.svc.cluster.local",
        model=model.model.repository,
        shapes=asked.shapes,
        requests=asked.requests,
        duration_s=asked.duration_s,
        input_tokens=asked.input_tokens or str(model.workload.input_tokens),
        output_tokens=asked.output_tokens or str(model.workload.output_tokens),
        seed=asked.seed,
        run=uuid.uuid4().hex,
        parallelism=asked.parallelism,
        processes=asked.processes,
        trim=asked.trim,
        request_timeout_s=asked.request_timeout_s,
    )
    read_trim(request.trim)
    check(request.stages(), request.workload(), request.processes * request.parallelism)
    return replace(request, limit_s=_limit_s(request) * max(1.0, asked.time_scale))


def in_cluster(plan: Plan, model: ModelPlan, asked: Asked, keeping: Keeping, progress: Progress) -> Kept:
    """Sends the load from pods, merges what they measured and keeps it. Stages of which not all was sent, because pods
    are missing for example, are sent once more by a second Job, as are all where a model server restarted; what falls
    short then too has no row.

    Raises:
        Refused: the load can't be run.
        KitError: the folder can't be written, the cluster does not answer, or no pod left a result.
    """
    request = load_request(plan, model, asked, new_name(model.name))
    access = ClusterAccess(plan.kubeconfig_context)
    jobs = LoadJobs(access.client, progress)
    with folder_for_results(keeping.folder):
        before = running_servers(plan, model, access)
        with jobs.send(place_of(plan, request.job), request) as sent:
            stable = stability(before, running_servers(plan, model, access))
            merged = _merged(plan, model, request, sent, stable)
            kept = _keep(merged, keeping, sent)
        short = [number for number, (stage, _) in enumerate(merged) if stage.shortfall]
        if not short or sent.interrupted:
            return kept
        progress.step(f"sending once more what fell short: {'; '.join(kept.unmeasured)}")
        again = _again(model, request, [merged[number][0].stage for number in short])
        before = running_servers(plan, model, access)
        with jobs.send(place_of(plan, again.job), again) as sent:
            stable = stability(before, running_servers(plan, model, access))
            second = _merged(plan, model, again, sent, stable, [merged[number][0].shortfall for number in short])
            merged_again = dict(zip(short, second, strict=True))
            return _keep([merged_again.get(number, one) for number, one in enumerate(merged)], keeping, sent)


def _again(model: ModelPlan, request: LoadRequest, stages: Sequence[Stage]) -> LoadRequest:
    """A request for some of a request's stages, which all have the same limit, with other prompts."""
    limit_s = request.limit_s * len(stages) / len(request.stages())
    shapes = tuple(str(stage.shape) for stage in stages)
    return replace(request, job=new_name(model.name), run=uuid.uuid4().hex, shapes=shapes, limit_s=limit_s)


def _keep(merged: Sequence[tuple[StageResult, Row | None]], keeping: Keeping, sent: Sent) -> Kept:
    stages = tuple(stage for stage, _ in merged)
    kept = keep(Measured(tuple(row for _, row in merged if row), stages), keeping)
    return replace(kept, interrupted=sent.interrupted, unmeasured=tuple(unmeasured(stages)))


def _merged(
    plan: Plan,
    model: ModelPlan,
    request: LoadRequest,
    sent: Sent,
    stable: Stability,
    first_tries: Sequence[str | None] = (),
) -> list[tuple[StageResult, Row | None]]:
    """The stages of a load with their rows, None for those that are no measurement; `first_tries` has what those of an
    earlier try fell short by.
    """
    stages = [undisturbed(stage, stable) for stage in load_result.merge(request, sent.pods)]
    if first_tries:
        stages = [replace(stage, second_try_because=why) for stage, why in zip(stages, first_tries, strict=True)]
    lost = (f"pod {pod} left no result ({why})" for pod, why in sent.missing.items())
    notes = (f"sent by {request.parallelism} pods in the cluster", *lost, *load_result.notes(sent.pods))
    how = sent.pods[0].how
    return [(stage, None if stage.shortfall else _row(plan, model, stage, how, request, notes)) for stage in stages]


def with_tool(plan: Plan, model: ModelPlan, asked: Asked, keeping: Keeping, progress: Progress) -> Kept:
    """Has inference-perf send the load from a pod, keeps its files and reads them.

    Raises:
        KitError: it has no such load, the folder can't be written, the cluster does not answer, or the Job fails.
    """
    job = new_name(model.name)
    request = load_request(plan, model, asked, job)
    config = tool_config(model, request)
    access = ClusterAccess(plan.kubeconfig_context)
    jobs = LoadJobs(access.client, progress)
    with folder_for_results(keeping.folder):
        before = running_servers(plan, model, access)
        with jobs.run_tool(place_of(plan, job), config, request.limit_s) as files:
            stable = stability(before, running_servers(plan, model, access))
            kept = keep(Measured((), files=files), keeping)
            disturbed = (str(stable),) if stable.restarted else ()
            return replace(kept, unmeasured=(*_short_of(request, kept.found.rows), *disturbed))


def _short_of(request: LoadRequest, measured: Sequence[Row]) -> Iterator[str]:
    """What a tool should have sent and did not; how many a random rate comes to is not known beforehand."""
    (stage,) = request.stages()
    rate = stage.shape.requests_per_s if isinstance(stage.shape, ConstantRate) else 0.0
    asked = stage.requests or LEAST_SENT_SHARE * rate * (stage.duration_s or 0.0)
    sent = sum(row.requests or 0 for row in measured)
    if not measured or sent < asked:
        yield f"{stage.name}: {sent} of {stage.requests or rate * (stage.duration_s or 0.0):.0f} requests were sent"


def tool_config(model: ModelPlan, request: LoadRequest) -> str:
    """inference-perf's configuration file.

    Raises:
        KitError: it has no such load.
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
    told = config(
        load,
        results=RESULTS_FOLDER,
        tokenizer=model.model.repository,
        workers=_workers(stage),
        worker_concurrency=tool.worker_max_concurrency,
    )
    return yaml.safe_dump(told, sort_keys=False)


def manifests(plan: Plan, model: ModelPlan, asked: Asked, tool: str) -> list[dict[str, Any]]:
    """Everything that a Job would consist of.

    Raises:
        Refused: the load can't be run.
        KitError: the tool has no such load.
    """
    job = new_name(model.name)
    request, place = load_request(plan, model, asked, job), place_of(plan, job)
    if tool == "own":
        return [load_jobs.load_job(place, request, bench_jobs()), *load_jobs.load_objects(place, request, UNKNOWN_UID)]
    told = tool_config(model, request)
    made = load_jobs.tool_job(place, inference_perf(), bench_jobs(), request.limit_s)
    return [made, *load_jobs.tool_objects(place, told, UNKNOWN_UID)]


def place_of(plan: Plan, job: str) -> Place:
    """Where the pods of a model's load run."""
    return Place(plan.namespace, job, plan.release.vllm.image, plan.pools[0].shape, tuple(node_taints(plan)))


def _workers(stage: Stage) -> int:
    tool = inference_perf()
    if not isinstance(stage.shape, ConstantRate | PoissonRate):
        return 1
    return max(1, min(tool.most_workers, math.ceil(stage.shape.requests_per_s / tool.requests_per_worker)))


def _limit_s(request: LoadRequest) -> float:
    return sum((stage.duration_s or UNLIMITED_S) + GRACE_S for stage in request.stages())


def _row(
    plan: Plan, model: ModelPlan, stage: StageResult, how: Circumstances, request: LoadRequest, notes: Sequence[str]
) -> Row:
    return rows.stage_row(
        stage,
        model=model.model.repository,
        gpu=plan.pools[0].shape.gpu.product,
        gpus_counted=model.gpus,
        basis=how.basis,
        topology=str(model.topology),
        copies=len(model.units),
        **conditions(plan, model),
        max_num_seqs=model.engine.max_num_seqs,
        price_usd_per_hour=round(plan.price_usd_per_hour * model.gpus / plan.gpus, 2),
        seed=request.seed,
        run=request.run,
        config_hash=plan.config_hash,
        notes=notes,
    )
