"""What comes of reading a file of results: rows, and what was not readable, by file and line."""

from dataclasses import dataclass, field

from llmd_oke.results.row import Arrival, Basis, Row, Subject


@dataclass(frozen=True)
class Rejected:
    """Something that is no row, and why; `line` is None where the whole file is meant."""

    file: str
    line: int | None
    why: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.why}"


@dataclass(frozen=True)
class Read:
    """All rows of a file or folder, and all that was rejected."""

    rows: tuple[Row, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def __add__(self, other: "Read") -> "Read":
        return Read(self.rows + other.rows, self.rejected + other.rejected)


@dataclass(frozen=True)
class Hints:
    """What a format may leave out. A file's own word goes before a hint; what neither says is never guessed.

    `gpus` are those that servers use, `gpus_reserved` those that pods hold. `basis` is what the figures of other tools
    are: give `calibrated` where they had simulated servers before them.
    """

    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_reserved: int | None = None
    tensor_parallel_size: int | None = None
    topology: str | None = None
    copies: int | None = None
    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: str | None = None
    block_size: int | None = None
    router_profile: str | None = None
    subject: Subject | None = None
    arrival: Arrival | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
    max_num_seqs: int | None = None
    basis: Basis = Basis.MEASURED
    notes: tuple[str, ...] = field(default=())
