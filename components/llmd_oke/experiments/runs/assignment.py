"""What the program that measures one deployment is told, as a file: it runs where the deployment can be reached."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from llmd_oke import config
from llmd_oke.experiments.recipes.recipe import Subject

FAILURE_FILE = "failure.json"
"""Beside the assignment: why nothing could be measured."""


class Assignment(BaseModel):
    """The measurements of one deployment of a run. `stack` is the derived one, `deployment` a model of it.

    `time_scale` is wall seconds for a second of model time; `limits_s` has a limit for each stage, in wall time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: Path
    stack: str
    folder: Path
    """The run's folder."""
    recipe: str
    deployment: str
    subject: Subject
    limits_s: dict[str, float]
    router: str
    time_scale: float = 1.0
    simulated: tuple[str, ...] = ()
    ran: dict[str, str] = {}
    slo: config.Slo = config.Slo()
    max_num_seqs: int | None = None
    price_usd_per_hour: float | None = None
