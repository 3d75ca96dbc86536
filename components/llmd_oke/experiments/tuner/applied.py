"""The forecasts that were acted on, kept to be held against what is measured: `reports/<stack>/tuning/applied.json`."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from llmd_oke import config
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.rows import tuning_folder
from llmd_oke.results.files import make_folder, write_whole
from llmd_oke.results.row import Row


class Applied(BaseModel):
    """What a model's entry of the stack file was changed to, and what was expected of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    applied: str
    """ISO 8601, UTC."""
    targets: str
    """As they are written on a command line; may be empty."""
    forecast: Row
    """At the load that was asked for, or at the most that the deployment carries where none was."""


_FILE = TypeAdapter(dict[str, Applied])


def applied_file(project: Path, stack: str, reports: Path | None = None) -> Path:
    """The forecasts of a stack, by model, below the project's reports or below others."""
    return tuning_folder(project, stack, reports) / "applied.json"


def keep_applied(file: Path, model: str, forecast: Row, targets: str) -> None:
    """Keeps what is expected of a model of the stack file from now on.

    Raises:
        KitError: it can't be kept, or what was kept is not as it was written.
    """
    known = _read(file) if file.exists() else {}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known[model] = Applied(applied=now, targets=targets, forecast=forecast)
    make_folder(file.parent)
    document = {name: each.model_dump(mode="json", exclude_defaults=True) for name, each in known.items()}
    write_whole(file, json.dumps(document, indent=2) + "\n")


def find_applied(file: Path, model: str) -> Applied | None:
    """What was expected of a model when it was last tuned; None where it never was.

    Raises:
        KitError: the file is not as it was written.
    """
    return _read(file).get(model) if file.exists() else None


def applied_forecast(file: Path, stack: str, model: str) -> Applied:
    """What was expected of a model when it was last tuned.

    Raises:
        KitError: nothing was applied to it.
    """
    found = find_applied(file, model)
    if found is None:
        message = f"No forecast has been applied to {model} of the stack {stack}."
        raise KitError(message, f"`llmd-oke tune apply --stack {stack}` writes the best deployment, then deploy it.")
    return found


def mismatch(model: config.Model, applied: Applied) -> str | None:
    """How a stack file's deployment differs from the one that the forecast is of; None where it is that one."""
    forecast = applied.forecast
    found = f"{model.copies} x {model.topology}, maxNumSeqs {model.engine.max_num_seqs}"
    expected = f"{forecast.copies} x {forecast.topology}, maxNumSeqs {forecast.max_num_seqs}"
    if found == expected:
        return None
    return f"the stack file has {found}; the forecast of {applied.applied} is of {expected}"


def changed_conditions(applied: Applied, deployed: Mapping[str, object]) -> Iterator[str]:
    """How the conditions of a deployment differ from those that its forecast was made for."""
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
