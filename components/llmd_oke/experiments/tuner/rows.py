"""The tuner's rows of a stack, kept over runs: `reports/<stack>/tuning/rows.jsonl`."""

from collections.abc import Hashable, Sequence
from pathlib import Path

from llmd_oke.results.files import read_rows, write_rows
from llmd_oke.results.history import stack_folder
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.servers.conditions import conditions_of


def tuning_folder(project: Path, stack: str, reports: Path | None = None) -> Path:
    """What the tuner keeps of a stack, below the project's reports or below others."""
    return (reports or project / "reports") / stack_folder(stack) / "tuning"


def rows_file(project: Path, stack: str) -> Path:
    """The rows of a stack's single servers."""
    return tuning_folder(project, stack) / "rows.jsonl"


def keep(rows: Sequence[Row], file: Path) -> list[Row]:
    """Adds rows to a file. Of several under equal circumstances the last one stays; gives all that are there then.

    Raises:
        KitError: the file holds what is no row.
    """
    earlier = read_rows(file) if file.exists() else []
    newest: dict[Hashable, Row] = {}
    for row in (*earlier, *rows):
        newest.pop(circumstances(row), None)
        newest[circumstances(row)] = row
    write_rows(newest.values(), file)
    return list(newest.values())


def kept_rows(file: Path, model: str, gpu: str) -> list[Row]:
    """The rows of a model on a GPU, of the image that was measured last and, role by role, under the conditions of its
    last row: measured ones, or those of rehearsals where nothing was measured.

    Raises:
        KitError: the file holds what is no row.
    """
    rows = read_rows(file) if file.exists() else []
    own = [row for row in rows if (row.model, row.gpu) == (model, gpu)]
    best = [row for row in own if row.basis is Basis.MEASURED] or own
    same = [row for row in best if row.image == best[-1].image]
    last = {row.subject: conditions_of(row) for row in same}
    return [row for row in same if conditions_of(row) == last[row.subject]]


def circumstances(row: Row) -> Hashable:
    """What tells one measurement of a server from another."""
    return (
        *(row.subject, row.basis, row.model, row.gpu, row.topology, row.tensor_parallel_size),
        *row.conditions.values(),
        *(round(row.input_tokens), round(row.output_tokens), row.arrival, row.seed, row.max_num_seqs),
        row.concurrency if row.arrival == "closed" else row.offered_requests_per_s,
    )
