"""When a probe is asked and what its answers mean: pure, without any network."""

from dataclasses import dataclass

from lightkube.models.core_v1 import Probe

SETTLED_S = 1.0
SHORTEST_S = 0.2  # below this, probing would cost more than it tells on two cores


@dataclass(frozen=True)
class Schedule:
    """A probe's times, scaled, in seconds."""

    initial_delay_s: float
    period_s: float
    settled_period_s: float
    """Between two questions while the answer is yes: shorter times than this gain nothing but load."""
    doubtful_period_s: float
    """Between two questions when the answer was yes before: the probe's own, so that load alone turns no verdict."""
    timeout_s: float

    def period_of(self, tally: "Tally") -> float:
        """Give the seconds until the next question."""
        if tally.settled:
            return self.settled_period_s
        return self.doubtful_period_s if tally.doubtful else self.period_s


def schedule(probe: Probe, time_scale: float) -> Schedule:
    """Give a probe's times, multiplied by `time_scale` (1.0 is real time), a period at least 0.2 s.

    What only a machine that is slow makes longer, answers and the doubt in one that was yes, has the probe's own times.
    """
    period_s = max((probe.periodSeconds or 10) * time_scale, SHORTEST_S)
    return Schedule(
        initial_delay_s=(probe.initialDelaySeconds or 0) * time_scale,
        period_s=period_s,
        settled_period_s=max(period_s, SETTLED_S),
        doubtful_period_s=float(probe.periodSeconds or 10),
        timeout_s=float(probe.timeoutSeconds or 1),
    )


class Tally:
    """Counts answers in a row and says when the thresholds turn the verdict."""

    def __init__(self, probe: Probe, *, verdict: bool | None = None) -> None:
        self._needed = {True: probe.successThreshold or 1, False: probe.failureThreshold or 3}
        self._verdict = verdict
        self._last: bool | None = None
        self._run = 0

    @property
    def fresh(self) -> bool:
        """Whether nothing has been counted yet."""
        return self._last is None

    @property
    def doubtful(self) -> bool:
        """Whether the verdict is yes and the last answer was not."""
        return bool(self._verdict) and self._last is False

    @property
    def settled(self) -> bool:
        """Whether all is well: the verdict is yes and the last answer was too."""
        return bool(self._verdict) and self._last is not False

    def record(self, *, passed: bool) -> bool | None:
        """Count an answer; give the new verdict when this one turns it, None otherwise."""
        self._run = self._run + 1 if passed is self._last else 1
        self._last = passed
        if passed is self._verdict or self._run < self._needed[passed]:
            return None
        self._verdict = passed
        return passed
