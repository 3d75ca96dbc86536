"""The forecasts that were acted on, kept to be held against what is measured: `reports/<stack>/tuning/applied.json`."""

import json
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from llmd_oke.errors import KitError
from llmd_oke.experiments.tuning_rows import tuning_folder
from llmd_oke.results.files import write_whole
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


def applied_file(project: Path, stack: str) -> Path:
    """The forecasts of a stack, by model."""
    return tuning_folder(project, stack) / "applied.json"


def keep_applied(file: Path, model: str, forecast: Row, targets: str) -> None:
    """Keeps what is expected of a model of the stack file from now on."""
    known = _read(file) if file.exists() else {}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known[model] = Applied(applied=now, targets=targets, forecast=forecast)
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {name: each.model_dump(mode="json", exclude_defaults=True) for name, each in known.items()}
    write_whole(file, json.dumps(document, indent=2) + "\n")


def applied_forecast(file: Path, stack: str, model: str) -> Applied:
    """What was expected of a model when it was last tuned.

    Raises:
        KitError: nothing was applied to it.
    """
    known = _read(file) if file.exists() else {}
    if model not in known:
        message = f"No forecast has been applied to {model} of the stack {stack}."
        raise KitError(message, f"`llmd-oke tune apply --stack {stack}` writes the best deployment, then deploy it.")
    return known[model]


def _read(file: Path) -> dict[str, Applied]:
    try:
        return _FILE.validate_json(file.read_bytes())
    except ValidationError as error:
        remedy = "Remove it and apply again: `llmd-oke tune apply`."
        raise KitError(f"{file} is not as it was written: {error.errors()[0]['msg']}", remedy) from error
