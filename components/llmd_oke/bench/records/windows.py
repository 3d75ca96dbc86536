"""Which part of a run counts: without filling and draining, where that was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.workload.shapes import ClosedLoop, LoadShape


@dataclass(frozen=True)
class Trim:
    """What to leave out of a stage.

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
class Window:
    """The part of a stage that counts, in seconds after its start; `rule` says in words what was left out."""

    begin_s: float
    end_s: float
    rule: str = "nothing trimmed"

    @property
    def duration_s(self) -> float:
        """Its length."""
        return max(self.end_s - self.begin_s, 0.0)

    def has(self, record: RequestRecord) -> bool:
        """Whether the request was sent in it."""
        return self.begin_s <= record.started_s <= self.end_s

    def tokens(self, records: Sequence[RequestRecord]) -> float:
        """Output tokens that arrived in it, also of requests that were sent before."""
        return sum(self._arrived(record) for record in records if record.succeeded)

    def ended(self, records: Sequence[RequestRecord]) -> int:
        """Requests whose answer ended whole in it."""
        return sum(record.succeeded and self.begin_s <= record.ended_s <= self.end_s for record in records)

    def in_flight(self, records: Sequence[RequestRecord]) -> float:
        """Requests in flight on average."""
        if not self.duration_s:
            return 0.0
        spans = (min(each.ended_s, self.end_s) - max(each.started_s, self.begin_s) for each in records)
        return sum(span for span in spans if span > 0) / self.duration_s

    def _arrived(self, record: RequestRecord) -> float:
        events = record.event_times_s
        if not events:
            return 0.0
        inside = sum(self.begin_s <= record.started_s + time_s <= self.end_s for time_s in events)
        return record.output_tokens * inside / len(events)


def window_of(records: Sequence[RequestRecord], shape: LoadShape, trim: Trim) -> Window:
    """The window of a stage; empty, and said so, where nothing is left."""
    if not records:
        return Window(0.0, 0.0, "no requests")
    first_s = min(record.started_s for record in records)
    last_sent_s = max(record.started_s for record in records)
    if trim == NOTHING_TRIMMED:
        return Window(first_s, max(record.ended_s for record in records))
    begin_s, end_s = (_busy(records, shape) if trim.busy else None) or (first_s, last_sent_s)
    begin_s = max(begin_s, first_s + trim.warmup_s)
    length_s = max(end_s - begin_s, 0.0)
    window = Window(begin_s + trim.head_share * length_s, end_s - trim.tail_share * length_s)
    return Window(window.begin_s, max(window.end_s, window.begin_s), _rule(shape, trim))


def _busy(records: Sequence[RequestRecord], shape: LoadShape) -> tuple[float, float] | None:
    """From the first to the last moment with all users busy; None if they never were."""
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
