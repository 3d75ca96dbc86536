"""Tokens of drafts that servers count, and what a stack file says of them."""

from typing import Any

import pytest
from llmd_base.row import Basis
from llmd_bench.deployment import EndpointRole, MetricsEndpoint, Reading, Snapshot
from llmd_bench.queries import parse
from llmd_oke.operations.counters import observation, window
from llmd_oke.operations.judgements import AssumptionVerdict, judge, model_limits
from llmd_oke.operations.observations import CountedObservation
from stack_files import model, plan


def snapshot(drafted: int | None, accepted: int = 0, requests: int = 0) -> Snapshot:
    counted = f"vllm:request_success_total {requests}\n"
    if drafted is not None:
        counted += f"vllm:spec_decode_num_draft_tokens_total {drafted}\n"
        counted += f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
    role: EndpointRole = "aggregated"
    return Snapshot((Reading(MetricsEndpoint(role, "a-0", "http://a/metrics"), parse(counted)),))


def seen(before: Snapshot, after: Snapshot) -> CountedObservation:
    return observation(window(before, after, 10.0), [], Basis.MEASURED)


def verdict(share: float, **asked: Any) -> list[AssumptionVerdict]:
    made = plan(model("agg-tp8-1r", model="deepseek-r1", engine={"speculation": asked}))
    counted = seen(snapshot(0), snapshot(1000, round(1000 * share), requests=100))
    judged = judge(list(model_limits(made, made.models[0])), counted)
    return [item.verdict for item in judged if item.assumption.figure.name == "accepted_share"]


def test_the_share_of_accepted_draft_tokens_is_computed_and_held_to_the_expected_one():
    assert seen(snapshot(1000, 900), snapshot(3000, 1900)).accepted_share == pytest.approx(0.5)
    assert seen(snapshot(None), snapshot(None)).accepted_share is None
    assert verdict(0.5, acceptedShare=0.8) == [AssumptionVerdict.BELOW]
    assert verdict(0.75, acceptedShare=0.8) == [AssumptionVerdict.HOLDS]
    assert verdict(0.95, acceptedShare=0.8) == [AssumptionVerdict.HOLDS]
    assert verdict(0.1) == [], "none is expected"
