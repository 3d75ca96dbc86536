"""Conversion of smoke benchmarks and of stages of load into rows."""

from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

from llmd_base.metrics import LATENCIES
from llmd_base.row import CONDITIONS, Arrival, Basis, Origin, Quantiles, Row, Scope

from llmd_bench.load.records import classify
from llmd_bench.load.stages import StageResult
from llmd_bench.load.workload import ClosedLoop, ConstantRate, LoadShape, PoissonRate, Trace
from llmd_bench.performance import Statistics, describe
from llmd_bench.smoke import SmokeResult

SMOKE_TOOL = "llmd-oke smoke"
STAGE_TOOL = "llmd-oke bench"

_ARRIVALS: Mapping[type[LoadShape], Arrival] = {
    ClosedLoop: "closed",
    ConstantRate: "constant",
    PoissonRate: "poisson",
    Trace: "trace",
}


def smoke_row(result: SmokeResult, *, model: str) -> Row:
    """Return the row of a smoke benchmark; `model` is the model's name in the catalogue, or else its repository.
    Lengths are the requested ones if no request was answered.
    """
    plan, performance = result.plan, result.performance
    copies, topology = split_copies(plan.topology.name)
    price, config_hash = plan.facts.get("price_usd_per_hour"), plan.facts.get("config_hash")
    row = Row(
        subject="end-to-end",
        basis=plan.basis,
        model=model,
        gpu=plan.topology.accelerator.rsplit("-", 1)[-1],
        origin=Origin(
            tool=SMOKE_TOOL,
            run=result.run,
            config_hash=str(config_hash) if config_hash else None,
            started=result.started.isoformat(),
        ),
        image=plan.topology.servers[0].image,
        topology=topology,
        copies=copies,
        gpus_counted=plan.topology.gpus,
        gpus_reserved=plan.topology.gpus_reserved,
        input_tokens=performance.input_length.mean if performance.input_length else plan.input_tokens,
        output_tokens=performance.output_length.mean if performance.output_length else plan.output_tokens,
        concurrency=performance.users,
        achieved_requests_per_s=performance.requests_per_s,
        input_tokens_per_s=performance.input_tokens_per_s,
        output_tokens_per_s=performance.output_tokens_per_s,
        requests=performance.requests,
        failures=performance.failures,
        duration_s=performance.duration_s,
        seed=plan.seed,
        price_usd_per_hour=float(price) if isinstance(price, (int, float)) else None,
        notes=result.notes,
    )
    latencies = {latency.name: _in_ms(getattr(performance, latency.key)) for latency in LATENCIES}
    return row.model_copy(update={**latencies, **{name: plan.facts[name] for name in CONDITIONS if name in plan.facts}})


def split_copies(name: str) -> tuple[int, str]:
    """Split the name of a deployment into its number of copies and the topology of each copy: `4 x 8p-tp1-4d-tp2` into
    4 and `8p-tp1-4d-tp2`.
    """
    copies, mark, topology = name.partition(" x ")
    return (int(copies), topology) if mark else (1, name)


class StageFacts(TypedDict, total=False):
    """Facts about the deployment under load, by field of `Row`, that rows of stages contain."""

    topology: str | None
    copies: int
    tensor_parallel_size: int | None
    gpus_reserved: int | None
    image: str | None
    release: str | None
    attention_backend: str | None
    quick_reduce: str | None
    block_size: int | None
    router_profile: str | None
    draft_tokens: int
    max_num_seqs: int | None
    price_usd_per_hour: float | None


def stage_row(
    result: StageResult,
    *,
    model: str,
    gpu: str,
    gpus_counted: int,
    basis: Basis = Basis.MEASURED,
    subject: Scope = "end-to-end",
    seed: int | None = None,
    run: str | None = None,
    config_hash: str | None = None,
    notes: Iterable[str] = (),
    **facts: Unpack[StageFacts],
) -> Row:
    """Return the row of a stage without `shortfall`: latencies of the requests that were sent in its window, and rates
    within the window. `model` is the name in the catalogue, if there is one.
    """
    good = [record for record in result.counted if record.succeeded]
    shape = result.stage.shape
    input_tokens = _mean(record.input_tokens for record in good) or 0.0
    row = Row(
        **facts,
        subject=subject,
        basis=basis,
        model=model,
        gpu=gpu,
        origin=Origin(
            tool=STAGE_TOOL,
            run=run,
            config_hash=config_hash,
            started=result.started.isoformat(timespec="seconds") if result.started else None,
        ),
        gpus_counted=gpus_counted,
        input_tokens=input_tokens,
        output_tokens=_mean(record.output_tokens for record in good) or 0.0,
        arrival=_ARRIVALS[type(shape)],
        concurrency=shape.concurrency if isinstance(shape, ClosedLoop) else result.concurrency,
        offered_requests_per_s=shape.requests_per_s if isinstance(shape, ConstantRate | PoissonRate) else None,
        achieved_requests_per_s=result.requests_per_s,
        input_tokens_per_s=result.requests_per_s * input_tokens,
        output_tokens_per_s=result.output_tokens_per_s,
        requests=len(result.counted),
        failures=sum(not record.succeeded for record in result.counted),
        duration_s=result.window.duration_s,
        seed=seed,
        notes=(*notes, *_notes(result)),
    )
    return row.model_copy(update={latency.name: quantiles_ms(latency.samples_of(good)) for latency in LATENCIES})


def _notes(result: StageResult) -> Iterable[str]:
    if result.window.rule != "nothing trimmed":
        yield f"counted: {result.window.rule}"
    if result.health.spoiled:
        yield result.health.spoiled
    yield from map(str, classify(result.records))
    if result.second_try_because:
        yield f"measured at the second try; the first: {result.second_try_because}"


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def quantiles_ms(times_s: Iterable[float | None]) -> Quantiles:
    """Return the distribution in milliseconds of times in seconds; None values are skipped."""
    return _in_ms(describe((time_s for time_s in times_s if time_s is not None), "s"))


def _in_ms(statistics: Statistics | None) -> Quantiles:
    if statistics is None:
        return Quantiles()
    values = statistics.model_dump(include=set(Quantiles.model_fields), exclude_none=True)
    return Quantiles(**{name: 1000 * value for name, value in values.items()})
