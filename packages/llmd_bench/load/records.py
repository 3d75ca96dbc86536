"""Records of requests that have ended, kinds of their failures, and the load generator's health meanwhile."""

import itertools
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError

from llmd_bench.load.workload import ClosedLoop, LoadShape


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the samples lie, interpolated linearly as numpy does by default.

    `ordered` must be ascending and not empty.
    """
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    below = ordered[low]
    above = ordered[min(low + 1, len(ordered) - 1)]
    between = below + (above - below) * (position - low)
    return min(max(between, below), above)


class Failure(StrEnum):
    """Kind of a request's failure."""

    ADDRESS = "address"
    """The name of the server could not be resolved."""
    CONNECTION = "connection"
    """The server could not be reached, or cut the connection before it answered."""
    TLS = "tls"
    """No trusted connection: a certificate that isn't accepted, or a server that speaks no TLS."""
    STATUS = "status"
    """The answer had another status than 200."""
    SERVER = "server"
    """The server reported an error inside the stream."""
    CUT = "cut"
    """The stream stopped before its end mark."""
    TIMEOUT = "timeout"
    """The answer did not end in time."""


STARTED_BUT_UNFINISHED = frozenset({Failure.CUT, Failure.TIMEOUT})
"""Failures of requests which the report format calls incomplete."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds; `event_times_s` and `latency_s` count from the request's own start.

    - `due_s` and `started_s` count from the start of the load: when the request should have been sent, and when it
      was. In a closed loop it is due when its user's last answer has ended.
    - `event_times_s` has the arrival of each stream event that carried output. A server may put several tokens in one
      event, so there can be fewer events than `output_tokens`, which is the server's own count where it gave one
      (`usage`).
    - `only_ends` says that of these times the first and the last alone were kept, so that gaps are not known.
    - `status` is that of the HTTP answer, and `retry_after_s` what the server asked for with it.
    """

    index: int
    started_s: float
    latency_s: float
    event_times_s: Sequence[float] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    counted_by_server: bool = False
    failure: Failure | None = None
    error: str | None = None
    due_s: float | None = None
    status: int | None = None
    retry_after_s: float | None = None
    only_ends: bool = False

    @property
    def succeeded(self) -> bool:
        """True if the answer came whole."""
        return self.failure is None

    @property
    def ended_s(self) -> float:
        """Moment at which the answer ended or the request failed, on the clock of `started_s`."""
        return self.started_s + self.latency_s

    @property
    def slip_s(self) -> float | None:
        """Seconds from when the request was due to when it was sent; None where it had no due time."""
        return None if self.due_s is None else self.started_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from the start of the request to the first output."""
        return self.event_times_s[0] if self.event_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: from first to last output, divided by the tokens after the first."""
        if self.output_tokens < 2 or len(self.event_times_s) < 2:
            return None
        return (self.event_times_s[-1] - self.event_times_s[0]) / (self.output_tokens - 1)

    @property
    def normalized_tpot_s(self) -> float | None:
        """The whole latency divided by the output tokens."""
        return self.latency_s / self.output_tokens if self.output_tokens else None

    @property
    def gaps_s(self) -> list[float]:
        """Time between successive events with output: what a reader waits for, as `vllm bench serve` counts it.

        Empty where they are not known.
        """
        if self.only_ends:
            return []
        return [later - earlier for earlier, later in itertools.pairwise(self.event_times_s)]

    def thinned(self) -> "RequestRecord":
        """Return the same request with the times of its first and last event alone, for where all of them are too
        many.
        """
        times = self.event_times_s
        return self if len(times) < 3 else replace(self, event_times_s=(times[0], times[-1]), only_ends=True)

    def in_model_time(self, time_scale: float) -> "RequestRecord":
        """Return the same request with its times divided by `time_scale`."""
        if time_scale == 1:
            return self
        return replace(
            self,
            started_s=self.started_s / time_scale,
            latency_s=self.latency_s / time_scale,
            event_times_s=array("d", [time / time_scale for time in self.event_times_s]),
            due_s=None if self.due_s is None else self.due_s / time_scale,
        )


LATEST_MS = 5.0
"""Lateness of the slowest hundredth of requests and of the loop's own ticks beyond which latencies are in doubt."""

LATEST_SHARE = 0.05
"""The same as a share of the median time to first token: what is slow anyway isn't spoiled by some milliseconds."""

MIN_SENT_SHARE = 0.97
"""Least share of the offered rate: a run that sent less was another run than the one asked for."""


@dataclass(frozen=True)
class Delay:
    """Distribution of lateness, in milliseconds."""

    mean: float
    p50: float
    p99: float
    max: float


def delay_of(late_s: Sequence[float]) -> Delay | None:
    """Summarise lateness in seconds; None without samples."""
    ordered = sorted(1000 * late for late in late_s)
    if not ordered:
        return None
    return Delay(sum(ordered) / len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


@dataclass(frozen=True)
class Health:
    """Health of the generator in one stage: whether what was measured is the server's doing or its own. All figures are
    of the wall clock, since it is this machine that is judged.

    - `slip_ms`: how much later than due requests were sent;
    - `loop_lag_ms`: how late its event loop woke up, which is how wrong its times can be;
    - `cpu_share`: of one core, for each process;
    - `offered_requests_per_s` and `sent_requests_per_s`: None in a closed loop, which offers no rate;
    - `abandoned`: requests that were given up because the run was interrupted; they have no record;
    - `spoiled`: why the figures of this stage say more of the generator than of the server, or None.
    """

    slip_ms: Delay | None = None
    loop_lag_ms: Delay | None = None
    cpu_share: tuple[float, ...] = ()
    offered_requests_per_s: float | None = None
    sent_requests_per_s: float | None = None
    abandoned: int = 0
    spoiled: str | None = None


def spoiled_reason(health: Health, median_ttft_ms: float | None) -> str | None:
    """Describe what spoiled a run; None where nothing did."""
    limit_ms = max(LATEST_MS, LATEST_SHARE * (median_ttft_ms or 0.0))
    problems = [
        f"{what} {delay.p99:.1f} ms late (p99, limit {limit_ms:.1f} ms)"
        for what, delay in (("requests were sent", health.slip_ms), ("its event loop was", health.loop_lag_ms))
        if delay and delay.p99 > limit_ms
    ]
    offered, sent = health.offered_requests_per_s, health.sent_requests_per_s
    if offered and sent is not None and sent < MIN_SENT_SHARE * offered:
        problems.append(f"{sent:.1f} of {offered:.1f} requests/s were sent")
    if not problems:
        return None
    busiest = f"; its busiest process took {max(health.cpu_share):.0%} of a core" if health.cpu_share else ""
    return "the load generator was too slow: " + ", ".join(problems) + busiest


_MEANING = {
    Failure.ADDRESS: "the name has no address here",
    Failure.CONNECTION: "nothing answers there, or it restarted",
    Failure.TLS: "the certificate is not trusted, or the port does not speak TLS",
    Failure.SERVER: "the server gave up while it answered",
    Failure.CUT: "a server or proxy ended while it answered",
    Failure.TIMEOUT: "the answer took longer than the limit",
}

_MEANING_OF_STATUS: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "credentials are missing or wrong",
    HTTPStatus.FORBIDDEN: "these credentials may not do this",
    HTTPStatus.NOT_FOUND: "no such model, or a wrong path in the address",
    HTTPStatus.TOO_MANY_REQUESTS: "the router or server sheds load",
    HTTPStatus.SERVICE_UNAVAILABLE: "no server is ready",
}


@dataclass(frozen=True)
class FailureClass:
    """One kind of failure: `example` is the first one's text, `longest_retry_after_s` the longest wait asked for."""

    kind: str
    count: int
    meaning: str
    example: str
    first_s: float
    longest_retry_after_s: float | None = None

    def __str__(self) -> str:
        wait = "" if self.longest_retry_after_s is None else f", Retry-After up to {self.longest_retry_after_s:g} s"
        return f"{self.count} x {self.kind} ({self.meaning}{wait}), first at {self.first_s:.1f} s: {self.example}"


def classify(records: Sequence[RequestRecord]) -> list[FailureClass]:
    """Return the kinds of failure among `records`, the most frequent first."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in sorted(records, key=lambda record: record.started_s):
        if record.failure is not None:
            kind = f"HTTP {record.status}" if record.failure is Failure.STATUS else str(record.failure)
            groups.setdefault(kind, []).append(record)
    classes: list[FailureClass] = []
    for kind, group in groups.items():
        first, waits = group[0], [record.retry_after_s for record in group if record.retry_after_s is not None]
        status = first.status or 0
        meaning = "the server failed" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "the request is refused"
        if first.failure is Failure.STATUS:
            meaning = _MEANING_OF_STATUS.get(status, meaning)
        elif first.failure:
            meaning = _MEANING[first.failure]
        example, longest_s = first.error or "", max(waits, default=None)
        classes.append(FailureClass(kind, len(group), meaning, example, first.started_s, longest_s))
    return sorted(classes, key=lambda failure: -failure.count)


@dataclass(frozen=True)
class Trim:
    """Parts of a stage that are not counted.

    - `warmup_s`: seconds of model time at its beginning;
    - `head_share` and `tail_share`: of the time in which requests were sent, after the warm-up;
    - `busy`: whatever lies before or after the time in which all users of a closed loop had a request in flight; of an
      open loop, before its first answer and after its last request.
    """

    warmup_s: float = 0.0
    head_share: float = 0.0
    tail_share: float = 0.0
    busy: bool = False


NOTHING_TRIMMED = Trim()


@dataclass(frozen=True)
class MeasuredWindow:
    """The part of a stage that counts, in seconds after its start; `rule` says in words what was left out."""

    begin_s: float
    end_s: float
    rule: str = "nothing trimmed"

    @property
    def duration_s(self) -> float:
        """Length of the window."""
        return max(self.end_s - self.begin_s, 0.0)

    def has(self, record: RequestRecord) -> bool:
        """Check that the request was sent in the window."""
        return self.begin_s <= record.started_s <= self.end_s

    def tokens(self, records: Sequence[RequestRecord]) -> float:
        """Count the output tokens that arrived in the window, also of requests that were sent before."""
        tokens = 0.0
        for record in records:
            if record.succeeded and record.event_times_s:
                moments_s = (record.started_s + time_s for time_s in record.event_times_s)
                inside = sum(self.begin_s <= moment_s <= self.end_s for moment_s in moments_s)
                tokens += record.output_tokens * inside / len(record.event_times_s)
        return tokens

    def ended(self, records: Sequence[RequestRecord]) -> int:
        """Count the requests whose answer ended whole in the window."""
        return sum(record.succeeded and self.begin_s <= record.ended_s <= self.end_s for record in records)

    def in_flight(self, records: Sequence[RequestRecord]) -> float:
        """Return the number of requests in flight on average."""
        if not self.duration_s:
            return 0.0
        spans = (min(record.ended_s, self.end_s) - max(record.started_s, self.begin_s) for record in records)
        return sum(span for span in spans if span > 0) / self.duration_s


def window_of(records: Sequence[RequestRecord], shape: LoadShape, trim: Trim) -> MeasuredWindow:
    """Return the window of a stage; empty, and said so, where nothing is left."""
    if not records:
        return MeasuredWindow(0.0, 0.0, "no requests")
    first_s = min(record.started_s for record in records)
    last_sent_s = max(record.started_s for record in records)
    if trim == NOTHING_TRIMMED:
        return MeasuredWindow(first_s, max(record.ended_s for record in records))
    begin_s, end_s = (_busy(records, shape) if trim.busy else None) or (first_s, last_sent_s)
    begin_s = max(begin_s, first_s + trim.warmup_s)
    length_s = max(end_s - begin_s, 0.0)
    window = MeasuredWindow(begin_s + trim.head_share * length_s, end_s - trim.tail_share * length_s)
    return MeasuredWindow(window.begin_s, max(window.end_s, window.begin_s), _rule(shape, trim))


def _busy(records: Sequence[RequestRecord], shape: LoadShape) -> tuple[float, float] | None:
    """Return the first and the last moment with all users busy; None if they never were."""
    if not isinstance(shape, ClosedLoop):
        return min(record.ended_s for record in records), max(record.started_s for record in records)
    changes = sorted(
        [(record.started_s, 1) for record in records] + [(record.ended_s, -1) for record in records],
        key=lambda change: (change[0], -change[1]),
    )
    running, begin_s, end_s = 0, None, None
    for moment_s, change in changes:
        if running >= shape.concurrency and change < 0:
            end_s = moment_s
        running += change
        if running >= shape.concurrency and begin_s is None:
            begin_s = moment_s
    return None if begin_s is None or end_s is None else (begin_s, end_s)


def _rule(shape: LoadShape, trim: Trim) -> str:
    busy = "all users busy" if isinstance(shape, ClosedLoop) else "from the first answer to the last request"
    parts = (
        busy if trim.busy else "",
        f"without the first {trim.warmup_s:g} s" if trim.warmup_s else "",
        f"without the first {trim.head_share:.0%} of the time" if trim.head_share else "",
        f"without the last {trim.tail_share:.0%} of the time" if trim.tail_share else "",
    )
    return ", ".join(part for part in parts if part)


_DIGITS = 6
"""Decimal digits of a second: microseconds, below what a clock of this kind can tell."""

_KEYS = {
    item.name: {"started_s": "sent_s", "latency_s": "ended_s"}.get(item.name, item.name)
    for item in fields(RequestRecord)
    if item.name != "event_times_s"
}
"""Keys of a request's fields in files, by field, but for the times of its tokens."""


def as_line(stage: int, record: RequestRecord) -> str:
    """Return one request of stage number `stage` as a line of JSON, in seconds of model time; written while a run goes
    on, so that nothing is lost with it.

    `due_s` and `sent_s` count from the start of the stage; all other times from `sent_s`.
    """
    values: dict[str, object] = {"stage": stage, "first_token_s": record.ttft_s}
    values |= {key: getattr(record, name) for name, key in _KEYS.items()}
    content = {key: round(value, _DIGITS) if isinstance(value, float) else value for key, value in values.items()}
    content["token_times_s"] = [round(time_s, _DIGITS) for time_s in record.event_times_s]
    return json.dumps(content, separators=(",", ":"))


def write_file(path: Path, *stages: Iterable[RequestRecord]) -> None:
    """Write all requests of a run that has ended, stage by stage."""
    lines = (as_line(number, record) for number, stage in enumerate(stages) for record in stage)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lines(lines: Iterable[str]) -> list[tuple[int, RequestRecord]]:
    """Read requests with the number of their stage.

    A last line that was cut off, as when a program was killed while it wrote, is left out.

    Raises:
        KitError: another line can't be read.
    """
    requests: list[tuple[int, RequestRecord]] = []
    failed: tuple[int, Exception] | None = None
    for number, line in enumerate(lines, 1):
        if failed:
            raise KitError(f"line {failed[0]} of requests is no request: {failed[1]!r}") from failed[1]
        try:
            content: Mapping[str, Any] = json.loads(line)
            values: dict[str, Any] = {name: content[key] for name, key in _KEYS.items()}
            values["failure"] = Failure(content["failure"]) if content["failure"] else None
            record = RequestRecord(**values, event_times_s=array("d", content["token_times_s"]))
            requests.append((content["stage"], record))
        except (ValueError, KeyError, TypeError) as error:
            failed = number, error
    return requests
