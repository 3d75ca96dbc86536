"""The OpenAI API of a simulated server, over loopback, a hundred times faster than real."""

import asyncio
import json

import pytest
from aiohttp import test_utils
from llmd_oke.catalogue import model, shape
from llmd_oke.rehearsal.vllm.api import Api
from llmd_oke.rehearsal.vllm.cache_size import cache_size
from llmd_oke.rehearsal.vllm.clocks import WallClock
from llmd_oke.rehearsal.vllm.command import settings
from llmd_oke.rehearsal.vllm.engine import Engine
from llmd_oke.rehearsal.vllm.metrics import ServerMetrics
from llmd_oke.rehearsal.vllm.transfers import Identity, Network
from llmd_oke.tuning.servers.figures import latency_model

NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


@pytest.fixture(name="network")
def network_fixture():
    return Network()


@pytest.fixture(name="start")
async def start_fixture(network):
    """Starts servers; gives a client of each."""
    clients, nodes, chosen = [], shape("BM.GPU.MI300X.8"), model("gpt-oss-120b")
    clock = WallClock(asyncio.get_running_loop(), 0.01)

    async def start(*flags, port=5600):
        environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
        asked = settings(["vllm", "serve", "openai/gpt-oss-120b", "--served-model-name", "gpt", *flags], environment)
        cache = cache_size(asked, chosen, nodes)
        metrics = ServerMetrics("gpt", {}, connector=asked.transfer is not None, lag=clock.lag)
        engine = Engine(asked, cache, latency_model(chosen, nodes), metrics, clock, network)
        if asked.transfer is not None:
            identity = Identity(asked.transfer.engine_id, "localhost", port, None, "m", "i", 16, "auto", 1, False)
            network.join(identity, engine)
        server = test_utils.RawTestServer(Api(asked, engine, "v1", 0, 0).handle, handler_cancellation=True)
        client = test_utils.TestClient(server)
        client.engine = engine
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


@pytest.fixture(name="server")
async def server_fixture(start):
    return await start("--max-model-len", "4096", "--enable-prompt-tokens-details")


async def post(client, path, body):
    response = await client.post(path, json=body)
    return response.status, await response.json()


async def events(client, path, body):
    """The events of a stream, decoded but for the last."""
    response = await client.post(path, json={"stream": True, **body})
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    *parts, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


async def test_a_completion_has_the_length_that_was_asked_for(server):
    """And its usage counts prompt and output."""
    status, body = await post(server, "/v1/completions", {"model": "gpt", "prompt": [1] * 10, "max_tokens": 7})
    assert status == 200
    assert body["object"] == "text_completion"
    assert len(body["choices"][0]["text"]) == 4 * 7
    assert body["choices"][0]["finish_reason"] == "length"
    assert {**body["usage"], "prompt_tokens_details": None} == {
        "prompt_tokens": 10, "total_tokens": 17, "completion_tokens": 7, "prompt_tokens_details": None,
    }  # fmt: skip
    assert body["kv_transfer_params"] is None


async def test_a_completion_streams_one_event_for_each_token(server):
    """The last says why it ended; together they are the text of the whole answer."""
    asked = {"prompt": "hello there", "max_tokens": 5}
    streamed = await events(server, "/v1/completions", asked)
    choices = [event["choices"][0] for event in streamed]
    _, whole = await post(server, "/v1/completions", asked)
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert len({event["id"] for event in streamed}) == 1


async def test_a_chat_streams_the_role_first(server):
    """Then the content, as vLLM does."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 3}
    deltas = [event["choices"][0]["delta"] for event in await events(server, "/v1/chat/completions", body)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(delta.keys() == {"content"} for delta in deltas[1:])
    assert len(deltas) == 1 + 3


async def test_a_chat_answers_with_a_message(server):
    """Not streaming."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    status, answer = await post(server, "/v1/chat/completions", body)
    assert status == 200
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert len(answer["choices"][0]["message"]["content"]) == 12


async def test_usage_comes_last_where_it_is_asked_for(server):
    """stream_options.include_usage."""
    body = {"prompt": "hello", "max_tokens": 3, "stream_options": {"include_usage": True}}
    *_, last = await events(server, "/v1/completions", body)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


async def test_a_single_token_streams_too(server):
    """First and last at once."""
    (only,) = await events(server, "/v1/completions", {"prompt": "hello", "max_tokens": 1})
    assert only["choices"][0]["finish_reason"] == "length"


async def test_a_chat_without_a_limit_ends_by_itself_and_always_alike(server):
    """64 to 319 tokens; finish_reason stop."""
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answers = [(await post(server, "/v1/chat/completions", body))[1] for _ in range(2)]
    lengths = {answer["usage"]["completion_tokens"] for answer in answers}
    assert len(lengths) == 1
    assert 64 <= lengths.pop() < 320
    assert answers[0]["choices"][0]["finish_reason"] == "stop"


async def test_cached_tokens_are_told_where_details_are_on(server):
    """--enable-prompt-tokens-details."""
    body = {"prompt": "x" * 400, "max_tokens": 1}
    await post(server, "/v1/completions", body)
    _, again = await post(server, "/v1/completions", body)
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 96}


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"model": "other", "prompt": "x"}, 404, "NotFoundError", "The model `other` does not exist."),
        ({"prompt": [1] * 4000, "max_tokens": 97}, 400, "BadRequestError", "maximum context length is 4096 tokens"),
        ({"prompt": [1] * 5000}, 400, "BadRequestError", "maximum context length is 4096 tokens"),
        ({"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens must be at least 1, got 0"),
        ({"prompt": "x", "n": 2}, 400, "BadRequestError", "n: only 1"),
        ({"prompt": ""}, 400, "BadRequestError", "cannot be empty"),
        ({"prompt": ["a", "b"]}, 400, "BadRequestError", "prompt"),
        ({}, 400, "BadRequestError", "prompt"),
    ],
)
async def test_a_bad_completion_is_refused_in_vllms_shape(server, body, status, kind, words):
    """error.message, type, param and code."""
    answered, error = await post(server, "/v1/completions", body)
    assert (answered, error["error"]["code"], error["error"]["type"]) == (status, status, kind)
    assert words in error["error"]["message"]


async def test_a_chat_needs_messages(server):
    """400."""
    assert (await post(server, "/v1/chat/completions", {"messages": "hello"}))[0] == 400


async def test_a_body_that_is_no_json_is_refused(server):
    """By its type or by its content."""
    json_type, text_type = {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}
    assert (await server.post("/v1/completions", data="{", headers=json_type)).status == 400
    assert (await server.post("/v1/completions", data="{}", headers=text_type)).status == 400


async def test_the_other_routes(server):
    """Models, health, version, tokenize; 404 and 405 for the rest."""
    models = await (await server.get("/v1/models")).json()
    assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == ("gpt", 4096)
    assert (await server.get("/health")).status == 200
    assert (await server.post("/ping")).status == 200
    assert await (await server.get("/version")).json() == {"version": "v1"}
    assert (await (await server.post("/tokenize", json={"prompt": "12345"})).json())["count"] == 2
    assert (await server.get("/v1/responses")).status == 404
    assert (await server.get("/v1/completions")).status == 405


async def test_metrics_are_prometheus_text(server):
    """After a request they show it."""
    await post(server, "/v1/completions", {"prompt": "hello", "max_tokens": 3})
    response = await server.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'vllm:generation_tokens_total{engine="0",model_name="gpt"} 3.0' in await response.text()


async def test_a_client_that_goes_away_ends_its_request(server):
    """Blocks and place in the batch are free again."""
    body = {"prompt": "hello", "max_tokens": 4000, "stream": True}
    response = await server.post("/v1/completions", json=body)
    await response.content.readany()
    assert not server.engine.idle
    response.close()
    async with asyncio.timeout(10):
        while not server.engine.idle:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert server.engine.metrics.finished["abort"] == 1


async def test_kv_transfer_params_lead_a_decode_request_to_its_prefill(start):
    """As the routing sidecar passes them on, verbatim."""
    prefill = await start("--kv-transfer-config", NIXL)
    decode = await start("--kv-transfer-config", NIXL, port=5601)
    remote_decode = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
    body = {"prompt": "x" * 4000, "max_tokens": 1}
    _, filled = await post(prefill, "/v1/completions", {**body, "kv_transfer_params": remote_decode})
    params = filled["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert len(params["remote_block_ids"]) == 63
    assert (params["remote_host"], params["remote_port"], params["tp_size"]) == ("localhost", 5600, 1)
    status, answer = await post(decode, "/v1/completions", {**body, "max_tokens": 5, "kv_transfer_params": params})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 5)
    assert decode.engine.metrics.external_hits == 1000
    assert not prefill.engine.holds(params["remote_request_id"])


async def test_a_lost_prefill_is_an_internal_error_or_an_error_event(start):
    """Not streaming and streaming."""
    decode = await start("--kv-transfer-config", NIXL)
    remote = {"remote_engine_id": "gone", "remote_block_ids": [1], "remote_host": "h", "remote_port": 1}
    body = {"prompt": "hello", "kv_transfer_params": {"do_remote_prefill": True, **remote}}
    status, answer = await post(decode, "/v1/completions", body)
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    (event,) = await events(decode, "/v1/completions", body)
    assert event["error"]["code"] == 500


async def test_without_the_connector_transfer_parameters_mean_nothing(server):
    """The prompt is computed here and nothing is held."""
    body = {"prompt": "hello", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    status, answer = await post(server, "/v1/completions", body)
    assert (status, answer["kv_transfer_params"]) == (200, None)
    assert server.engine.metrics.cache_usage == 0.0


async def test_a_question_that_it_can_read_is_answered_and_ends_by_itself(server):
    body = {"model": "gpt", "messages": [{"role": "user", "content": "What is 20 + 22? Answer with the number only."}]}
    status, answer = await post(server, "/v1/chat/completions", {**body, "max_tokens": 64})
    (choice,) = answer["choices"]
    assert (status, choice["message"]["content"], choice["finish_reason"]) == (200, "42", "stop")
    assert answer["usage"]["completion_tokens"] == 1
