"""The OpenAI API of a simulated server, over loopback, a hundred times faster than real."""

import asyncio
import json
from collections import Counter
from functools import partial

import pytest
from vllm_for_tests import NIXL, events, post


@pytest.fixture(name="start")
def start_fixture(start_api):
    return partial(start_api, "--served-model-name", "gpt")


@pytest.fixture(name="server")
async def server_fixture(start):
    return await start("--max-model-len", "4096", "--enable-prompt-tokens-details")


@pytest.fixture(name="harmony")
async def harmony_fixture(start):
    return await start("--max-model-len", "4096", harmony=True)


@pytest.mark.parametrize("tokens", [1, 5])
async def test_a_streamed_completion_has_one_event_for_each_token(server, tokens):
    body = {"prompt": "hello there", "max_tokens": tokens}
    streamed = await events(server, "/v1/completions", body)
    choices = [event["choices"][0] for event in streamed]
    _, whole = await post(server, "/v1/completions", body)
    assert [choice["finish_reason"] for choice in choices] == [None] * (tokens - 1) + ["length"]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert (whole["object"], len(whole["choices"][0]["text"])) == ("text_completion", 4 * tokens)
    assert len({event["id"] for event in streamed}) == 1


async def test_a_streamed_chat_begins_with_the_role(server):
    body = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 3}
    deltas = [event["choices"][0]["delta"] for event in await events(server, "/v1/chat/completions", body)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(delta.keys() == {"content"} for delta in deltas[1:])
    assert len(deltas) == 1 + 3


async def test_a_chat_without_max_tokens_ends_by_itself_at_the_same_token_each_time(server):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answers = [(await post(server, "/v1/chat/completions", body))[1] for _ in range(2)]
    lengths = {answer["usage"]["completion_tokens"] for answer in answers}
    assert len(lengths) == 1
    assert 64 <= lengths.pop() < 320
    (choice,) = answers[0]["choices"]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")


async def test_cached_tokens_are_reported_in_usage_if_prompt_token_details_are_enabled(server):
    body = {"prompt": "x" * 400, "max_tokens": 1}
    await post(server, "/v1/completions", body)
    _, again = await post(server, "/v1/completions", body)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("completions", {"model": "other", "prompt": "x"}, "The model `other` does not exist."),
        ("completions", {"prompt": [1] * 4000, "max_tokens": 97},
         "This model's maximum context length is 4096 tokens. However, you requested 97 output tokens and your prompt "
         "contains at least 4000 input tokens, for a total of at least 4097 tokens."),
        ("completions", {"prompt": [1] * 5000}, "your prompt contains 5000 input tokens, for a total of 5016 tokens."),
        ("completions", {"prompt": "x", "max_tokens": 0},
         "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
        ("completions", {"prompt": "x", "max_tokens": "many"},
         "1 validation error:\n  {'type': 'int_parsing', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be a "
         "valid integer, unable to parse string as an integer', 'input': 'many'}"),
        ("completions", {"prompt": "x", "temperature": 3},
         "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)"),
        ("completions", {"prompt": "x", "logprobs": 30},
         "Requested sample logprobs of 30, which is greater than max allowed: 20 (parameter=logprobs, value=30)"),
        ("completions", {"prompt": "x", "prompt_logprobs": "1"}, "'>' not supported between"),
        ("chat/completions", {"messages": "hello"}, "('body', 'messages'), 'msg': 'Input should be a valid list'"),
        ("responses", {"input": "x", "max_output_tokens": 5000},
         "max_output_tokens=5000 cannot be greater than max_model_len=max_total_tokens=4096."),
    ],
)  # fmt: skip
async def test_invalid_requests_get_vllms_error_messages(server, path, body, words):
    """Status, type and parameter are held to vLLM's by the list of conformance."""
    status, answer = await post(server, f"/v1/{path}", {**body, "stream": "prompt_logprobs" in body})
    assert status in {400, 404}
    assert words in answer["error"]["message"]


async def test_without_its_harmony_vocabulary_gpt_oss_answers_completions_only(start):
    """vLLM 0.26 and 0.30 start by their source, and fail as they render the first chat."""
    server = await start(harmony=True, vocabulary_error="no vocab file")
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for path, prompt in (("/v1/chat/completions", chat), ("/v1/responses", {"input": "x"})):
        status, answer = await post(server, path, prompt)
        assert (status, answer["error"]["type"]) == (500, "InternalServerError")
        assert answer["error"]["message"] == "no vocab file"
    assert (await post(server, "/v1/completions", {"prompt": "x", "max_tokens": 1}))[0] == 200
    assert server.log == ["ERROR openai_harmony.HarmonyError: no vocab file"] * 2


async def test_gpt_oss_refuses_request_parameters_that_its_harmony_format_does_not_support(harmony):
    """gpt-oss: no log probabilities in responses, no forced tools, and its own check of the prompt's length."""
    with_logprobs = {"input": "x", "include": ["message.output_text.logprobs"]}
    assert (await post(harmony, "/v1/responses", with_logprobs))[1]["error"]["param"] == "logprobs"
    tool = {"type": "function", "name": "f"}
    assert (await post(harmony, "/v1/responses", {"input": "x", "tool_choice": tool, "tools": [tool]}))[0] == 501
    status, error = await post(harmony, "/v1/responses", {"input": "x" * 4 * 4096})
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    status, answer = await post(harmony, "/v1/responses", {"input": "x" * 4 * 4090, "max_output_tokens": 5000})
    assert (status, answer["max_output_tokens"]) == (200, answer["usage"]["output_tokens"])
    assert answer["usage"]["input_tokens_details"]["input_tokens_per_turn"] == [answer["usage"]["input_tokens"]]


async def test_the_last_event_of_a_streamed_response_has_the_complete_response(server):
    """Numbered from 0; the last event has what an answer that isn't streamed has."""
    body = {"input": "hello there", "max_output_tokens": 5, "ignore_eos": True}
    _, whole = await post(server, "/v1/responses", body)
    response = await server.post("/v1/responses", json={**body, "stream": True})
    parts = [part.split("\ndata: ", 1) for part in (await response.text()).split("\n\n") if part]
    sent = [(name.removeprefix("event: "), json.loads(data)) for name, data in parts]
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    assert all(name == data["type"] for name, data in sent)
    text = "".join(data["delta"] for name, data in sent if name == "response.output_text.delta")
    last = sent[-1][1]["response"]
    assert text == last["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"]
    assert last["usage"] == whole["usage"] | {"input_tokens_details": last["usage"]["input_tokens_details"]}
    assert last.keys() == whole.keys()


async def test_a_response_without_a_limit_of_output_tokens_ends_by_itself(server):
    _, answer = await post(server, "/v1/responses", {"input": "hello"})
    assert (answer["status"], answer["incomplete_details"]) == ("completed", None)
    assert 64 <= answer["usage"]["output_tokens"] < 320


async def test_several_answers_can_stream_at_the_same_time(server):
    """Two prompts with two answers each: four choices, each whole, and one end."""
    body = {"prompt": ["hello there", "good morning"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    streamed = await events(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    choices = [event["choices"][0] for event in streamed[:-1]]
    assert Counter(choice["index"] for choice in choices) == dict.fromkeys(range(4), 3)
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2, 3]
    assert streamed[-1]["usage"]["completion_tokens"] == 12
    assert streamed[-1]["usage"]["prompt_tokens"] == 6


async def test_the_simulated_vllm_answers_models_health_version_and_tokenize_paths(server):
    models = await (await server.get("/v1/models")).json()
    assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == ("gpt", 4096)
    assert (await server.get("/health")).status == 200
    assert (await server.post("/ping")).status == 200
    assert await (await server.get("/version")).json() == {"version": "v1"}
    assert (await (await server.post("/tokenize", json={"prompt": "12345"})).json())["count"] == 2
    assert (await server.get("/v1/responses")).status == 405
    assert (await server.get("/v1/embeddings")).status == 404
    assert (await server.get("/v1/completions")).status == 405


async def test_render_returns_the_tokens_that_a_request_would_compute(server):
    """One request for tokens for each prompt of a completion, and one for a chat; the engine computes nothing."""
    body = {"model": "gpt", "prompt": ["hello there", "12345"], "n": 2, "max_tokens": 3, "cache_salt": "x"}
    status, rendered = await post(server, "/v1/completions/render", body)
    tokens = (await (await server.post("/tokenize", json={"prompt": "12345"})).json())["tokens"]
    assert (status, len(rendered), rendered[1]["token_ids"]) == (200, 2, tokens)
    assert (rendered[0]["sampling_params"]["max_tokens"], rendered[0]["cache_salt"]) == (3, "x")
    chat = {"model": "gpt", "messages": [{"role": "user", "content": "hello there"}]}
    status, rendered = await post(server, "/v1/chat/completions/render", chat)
    assert (status, rendered["request_id"].partition("-")[0], rendered["model"]) == (200, "chatcmpl", "gpt")
    assert rendered["sampling_params"]["max_tokens"] == 4096 - len(rendered["token_ids"])
    assert (await post(server, "/v1/completions/render", {"model": "other", "prompt": "x"}))[0] == 404
    assert server.engine.idle


@pytest.mark.parametrize(("flags", "status"), [((), 404), (("--enable-scale-out",), 200)])
async def test_since_vllm_0_30_render_is_served_only_if_scale_out_is_enabled(start, flags, status):
    server = await start(*flags, version="v0.30.0")
    assert (await server.post("/v1/completions/render", json={"model": "gpt", "prompt": "x"})).status == status


async def test_the_simulated_vllms_metrics_have_the_prometheus_text_format(server):
    await post(server, "/v1/completions", {"prompt": "hello", "max_tokens": 3})
    response = await server.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'vllm:generation_tokens_total{engine="0",model_name="gpt"} 3.0' in await response.text()


async def test_a_client_that_disconnects_aborts_its_request(server):
    body = {"prompt": "hello", "max_tokens": 4000, "stream": True}
    response = await server.post("/v1/completions", json=body)
    await response.content.readany()
    assert not server.engine.idle
    response.close()
    async with asyncio.timeout(10):
        while not server.engine.idle:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert server.engine.metrics.finished["abort"] == 1


async def test_kv_transfer_params_of_a_prefill_let_a_decode_server_pull_its_kv_cache(start):
    """The routing sidecar passes the parameters on verbatim."""
    prefill = await start("--kv-transfer-config", NIXL)
    decode = await start("--kv-transfer-config", NIXL, port=5601)
    remote_decode = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
    body = {"prompt": "x" * 4000, "max_tokens": 1}
    _, filled = await post(prefill, "/v1/completions", {**body, "kv_transfer_params": remote_decode})
    params = filled["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert [len(group) for group in params["remote_block_ids"]] == [63]
    assert (params["remote_num_tokens"], params["remote_blocks_expiry_time"]) == (1000, None)
    assert (params["remote_host"], params["remote_port"], params["tp_size"]) == ("localhost", 5600, 1)
    status, answer = await post(decode, "/v1/completions", {**body, "max_tokens": 5, "kv_transfer_params": params})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 5)
    assert decode.engine.metrics.external_hits == 1000
    assert not prefill.engine.holds(params["remote_request_id"])


async def test_a_request_whose_prefill_is_lost_gets_status_500_or_an_error_event(start):
    decode = await start("--kv-transfer-config", NIXL)
    remote = {"remote_engine_id": "gone", "remote_block_ids": [[1]], "remote_host": "h", "remote_port": 1}
    body = {"prompt": "hello", "kv_transfer_params": {"do_remote_prefill": True, **remote}}
    status, answer = await post(decode, "/v1/completions", body)
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    (event,) = await events(decode, "/v1/completions", body)
    assert event["error"]["code"] == 500


@pytest.mark.parametrize("more", [{}, {"do_remote_decode": True}, {"remote_block_ids": []}])
async def test_kv_transfer_params_without_block_ids_end_the_server(start, more):
    decode = await start("--kv-transfer-config", NIXL)
    body = {"prompt": "hello", "kv_transfer_params": {"do_remote_prefill": True, **more}}
    status, answer = await post(decode, "/v1/completions", body)
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert decode.ends == ["crashed"]


async def test_without_a_kv_connector_transfer_params_are_ignored(server):
    body = {"prompt": "hello", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    status, answer = await post(server, "/v1/completions", body)
    assert (status, answer["kv_transfer_params"]) == (200, None)
    assert server.engine.metrics.cache_usage == 0.0


async def test_the_simulated_vllm_answers_a_question_of_the_kits_evaluation_set_correctly(server):
    question = "A register.\n\nbolt-1: bin 42\n\nIn which bins are bolt-1? Answer with the numbers only, in this order."
    body = {"model": "gpt", "messages": [{"role": "user", "content": question}]}
    status, answer = await post(server, "/v1/chat/completions", {**body, "max_tokens": 64})
    (choice,) = answer["choices"]
    assert (status, choice["message"]["content"], choice["finish_reason"]) == (200, "42", "stop")
    assert answer["usage"]["completion_tokens"] == 1


async def test_a_server_whose_vllm_engine_died_lists_its_models_but_is_not_healthy(server):
    assert (await server.get("/health")).status == 200
    server.engine.dead = True
    statuses = [(await server.get(path)).status for path in ("/health", "/ping", "/v1/models")]
    assert statuses == [503, 503, 200]
    assert (await server.post("/v1/completions", json={"model": "gpt", "prompt": "a"})).status == 500


async def test_requests_are_spread_over_the_data_parallel_ranks_of_a_server(start):
    server = await start("--max-model-len", "4096", "--data-parallel-size", "4", "--enable-expert-parallel")
    body = {"model": "gpt", "prompt": "hello", "max_tokens": 4}
    await asyncio.gather(*(post(server, "/v1/completions", body) for _ in range(16)))
    assert [engine.metrics.finished["length"] for engine in server.engines] == [4] * 4


async def test_each_data_parallel_rank_transfers_kv_cache_from_its_own_port(start):
    prefill = await start("--kv-transfer-config", NIXL, "--data-parallel-size", "2")
    decode = await start("--kv-transfer-config", NIXL, "--data-parallel-size", "2", port=5700)
    places: set[tuple[str, int]] = set()
    for _ in range(4):
        body = {"model": "gpt", "prompt": [5] * 100, "max_tokens": 1}
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        _, answer = await post(prefill, "/v1/completions", {**body, "kv_transfer_params": asked})
        transfer = answer["kv_transfer_params"]
        places.add((transfer["remote_engine_id"][-4:], transfer["remote_port"]))
        status, _ = await post(decode, "/v1/completions", {**body, "max_tokens": 3, "kv_transfer_params": transfer})
        assert status == 200
    assert places == {("_dp0", 5600), ("_dp1", 5601)}
    assert all(engine.at_rest for engine in prefill.engines)


async def test_the_system_fingerprint_of_an_answer_contains_the_data_parallel_size(start):
    server = await start("--data-parallel-size", "2")
    _, answer = await post(server, "/v1/completions", {"model": "gpt", "prompt": "hello", "max_tokens": 1})
    assert answer["system_fingerprint"].split("-")[2] == "dp2"
