"""Prometheus histograms that are cheap to scrape often, with vLLM's buckets."""

from bisect import bisect_left
from collections.abc import Sequence

# Buckets of vllm/v1/metrics/loggers.py and of the NIXL connector's metrics; seconds and bytes.
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(step * 10**power) for power in range(5) for step in (1, 2, 5))
"""Up to 50,000, where vLLM goes to its `--max-model-len`."""
TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TRANSFER_BYTES = tuple(float(2 ** (10 + power)) for power in range(1, 25, 2))


class Histogram:
    """A Prometheus histogram whose text is made anew only after an observation."""

    def __init__(self, name: str, labels: str, help_: str, bounds: Sequence[float]) -> None:
        self.total = 0.0
        self.count = 0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._head = f"# HELP {name} {help_}\n# TYPE {name} histogram\n"
        self._lines = [f'{name}_bucket{{{labels},le="{bound}"}} ' for bound in (*bounds, "+Inf")]
        self._tail = (f"{name}_sum{{{labels}}} ", f"{name}_count{{{labels}}} ")
        self._text: str | None = None

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, as many times as it occurred."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times
        self.count += times
        self._text = None

    def text(self) -> str:
        """The histogram in Prometheus text."""
        if self._text is None:
            parts, below = [self._head], 0
            for line, count in zip(self._lines, self._counts, strict=True):
                below += count
                parts.append(f"{line}{below}.0\n")
            parts.append(f"{self._tail[0]}{self.total}\n{self._tail[1]}{self.count}.0\n")
            self._text = "".join(parts)
        return self._text
