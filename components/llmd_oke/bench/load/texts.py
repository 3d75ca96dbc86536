"""Loads as a user writes them: `poisson:45`, `closed:8,16,32`, `trace:requests.jsonl`, `lognormal:4096,1200`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from llmd_oke.bench.records.windows import Trim
from llmd_oke.bench.workload.lengths import Fixed, Length, LogNormal, Normal
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, LoadShape, PoissonRate
from llmd_oke.bench.workload.traces import read_trace
from llmd_oke.bench.workload.workloads import Conversations, SharedPrefix
from llmd_oke.errors import KitError

_SHAPES: Mapping[str, Callable[[float, int], LoadShape]] = {
    "closed": lambda value, _: ClosedLoop(round(value)),
    "constant": lambda value, _: ConstantRate(value),
    "poisson": PoissonRate,
}

_ACCEPTED_SHAPES = (
    "Give closed:USERS, constant:REQUESTS_PER_S, poisson:REQUESTS_PER_S (several values make a sweep) or trace:FILE."
)


def read_shapes(text: str, seed: int = 0) -> list[LoadShape]:
    """One shape for each value after the colon; `seed` is that of random arrivals.

    Raises:
        KitError: it can't be read, or the trace that it names can't.
    """
    kind, _, values = text.partition(":")
    if kind == "trace" and values:
        return [read_trace(Path(values))]
    shape = _SHAPES.get(kind)
    if shape is None or not values:
        raise KitError(f"{text!r} is no shape of load", _ACCEPTED_SHAPES)
    return [shape(number, seed) for number in _numbers(text, values, _ACCEPTED_SHAPES)]


def read_length(text: str) -> Length:
    """A length such as `4096`, `normal:4096,512` or `lognormal:4096,1200` (mean and standard deviation, in tokens).

    Raises:
        KitError: it can't be read.
    """
    accepted = "Give TOKENS, normal:MEAN,DEVIATION or lognormal:MEAN,DEVIATION."
    kind, mark, values = text.partition(":")
    if not mark and text.isdigit():
        return Fixed(int(text))
    distribution = {"normal": Normal, "lognormal": LogNormal}.get(kind)
    if distribution is None:
        raise KitError(f"{text!r} is no length", accepted)
    numbers = _numbers(text, values, accepted)
    if len(numbers) != 2:
        raise KitError(f"{text!r} has {len(numbers)} of two values", accepted)
    mean, stddev = numbers
    return distribution(mean, stddev)


def read_trim(text: str) -> Trim:
    """What not to count: `none`, `busy`, or the share of the time at both ends, such as `0.2`.

    Raises:
        KitError: it can't be read.
    """
    accepted = "Give none, busy, or a share below 0.5 such as 0.2."
    if text in {"none", "busy"}:
        return Trim(busy=text == "busy")
    (share,) = _numbers(text, text, accepted)[:1]
    if share >= 0.5:
        raise KitError(f"{text!r} would leave nothing", accepted)
    return Trim(head_share=share, tail_share=share)


def _numbers(text: str, values: str, accepted: str) -> list[float]:
    numbers: list[float] = []
    for value in values.split(","):
        try:
            numbers.append(float(value))
        except ValueError as error:
            raise KitError(f"{text!r} can't be read: {value!r} is no number", accepted) from error
    if not all(0 <= number < float("inf") for number in numbers):
        raise KitError(f"{text!r} has a value below 0 or without end", accepted)
    return numbers


def read_prefix(text: str) -> SharedPrefix:
    """Prefixes as `TOKENSxGROUPS`, such as `2048x10`.

    Raises:
        KitError: it can't be read.
    """
    tokens, groups = _pair(text, "Give TOKENSxGROUPS, such as 2048x10.")
    return SharedPrefix(groups, tokens)


def read_conversations(text: str) -> Conversations:
    """Conversations as `AT_A_TIMExTURNS`, such as `64x5`.

    Raises:
        KitError: it can't be read.
    """
    return Conversations(*_pair(text, "Give AT_A_TIMExTURNS, such as 64x5."))


def _pair(text: str, accepted: str) -> tuple[int, int]:
    first, _, second = text.partition("x")
    if not (first.isdigit() and second.isdigit()):
        raise KitError(f"{text!r} can't be read", accepted)
    return int(first), int(second)
