import asyncio

import pytest
from fake_deployment import Answer
from llmd_base.errors import KitError
from llmd_bench.load import generator as bench_load
from llmd_bench.load.generator import CompletionsTarget, GeneratedLoad, run_load, wait_for_answer
from llmd_bench.load.records import Failure
from llmd_bench.load.workload import ClosedLoop, ConstantRate, PromptSource


def load(requests=6, shape=None, **changes) -> GeneratedLoad:
    return GeneratedLoad(
        requests, shape or ClosedLoop(2), PromptSource(32, 0, "test"), **{"output_tokens": 5, **changes}
    )


async def only(deployment, answer: Answer, **changes):
    deployment.script = lambda _: answer
    (record,) = await run_load(deployment.target, load(1, **changes), limit_s=20)
    return record


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_every_request_has_a_record_with_the_servers_counts_and_ascending_times(deployment, api):
    records = await run_load(CompletionsTarget(deployment.url, "m", api=api), load(), limit_s=20)
    assert sorted(record.index for record in records) == list(range(6))
    assert all(record.succeeded and record.counted_by_server for record in records)
    counts = {(record.input_tokens, record.output_tokens, len(record.event_times_s)) for record in records}
    assert counts == {(32, 5, 5)}
    for record in records:
        assert 0 < record.ttft_s <= record.event_times_s[-1] <= record.latency_s
        assert list(record.event_times_s) == sorted(record.event_times_s)


async def test_requests_ask_for_an_exact_length_and_a_stream_with_usage(deployment):
    await only(deployment, Answer())
    body = deployment.requests[0]
    assert body | {"prompt": ""} == {
        "model": "openai/gpt-oss-120b",
        "prompt": "",
        "max_tokens": 5,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_path_of_a_proxy_url_precedes_the_path_of_the_completions_api(deployment):
    target = CompletionsTarget(f"{deployment.url}/api/v1/namespaces/llm-d/services/epp:http/proxy", "m")
    (record,) = await run_load(target, load(1), limit_s=20)
    assert record.error.startswith("HTTP 404")


async def test_output_tokens_are_counted_by_the_servers_usage_or_else_by_stream_event(deployment):
    record = await only(deployment, Answer(events=4, tokens_per_event=3))
    assert (record.output_tokens, len(record.event_times_s), len(record.gaps_s)) == (12, 4, 3)
    assert record.tpot_s == pytest.approx(sum(record.gaps_s) / 11)
    uncounted = await only(deployment, Answer(usage=False))
    assert (uncounted.succeeded, uncounted.counted_by_server, uncounted.output_tokens) == (True, False, 5)


@pytest.mark.parametrize(
    ("answer", "failure", "text"),
    [
        (Answer(status=503), Failure.STATUS, "HTTP 503: no healthy upstream"),
        (Answer(error="engine died", usage=False), Failure.SERVER, "engine died"),
        (Answer(cut=True), Failure.CUT, "peer closed connection"),
        (Answer(events=0), Failure.SERVER, "without output"),
    ],
)
async def test_a_failed_request_is_recorded_with_kind_and_text(deployment, answer, failure, text):
    record = await only(deployment, answer)
    assert record.failure is failure
    assert text in record.error


async def test_an_unreachable_server_yields_a_failure_record():
    (record,) = await run_load(CompletionsTarget("http://127.0.0.1:1", "m"), load(1), limit_s=20)
    assert record.failure is Failure.CONNECTION


async def test_no_request_is_started_after_the_time_limit(deployment):
    deployment.script = lambda _: Answer(hang=True)
    records = await run_load(deployment.target, load(), limit_s=0.05)
    assert [record.failure for record in records] == [Failure.TIMEOUT] * 2


async def test_a_closed_loop_keeps_its_concurrency(deployment):
    running, most = 0, 0

    def script(number: int) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        return Answer(hang=number < 3)

    def ended(_) -> None:
        nonlocal running
        running -= 1

    deployment.script = script
    deployment.release_at = 3
    await run_load(deployment.target, load(20, ClosedLoop(3)), limit_s=20, on_record=ended)
    assert most == 3


async def test_an_open_loop_sends_requests_without_waiting_for_responses(deployment):
    deployment.script = lambda _: Answer(hang=True)
    deployment.release_at = 4
    records = await run_load(deployment.target, load(4, ConstantRate(1000)), limit_s=20)
    assert [record.failure for record in records] == [None] * 4


NO_SUCH_MODEL = Answer(status=404, error='{"message": "The model `m` does not exist.", "type": "NotFoundError"}')


@pytest.mark.parametrize(("refusal", "times"), [(Answer(status=503), 3), (NO_SUCH_MODEL, 9)], ids=["503", "another's"])
async def test_a_model_is_asked_for_one_token_until_it_is_free_and_a_gateway_routes_to_it(deployment, refusal, times):
    deployment.script = lambda number: refusal if number < times else Answer()
    await wait_for_answer(deployment.target, limit_s=20, pause_s=0)
    assert [body["max_tokens"] for body in deployment.requests] == [1] * (times + 1)


async def test_waiting_for_a_model_ends_after_the_limit_with_the_last_response(deployment):
    deployment.script = lambda _: Answer(status=503)
    with pytest.raises(KitError, match=r"no completion within 0.5 s; the last attempt: status: HTTP 503"):
        await wait_for_answer(deployment.target, limit_s=0.5, pause_s=0.1)
    with pytest.raises(KitError, match="none was tried"):
        await wait_for_answer(deployment.target, limit_s=0)


@pytest.mark.parametrize(("refusal", "times"), [(Answer(status=401), 1), (NO_SUCH_MODEL, 10)], ids=["401", "another's"])
async def test_waiting_for_a_model_ends_at_a_401_or_the_tenth_answer_that_no_server_has_it(deployment, refusal, times):
    deployment.script = lambda _: refusal
    with pytest.raises(KitError, match=f"refuses a completion: HTTP {refusal.status}"):
        await wait_for_answer(deployment.target, limit_s=20, pause_s=0)
    assert len(deployment.requests) == times


@pytest.mark.parametrize(("time_scale", "attempts"), [(1.0, 2), (600.0, 1)])
async def test_a_time_scale_above_one_lengthens_the_timeout_of_attempts_to_reach_a_model(
    deployment, monkeypatch, time_scale, attempts
):
    monkeypatch.setattr(bench_load, "ATTEMPT_TIMEOUT_S", 0.1)
    asyncio.get_running_loop().call_later(0.4, deployment.released.set)
    deployment.script = lambda number: Answer(hang=number == 0)
    await wait_for_answer(deployment.target, limit_s=20, time_scale=time_scale, pause_s=0)
    assert len(deployment.requests) == attempts
