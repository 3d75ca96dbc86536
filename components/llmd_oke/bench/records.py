"""What is known of one request after it has ended."""

import itertools
from dataclasses import dataclass, replace
from enum import StrEnum


class Failure(StrEnum):
    """How a request failed."""

    CONNECTION = "connection"
    """The server could not be reached, or cut the connection before it answered."""
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

    `event_times_s` has the arrival of each stream event that carried output. A server may put several tokens in one
    event, so there can be fewer events than `output_tokens`, which is the server's own count where it gave one
    (`usage`).
    """

    index: int
    started_s: float
    latency_s: float
    event_times_s: tuple[float, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    counted_by_server: bool = False
    failure: Failure | None = None
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the answer came whole."""
        return self.failure is None

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
        """Time between successive events with output: what a reader waits for, as `vllm bench serve` counts it."""
        return [later - earlier for earlier, later in itertools.pairwise(self.event_times_s)]

    def in_model_time(self, time_scale: float) -> "RequestRecord":
        """The same request with its times divided by `time_scale`."""
        if time_scale == 1:
            return self
        return replace(
            self,
            started_s=self.started_s / time_scale,
            latency_s=self.latency_s / time_scale,
            event_times_s=tuple(time / time_scale for time in self.event_times_s),
        )
