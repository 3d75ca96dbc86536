"""Which deployments there are for a number of GPUs."""

from collections.abc import Iterable, Iterator

import numpy as np

from llmd_oke.tuning.search.families import Aggregated, Disaggregated, Family, Fleet

MOST_COPIES = 64
"""The most units that a stack file may ask for."""


def fleet_of(family: Family, gpus: int) -> Fleet:
    """All deployments of a family that fit that many GPUs."""
    if isinstance(family, Disaggregated):
        sizes = family.prefill.tensor_parallel_size, family.decode.tensor_parallel_size
        counts = _disaggregated(gpus, *sizes)
    else:
        assert isinstance(family, Aggregated)  # noqa: S101 - there are these two
        counts = _aggregated(gpus, family.server.tensor_parallel_size)
    return fleet_of_counts(counts)


def fleet_of_counts(counts: Iterable[tuple[int, int, int]]) -> Fleet:
    """Deployments by their prefill servers, decode servers and copies."""
    table = np.array(list(counts), dtype=np.int64).reshape(-1, 3)
    return Fleet(table[:, 0], table[:, 1], table[:, 2])


def _disaggregated(gpus: int, prefill_size: int, decode_size: int) -> Iterator[tuple[int, int, int]]:
    for prefill in range(1, (gpus - decode_size) // prefill_size + 1):
        for decode in range(1, (gpus - prefill * prefill_size) // decode_size + 1):
            unit = prefill * prefill_size + decode * decode_size
            yield from ((prefill, decode, copies) for copies in _copies(gpus, unit))


def _aggregated(gpus: int, size: int) -> Iterator[tuple[int, int, int]]:
    """One unit each: copies of aggregated servers only split their queue."""
    yield from ((0, count, 1) for count in range(1, gpus // size + 1))


def _copies(gpus: int, unit: int) -> range:
    return range(1, min(gpus // unit, MOST_COPIES) + 1)
