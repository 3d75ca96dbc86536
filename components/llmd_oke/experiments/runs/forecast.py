"""How long a run will take and what it will cost, before anything is rented.

A closed loop ends when its requests are answered. How long that takes is worked out with the latency model, without
queues at the router: good enough for a bill, no forecast of results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from llmd_oke import catalogue
from llmd_oke.catalogue.files import Entry, entry
from llmd_oke.experiments.recipes.recipe import Deployment, Recipe
from llmd_oke.experiments.recipes.schedule import Stage
from llmd_oke.tuning.servers.figures import latency_model
from llmd_oke.tuning.servers.latency import LatencyModel


class Durations(Entry):
    """`values/experiments/durations.yaml`: seconds that are assumed until they are measured."""

    name: str
    deploy_s: float
    teardown_s: float
    settle_s: float
    rehearsed_deploy_s: float
    rehearsed_teardown_s: float


@cache
def durations() -> Durations:
    """The assumptions.

    Raises:
        RuntimeError: the package came without its data.
    """
    found = entry("experiments", "durations", Durations)
    if found is None:
        raise RuntimeError("values/experiments/durations.yaml is missing from this installation")
    return found


@dataclass(frozen=True)
class Duration:
    """Wall seconds, and where they are from: `measured`, `calibrated` or `assumed`."""

    seconds: float
    basis: str


@dataclass(frozen=True)
class Round:
    """Deployments that are up at the same time and measured one after the other."""

    names: tuple[str, ...]
    gpus: int
    deploy: Duration
    bench: Duration
    teardown: Duration
    stages: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.deploy.seconds + self.bench.seconds + self.teardown.seconds


@dataclass(frozen=True)
class Forecast:
    """What a run takes: its rounds, and the price of all its GPUs from the first deployment to the last teardown."""

    rounds: tuple[Round, ...]
    gpus: int
    price_usd_per_gpu_hour: float
    rehearsed: bool

    @property
    def seconds(self) -> float:
        """Wall time."""
        return sum(each.seconds for each in self.rounds)

    @property
    def gpu_hours(self) -> float:
        """GPUs that are held, times hours; none of them real in a rehearsal."""
        return self.gpus * self.seconds / 3600

    @property
    def price_usd(self) -> float:
        """At list price."""
        return 0.0 if self.rehearsed else self.gpu_hours * self.price_usd_per_gpu_hour


def bench_duration(
    recipe: Recipe, deployment: Deployment, stages: Sequence[Stage], shape: catalogue.Shape, time_scale: float
) -> Duration:
    """How long the measurements of a deployment take."""
    facts = catalogue.model(deployment.model or recipe.model)
    model = latency_model(facts, shape) if facts else None
    if model is None:
        known = all(stage.arrival != "closed" for stage in stages)
        seconds = sum(_open_s(stage) for stage in stages if stage.arrival != "closed")
        return Duration(seconds * time_scale, "assumed" if known else "at least, closed loops not counted")
    seconds = durations().settle_s + sum(stage_s(model, deployment, stage) for stage in stages)
    return Duration(seconds * time_scale, "calibrated")


def stage_s(model: LatencyModel, deployment: Deployment, stage: Stage) -> float:
    """Seconds of model time from the first request of a stage to the last token."""
    return max(_open_s(stage), stage.requests * _request_s(model, deployment, stage))


def _open_s(stage: Stage) -> float:
    return 0.0 if stage.arrival == "closed" else stage.requests / stage.level


def _request_s(model: LatencyModel, deployment: Deployment, stage: Stage) -> float:
    """The busiest servers' time for one request: prefill servers one after the other, decode servers in batches.

    A closed loop also waits for its own users: a request takes a user the whole of its latency.
    """
    roles = deployment.topology.servers()
    first, last = next(iter(roles.values())), list(roles.values())[-1]
    prefill_s = (
        0.0
        if deployment.subject == "decode-only"
        else model.prefill_s(stage.input_tokens, 0, first.tensor_parallel_size)
    )
    users = stage.concurrency or stage.requests
    batch = max(1, min(users // (last.replicas * deployment.copies), deployment.engine.max_num_seqs))
    context = stage.input_tokens + stage.output_tokens / 2
    decode_s = stage.output_tokens * model.decode_step_s(batch, context, last.tensor_parallel_size)
    prefill_share_s = prefill_s / (first.replicas * deployment.copies)
    decode_share_s = decode_s / batch / (last.replicas * deployment.copies)
    if not deployment.topology.disaggregated:
        return prefill_share_s + decode_share_s
    return max(prefill_share_s, decode_share_s, (prefill_s + decode_s) / users)


def of(seconds: Mapping[str, float], key: str, assumed_s: float) -> Duration:
    """The longest that was measured of its kind (`deploy`, `teardown`), or what is assumed."""
    return Duration(seconds[key], "measured") if key in seconds else Duration(assumed_s, "assumed")
