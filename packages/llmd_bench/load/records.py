"""Records of finished requests, kinds of failures, and the load generator's own health during a load."""

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
    """Return the percentile of ascending, non-empty samples, interpolated linearly as numpy does by default."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    below = ordered[low]
    above = ordered[min(low + 1, len(ordered) - 1)]
    between = below + (above - below) * (position - low)
    return min(max(between, below), above)


class Failure(StrEnum):
    """Kind of a request's failure."""

    ADDRESS = "address"
    """The host name could not be resolved."""
    CONNECTION = "connection"
    """The connection could not be opened, or ended before the answer."""
    TLS = "tls"
    """The TLS handshake failed: an untrusted certificate, or a server without TLS."""
    STATUS = "status"
    """The HTTP status was not 200."""
    SERVER = "server"
    """The server reported an error inside the stream."""
    CUT = "cut"
    """The stream ended without its end mark."""
    TIMEOUT = "timeout"
    """The answer did not end within the time limit."""


STARTED_BUT_UNFINISHED = frozenset({Failure.CUT, Failure.TIMEOUT})
"""Failures that the report format counts as incomplete requests."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Record of one request. Times are in seconds.

    Attributes:
        index: number of the request in its stage.
        started_s: time at which the request was sent, since the start of the load.
        latency_s: time from sending to the end of the answer or the failure.
        event_times_s: arrival of each stream event with output, since sending. A server may put several tokens into one
            event, so there may be fewer events than output tokens.
        input_tokens: length of the prompt.
        output_tokens: length of the answer, from the server's `usage` if sent, else the number of events.
        counted_by_server: whether `output_tokens` is from `usage`.
        failure: kind of failure; None if the request succeeded.
        error: text of the failure.
        due_s: time at which the request should have been sent, since the start of the load. In a closed loop a request
            is due when its user's last answer has ended.
        status: HTTP status of the answer.
        retry_after_s: value of the answer's `Retry-After` in seconds.
        only_ends: whether only the first and the last of the event times were kept, so that gaps are unknown.
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
        """True if the answer is complete."""
        return self.failure is None

    @property
    def ended_s(self) -> float:
        """Time at which the answer ended or the request failed, since the start of the load."""
        return self.started_s + self.latency_s

    @property
    def slip_s(self) -> float | None:
        """Seconds by which the request was sent later than it was due; None if it had no due time."""
        return None if self.due_s is None else self.started_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from sending to the first event with output; None without output."""
        return self.event_times_s[0] if self.event_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: from the first to the last output, divided by the number of tokens after the first;
        None for fewer than two.
        """
        if self.output_tokens < 2 or len(self.event_times_s) < 2:
            return None
        return (self.event_times_s[-1] - self.event_times_s[0]) / (self.output_tokens - 1)

    @property
    def normalized_tpot_s(self) -> float | None:
        """Latency of the whole request divided by its output tokens; None without output."""
        return self.latency_s / self.output_tokens if self.output_tokens else None

    @property
    def gaps_s(self) -> list[float]:
        """Times between successive events with output, the inter-token latency of `vllm bench serve`; empty
        if unknown.
        """
        if self.only_ends:
            return []
        return [later - earlier for earlier, later in itertools.pairwise(self.event_times_s)]

    def thinned(self) -> "RequestRecord":
        """Return a copy with the times of the first and the last event only."""
        times = self.event_times_s
        return self if len(times) < 3 else replace(self, event_times_s=(times[0], times[-1]), only_ends=True)

    def in_model_time(self, time_scale: float) -> "RequestRecord":
        """Return a copy whose times are divided by `time_scale` (wall seconds for each simulated second)."""
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
"""Maximum p99 in milliseconds, up to which latencies are trusted, of two delays: of sending after the due time (slip),
and of the event loop's timers (lag).
"""

LATEST_SHARE = 0.05
"""Maximum p99 of the delays of sending (slip) and of the event loop (lag) as a share of the median time to first token
(0.05 is 5 %). The larger of this limit and `LATEST_MS` applies, since a few milliseconds don't distort long latencies.
"""

MIN_SENT_SHARE = 0.97
"""Minimum ratio of sent to offered requests per second (0.97 is 97 %); below it the load was not the requested one."""


@dataclass(frozen=True)
class Delay:
    """Distribution of the delays of the load generator itself, in milliseconds."""

    mean: float
    p50: float
    p99: float
    max: float


def delay_of(late_s: Sequence[float]) -> Delay | None:
    """Return the distribution in milliseconds of delays in seconds; None without samples."""
    ordered = sorted(1000 * late for late in late_s)
    if not ordered:
        return None
    return Delay(sum(ordered) / len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


@dataclass(frozen=True)
class Health:
    """Health of the load generator in one stage: whether the generator itself distorted the measurement. All figures
    are in wall time, since they concern this machine.

    Attributes:
        slip_ms: delay of sending after the due time.
        loop_lag_ms: delay of the event loop's timers, which bounds the error of measured times.
        cpu_share: CPU use of each process as a share of one core.
        offered_requests_per_s: offered rate; None in a closed loop.
        sent_requests_per_s: achieved sending rate; None in a closed loop.
        abandoned: number of requests without a record, which were abandoned when the run was interrupted.
        spoiled: reason why the generator distorted the measurement; None if it didn't.
    """

    slip_ms: Delay | None = None
    loop_lag_ms: Delay | None = None
    cpu_share: tuple[float, ...] = ()
    offered_requests_per_s: float | None = None
    sent_requests_per_s: float | None = None
    abandoned: int = 0
    spoiled: str | None = None


def spoiled_reason(health: Health, median_ttft_ms: float | None) -> str | None:
    """Return the reason why the load generator distorted a measurement; None if it didn't."""
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
    """Failures of one kind.

    Attributes:
        kind: the kind, such as `HTTP 503`.
        count: number of failures.
        meaning: probable cause in words.
        example: text of the first failure.
        first_s: time of the first failure, since the start of the load.
        longest_retry_after_s: largest `Retry-After` in seconds; None without any.
    """

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
    """Return the failures among `records` by kind, the most frequent kind first."""
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
    """Parts of a stage that are left out of its figures.

    Attributes:
        warmup_s: simulated seconds (wall seconds / time scale) at the beginning.
        head_share: share of the sending time, after the warm-up, at the beginning.
        tail_share: share of the sending time, after the warm-up, at the end.
        busy: whether only the time counts in which all users of a closed loop had a request in flight; in an open loop,
            the time from the first answer to the last request.
    """

    warmup_s: float = 0.0
    head_share: float = 0.0
    tail_share: float = 0.0
    busy: bool = False


NOTHING_TRIMMED = Trim()


@dataclass(frozen=True)
class MeasuredWindow:
    """Part of a stage that counts in its figures, in seconds after the stage's start; `rule` describes what was left
    out.
    """

    begin_s: float
    end_s: float
    rule: str = "nothing trimmed"

    @property
    def duration_s(self) -> float:
        """Length of the window in seconds."""
        return max(self.end_s - self.begin_s, 0.0)

    def has(self, record: RequestRecord) -> bool:
        """Return whether a request was sent in the window."""
        return self.begin_s <= record.started_s <= self.end_s

    def tokens(self, records: Sequence[RequestRecord]) -> float:
        """Return the number of output tokens that arrived in the window, including those of requests sent before it."""
        tokens = 0.0
        for record in records:
            if record.succeeded and record.event_times_s:
                moments_s = (record.started_s + time_s for time_s in record.event_times_s)
                inside = sum(self.begin_s <= moment_s <= self.end_s for moment_s in moments_s)
                tokens += record.output_tokens * inside / len(record.event_times_s)
        return tokens

    def ended(self, records: Sequence[RequestRecord]) -> int:
        """Return the number of requests whose complete answer ended in the window."""
        return sum(record.succeeded and self.begin_s <= record.ended_s <= self.end_s for record in records)

    def in_flight(self, records: Sequence[RequestRecord]) -> float:
        """Return the mean number of requests in flight during the window."""
        if not self.duration_s:
            return 0.0
        spans = (min(record.ended_s, self.end_s) - max(record.started_s, self.begin_s) for record in records)
        return sum(span for span in spans if span > 0) / self.duration_s


def window_of(records: Sequence[RequestRecord], shape: LoadShape, trim: Trim) -> MeasuredWindow:
    """Return the part of a stage that counts in its figures; of zero length if `trim` leaves nothing."""
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
    """Return the first and the last time at which all users were busy; None if they never were."""
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
"""Decimal digits of times in seconds in files: microseconds, the resolution of the measurement."""

_KEYS = {
    item.name: {"started_s": "sent_s", "latency_s": "ended_s"}.get(item.name, item.name)
    for item in fields(RequestRecord)
    if item.name != "event_times_s"
}
"""Keys in files by field of `RequestRecord`, without the event times."""


def as_line(stage: int, record: RequestRecord) -> str:
    """Return one request of stage number `stage` as a line of JSON, with times in simulated seconds (wall seconds /
    time scale). Lines are written during a run, so that a crash doesn't lose them.

    `due_s` and `sent_s` count from the start of the stage; all other times from `sent_s`.
    """
    values: dict[str, object] = {"stage": stage, "first_token_s": record.ttft_s}
    values |= {key: getattr(record, name) for name, key in _KEYS.items()}
    content = {key: round(value, _DIGITS) if isinstance(value, float) else value for key, value in values.items()}
    content["token_times_s"] = [round(time_s, _DIGITS) for time_s in record.event_times_s]
    return json.dumps(content, separators=(",", ":"))


def write_file(path: Path, *stages: Iterable[RequestRecord]) -> None:
    """Write all requests of a finished run as JSON Lines, stage by stage."""
    lines = (as_line(number, record) for number, stage in enumerate(stages) for record in stage)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lines(lines: Iterable[str]) -> list[tuple[int, RequestRecord]]:
    """Return the requests of a file's lines, each with the number of its stage. A truncated last line, left by a killed
    program, is skipped.

    Raises:
        KitError: another line is invalid.
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
