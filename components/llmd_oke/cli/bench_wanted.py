"""What a user asked `llmd-oke bench` for, from the texts of its options."""

from dataclasses import dataclass

from llmd_oke.bench.load.stage import Conditions, Stage
from llmd_oke.bench.load.texts import read_conversations, read_length, read_prefix, read_shapes, read_trim
from llmd_oke.bench.workload.workloads import Workload
from llmd_oke.results.row import Basis

GRACE_S = 300.0
"""Time for stages to end beyond their durations, where no limit is given."""


@dataclass(frozen=True)
class Timing:
    """On which clock; `simulated` lists what is not real."""

    time_scale: float
    simulated: tuple[str, ...]
    request_timeout_s: float

    @property
    def basis(self) -> Basis:
        """How far figures may be trusted."""
        return Basis.CALIBRATED if self.simulated else Basis.MEASURED


@dataclass(frozen=True)
class Wanted:
    """A load in the notation of `bench/load/texts.py`; lengths are None where what is loaded has some of its own."""

    shapes: tuple[str, ...]
    requests: int | None
    duration_s: float | None
    input_tokens: str | None
    output_tokens: str | None
    prefix: str | None
    conversations: str | None
    trim: str
    rest_s: float
    limit_s: float | None
    seed: int

    def stages(self) -> list[Stage]:
        """One for each value of each shape.

        Raises:
            KitError: a shape can't be read.
        """
        shapes = [shape for text in self.shapes for shape in read_shapes(text, self.seed)]
        return [Stage(shape, self.requests, self.duration_s) for shape in shapes]

    def workload(self, input_tokens: str, output_tokens: str) -> Workload:
        """What is asked; the lengths are for where none was wanted.

        Raises:
            KitError: a text can't be read.
        """
        return Workload(
            read_length(self.input_tokens or input_tokens),
            read_length(self.output_tokens or output_tokens),
            self.seed,
            prefix=read_prefix(self.prefix) if self.prefix else None,
            conversations=read_conversations(self.conversations) if self.conversations else None,
        )

    def conditions(self, timing: Timing) -> Conditions:
        """How it is run.

        Raises:
            KitError: the trim can't be read.
        """
        return Conditions(timing.time_scale, read_trim(self.trim), self.rest_s, timing.request_timeout_s)

    def whole_limit_s(self, stages: int, time_scale: float) -> float:
        """Wall seconds after which the whole run ends."""
        return self.limit_s or stages * ((self.duration_s or 0.0) * time_scale + self.rest_s) + GRACE_S
