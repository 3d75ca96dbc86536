from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_deployment import QUESTIONS, TOPOLOGY, Answer
from llmd_base.errors import KitError
from llmd_bench.deployment import (
    MetricSample,
    MetricsEndpoint,
    Parallelism,
    Reading,
    ReportedServers,
    ReportedTopology,
    ServerPod,
    Snapshot,
)
from llmd_bench.evals import builtin_items
from llmd_bench.evidence import ApiAnswer, OtherApi
from llmd_bench.smoke import SmokeProgress, SmokeResult, about_simulation, evaluate, smoke
from llmd_bench.smoke_request import SmokeLimits

ALL_REMOTE = SmokeLimits(min_remote_prefill_share=0.95)
AGGREGATED = ReportedTopology("agg-tp1-2r", (ReportedServers("aggregated", 2, Parallelism(1)),))


async def test_a_deployment_that_prefills_all_prompts_remotely_passes_the_benchmark(deployment):
    result = await smoke(deployment.plan(thresholds=ALL_REMOTE))
    assert (result.passed, result.remote_prefill.share, result.notes) == (True, 1, ())
    assert (result.performance.requests, result.performance.output_tokens, result.performance.gpus) == (8, 40, 4)
    aggregated = await smoke(deployment.plan(topology=AGGREGATED, thresholds=ALL_REMOTE))
    assert (aggregated.passed, aggregated.remote_prefill) == (True, None), "there is none to prove"


async def test_probe_and_warm_up_requests_are_not_measured(deployment):
    result = await smoke(deployment.plan(warmup_requests=3))
    assert len(deployment.requests) == 1 + 3 + 8
    assert len(result.records) == 8
    assert len({body["prompt"] for body in deployment.requests}) == 12
    assert result.remote_prefill.counters["prefill requests"].value == 8


@pytest.mark.parametrize(
    ("topology", "concurrency", "expected"), [(TOPOLOGY, 1, 2), (TOPOLOGY, 4, 4), (AGGREGATED, 3, 3)]
)
async def test_a_warm_up_has_at_least_one_request_for_each_server_pair_and_each_user(
    deployment, topology, concurrency, expected
):
    plan = deployment.plan(topology=topology, concurrency=concurrency, warmup_requests=None)
    assert plan.warmup == expected


async def test_requests_that_fell_back_to_local_prefill_fail_the_smoke_benchmark(deployment):
    deployment.script = lambda number: Answer(remote=number % 2 == 0)
    result = await smoke(deployment.plan(thresholds=ALL_REMOTE))
    assert not result.passed
    assert "silent fallback" in result.verdict.failed[0].evidence
    assert result.remote_prefill.share == pytest.approx(0.5)


async def test_failed_requests_fail_the_smoke_benchmark_without_ending_it(deployment):
    deployment.script = lambda number: Answer(status=503) if number in {4, 6} else Answer()
    result = await smoke(deployment.plan())
    assert not result.passed
    assert (result.performance.requests, result.performance.failures) == (8, 2)
    assert result.verdict.failed[0].evidence == "2 x status: HTTP 503: no healthy upstream"


async def test_a_smoke_benchmarks_times_are_divided_by_the_time_scale(deployment):
    result = await smoke(deployment.plan(time_scale=0.01))
    slowest = max(record.started_s + record.latency_s for record in result.records)
    first = min(record.started_s for record in result.records)
    assert result.performance.duration_s == pytest.approx(slowest - first)
    assert result.wall_s < result.performance.duration_s < 101 * result.wall_s


async def test_a_benchmark_with_unreadable_metrics_fails_only_the_remote_prefill_check(deployment):
    deployment.dead_metrics = {"router", "prefill", "decode"}
    result = await smoke(deployment.plan(thresholds=ALL_REMOTE))
    assert result.performance.failures == 0
    assert [check.name for check in result.verdict.failed] == ["remote prefill"]


def restarting(*restarts: int) -> Callable[[], tuple[ServerPod, ...]]:
    """The pods as they are listed, one time after the other; below 0 there is no answer."""
    left = iter(restarts)

    def pods() -> tuple[ServerPod, ...]:
        if (number := next(left)) < 0:
            raise KitError("no answer")
        return (ServerPod("decode", "decode-0", number), ServerPod("prefill", "prefill-0"))

    return pods


@pytest.mark.parametrize(
    ("restarts", "value", "evidence"),
    [
        ((1, 1), 0, "no model server restarted during the run"),
        (
            (1, 3),
            1,
            "1 model server restarted during the run, which is no clean measurement: decode decode-0 (2 times)",
        ),
        ((1, -1), None, "the model servers' pods could not be listed before or after the run"),
    ],
)
async def test_a_benchmark_during_which_a_server_restarted_does_not_pass(deployment, restarts, value, evidence):
    result = await smoke(replace(deployment.plan(), servers=restarting(*restarts)))
    check = result.verdict.checks[-1]
    assert (check.name, check.value, check.evidence) == ("server restarts", value, evidence)
    assert result.passed == (value == 0)
    assert result.performance.failures == 0


async def test_a_model_that_never_answers_is_an_error(deployment):
    deployment.script = lambda _: Answer(hang=True)
    with pytest.raises(KitError, match="gave no completion within"):
        await smoke(deployment.plan(router_timeout_s=0.05))


async def test_a_benchmark_that_times_out_before_all_requests_is_no_measurement(deployment):
    deployment.script = lambda number: Answer(hang=number > 3)
    with pytest.raises(KitError) as error:
        await smoke(deployment.plan(timeout_s=1.0))
    assert "Only 4 of 8 requests to openai/gpt-oss-120b could be sent: the benchmark's limit of 1 s" in str(error.value)
    assert "2 x timeout" in str(error.value)
    assert "smoke.timeoutS" in str(error.value.remedy)


async def test_a_benchmark_without_any_answer_or_its_evaluation_fails_within_other_limits(deployment):
    unexamined = await smoke(deployment.plan(thresholds=SmokeLimits(min_accuracy=0.0)))
    assert [check.name for check in unexamined.verdict.failed] == ["accuracy"]
    deployment.requests.clear()
    deployment.script = lambda number: Answer(status=503) if number > 1 else Answer()
    unanswered = await smoke(deployment.plan(thresholds=SmokeLimits(max_failures=8)))
    assert [check.name for check in unanswered.verdict.failed] == ["answers"]


async def test_notes_report_failed_warm_up_too_few_requests_and_multi_token_stream_events(deployment):
    deployment.script = lambda number: Answer(status=503) if number == 1 else Answer(events=2, tokens_per_event=3)
    result = await smoke(replace(deployment.plan(), concurrency=4))
    text = "\n".join(result.notes)
    assert "fewer than 3 per user" in text
    assert "1 of 1 warm-up requests failed" in text
    assert "events carry 3.00 tokens" in text


async def test_a_smoke_benchmark_reports_progress_by_phase(deployment):
    seen: list[SmokeProgress] = []
    await smoke(deployment.plan(requests=2), seen.append)
    assert [(item.phase, item.done, item.total) for item in seen] == [
        ("waiting for the model to answer", 0, 0),
        ("warm-up", 1, 1),
        ("measuring", 1, 2),
        ("measuring", 2, 2),
    ]


@pytest.mark.parametrize(("right", "passed"), [(19, True), (18, False)])
async def test_answers_below_the_accuracy_floor_fail_the_benchmark(deployment, right, passed):
    answers = {item.prompt: item.answer for item in builtin_items(QUESTIONS)[:right]}
    deployment.reply = lambda prompt: answers.get(prompt, "no idea")
    plan = deployment.plan(questions=QUESTIONS, thresholds=SmokeLimits(min_accuracy=0.95))
    result = await smoke(plan)
    (_, check) = result.verdict.checks
    assert (check.name, check.value, result.passed) == ("accuracy", right / 20, passed)
    assert ("register-50-18: 'no idea'" in check.evidence) is not passed
    assert result.examined.answers == "1" * right + "0" * (20 - right)


async def test_a_benchmark_without_time_for_its_evaluation_questions_is_an_error(deployment):
    plan = deployment.plan(questions=QUESTIONS, thresholds=SmokeLimits(min_accuracy=0.95), timeout_s=20.0)
    with pytest.raises(KitError, match="questions were not asked"):
        await evaluate(plan, 0.0, lambda _: None)


def counted(**simulated: float) -> Snapshot:
    series = {f"llmd_oke_simulator_{name}_total": (MetricSample({}, value),) for name, value in simulated.items()}
    return Snapshot((Reading(MetricsEndpoint("decode", "decode-0", "http://decode-0/metrics"), series),))


def test_a_note_reports_a_machine_too_slow_for_the_simulation():
    before = counted(steps=100, late_steps=0)
    (remark,) = about_simulation(before, counted(steps=1100, late_steps=250))
    assert "25% of its steps were late" in remark
    assert list(about_simulation(before, counted(steps=1100, late_steps=5))) == []
    assert list(about_simulation(counted(), counted())) == [], "servers are real ones"


MEASURED = 1 + 1 + 8
"""Requests of the fake deployment's plan before other APIs are asked: probe, warm-up, measurement."""


async def result(deployment, *apis: OtherApi) -> SmokeResult:
    return await smoke(deployment.plan(thresholds=ALL_REMOTE, other_apis=apis))


async def test_the_smoke_benchmark_sends_each_other_vllm_api_one_prompt_of_measured_length(deployment):
    outcome = await result(deployment, *(OtherApi(name, remote_prefill=True) for name in ("chat", "responses")))
    chat, responses = deployment.requests[MEASURED:]
    assert len(chat["messages"][0]["content"]) == len(responses["input"]) == 4 * 64
    assert outcome.passed
    assert [answer.remote_prefill.share for answer in outcome.other_apis] == [1, 1]
    assert outcome.remote_prefill.counters["prefill requests"].value == 8


async def test_a_vllm_api_without_remote_prefill_fails_unless_it_is_never_disaggregated(deployment):
    deployment.script = lambda number: Answer(remote=number < MEASURED)
    outcome = await result(deployment, OtherApi("responses", remote_prefill=True))
    assert [check.name for check in outcome.verdict.failed] == ["responses remote prefill"]
    deployment.requests.clear()
    never = await result(deployment, OtherApi("responses", remote_prefill=False))
    assert never.passed
    assert never.other_apis[0].sentence == (
        "/v1/responses: answered; prompt of 64 tokens computed 0% by prefill servers; "
        "this release's endpoint picker never disaggregates it"
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(status=503), "HTTP 503: no healthy upstream"),
        (Answer(whole={"detail": "Not Found"}), "the answer has no usage, or isn't JSON"),
        (Answer(whole={"status": "failed", "usage": {"input_tokens": 64}}), "the answer is not one of this API"),
    ],
)
async def test_a_vllm_api_that_does_not_answer_fails_the_smoke_benchmark_with_the_error(deployment, answer, error):
    deployment.script = lambda number: Answer() if number < MEASURED else answer
    outcome = await result(deployment, OtherApi("responses", remote_prefill=True))
    assert [(check.name, check.evidence) for check in outcome.verdict.failed] == [
        ("responses answers", f"/v1/responses: {error}")
    ]
    assert outcome.other_apis[0].sentence == f"/v1/responses: {error}"


async def test_other_vllm_apis_of_an_aggregated_model_pass_without_remote_prefill(deployment):
    outcome = await smoke(deployment.plan(evidence=None, other_apis=(OtherApi("chat"),)))
    assert outcome.passed
    assert outcome.other_apis == (ApiAnswer(OtherApi("chat"), "/v1/chat/completions", None, 64),)


def whole(text: str) -> Answer:
    return Answer(whole={"choices": [{"text": text}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.mark.parametrize(
    ("of_adapter", "of_base", "passed", "evidence"),
    [
        (lambda n: whole("other"), lambda n: whole("base"), True, "8 of 8 answers differ"),
        (lambda n: whole("base"), lambda n: whole("base"), False, "0 of 8 answers differ"),
        (lambda n: whole("other"), lambda n: whole(f"base {n}"), False, "alike twice"),
        (lambda n: Answer(status=404), lambda n: whole("base"), False, "404"),
    ],
    ids=["applied", "loaded-and-not-applied", "base-that-differs-from-itself", "on-no-server"],
)
async def test_a_lora_adapter_passes_only_if_it_answers_other_than_its_steady_base_model(
    deployment, of_adapter, of_base, passed, evidence
):
    def script(number: int) -> Answer:
        asked = deployment.requests[number]
        if asked.get("stream"):
            return Answer()
        return (of_adapter if asked["model"] == "sql" else of_base)(number)

    deployment.script = script
    result = await smoke(deployment.plan(adapters=("sql",)))
    (check,) = [check for check in result.verdict.checks if check.name == "adapter sql"]
    assert check.passed == passed
    assert check.value is None or evidence != "404"
    assert evidence in check.evidence
