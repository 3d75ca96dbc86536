"""A load that several pods send together: the request for each pod, and the merge of their results.

Times are transferred in whole microseconds. Records are merged, not statistics, so quantiles of the whole load are
exact.
"""

import json
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import Any

from llmd_base.config_maps import MAX_CHUNKS, pieces
from llmd_base.errors import KitError
from llmd_base.records import document
from pydantic import TypeAdapter

from llmd_bench import run_context
from llmd_bench.load.notation import read_length, read_shapes, read_trim
from llmd_bench.load.records import Failure, Health, RequestRecord, delay_of, percentile, spoiled_reason, window_of
from llmd_bench.load.sending import Share
from llmd_bench.load.stages import LoadStage, StageConditions, StageResult
from llmd_bench.load.workload import ClosedLoop, RequestWorkload
from llmd_bench.run_context import RunContext


@dataclass(frozen=True)
class LoadRequest:
    """Load that the pods of a Job send together. Shapes, lengths and trim are in the notation of
    `llmd_bench/load/notation.py`.

    - Each shape is a stage that ends after `requests` or `duration_s` (simulated seconds), whichever comes first.
    - `seed` and `run` determine the prompts; they are equal for all pods, each of which sends other prompts of the
      common sequence.
    - `parallelism` is the number of pods, `processes` the number of processes per pod.
    - `limit_s` and `request_timeout_s` are wall time.
    """

    namespace: str
    job: str
    base_url: str
    model: str
    shapes: tuple[str, ...]
    requests: int | None
    duration_s: float | None
    input_tokens: str
    output_tokens: str
    seed: int
    run: str
    parallelism: int = 1
    processes: int = 1
    trim: str = "none"
    rest_s: float = 0.0
    limit_s: float = 600.0
    request_timeout_s: float = 300.0

    def stages(self) -> list[LoadStage]:
        """Return the stages, one for each value of each shape.

        Raises:
            KitError: a shape is invalid.
        """
        shapes = [shape for text in self.shapes for shape in read_shapes(text, self.seed)]
        return [LoadStage(shape, self.requests, self.duration_s) for shape in shapes]

    def workload(self) -> RequestWorkload:
        """Return the workload that all pods share.

        Raises:
            KitError: a length is invalid.
        """
        return RequestWorkload(read_length(self.input_tokens), read_length(self.output_tokens), self.seed, self.run)

    def conditions(
        self, pod: int, time_scale: float, start_at: Callable[[], Awaitable[float]] | None
    ) -> StageConditions:
        """Return the conditions of pod number `pod`. `start_at` is awaited once the pod is ready, and returns the start
        time in seconds since the Unix epoch.
        """
        return StageConditions(
            time_scale=time_scale,
            trim=read_trim(self.trim),
            rest_s=self.rest_s,
            request_timeout_s=self.request_timeout_s,
            share=Share(pod, self.parallelism),
            start_at=start_at,
        )

    @property
    def start_name(self) -> str:
        """Name of the ConfigMap whose creation starts the load."""
        return f"{self.job}-start"

    def ready_name(self, pod: int) -> str:
        """Return the name of the ConfigMap that signals that a pod is ready to start."""
        return f"{self.job}-{pod}-ready"

    def part_name(self, pod: int, chunk: int) -> str:
        """Return the name of the ConfigMap with piece number `chunk` of a pod's result."""
        return f"{self.job}-{pod}-{chunk}"

    def to_json(self) -> str:
        """Return the load request as JSON text, which `from_json` reads."""
        return _REQUEST.dump_json(self, indent=1).decode()


_REQUEST = TypeAdapter(LoadRequest)


def from_json(text: str | bytes) -> LoadRequest:
    """Return the load request from the JSON text that `LoadRequest.to_json` wrote."""
    return _REQUEST.validate_json(text)


_MICRO = 1_000_000

_HEALTH = TypeAdapter(Health)

LATEST_START_S = 1.0
"""Maximum seconds between the first and the last pod's start of a stage without a remark in the result."""


@dataclass(frozen=True)
class PodStage:
    """Result of one stage of load in one pod; times are simulated seconds (wall seconds / time scale).

    Attributes:
        records: records of the pod's requests.
        health: health of the pod's load generator.
        started: start of the stage by the pod's clock; None if the stage didn't start.
        interrupted: whether the run was ended before the stage was complete.
        shortfall: reason why the pod didn't send its whole share; None if it did.
        thinned: whether the times of single tokens were left out.
    """

    records: tuple[RequestRecord, ...]
    health: Health
    started: datetime | None
    interrupted: bool
    shortfall: str | None = None
    thinned: bool = False


@dataclass(frozen=True)
class PodResult:
    """Results of all stages of a load in one pod, with the pod's run context."""

    how: RunContext
    parts: tuple[PodStage, ...]


def pack(how: RunContext, results: Sequence[StageResult]) -> list[bytes]:
    """Return a pod's results as compressed pieces for ConfigMaps; if there are too many, the times of single tokens are
    left out.

    Raises:
        KitError: the result without these times still has too many pieces.
    """
    for thinned in (False, True):
        parts = pieces(_encoded(how, results, thinned=thinned))
        if len(parts) <= MAX_CHUNKS:
            return parts
    raise KitError(f"{sum(len(result.records) for result in results)} requests are too many for one pod's ConfigMaps.")


def unpack(content: bytes) -> PodResult:
    """Return a pod's result from the joined content of its pieces.

    Raises:
        KitError: the content is no result.
    """
    try:
        document = json.loads(content)
        return PodResult(run_context.from_text(document["run_context"]), tuple(map(_part, document["stages"])))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise KitError(f"A pod's result can't be read: {error!r:.200}") from error


def _part(stage: Mapping[str, Any]) -> PodStage:
    return PodStage(
        records=tuple(map(_record, stage["records"])),
        health=_HEALTH.validate_python(stage["health"]),
        started=datetime.fromisoformat(stage["started"]) if stage["started"] else None,
        interrupted=stage["interrupted"],
        shortfall=stage["shortfall"],
        thinned=stage["thinned"],
    )


def merge(request: LoadRequest, pods: Sequence[PodResult]) -> list[StageResult]:
    """Merge the results of all pods, and return one result per stage of the whole load. Request times of a pod that
    started later are shifted by its delay. A stage is no measurement (it has a `shortfall`) if pods are missing or sent
    less than their shares.
    """
    stages, time_scale = request.stages(), pods[0].how.time_scale
    missing = request.parallelism - len(pods)
    return [
        _merged(request, stage, [pod.parts[number] for pod in pods if number < len(pod.parts)], time_scale, missing)
        for number, stage in enumerate(stages)
    ]


def notes(pods: Sequence[PodResult]) -> Iterator[str]:
    """Yield remarks on the validity of the merged result of several pods."""
    if any(part.thinned for pod in pods for part in pod.parts):
        yield "times of single tokens were left out: too many for ConfigMaps"
    for number, parts in enumerate(zip(*(pod.parts for pod in pods), strict=False), 1):
        starts = [part.started for part in parts if part.started]
        apart_s = (max(starts) - min(starts)).total_seconds() if starts else 0.0
        if apart_s > LATEST_START_S:
            yield f"pods began stage {number} within {apart_s:.1f} s of each other"


def _merged(
    request: LoadRequest, stage: LoadStage, parts: Sequence[PodStage], time_scale: float, missing: int
) -> StageResult:
    starts = [part.started for part in parts if part.started]
    began = min(starts, default=None)
    records = sorted(
        (record for part in parts for record in _shifted(part, began, time_scale)), key=lambda record: record.index
    )
    result = StageResult(
        stage=stage,
        records=tuple(records),
        health=_merged_health(records, parts, stage, time_scale),
        window=window_of(records, stage.shape, read_trim(request.trim)),
        started=began,
        wall_s=time_scale * max((record.ended_s for record in records), default=0.0),
        interrupted=any(part.interrupted for part in parts),
    )
    return replace(result, shortfall="; ".join(_short_of(request.parallelism, missing, parts, result)) or None)


def _short_of(pods: int, missing: int, parts: Sequence[PodStage], merged: StageResult) -> Iterator[str]:
    """Yield the reasons why a stage isn't the requested load: missing pods, or pods that didn't send their whole share.
    All `pods` pods have equal shares.
    """
    if missing:
        yield f"{missing} of {pods} pods left no result: {missing / pods:.0%} of the load is missing"
    if absent := pods - missing - len(parts):
        yield f"not reached by {absent} of {pods} pods"
    yield from dict.fromkeys(part.shortfall for part in parts if part.shortfall)
    if parts and not (merged.counted and merged.window.duration_s):
        yield f"nothing was sent in what counts ({merged.window.rule})"


def _shifted(part: PodStage, began: datetime | None, time_scale: float) -> Iterable[RequestRecord]:
    late_s = (part.started - began).total_seconds() / time_scale if part.started and began else 0.0
    if not late_s:
        return part.records
    return (
        replace(
            record,
            started_s=record.started_s + late_s,
            due_s=None if record.due_s is None else record.due_s + late_s,
        )
        for record in part.records
    )


def _merged_health(
    records: Sequence[RequestRecord], merged: Sequence[PodStage], stage: LoadStage, time_scale: float
) -> Health:
    """Merge the health of the pods' load generators: slip is recomputed over all requests; the event loop's lag is the
    worst pod's, since only summaries of it are transferred.
    """
    parts = [part.health for part in merged]
    is_open = not isinstance(stage.shape, ClosedLoop)
    lags = [part.loop_lag_ms for part in parts if part.loop_lag_ms]
    health = Health(
        slip_ms=delay_of([time_scale * record.slip_s for record in records if record.slip_s is not None]),
        loop_lag_ms=max(lags, key=lambda lag: lag.p99, default=None),
        cpu_share=tuple(share for part in parts for share in part.cpu_share),
        offered_requests_per_s=_sum(part.offered_requests_per_s for part in parts) if is_open else None,
        sent_requests_per_s=_sum(part.sent_requests_per_s for part in parts) if is_open else None,
        abandoned=sum(part.abandoned for part in parts),
    )
    ttfts_ms = sorted(1000 * record.ttft_s * time_scale for record in records if record.ttft_s is not None)
    reasons = [
        spoiled_reason(health, percentile(ttfts_ms, 50) if ttfts_ms else None),
        *(part.spoiled for part in parts),
    ]
    return replace(health, spoiled="; ".join(dict.fromkeys(text for text in reasons if text)) or None)


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _encoded(how: RunContext, results: Sequence[StageResult], *, thinned: bool) -> bytes:
    stages = [
        document(
            "records health started interrupted shortfall",
            result,
            records=[_fields(record.thinned() if thinned else record) for record in result.records],
            health=asdict(result.health),
            started=result.started.isoformat() if result.started else None,
            thinned=thinned,
        )
        for result in results
    ]
    return json.dumps({"run_context": how.to_text(), "stages": stages}, separators=(",", ":")).encode()


def _fields(record: RequestRecord) -> list[Any]:
    times = [_whole(time_s) or 0 for time_s in record.event_times_s]
    gaps = [later - earlier for earlier, later in zip([0, *times], times, strict=False)]
    return [
        record.index,
        _whole(record.due_s),
        _whole(record.started_s),
        _whole(record.latency_s),
        record.input_tokens,
        record.output_tokens,
        record.counted_by_server,
        record.failure,
        record.error,
        record.status,
        record.retry_after_s,
        record.only_ends,
        gaps,
    ]


def _record(fields: Sequence[Any]) -> RequestRecord:
    index, due, sent, latency, asked, answered, counted, failure, error, status, retry_after_s, ends, gaps = fields
    return RequestRecord(
        index=index,
        started_s=sent / _MICRO,
        latency_s=latency / _MICRO,
        event_times_s=array("d", (time / _MICRO for time in accumulate(gaps))),
        input_tokens=asked,
        output_tokens=answered,
        counted_by_server=counted,
        failure=Failure(failure) if failure else None,
        error=error,
        due_s=None if due is None else due / _MICRO,
        status=status,
        retry_after_s=retry_after_s,
        only_ends=ends,
    )


def _whole(time_s: float | None) -> int | None:
    return None if time_s is None else round(time_s * _MICRO)
