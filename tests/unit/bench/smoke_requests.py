"""Requests of a smoke benchmark to the deployment of `fake_deployment`, as pods of a cluster."""

from fake_deployment import DECISIONS, MODEL, TOPOLOGY
from llmd_bench.evidence import EvidenceSettings, OtherApi
from llmd_bench.smoke_request import PodGroup, SmokeLimits, SmokeRequest
from llmd_oke.catalogue.benchmarks import builtin_set

REQUEST = SmokeRequest(
    namespace="llm-d",
    service="gpt",
    model=MODEL,
    topology=TOPOLOGY,
    input_tokens=64,
    output_tokens=5,
    requests=8,
    concurrency=2,
    timeout_s=20.0,
    thresholds=SmokeLimits(min_remote_prefill_share=0.95),
    groups=(
        PodGroup("a", "router", {"role": "router"}, 9090),
        PodGroup("a", "prefill", {"role": "prefill"}, 8000),
        PodGroup("a", "decode", {"role": "decode"}, 8200),
    ),
    server_port=8000,
    prefill_header="x-prefiller-host-port",
    other_apis=(OtherApi("responses", remote_prefill=True),),
    evidence=EvidenceSettings(DECISIONS),
    facts={"stack": "mine"},
)

QUESTIONS = builtin_set().model_copy(update={"registers": {50: 20}})
"""Few short questions of the kit's own."""
