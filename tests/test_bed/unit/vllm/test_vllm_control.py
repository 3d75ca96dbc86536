"""The control API, with servers on loopback."""

import asyncio
import os

import aiohttp
import pytest
from aiohttp import test_utils
from free_ports import free_port
from llmd_oke.catalogue import shape
from llmd_rehearsal.vllm.clocks import WallClock
from llmd_rehearsal.vllm.server import Control, Simulation
from vllm_for_tests import NIXL

HOST = "127.0.0.1"


@pytest.fixture(name="port")
def port_fixture():
    return free_port()


@pytest.fixture(name="startup")
def startup_fixture():
    """Loading takes milliseconds, and nobody asked for another time."""
    return {"startup_scale": 0.0001}


@pytest.fixture(name="control")
async def control_fixture(startup):
    """A tenth of real time."""
    clock = WallClock(asyncio.get_running_loop(), 0.1)
    simulation = Simulation(clock, shape("BM.GPU.MI300X.8"), seed=0, **startup)
    async with test_utils.TestClient(test_utils.TestServer(Control(simulation).application())) as client:
        yield client


@pytest.fixture(name="run")
def run_fixture(control, port):
    """Post a server and wait until it isn't starting any more."""

    async def run(*flags, id_="one", argv=None, image="vllm:v0.27.1", env=None):
        command = argv or ["vllm", "serve", "openai/gpt-oss-120b", "--host", HOST, "--port", str(port), *flags]
        body = {"id": id_, "netns": None, "argv": command, "env": env or {}, "image": image}
        response = await control.post("/servers", json=body)
        assert (response.status, await response.json()) == (201, {"id": id_, "process": os.getpid()})
        async with asyncio.timeout(10):
            while (state := await (await control.get(f"/servers/{id_}")).json())["state"] == "starting":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return state

    return run


@pytest.fixture(name="client")
async def client_fixture(port):
    async with aiohttp.ClientSession(f"http://{HOST}:{port}") as session:
        yield session


async def log(control, id_="one"):
    return await (await control.get(f"/servers/{id_}/log")).text()


async def test_a_simulated_server_answers_after_it_has_loaded_its_model(control, run, client):
    assert await run() == {"state": "running", "exit_code": None}
    assert (await client.get("/health")).status == 200
    assert await (await client.get("/version")).json() == {"version": "v0.27.1"}
    assert "Application startup complete." in await log(control)


async def test_a_model_without_measured_latencies_is_simulated_with_computed_bounds(control, run, client, monkeypatch):
    monkeypatch.setattr("llmd_oke.catalogue.latency_figures.latency_figures", lambda model, gpu: None)
    assert await run() == {"state": "running", "exit_code": None}
    assert "times of gpt-oss-120b are bounds" in await log(control)
    body = {"model": "openai/gpt-oss-120b", "prompt": "hello", "max_tokens": 2}
    assert (await client.post("/v1/completions", json=body)).status == 200


@pytest.mark.parametrize("startup", [{"startup_scale": 1.0}, {"startup_scale": 0.0001, "startup_s": 60.0}])
async def test_a_simulated_server_does_not_listen_while_it_loads_its_model(control, client, port):
    command = ["vllm", "serve", "openai/gpt-oss-120b", "--host", HOST, "--port", str(port)]
    body = {"id": "one", "argv": command, "env": {}, "image": "vllm:v1"}
    await control.post("/servers", json=body)
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get("/health")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--foo"], 2, "error: unrecognized arguments: --foo"),
        (["-tp", "3"], 1, "must be divisible by tensor parallel size (3)"),
    ],
)
async def test_a_server_with_invalid_flags_exits_with_vllms_code_and_message(control, run, flags, code, words):
    assert await run(*flags) == {"state": "exited", "exit_code": code}
    assert words in await log(control)


async def test_a_server_whose_image_refuses_the_attention_backend_exits(control, run):
    """The image says which vLLM it would be."""
    backend = ("--attention-backend", "ROCM_AITER_UNIFIED_ATTN")
    state = await run("--kv-transfer-config", NIXL, *backend, image="docker.io/vllm/vllm-openai-rocm:v0.26.0")
    assert state == {"state": "exited", "exit_code": 1}
    assert "KV connector not supported" in await log(control)


async def test_a_simulated_server_exits_for_a_model_outside_the_catalogue(control, run):
    assert (await run(argv=["vllm", "serve", "nobody/nothing"]))["exit_code"] == 1
    assert "gpt-oss-120b" in await log(control)


async def test_a_simulated_server_on_an_occupied_port_exits_with_an_error(control, run):
    await run()
    assert await run(id_="two") == {"state": "exited", "exit_code": 1}
    assert "Address already in use" in await log(control, "two")


async def test_a_simulated_server_closes_an_idle_connection_after_the_keep_alive_timeout(run, port):
    """Clients that keep it longer, as the routing sidecar does, lose a request now and then."""
    await run(env={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"})
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: m\r\n\r\n")
    async with asyncio.timeout(10):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    writer.close()


async def test_the_simulators_wait_request_ends_with_the_server_or_at_its_time_limit(control, run):
    await run()
    assert (await control.get("/servers/one/wait?timeout_s=0.01")).status == 204
    waiting = asyncio.create_task(control.get("/servers/one/wait?timeout_s=10"))
    assert (await control.delete("/servers/one?grace_s=1")).status == 204
    response = await waiting
    assert (response.status, await response.json()) == (200, {"state": "exited", "exit_code": 0})


async def test_a_stopped_simulated_server_frees_its_port_and_its_id(control, run, client):
    await run()
    await control.delete("/servers/one")
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get("/health")
    assert (await control.delete("/servers/one")).status == 204
    assert (await control.delete("/servers/never")).status == 204
    assert (await run())["state"] == "running"


async def test_the_simulator_refuses_starts_without_arguments_and_ids_in_use_or_unknown(control, run):
    await run()
    body = {"id": "one", "argv": ["vllm", "serve", "m"], "env": {}, "image": ""}
    assert (await control.post("/servers", json=body)).status == 409
    assert (await control.post("/servers", json={"id": "x"})).status == 400
    assert (await control.get("/servers/unknown")).status == 404


async def begin_stream(client):
    """Begin a stream of 100 tokens; return the task of its text."""
    response = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 100, "stream": True})
    await response.content.readany()
    return asyncio.create_task(response.text())


@pytest.mark.parametrize(("flags", "reason"), [([], "abort"), (["--shutdown-timeout", "60"], "length")])
async def test_requests_of_a_stopping_server_end_within_its_shutdown_timeout(control, run, client, flags, reason):
    await run(*flags)
    streaming = await begin_stream(client)
    await control.delete("/servers/one?grace_s=30")
    assert f'"finish_reason":"{reason}"' in await streaming


async def test_the_health_document_of_the_vllm_simulator_reports_its_lag(control, run):
    await run()
    health = await (await control.get("/healthz")).json()
    assert health["servers"] == 1
    assert health["time_scale"] == 0.1
    assert health.keys() >= {"lag_s", "steps", "late_steps", "slipped_s"}


async def test_the_simulator_reports_to_be_idle_only_while_no_server_has_requests(control, run, client):
    await run("--shutdown-timeout", "0")
    assert (await (await control.get("/healthz")).json())["at_rest"]
    streaming = await begin_stream(client)
    assert not (await (await control.get("/healthz")).json())["at_rest"]
    await control.delete("/servers/one?grace_s=0")
    await asyncio.gather(streaming, return_exceptions=True)
    assert (await (await control.get("/healthz")).json())["at_rest"]


async def test_a_killed_simulated_server_stops_answering_and_has_the_exit_code_of_a_signal(control, run, client):
    await run()
    body = {"prompt": "hello", "max_tokens": 4000, "stream": True}
    answer = await client.post("/v1/completions", json=body)
    waiting = asyncio.create_task(control.get("/servers/one/wait?timeout_s=10"))
    assert (await control.post("/servers/one/kill")).status == 204
    assert await (await waiting).json() == {"state": "exited", "exit_code": 137}
    with pytest.raises(aiohttp.ClientError):
        await answer.read()
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get("/health")


async def test_the_failed_prefill_fault_fails_the_given_percentage_of_prefills_only(run, client):
    await run("--kv-transfer-config", NIXL, env={"LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT": "40"})
    plain = {"prompt": "hello", "max_tokens": 1}
    prefill = {**plain, "kv_transfer_params": {"do_remote_decode": True}}
    statuses = [(await client.post("/v1/completions", json=prefill)).status for _ in range(10)]
    assert sorted(statuses) == [200] * 6 + [500] * 4
    assert {(await client.post("/v1/completions", json=plain)).status for _ in range(5)} == {200}
