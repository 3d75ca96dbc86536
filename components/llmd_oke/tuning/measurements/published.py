"""Published measurements of servers (`values/tuning/points`), as rows of the one table."""

from collections.abc import Iterator
from functools import cache

from pydantic import Field

from llmd_oke.catalogue.files import Entry, entry
from llmd_oke.results.row import Basis, Origin, Row, Subject

TokensPerS = dict[int, dict[int, float]]
"""By tensor parallel size, then by concurrency."""


class DecodePoints(Entry):
    """Servers that decode: output tokens per second."""

    input_tokens: int
    output_tokens: int
    max_num_seqs: int
    output_tokens_per_s: TokensPerS


class PrefillPoints(Entry):
    """Servers that prefill: prompt and output tokens per second. `prefix_cache_hit_share` is by concurrency."""

    input_tokens: int
    output_tokens: int
    total_tokens_per_s: TokensPerS
    prefix_cache_hit_share: dict[int, float] = Field(default_factory=dict[int, float])


class SetAside(Entry):
    """A point that its source prints and that is known not to be what it seems."""

    subject: Subject
    tensor_parallel_size: int
    concurrency: int
    why: str


class PublishedPoints(Entry):
    """One file of `values/tuning/points`."""

    model: str
    gpu: str
    source: str
    image: str
    decode: DecodePoints
    prefill: PrefillPoints
    set_aside: tuple[SetAside, ...] = ()

    def rows(self) -> list[Row]:
        """All points; those that are set aside say why in their notes."""
        return [*self._decode_rows(), *self._prefill_rows()]

    def kept_rows(self) -> list[Row]:
        """The points that are not set aside."""
        return [row for row in self.rows() if not row.notes]

    def _decode_rows(self) -> Iterator[Row]:
        for size, rates in self.decode.output_tokens_per_s.items():
            for concurrency, rate in rates.items():
                row = self._row("decode", size, concurrency, self.decode.input_tokens, self.decode.output_tokens)
                yield row.model_copy(
                    update={"output_tokens_per_s": rate, "max_num_seqs": self.decode.max_num_seqs},
                )

    def _prefill_rows(self) -> Iterator[Row]:
        points = self.prefill
        for size, rates in points.total_tokens_per_s.items():
            for concurrency, rate in rates.items():
                row = self._row("prefill", size, concurrency, points.input_tokens, points.output_tokens)
                requests_per_s = rate / (points.input_tokens + points.output_tokens)
                yield row.model_copy(
                    update={
                        "achieved_requests_per_s": requests_per_s,
                        "input_tokens_per_s": requests_per_s * points.input_tokens,
                        "output_tokens_per_s": requests_per_s * points.output_tokens,
                        "prefix_cache_hit_share": points.prefix_cache_hit_share.get(concurrency),
                    }
                )

    def _row(self, subject: Subject, size: int, concurrency: int, input_tokens: int, output_tokens: int) -> Row:
        place = (subject, size, concurrency)
        notes = tuple(
            each.why for each in self.set_aside if (each.subject, each.tensor_parallel_size, each.concurrency) == place
        )
        return Row(
            subject=subject,
            basis=Basis.MEASURED,
            model=self.model,
            gpu=self.gpu,
            origin=Origin(tool=self.source),
            image=self.image,
            tensor_parallel_size=size,
            gpus_counted=size,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            notes=notes,
        )


@cache
def published_points(model: str) -> PublishedPoints | None:
    """The published points of a model, or None where the kit has none."""
    return entry("tuning/points", model, PublishedPoints)
