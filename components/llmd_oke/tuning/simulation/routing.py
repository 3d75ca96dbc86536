"""Which server gets the next request: the scorers of llm-d's endpoint picker, and its choice of the highest sum.

It sees servers as they are now, where the real one reads their metrics every 50 ms. Formulas: gateway-api-inference-
extension v1.5.0 (pkg/epp/framework/plugins/scheduling/scorer), llm-d-router v0.10.0 (its READMEs).
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from llmd_oke.tuning.simulation.arrivals import RequestClass
from llmd_oke.tuning.simulation.engine import Engine

Pick = Callable[[Sequence[Engine], RequestClass, int | None], Engine]
"""A choice among servers for a request of a size; the number is the prefix that it shares with others."""

Scorer = Callable[[Sequence[Engine], RequestClass, int | None], Sequence[float]]
"""A score for each server, from 0 to 1."""

_QUEUE_THRESHOLD_TOKENS = 4_194_304
"""`queueThresholdTokens` of the token-load-scorer, by default: load in tokens at which a score is 0."""


def picker(weights: Mapping[str, float], random: Random) -> Pick:
    """The choice that scorers with weights make: the highest sum, equals at random; without scorers all are equal."""
    scoring = [(_SCORERS[name], weight) for name, weight in weights.items()]

    def pick(engines: Sequence[Engine], size: RequestClass, prefix: int | None) -> Engine:
        if len(engines) == 1:
            return engines[0]
        if not scoring:
            return engines[int(random.random() * len(engines))]
        sums = [0.0] * len(engines)
        for score, weight in scoring:
            sums = [sum_ + weight * own for sum_, own in zip(sums, score(engines, size, prefix), strict=True)]
        highest = max(sums) - 1e-12
        best = [engine for engine, sum_ in zip(engines, sums, strict=True) if sum_ >= highest]
        return best[int(random.random() * len(best))]

    return pick


def _between(counts: Sequence[int]) -> Sequence[float]:
    """1 for the fewest, 0 for the most, in proportion between; 1 for all where they are equal."""
    least, most = min(counts), max(counts)
    if least == most:
        return [1.0] * len(counts)
    return [(most - count) / (most - least) for count in counts]


def _queue(engines: Sequence[Engine], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    """Waiting requests alone, of which decode servers hardly have any."""
    return _between([engine.waiting for engine in engines])


def _running(engines: Sequence[Engine], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    return _between([engine.running for engine in engines])


def _cache_use(engines: Sequence[Engine], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    return [1.0 - engine.cache_use for engine in engines]


def _active(engines: Sequence[Engine], _size: RequestClass, _prefix: int | None) -> Sequence[float]:
    """Requests that were sent and are not answered: 1 for an idle server, 0 for the busiest."""
    counts = [engine.assigned for engine in engines]
    most = max(counts)
    return [(most - count) / most if count else 1.0 for count in counts]


def _token_load(engines: Sequence[Engine], size: RequestClass, prefix: int | None) -> Sequence[float]:
    """Prompt tokens that were sent and gave no first token yet, and those of the request that the server lacks."""
    loads = [engine.assigned_tokens + size.input_tokens - _known(engine, size, prefix) for engine in engines]
    return [1.0 - min(load, _QUEUE_THRESHOLD_TOKENS) / _QUEUE_THRESHOLD_TOKENS for load in loads]


def _prefix(engines: Sequence[Engine], size: RequestClass, prefix: int | None) -> Sequence[float]:
    """The share of the prompt that the server was sent before."""
    return [_known(engine, size, prefix) / size.input_tokens for engine in engines]


def _known(engine: Engine, size: RequestClass, prefix: int | None) -> int:
    return size.prefix_tokens if prefix is not None and prefix in engine.sent_prefixes else 0


_SCORERS: Mapping[str, Scorer] = {
    "queue-scorer": _queue,
    "running-requests-size-scorer": _running,
    "kv-cache-utilization-scorer": _cache_use,
    "active-request-scorer": _active,
    "token-load-scorer": _token_load,
    "prefix-cache-scorer": _prefix,
}
