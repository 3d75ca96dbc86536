"""The result of a smoke benchmark on its way out of a cluster: a ConfigMap with all of it, and a few last words.

A ConfigMap may have 1 MiB, a container's termination message 4096 bytes.
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.deployment.metrics import Snapshot
from llmd_oke.bench.evals.result import Examined
from llmd_oke.bench.in_cluster.parcels import MOST_BYTES, unpacked
from llmd_oke.bench.records.performance import Performance
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.reporting.files import to_yaml
from llmd_oke.bench.reporting.report import build_report
from llmd_oke.bench.reporting.summary import summarize_result
from llmd_oke.bench.smoke.evidence import ApiAnswer, RemotePrefill
from llmd_oke.bench.smoke.request import SmokeRequest
from llmd_oke.bench.smoke.resolving import bare_plan
from llmd_oke.bench.smoke.smoke import SmokeResult
from llmd_oke.bench.smoke.thresholds import Verdict
from llmd_oke.errors import KitError

RESULT_KEY = "result.json.gz"
SUMMARY_KEY = "summary.json"
REPORT_KEY = "report.yaml"

LARGEST_BYTES = 600_000
"""Of the compressed result: with base64's third on top, and report and summary beside it, under 1 MiB."""

LONGEST_WORDS_BYTES = 4096
"""Kubernetes' limit of a termination message."""


@dataclass(frozen=True)
class _Packed:
    """A result without the addresses that it was measured at."""

    request: SmokeRequest
    circumstances: Circumstances
    run: str
    started: datetime
    ended: datetime
    wall_s: float
    records: tuple[RequestRecord, ...]
    performance: Performance
    remote_prefill: RemotePrefill | None
    verdict: Verdict
    notes: tuple[str, ...]
    first_answer: datetime | None = None
    other_apis: tuple[ApiAnswer, ...] = ()
    examined: Examined | None = None


_PACKED = TypeAdapter(_Packed)


@dataclass(frozen=True)
class Parcel:
    """The content of a result's ConfigMap: texts and, compressed, the result itself."""

    texts: Mapping[str, str]
    result: bytes


def pack(request: SmokeRequest, how: Circumstances, result: SmokeResult) -> Parcel:
    """The result of a request. The times of single tokens, then all requests, are left out where it grows too large;
    what was computed of them stays whole.
    """
    packed = _Packed(
        request=request,
        circumstances=how,
        run=result.run,
        started=result.started,
        ended=result.ended,
        wall_s=result.wall_s,
        records=tuple(replace(record, event_times_s=tuple(record.event_times_s)) for record in result.records),
        performance=result.performance,
        remote_prefill=result.remote_prefill,
        verdict=result.verdict,
        notes=result.notes,
        first_answer=result.first_answer,
        other_apis=result.other_apis,
        examined=result.examined,
    )
    texts = {
        SUMMARY_KEY: json.dumps(summarize_result(result), indent=1),
        REPORT_KEY: to_yaml(build_report(result)),
    }
    return Parcel(texts, next(small for small in map(_compressed, _smaller(packed)) if len(small) <= LARGEST_BYTES))


def unpack(compressed: bytes) -> SmokeResult:
    """The result that `pack` packed, without counters and addresses.

    Raises:
        KitError: it isn't one.
    """
    content = unpacked(compressed, MOST_BYTES)
    try:
        packed = _PACKED.validate_json(content or b"")
    except ValidationError as error:
        raise KitError(f"The result can't be read: {error}", "It was written by another version of the kit.") from error
    return SmokeResult(
        plan=bare_plan(packed.request, packed.circumstances),
        run=packed.run,
        started=packed.started,
        ended=packed.ended,
        wall_s=packed.wall_s,
        records=packed.records,
        performance=packed.performance,
        remote_prefill=packed.remote_prefill,
        verdict=packed.verdict,
        before=Snapshot(()),
        after=Snapshot(()),
        notes=packed.notes,
        first_answer=packed.first_answer,
        other_apis=packed.other_apis,
        examined=packed.examined,
    )


def last_words(service: str, result: SmokeResult) -> str:
    """The result in JSON of at most 4096 bytes, beginning with a sentence for people."""
    failed = result.verdict.failed
    performance = result.performance
    words: dict[str, object] = {
        "message": _sentence(service, result),
        "passed": result.passed,
        "failed": [check.name for check in failed],
        "requests": performance.requests,
        "failures": performance.failures,
        "output_tokens_per_s": round(performance.output_tokens_per_s, 1),
        "ttft_p95_ms": _milliseconds(performance.ttft.p95 if performance.ttft else None),
        "itl_p95_ms": _milliseconds(performance.itl.p95 if performance.itl else None),
        "remote_prefill_share": result.remote_prefill.share if result.remote_prefill else None,
        "numbers": result.plan.basis.value,
        "run": result.run,
    }
    return _fitting(words)


def failure_words(service: str, error: KitError) -> str:
    """What is left to say where nothing could be measured."""
    message = f"{service} could not be benchmarked: {' '.join(str(error).split())}"
    return _fitting({"message": message, "passed": False, "failed": ["no measurement"]})


def _sentence(service: str, result: SmokeResult) -> str:
    if result.passed:
        return f"{service} passed its smoke benchmark."
    missed = "; ".join(
        f"{check.name} {'unknown' if check.value is None else f'{check.value:.4g}'}, {check.bound} {check.limit:.4g} "
        f"{check.units} ({check.evidence})"
        for check in result.verdict.failed
    )
    stack = result.plan.facts.get("stack")
    more = f"llmd-oke smoke --fetch{f' --stack {stack}' if stack else ''}"
    return f"{service} failed its smoke benchmark: {'; '.join([missed, *result.excuses])}. The whole report: {more}"


def _fitting(words: Mapping[str, object]) -> str:
    text = json.dumps(words)
    over = len(text.encode()) - LONGEST_WORDS_BYTES
    if over <= 0:
        return text
    message = str(words["message"])
    return _fitting({**words, "message": f"{message[: max(len(message) - over - 4, 0)]} ..."})


def _milliseconds(value_s: float | None) -> float | None:
    return None if value_s is None else round(1000 * value_s, 2)


def _smaller(packed: _Packed) -> Sequence[_Packed]:
    def told(note: str, keep: Callable[[RequestRecord], RequestRecord] | None) -> _Packed:
        kept = tuple(map(keep, packed.records)) if keep else ()
        return replace(packed, records=kept, notes=(*packed.notes, note))

    return (
        packed,
        told("requests.jsonl: times of first and last token alone; all of them were too large", RequestRecord.thinned),
        told("requests.jsonl: left out; the requests were too large for a ConfigMap", None),
    )


def _compressed(packed: _Packed) -> bytes:
    return gzip.compress(_PACKED.dump_json(packed), mtime=0)
