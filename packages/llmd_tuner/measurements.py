"""Times that rows of single servers contain, and the published rows of `values/tuning/points`.

A decode row gives the time of a step: its mean TPOT, or concurrency / output rate where it has none. A prefill row
gives the time of a prompt, 1 / request rate; prompts that a prefix cache answered are subtracted from the rate.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from llmd_base.row import Basis, Origin, Quantiles, Row, Scope
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.conditions import UNKNOWN_CONDITIONS, Conditions
from llmd_oke.catalogue.shapes import gpu_names, node_of_gpu
from llmd_oke.config import Topology
from llmd_oke.values import Entry, entry, names
from pydantic import Field

ByLoad = dict[int, dict[int, float]]
"""Published values by tensor parallel size, then by concurrency."""


@dataclass(frozen=True)
class StepTime:
    """Measured time in seconds: of one decode step with `sequences` in the batch and `tokens` of mean context each, or
    of one prompt of `tokens` with `sequences` prompts in flight. Sequences and prompts are those of one rank; all ranks
    have as many.
    """

    parallelism: Parallelism
    sequences: int
    tokens: float
    seconds: float


def decode_points(rows: Iterable[Row]) -> list[StepTime]:
    """Return the step times of the decode rows that contain enough figures."""
    return [point for row in rows if row.subject == "decode" and (point := _decode_point(row))]


def prefill_points(rows: Iterable[Row]) -> list[StepTime]:
    """Return the prompt times of the prefill rows that contain enough figures."""
    return [point for row in rows if row.subject == "prefill" and (point := _prefill_point(row))]


def requests_per_s(row: Row) -> float | None:
    """Return the served requests per second, computed from whichever rate the row has; None without any."""
    if row.achieved_requests_per_s:
        return row.achieved_requests_per_s
    if row.input_tokens_per_s:
        return row.input_tokens_per_s / row.input_tokens
    return row.output_tokens_per_s / row.output_tokens if row.output_tokens_per_s else None


def parallelism_of(row: Row) -> Parallelism | None:
    """Return the parallelism (tensor and data parallel sizes, nodes) of the single server that a row is about; None
    where the row doesn't say. Fields that a row lacks are read from its topology: early rows of the kit, and rows of
    other tools, have no fields for ranks and experts.
    """
    known = _of_topology(row)
    size = row.tensor_parallel_size or (known.tensor_parallel_size if known else None)
    if size is None:
        return None
    known = known if known and known.tensor_parallel_size == size else Parallelism(size)
    ranks = row.data_parallel_size or known.data_parallel_size
    whole = known.expert_parallel if row.expert_parallel is None else row.expert_parallel
    return Parallelism(size, ranks, whole and size * ranks > 1, row.nodes or known.nodes)


def _of_topology(row: Row) -> Parallelism | None:
    """Return the spread of the servers of a row's topology, over nodes of its GPU; None of a whole deployment."""
    if row.subject == "end-to-end" or row.topology is None:
        return None
    node, parts = node_of_gpu(row.gpu), Topology.model_validate(row.topology).servers().values()
    spreads = [part.parallelism(expert_parallel=False, node_gpus=node.gpus if node else None) for part in parts]
    return spreads[0] if len(spreads) == 1 else None


def _decode_point(row: Row) -> StepTime | None:
    spread = parallelism_of(row)
    if spread is None or not row.concurrency:
        return None
    if row.tpot_ms.mean:
        step_s = row.tpot_ms.mean / 1000
    elif row.output_tokens_per_s:
        step_s = row.concurrency / row.output_tokens_per_s
    else:
        return None
    context_tokens = row.input_tokens + row.output_tokens / 2
    return StepTime(spread, _of_rank(row.concurrency, spread), context_tokens, step_s)


def _of_rank(concurrency: float, spread: Parallelism) -> int:
    """Return the requests of each rank of a server that has so many in flight."""
    return max(1, round(concurrency / spread.data_parallel_size))


def _prefill_point(row: Row) -> StepTime | None:
    rate, spread = requests_per_s(row), parallelism_of(row)
    if spread is None or not row.concurrency or rate is None:
        return None
    computed = rate / spread.data_parallel_size * (1 - (row.prefix_cache_hit_share or 0.0))
    if computed <= 0:
        return None
    return StepTime(spread, _of_rank(row.concurrency, spread), row.input_tokens, 1 / computed)


class DecodePoints(Entry):
    """Published table of decode servers after prompts of one length: output tokens per second, or milliseconds for each
    token of a sequence. `max_num_seqs` is None where it isn't published.
    """

    input_tokens: int
    output_tokens: int
    max_num_seqs: int | None = None
    output_tokens_per_s: ByLoad = Field(default_factory=dict[int, dict[int, float]])
    tpot_ms: ByLoad = Field(default_factory=dict[int, dict[int, float]])


class PrefillPoints(Entry):
    """Published table of prefill servers for prompts of one length, by tensor parallel size: prompt and output tokens
    per second, or the milliseconds to the first token of a prompt alone. `prefix_cache_hit_share` is by concurrency.
    """

    input_tokens: int
    output_tokens: int
    total_tokens_per_s: ByLoad = Field(default_factory=dict[int, dict[int, float]])
    first_token_ms: dict[int, float] = Field(default_factory=dict[int, float])
    prefix_cache_hit_share: dict[int, float] = Field(default_factory=dict[int, float])


class SetAside(Entry):
    """Published measurement that the kit doesn't use, because it is known not to be what its source says; `why` has the
    reason.
    """

    subject: Scope
    tensor_parallel_size: int
    concurrency: int
    why: str


class PublishedPoints(Entry):
    """Content of one file of `values/tuning/points`: the published measurements of a model's servers on a GPU."""

    model: str
    gpu: str
    source: str
    image: str
    conditions: Conditions = UNKNOWN_CONDITIONS
    """Settings that the servers were started with, as far as the source tells."""
    decode: tuple[DecodePoints, ...]
    prefill: tuple[PrefillPoints, ...]
    notes: tuple[str, ...] = ()
    """Remarks on what is uncertain about all points."""
    set_aside: tuple[SetAside, ...] = ()

    def rows(self) -> list[Row]:
        """Return all published points as rows. Rows of points that are set aside have the reason in their notes."""
        return [*self._decode_rows(), *self._prefill_rows()]

    def kept_rows(self) -> list[Row]:
        """Return the published points as rows, without those that are set aside."""
        aside = {(point.subject, point.tensor_parallel_size, point.concurrency) for point in self.set_aside}
        return [row for row in self.rows() if (row.subject, row.tensor_parallel_size, row.concurrency) not in aside]

    def _decode_rows(self) -> Iterator[Row]:
        for points in self.decode:
            most = points.max_num_seqs
            for size, concurrency, rate in _by_load(points.output_tokens_per_s):
                row = self._row("decode", size, concurrency, points)
                yield row.model_copy(update={"output_tokens_per_s": rate, "max_num_seqs": most})
            for size, concurrency, mean_ms in _by_load(points.tpot_ms):
                row = self._row("decode", size, concurrency, points)
                yield row.model_copy(update={"tpot_ms": Quantiles(mean=mean_ms), "max_num_seqs": most})

    def _prefill_rows(self) -> Iterator[Row]:
        for points in self.prefill:
            for size, concurrency, rate in _by_load(points.total_tokens_per_s):
                requests_per_s = rate / (points.input_tokens + points.output_tokens)
                share = points.prefix_cache_hit_share.get(concurrency)
                row = self._served(points, size, concurrency, requests_per_s)
                yield row.model_copy(update={"prefix_cache_hit_share": share})
            for size, time_ms in points.first_token_ms.items():
                row = self._served(points, size, 1, 1000 / time_ms)
                yield row.model_copy(update={"ttft_ms": Quantiles(p50=time_ms)})

    def _served(self, points: PrefillPoints, size: int, concurrency: int, requests_per_s: float) -> Row:
        row = self._row("prefill", size, concurrency, points)
        return row.model_copy(
            update={
                "achieved_requests_per_s": requests_per_s,
                "input_tokens_per_s": requests_per_s * points.input_tokens,
                "output_tokens_per_s": requests_per_s * points.output_tokens,
            }
        )

    def _row(self, subject: Scope, size: int, concurrency: int, points: DecodePoints | PrefillPoints) -> Row:
        place = (subject, size, concurrency)
        whys = (
            point.why
            for point in self.set_aside
            if (point.subject, point.tensor_parallel_size, point.concurrency) == place
        )
        return Row(
            subject=subject,
            basis=Basis.MEASURED,
            model=self.model,
            gpu=self.gpu,
            origin=Origin(tool=self.source),
            image=self.image,
            attention_backend=self.conditions.attention_backend,
            quick_reduce=self.conditions.quick_reduce,
            block_size=self.conditions.block_size,
            tensor_parallel_size=size,
            gpus_counted=size,
            input_tokens=points.input_tokens,
            output_tokens=points.output_tokens,
            concurrency=concurrency,
            notes=(*self.notes, *whys),
        )


def _by_load(table: ByLoad) -> Iterator[tuple[int, int, float]]:
    for size, values in table.items():
        for concurrency, value in values.items():
            yield size, concurrency, value


@cache
def published_points(model: str, gpu: str) -> PublishedPoints | None:
    """Return the published points of a model on a GPU product; None where the kit has none."""
    return entry(f"tuning/points/{gpu}", model, PublishedPoints)


def published_names() -> list[tuple[str, str]]:
    """Return the pairs of model and GPU product for which the kit has published points."""
    return [(model, gpu) for gpu in gpu_names() for model in names(f"tuning/points/{gpu}")]
