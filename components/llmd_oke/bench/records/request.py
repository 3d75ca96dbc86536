"""What is known of one request after it has ended."""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Failure(StrEnum):
    """How a request failed."""

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
        """Whether the answer came whole."""
        return self.failure is None

    @property
    def ended_s(self) -> float:
        """When the answer ended or the request failed, on the clock of `started_s`."""
        return self.started_s + self.latency_s

    @property
    def slip_s(self) -> float | None:
        """How much later than due the request was sent."""
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
        """The same request with the times of its first and last event alone, for where all of them are too many."""
        times = self.event_times_s
        return self if len(times) < 3 else replace(self, event_times_s=(times[0], times[-1]), only_ends=True)

    def in_model_time(self, time_scale: float) -> "RequestRecord":
        """The same request with its times divided by `time_scale`."""
        if time_scale == 1:
            return self
        return replace(
            self,
            started_s=self.started_s / time_scale,
            latency_s=self.latency_s / time_scale,
            event_times_s=array("d", [time / time_scale for time in self.event_times_s]),
            due_s=None if self.due_s is None else self.due_s / time_scale,
        )
