"""One row of the common table from one stage of load."""

from collections.abc import Iterable

from llmd_oke.bench.percentiles import percentile
from llmd_oke.bench.shapes import ClosedLoop, ConstantRate, LoadShape, PoissonRate
from llmd_oke.bench.stages import StageResult
from llmd_oke.results.row import Arrival, Basis, Origin, Quantiles, Row, Subject

TOOL = "llmd-oke bench"


def row(
    result: StageResult,
    *,
    model: str,
    gpu: str,
    gpus_counted: int,
    basis: Basis = Basis.MEASURED,
    subject: Subject = "end-to-end",
    topology: str | None = None,
    copies: int = 1,
    tensor_parallel_size: int | None = None,
    gpus_reserved: int | None = None,
    image: str | None = None,
    max_num_seqs: int | None = None,
    price_usd_per_hour: float | None = None,
    seed: int | None = None,
    run: str | None = None,
    config_hash: str | None = None,
    notes: Iterable[str] = (),
) -> Row:
    """What a stage did: latencies of the requests that were sent in its window, rates of what arrived in it."""
    good = [record for record in result.counted if record.succeeded]
    shape = result.stage.shape
    return Row(
        subject=subject,
        basis=basis,
        model=model,
        gpu=gpu,
        origin=Origin(
            tool=TOOL,
            run=run,
            config_hash=config_hash,
            started=result.started.isoformat(timespec="seconds") if result.started else None,
        ),
        image=image,
        topology=topology,
        copies=copies,
        tensor_parallel_size=tensor_parallel_size,
        gpus_counted=gpus_counted,
        gpus_reserved=gpus_reserved,
        input_tokens=_mean(record.input_tokens for record in good) or 0.0,
        output_tokens=_mean(record.output_tokens for record in good) or 0.0,
        arrival=_arrival(shape),
        concurrency=shape.concurrency if isinstance(shape, ClosedLoop) else result.concurrency,
        offered_requests_per_s=shape.requests_per_s if isinstance(shape, ConstantRate | PoissonRate) else None,
        achieved_requests_per_s=result.requests_per_s,
        input_tokens_per_s=result.requests_per_s * (_mean(record.input_tokens for record in good) or 0.0),
        output_tokens_per_s=result.output_tokens_per_s,
        ttft_ms=quantiles_ms(record.ttft_s for record in good),
        tpot_ms=quantiles_ms(record.tpot_s for record in good),
        itl_ms=quantiles_ms(gap for record in good for gap in record.gaps_s),
        e2e_ms=quantiles_ms(record.latency_s for record in good),
        requests=len(result.counted),
        failures=sum(not record.succeeded for record in result.counted),
        duration_s=result.window.duration_s,
        seed=seed,
        max_num_seqs=max_num_seqs,
        price_usd_per_hour=price_usd_per_hour,
        notes=(*notes, *_notes(result)),
    )


def _notes(result: StageResult) -> Iterable[str]:
    if result.window.rule != "nothing trimmed":
        yield f"counted: {result.window.rule}"
    if result.health.spoiled:
        yield result.health.spoiled
    if result.interrupted:
        yield f"interrupted: {result.health.abandoned} requests in flight were given up"


def _arrival(shape: LoadShape) -> Arrival:
    if isinstance(shape, ClosedLoop):
        return "closed"
    if isinstance(shape, ConstantRate):
        return "constant"
    return "poisson" if isinstance(shape, PoissonRate) else "trace"


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def quantiles_ms(times_s: Iterable[float | None]) -> Quantiles:
    """The distribution of times in seconds; those that are None are left out."""
    ordered = sorted(1000 * time_s for time_s in times_s if time_s is not None)
    if not ordered:
        return Quantiles()
    at = {"p25": 25.0, "p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99p9": 99.9}
    shares = {name: percentile(ordered, percent) for name, percent in at.items()}
    return Quantiles(mean=sum(ordered) / len(ordered), min=ordered[0], max=ordered[-1], **shares)
