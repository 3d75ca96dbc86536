"""Published measurements of whole deployments (`values/tuning/published-runs.yaml`), as rows of the one table."""

from functools import cache

from llmd_oke.catalogue.files import Entry, entry
from llmd_oke.results.row import Row
from llmd_oke.tuning.servers.conditions import Conditions
from llmd_oke.tuning.simulation.deployment import Policy
from llmd_oke.tuning.simulation.result import Window


class Run(Entry):
    """One run. `policy` is how its router picks servers, `window` what counts of its time (its tool's usual one where
    there is none); `conditions` is what its servers were started with, where that is told;
    `key_value_bytes_per_token` is told where its KV cache has another number format than the catalogue's; `lengths` are
    shares of the row's mean lengths that its requests have, each as many.
    """

    row: Row
    policy: Policy = "queue"
    window: Window | None = None
    conditions: Conditions | None = None
    key_value_bytes_per_token: float | None = None
    lengths: tuple[float, ...] = (1.0,)


class PublishedRuns(Entry):
    """The file of runs; `definitions` has what several of them share."""

    definitions: dict[str, object]
    runs: tuple[Run, ...]


@cache
def published_runs(model: str, gpu: str) -> tuple[Run, ...]:
    """The published runs of a model on a GPU product."""
    found = entry("tuning", "published-runs", PublishedRuns)
    if found is None:
        raise AssertionError("values/tuning/published-runs.yaml belongs to the kit")
    return tuple(run for run in found.runs if (run.row.model, run.row.gpu) == (model, gpu))
