"""`llmd-oke tune verify`: was the forecast right that `tune apply` acted on?"""

import json
from typing import Annotated

import typer

from llmd_oke import config
from llmd_oke.cli import console, options
from llmd_oke.cli.tune import inputs, verify_view
from llmd_oke.cli.tune.verify_view import Verified
from llmd_oke.experiments.tuner import forecast_errors, verification
from llmd_oke.experiments.tuner.applied import applied_file, applied_forecast
from llmd_oke.results.files import write_whole

Tolerance = Annotated[
    float | None,
    typer.Option(
        help="How far a forecast may be off, as a share of what is seen; "
        f"{verification.verifying().tolerance:g} if left out.",
        min=0,
    ),
]
Fail = Annotated[bool, typer.Option("--fail", help="End with exit code 1 where a forecast is further off.")]


def verify(
    stack: options.Stack,
    project: options.Project = options.HERE,
    name: inputs.Name = None,
    rehearse: options.Rehearse = False,
    requests: options.Requests = None,
    tolerance: Tolerance = None,
    fail: Fail = False,
    as_json: options.Json = False,
) -> None:
    """Load what is deployed as the applied forecast assumed, and show forecast, measurement and error side by side."""
    models = config.load(project, stack).models
    model = models[inputs.model_index(models, name)]
    applied = applied_forecast(applied_file(project, stack), stack, model.object_name)
    subject = verification.subject(project, stack, model, applied)
    progress = console.progress()
    if rehearse:
        environment = console.inherited_environment()
        seen, folder = verification.measure_rehearsed(subject, requests, environment, progress)
    else:
        seen, folder = verification.measure_deployed(subject, requests, progress)
    allowed = verification.verifying().tolerance if tolerance is None else tolerance
    verified = Verified(subject, seen, tuple(forecast_errors.compare(applied.forecast, seen)), allowed, folder.path)
    document = json.dumps(verify_view.as_json(verified), indent=2)
    write_whole(folder.path / "verification.json", document + "\n")
    if as_json:
        typer.echo(document)
    else:
        verify_view.show(verified)
    raise typer.Exit(1 if fail and verified.missed else 0)
