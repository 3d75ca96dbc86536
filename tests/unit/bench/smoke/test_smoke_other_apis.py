"""The APIs beside the measured one: each must answer, and be prefilled where the endpoint picker says so."""

import pytest
from fake_deployment import Answer
from llmd_oke.bench.smoke.evidence import ApiAnswer, OtherApi
from llmd_oke.bench.smoke.smoke import SmokeResult, smoke
from llmd_oke.bench.smoke.thresholds import Thresholds

DISAGGREGATED = (OtherApi("chat", remote_prefill=True), OtherApi("responses", remote_prefill=True))
MEASURED = 1 + 1 + 8
"""Requests of the fake deployment's plan before other APIs are asked: probe, warm-up, measurement."""


async def result(deployment, *apis: OtherApi) -> SmokeResult:
    plan = deployment.plan(thresholds=Thresholds(min_remote_prefill_share=0.95), other_apis=apis)
    return await smoke(plan)


async def test_each_other_api_is_asked_once_with_a_prompt_of_the_measured_length(deployment):
    found = await result(deployment, *DISAGGREGATED)
    chat, responses = deployment.requests[MEASURED:]
    assert len(chat["messages"][0]["content"]) == len(responses["input"]) == 4 * 64
    assert found.passed
    assert [answer.remote_prefill.share for answer in found.other_apis] == [1, 1]
    assert found.remote_prefill.counters["prefill requests"].value == 8


async def test_an_api_whose_prompt_stays_on_decode_fails_where_the_release_disaggregates_it(deployment):
    deployment.script = lambda number: Answer(remote=number < MEASURED)
    found = await result(deployment, OtherApi("responses", remote_prefill=True))
    assert [check.name for check in found.verdict.failed] == ["responses remote prefill"]


async def test_an_api_that_the_release_never_disaggregates_is_told_and_passes(deployment):
    deployment.script = lambda number: Answer(remote=number < MEASURED)
    found = await result(deployment, OtherApi("responses", remote_prefill=False))
    assert found.passed
    assert found.other_apis[0].sentence == (
        "/v1/responses: answered; prompt of 64 tokens computed 0% by prefill servers; "
        "this release's endpoint picker never disaggregates it"
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(status=503), "HTTP 503: no healthy upstream"),
        (Answer(whole={"detail": "Not Found"}), "the answer has no usage, or isn't JSON"),
        (
            Answer(whole={"status": "failed", "usage": {"input_tokens": 64}}),
            "the answer is not one of this API",
        ),
    ],
)
async def test_an_api_that_does_not_answer_fails_the_benchmark_in_words(deployment, answer, error):
    deployment.script = lambda number: Answer() if number < MEASURED else answer
    found = await result(deployment, OtherApi("responses", remote_prefill=True))
    assert [(check.name, check.evidence) for check in found.verdict.failed] == [
        ("responses answers", f"/v1/responses: {error}")
    ]
    assert found.other_apis[0].sentence == f"/v1/responses: {error}"


async def test_a_model_that_is_not_disaggregated_must_only_answer(deployment):
    found = await smoke(deployment.plan(evidence=None, other_apis=(OtherApi("chat"),)))
    assert found.passed
    assert found.other_apis == (ApiAnswer(OtherApi("chat"), "/v1/chat/completions", None, 64),)
