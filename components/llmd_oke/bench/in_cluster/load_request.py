"""A load that several pods send together, as plain data that fits a file."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import TypeAdapter

from llmd_oke.bench.generator.driving import Share
from llmd_oke.bench.load.stage import Conditions, Stage
from llmd_oke.bench.load.texts import read_length, read_shapes, read_trim
from llmd_oke.bench.workload.workloads import Workload


@dataclass(frozen=True)
class LoadRequest:
    """Shapes, lengths and trim are in the notation of `bench/load/texts.py`.

    - each shape is a stage of `requests` or `duration_s` (model time), whichever ends first;
    - `seed` and `run` are those of the workload: all pods have the same, so that no two send the same prompt;
    - `parallelism` pods of `processes` processes each;
    - `limit_s` and `request_timeout_s` are wall time.
    """

    namespace: str
    job: str
    base_url: str
    model: str
    shapes: tuple[str, ...]
    requests: int | None
    duration_s: float | None
    input_tokens: str
    output_tokens: str
    seed: int
    run: str
    parallelism: int = 1
    processes: int = 1
    trim: str = "none"
    rest_s: float = 0.0
    limit_s: float = 600.0
    request_timeout_s: float = 300.0

    def stages(self) -> list[Stage]:
        """The stages, one for each value of each shape.

        Raises:
            KitError: a shape can't be read.
        """
        shapes = [shape for text in self.shapes for shape in read_shapes(text, self.seed)]
        return [Stage(shape, self.requests, self.duration_s) for shape in shapes]

    def workload(self) -> Workload:
        """What is asked.

        Raises:
            KitError: a length can't be read.
        """
        return Workload(read_length(self.input_tokens), read_length(self.output_tokens), self.seed, self.run)

    def conditions(self, pod: int, time_scale: float, start_at: Callable[[], Awaitable[float]] | None) -> Conditions:
        """How pod number `pod` runs its share, from the moment of the epoch on that it is told once it is ready."""
        return Conditions(
            time_scale=time_scale,
            trim=read_trim(self.trim),
            rest_s=self.rest_s,
            request_timeout_s=self.request_timeout_s,
            share=Share(pod, self.parallelism),
            start_at=start_at,
        )

    @property
    def start_name(self) -> str:
        """The ConfigMap that says when to begin."""
        return f"{self.job}-start"

    def ready_name(self, pod: int) -> str:
        """The ConfigMap by which a pod says that it waits for the start."""
        return f"{self.job}-{pod}-ready"

    def part_name(self, pod: int, chunk: int) -> str:
        """The ConfigMap with a piece of a pod's result."""
        return f"{self.job}-{pod}-{chunk}"

    def to_json(self) -> str:
        """The request as the text of a file."""
        return _REQUEST.dump_json(self, indent=1).decode()


_REQUEST = TypeAdapter(LoadRequest)


def from_json(text: str | bytes) -> LoadRequest:
    """The request that `to_json` wrote."""
    return _REQUEST.validate_json(text)
