"""Sums of counters that programs in the local cluster report to Prometheus, for load programs that run there."""

import urllib.request
from collections.abc import Iterable


def metric_sum(places: Iterable[str], metric: str) -> int:
    """Return the sum of a metric over all its labels and over programs at HOST:PORT."""
    texts = [urllib.request.urlopen(f"http://{place}/metrics", timeout=60).read().decode() for place in places]
    lines = [line for text in texts for line in text.splitlines() if line.startswith(f"{metric}{{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))
