"""What published measurements found out about prefill/decode disaggregation, as data that can be checked.

`values/tuning/published-findings.yaml` has each finding with its source, how it is evaluated, how far a prediction may
be off, and where the model is known to miss it. `finding_checks` evaluates them.
"""

from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.catalogue.files import Entry, entry
from llmd_oke.tuning.servers.conditions import Conditions
from llmd_oke.tuning.simulation.deployment import Policy
from llmd_oke.tuning.simulation.result import Window

Band = tuple[float | None, float | None]
"""The least and the most that the source says; None where it sets no limit."""


class Sweep(Entry):
    """Deployments of one unit under rising concurrency, in a closed loop. `conditions` is what servers were started
    with.
    """

    model: str
    shape: str
    conditions: Conditions
    input_tokens: int
    output_tokens: int
    concurrencies: tuple[int, ...]
    topologies: tuple[str, ...]


class Load(Entry):
    """Requests at a rate, in an open loop. `conditions` is what servers were started with."""

    model: str
    shape: str
    conditions: Conditions
    input_tokens: int
    output_tokens: int
    arrival: Literal["constant", "poisson"]
    duration_s: float
    window: Window


class Served(Entry):
    """A deployment under a load, and how its router picks servers."""

    topology: str
    policy: Policy


class Winner(Entry):
    """Which group of topologies reaches the most output tokens per second and GPU at some speeds for each user."""

    kind: Literal["winner"]
    sweep: str
    groups: dict[str, tuple[str, ...]]
    winner: str
    tpsu: tuple[float, ...]


class Throughput(Entry):
    """Output tokens per second and GPU of the best of some topologies, or their ratio to the best of others."""

    kind: Literal["throughput"]
    sweep: str
    of: tuple[str, ...]
    over: tuple[str, ...] = ()
    tpsu: tuple[float, ...]
    published: Band
    tolerance: float


class Latency(Entry):
    """A figure of a row (`e2e_ms.mean`), or its ratio to that of another deployment or to another figure of its own.

    Rates are requests per second, or shares of what the prefill servers of `of` can do at most.
    """

    kind: Literal["latency"]
    load: str
    of: Served
    over: Served | None = None
    figure: str
    over_figure: str | None = None
    requests_per_s: tuple[float, ...] = ()
    prefill_shares: tuple[float, ...] = ()
    published: Band
    tolerance: float


Evaluation = Annotated[Winner | Throughput | Latency, Field(discriminator="kind")]


class Finding(Entry):
    """One finding. `known_misses` has why the model misses it, by the point at which it does."""

    name: str
    statement: str
    source: str
    evaluate: Evaluation
    known_misses: dict[float, str] = Field(default_factory=dict[float, str])


class Findings(Entry):
    """The file of findings, with the sweeps and loads that they share; `definitions` has what several of these have."""

    definitions: dict[str, object]
    sweeps: dict[str, Sweep]
    loads: dict[str, Load]
    findings: tuple[Finding, ...]


@cache
def published_findings() -> Findings:
    """The findings of `values/tuning/published-findings.yaml`."""
    found = entry("tuning", "published-findings", Findings)
    if found is None:
        raise AssertionError("values/tuning/published-findings.yaml belongs to the kit")
    return found
