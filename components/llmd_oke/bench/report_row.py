"""A run as a row of the one table of results."""

from llmd_oke import catalogue
from llmd_oke.bench.distributions import Statistics
from llmd_oke.bench.smoke import SmokeResult
from llmd_oke.results.row import Basis, Origin, Quantiles, Row

TOOL = "llmd-oke smoke"


def smoke_row(result: SmokeResult) -> Row:
    """What a smoke benchmark found. Lengths are those that were asked for where no answer came."""
    plan, performance = result.plan, result.performance
    known = catalogue.model_of_repository(plan.model)
    copies, topology = split_copies(plan.topology.name)
    price = plan.facts.get("price_usd_per_hour")
    return Row(
        subject="end-to-end",
        basis=Basis(plan.provenance.value),
        model=known.name if known else plan.model,
        gpu=plan.topology.accelerator.rsplit("-", 1)[-1],
        origin=_origin(result),
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
        ttft_ms=quantiles_ms(performance.ttft),
        tpot_ms=quantiles_ms(performance.tpot),
        itl_ms=quantiles_ms(performance.itl),
        e2e_ms=quantiles_ms(performance.e2e),
        requests=performance.requests,
        failures=performance.failures,
        duration_s=performance.duration_s,
        seed=plan.seed,
        price_usd_per_hour=float(price) if isinstance(price, (int, float)) else None,
        notes=result.notes,
    )


def split_copies(name: str) -> tuple[int, str]:
    """Units and topology of a topology's name: 4 and `8p-tp1-4d-tp2` of `4 x 8p-tp1-4d-tp2`."""
    copies, mark, topology = name.partition(" x ")
    return (int(copies), topology) if mark else (1, name)


def quantiles_ms(statistics: Statistics | None) -> Quantiles:
    """Statistics in seconds as a row's quantiles in milliseconds."""
    if statistics is None:
        return Quantiles()
    values = statistics.model_dump(include=set(Quantiles.model_fields), exclude_none=True)
    return Quantiles(**{name: 1000 * value for name, value in values.items()})


def _origin(result: SmokeResult) -> Origin:
    config_hash = result.plan.facts.get("config_hash")
    return Origin(
        tool=TOOL,
        run=result.run,
        config_hash=str(config_hash) if config_hash else None,
        started=result.started.isoformat(),
    )
