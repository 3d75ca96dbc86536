"""Program of the Job that runs a model's smoke benchmark in its cluster.

Writes the result to a ConfigMap (limit 1 MiB) and a summary to the container's termination message (limit 4096 bytes).
The exit code is 0 if the model meets its limits, 1 if it doesn't or couldn't be measured.
"""

import base64
import gzip
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from llmd_base.cluster import InCluster, from_environment
from llmd_base.config_maps import JOB_ANNOTATION, LABEL, MAX_BYTES, gunzip, owned_metadata
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Ticker
from llmd_base.records import document
from pydantic import TypeAdapter, ValidationError

from llmd_bench import run_context
from llmd_bench.deployment import Snapshot
from llmd_bench.evals import BuiltinResult
from llmd_bench.evidence import AdapterAnswers, ApiAnswer, RemotePrefill
from llmd_bench.load.records import RequestRecord
from llmd_bench.performance import Performance
from llmd_bench.report import build_report, summarize_result, to_yaml
from llmd_bench.run_context import RunContext
from llmd_bench.smoke import SmokeResult, bare_plan, resolve, run_smoke
from llmd_bench.smoke_request import SmokeRequest, SmokeVerdict, from_json

RESULT_KEY = "result.json.gz"
SUMMARY_KEY = "summary.json"
REPORT_KEY = "report.yaml"

LARGEST_BYTES = 600_000
"""Maximum size of the compressed result in bytes: in base64 (a third larger), with report and summary, it fits into 1
MiB.
"""

LONGEST_WORDS_BYTES = 4096
"""Maximum length of a container's termination message in Kubernetes, in bytes."""


@dataclass(frozen=True)
class _Packed:
    """Serialized form of a `SmokeResult`, without the addresses of the deployment."""

    request: SmokeRequest
    context: RunContext
    run: str
    started: datetime
    ended: datetime
    wall_s: float
    records: tuple[RequestRecord, ...]
    performance: Performance
    remote_prefill: RemotePrefill | None
    verdict: SmokeVerdict
    notes: tuple[str, ...]
    first_answer: datetime | None = None
    other_apis: tuple[ApiAnswer, ...] = ()
    examined: BuiltinResult | None = None
    adapters: tuple[AdapterAnswers, ...] = ()


_PACKED = TypeAdapter(_Packed)
_COMMON = [name for name in _Packed.__dataclass_fields__ if name not in {"request", "context", "records"}]
"""Fields that `_Packed` and `SmokeResult` have in common."""


@dataclass(frozen=True)
class ConfigMapContent:
    """Content of the ConfigMap with a smoke benchmark's result: `data` by key, and the gzipped result."""

    texts: Mapping[str, str]
    result: bytes


def pack(request: SmokeRequest, how: RunContext, result: SmokeResult) -> ConfigMapContent:
    """Return the result as content of a ConfigMap. If the result is too large, the times of single tokens are left out,
    then all single requests; figures computed from them remain.
    """
    packed = _Packed(
        request=request,
        context=how,
        records=tuple(replace(record, event_times_s=tuple(record.event_times_s)) for record in result.records),
        **{name: getattr(result, name) for name in _COMMON},
    )
    texts = {
        SUMMARY_KEY: json.dumps(summarize_result(result), indent=1),
        REPORT_KEY: to_yaml(build_report(result)),
    }
    sizes = (gzip.compress(_PACKED.dump_json(smaller), mtime=0) for smaller in _smaller(packed))
    return ConfigMapContent(texts, next(compressed for compressed in sizes if len(compressed) <= LARGEST_BYTES))


def unpack(compressed: bytes) -> SmokeResult:
    """Return the result that `pack` compressed, without counters and addresses.

    Raises:
        KitError: the bytes are no such result.
    """
    content = gunzip(compressed, MAX_BYTES)
    try:
        packed = _PACKED.validate_json(content or b"")
    except ValidationError as error:
        raise KitError(f"The result can't be read: {error}", "It was written by another version of the kit.") from error
    return SmokeResult(
        plan=bare_plan(packed.request, packed.context),
        records=packed.records,
        before=Snapshot(()),
        after=Snapshot(()),
        **{name: getattr(packed, name) for name in _COMMON},
    )


def termination_message(service: str, result: SmokeResult) -> str:
    """Return a summary of the result as JSON of at most 4096 bytes, whose `message` is a sentence for people."""
    failed = result.verdict.failed
    performance = result.performance
    words = document(
        "message passed failed requests failures output_tokens_per_s ttft_p95_ms itl_p95_ms remote_prefill_share"
        " numbers run",
        result,
        performance,
        message=_sentence(service, result),
        failed=[check.name for check in failed],
        output_tokens_per_s=round(performance.output_tokens_per_s, 1),
        ttft_p95_ms=_milliseconds(performance.ttft.p95 if performance.ttft else None),
        itl_p95_ms=_milliseconds(performance.itl.p95 if performance.itl else None),
        remote_prefill_share=result.remote_prefill.share if result.remote_prefill else None,
        numbers=result.plan.basis.value,
    )
    return _fitting(words)


def failure_message(service: str, error: KitError) -> str:
    """Return the termination message of a smoke benchmark that ended with an error instead of a measurement."""
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


def _smaller(packed: _Packed) -> Iterator[_Packed]:
    yield packed
    note = "requests.jsonl: times of first and last token alone; all of them were too large"
    records = tuple(record.thinned() for record in packed.records)
    yield replace(packed, records=records, notes=(*packed.notes, note))
    note = "requests.jsonl: left out; the requests were too large for a ConfigMap"
    yield replace(packed, records=(), notes=(*packed.notes, note))


TERMINATION_LOG = Path("/dev/termination-log")

LOG_INTERVAL_S = 10.0
"""Minimum seconds between two log lines of the same phase of a smoke benchmark."""


def main() -> int:
    """Run the smoke benchmark; the arguments name the files with the `SmokeRequest` and with facts about the stack.
    Return the exit code.
    """
    request_file, facts_file = map(Path, sys.argv[1:])
    request = replace(from_json(request_file.read_bytes()), facts=json.loads(facts_file.read_text()))
    try:
        result = run(request, os.environ, from_environment(os.environ))
    except KitError as error:
        return _end(failure_message(request.service, error), 1)
    return _end(termination_message(request.service, result), 0 if result.passed else 1)


def run(request: SmokeRequest, environment: Mapping[str, str], cluster: InCluster) -> SmokeResult:
    """Run the benchmark and write its result to a ConfigMap that this pod's Job owns.

    Raises:
        KitError: the model is missing or doesn't answer, or the ConfigMap can't be written.
    """
    how = run_context.from_environment(environment)
    ticker = Ticker(PlainProgress(sys.stdout), LOG_INTERVAL_S)
    result = run_smoke(resolve(request, cluster, how), lambda news: ticker.tell(str(news), news.phase))
    cluster.apply(result_config_map(request, pack(request, how, result), environment))
    return result


def result_config_map(
    request: SmokeRequest, parcel: ConfigMapContent, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the ConfigMap for the result of a smoke benchmark that `pack` compressed, with summary and report; this
    pod's Job owns the ConfigMap.
    """
    job, uid = environment["JOB_NAME"], environment["JOB_UID"]
    labels, annotations = {LABEL: request.service}, {JOB_ANNOTATION: job}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned_metadata(environment["RESULT_NAME"], request.namespace, job, uid, labels, annotations),
        "data": dict(parcel.texts),
        "binaryData": {RESULT_KEY: base64.b64encode(parcel.result).decode()},
    }


def _end(words: str, code: int) -> int:
    print(words, flush=True)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(words)
    return code
