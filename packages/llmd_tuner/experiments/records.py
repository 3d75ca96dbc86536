"""Records that the tuner keeps of a stack (`reports/<stack>/tuning`): rows of single servers, applied forecasts."""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.row import Basis, Row
from llmd_bench.files import make_folder, read_rows, write_rows, write_whole
from llmd_bench.history import stack_folder
from llmd_oke import config
from llmd_oke.catalogue.conditions import conditions_of
from llmd_oke.planning import ModelPlan
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError


def tuning_folder(project: Path, stack: str, reports: Path | None = None) -> Path:
    """Return the folder of the tuner's records of a stack, below the project's reports or below `reports`."""
    return (reports or project / "reports") / stack_folder(stack) / "tuning"


def rows_file(project: Path, stack: str) -> Path:
    """Return the path of the file with the measured rows of a stack's single servers."""
    return tuning_folder(project, stack) / "rows.jsonl"


def add_rows(rows: Sequence[Row], file: Path) -> list[Row]:
    """Add rows to a file, and return all its rows. A row replaces an earlier one of the same server under the same
    conditions.

    Raises:
        KitError: the file contains something that is not a row.
    """
    earlier = read_rows(file) if file.exists() else []
    newest: dict[Hashable, Row] = {}
    for row in (*earlier, *rows):
        newest.pop(measurement_key(row), None)
        newest[measurement_key(row)] = row
    write_rows(newest.values(), file)
    return list(newest.values())


def current_rows(file: Path, model: str, gpu: str) -> list[Row]:
    """Return the rows of a model on a GPU with the image that was measured last and, for each role, under the
    conditions of its last row. Rows of rehearsals are returned only where nothing was measured.

    Raises:
        KitError: the file contains something that is not a row.
    """
    rows = read_rows(file) if file.exists() else []
    own = [row for row in rows if (row.model, row.gpu) == (model, gpu)]
    best = [row for row in own if row.basis is Basis.MEASURED] or own
    same = [row for row in best if row.image == best[-1].image]
    last = {row.subject: conditions_of(row) for row in same}
    return [row for row in same if conditions_of(row) == last[row.subject]]


def measurement_key(row: Row) -> Hashable:
    """Return a key that is equal for two measurements of the same server under the same load and conditions."""
    return (
        *(row.subject, row.basis, row.model, row.gpu, row.topology, row.tensor_parallel_size),
        *row.conditions.values(),
        *(round(row.input_tokens), round(row.output_tokens), row.arrival, row.seed, row.max_num_seqs),
        row.concurrency if row.arrival == "closed" else row.offered_requests_per_s,
    )


class Applied(BaseModel):
    """Record of `tune apply`: the deployment that it wrote into a model's entry of the stack file, and the forecast for
    it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    applied: str
    """Time of `tune apply` in ISO 8601, UTC."""
    targets: str
    """Latency targets as written on a command line; may be empty."""
    forecast: Row
    """Forecast at the requested load or, without one, at the highest load that the deployment carries."""


_FILE = TypeAdapter(dict[str, Applied])


def applied_file(project: Path, stack: str, reports: Path | None = None) -> Path:
    """Return the path of the file with the applied forecasts of a stack's models, below the project's reports or below
    `reports`.
    """
    return tuning_folder(project, stack, reports) / "applied.json"


def keep_applied(file: Path, model: str, forecast: Row, targets: str) -> None:
    """Store the forecast for a model as the one that its deployment is compared with from now on.

    Raises:
        KitError: the file can't be written, or its earlier content is damaged.
    """
    known = _read(file) if file.exists() else {}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known[model] = Applied(applied=now, targets=targets, forecast=forecast)
    make_folder(file.parent)
    document = {name: entry.model_dump(mode="json", exclude_defaults=True) for name, entry in known.items()}
    write_whole(file, json.dumps(document, indent=2) + "\n")


def find_applied(file: Path, model: str) -> Applied | None:
    """Return the last forecast that `tune apply` stored for a model; None if there is none.

    Raises:
        KitError: the file is damaged.
    """
    return _read(file).get(model) if file.exists() else None


def applied_forecast(file: Path, stack: str, model: str) -> Applied:
    """Return the last forecast that `tune apply` stored for a model.

    Raises:
        KitError: `tune apply` never stored one for the model.
    """
    applied = find_applied(file, model)
    if applied is None:
        message = f"No forecast has been applied to {model} of the stack {stack}."
        raise KitError(message, f"`llmd-oke tune apply --stack {stack}` writes the best deployment, then deploy it.")
    return applied


def mismatch(model: config.ModelConfig | ModelPlan, applied: Applied) -> str | None:
    """Return how the deployment in a stack file differs from the one that a forecast is about; None if it doesn't."""
    forecast = applied.forecast
    actual = f"{model.copies} x {model.topology}, maxNumSeqs {model.engine.max_num_seqs}"
    expected = f"{forecast.copies} x {forecast.topology}, maxNumSeqs {forecast.max_num_seqs}"
    if actual == expected:
        return None
    return f"the stack file has {actual}; the forecast of {applied.applied} is of {expected}"


def changed_conditions(applied: Applied, deployed: Mapping[str, object]) -> Iterator[str]:
    """Yield the differences between the conditions of a deployment and those that its forecast was made for."""
    made_for = applied.forecast.conditions
    if not any(made_for.values()):
        yield f"conditions unknown: what the forecast of {applied.applied} was made for is not told; apply again"
    for name, now in deployed.items():
        then = made_for[name]
        if then is not None and now is not None and now != then:
            yield f"{name.replace('_', ' ')} {now}, the forecast of {applied.applied} was made for {then}"


def _read(file: Path) -> dict[str, Applied]:
    try:
        return _FILE.validate_json(file.read_bytes())
    except ValidationError as error:
        remedy = "Remove it and apply again: `llmd-oke tune apply`."
        raise KitError(f"{file} is not as it was written: {error.errors()[0]['msg']}", remedy) from error
