"""Forecasts as rows of the one table, to stand beside measurements."""

from llmd_oke.results.row import Origin, Quantiles, Row
from llmd_oke.tuning.answers.confidence import Confidence
from llmd_oke.tuning.search.deployments import Deployment
from llmd_oke.tuning.search.question import Question
from llmd_oke.tuning.servers.conditions import Started


def forecast_row(
    model: str, gpu: str, question: Question, confidence: Confidence, started: Started, deployment: Deployment
) -> Row:
    """What a deployment is expected to do at its load. Latencies are means; the notes say how sure they are. `started`
    is what its servers are started with.
    """
    own = started.of(deployment.topology)
    usd = question.hardware.price_usd_per_hour
    return Row(
        subject="end-to-end",
        basis=confidence.basis,
        model=model,
        gpu=gpu,
        origin=Origin(tool="llmd-oke tune"),
        **own.model_dump(),
        router_profile=question.profile,
        topology=deployment.topology,
        copies=deployment.copies,
        gpus_counted=deployment.gpus,
        gpus_reserved=deployment.gpus_reserved,
        input_tokens=question.workload.input_tokens,
        output_tokens=question.workload.output_tokens,
        arrival="poisson",
        concurrency=deployment.requests_per_s * deployment.e2e_s,
        offered_requests_per_s=deployment.requests_per_s,
        achieved_requests_per_s=deployment.requests_per_s,
        input_tokens_per_s=deployment.requests_per_s * question.workload.input_tokens,
        output_tokens_per_s=deployment.output_tokens_per_s,
        ttft_ms=Quantiles(mean=deployment.ttft_s * 1000),
        tpot_ms=Quantiles(mean=deployment.itl_s * 1000),
        itl_ms=Quantiles(mean=deployment.itl_s * 1000),
        e2e_ms=Quantiles(mean=deployment.e2e_s * 1000),
        max_num_seqs=deployment.max_num_seqs,
        prefix_cache_hit_share=question.workload.prefix_cache_hit_share or None,
        price_usd_per_hour=usd and deployment.gpus_reserved * usd,
        notes=(confidence.sentence, *confidence.conditions),
    )
