"""LoRA adapters of a simulated server: found in a folder, applied, listed, loaded and unloaded as by vLLM."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.vllm.adapters import ServedAdapters
from llmd_rehearsal.vllm.command import IGNORED_ADAPTERS, settings
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.startup import ContainerFiles
from vllm_for_tests import events, post

LLAMA, BASE = "meta-llama/Llama-3.1-8B-Instruct", "/model-cache/hub/snapshots/c"
UPDATES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_LORA_RESOLVER_CACHE_DIR": "/model-cache/adapters"}


def adapter(folder: Path, *names: str, **changes: Any) -> None:
    """Write adapters where the resolver looks."""
    for name in names:
        place = folder / "adapters" / name
        place.mkdir(parents=True)
        config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": BASE, **changes}
        (place / "adapter_config.json").write_text(json.dumps(config))
        (place / "adapter_model.safetensors").write_bytes(name.encode())


@pytest.fixture
def start(tmp_path: Path, start_api: Callable[..., Any]) -> Callable[..., Any]:
    (tmp_path / "adapters").mkdir()
    served = {"name": "llama-3.1-8b-instruct", "adapters_of": (BASE, ContainerFiles({"/model-cache": str(tmp_path)}))}

    def begin(*flags: str, **environment: str) -> Any:
        words = ("--enable-lora", "--max-lora-rank=16", *flags)
        return start_api(*words, environment={**UPDATES, **environment}, version="v0.30.0", **served)

    return begin


def prompt(name: str, tokens: int = 4) -> dict[str, Any]:
    return {"model": name, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}


async def ask(client: Any, name: str, tokens: int = 4) -> tuple[int, Any]:
    return await post(client, "/v1/completions", prompt(name, tokens))


async def text(client: Any, name: str) -> str:
    status, answer = await ask(client, name)
    assert status == 200
    return answer["choices"][0]["text"]


async def test_an_adapter_that_is_added_while_a_server_runs_is_found_and_changes_answers(start, tmp_path: Path):
    client = await start()
    assert (await ask(client, "sql-1"))[0] == 404
    adapter(tmp_path, "sql-1", "sql-2")
    answers = {await text(client, name) for name in (LLAMA, "sql-1", "sql-2")}
    assert len(answers) == 3
    assert await text(client, "sql-1") == await text(client, "sql-1")


async def test_a_streamed_answer_has_the_text_of_the_complete_answer(start, tmp_path: Path):
    client = await start()
    adapter(tmp_path, "sql-1")
    streamed = await events(client, "/v1/completions", prompt("sql-1"))
    said = "".join(choice["text"] for event in streamed for choice in event["choices"])
    assert said == await text(client, "sql-1")


async def test_the_api_lists_adapters_with_their_folder_and_base_model(start, tmp_path: Path):
    client = await start()
    adapter(tmp_path, "sql-1")
    await text(client, "sql-1")
    data = (await (await client.get("/v1/models")).json())["data"]
    cards = [(card["id"], card["root"], card["parent"]) for card in data]
    assert cards == [(LLAMA, LLAMA, None), ("sql-1", "/model-cache/adapters/sql-1", LLAMA)]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"r": 32}, 400),
        ({"use_dora": True}, 400),
        ({"base_model_name_or_path": LLAMA}, 404),
        ({"peft_type": "IA3"}, 404),
    ],
)
async def test_an_adapter_that_vllm_would_not_load_gets_vllms_error(start, tmp_path: Path, changes, status):
    adapter(tmp_path, "sql-1", **changes)
    assert (await ask(await start(), "sql-1"))[0] == status


async def test_an_injected_fault_makes_a_loaded_adapter_answer_as_the_base_model(start, tmp_path: Path):
    client = await start(**{IGNORED_ADAPTERS: "1"})
    adapter(tmp_path, "sql-1")
    assert await text(client, "sql-1") == await text(client, LLAMA)


async def test_adapters_can_be_loaded_replaced_and_unloaded_through_the_api(start, tmp_path: Path):
    client = await start()
    adapter(tmp_path, "one", "other")
    load = {"lora_name": "sql", "lora_path": "/model-cache/adapters/one"}
    assert (await client.post("/v1/load_lora_adapter", json=load)).status == 200
    assert (await client.post("/v1/load_lora_adapter", json=load)).status == 400
    before = await text(client, "sql")
    again = {**load, "lora_path": "/model-cache/adapters/other", "load_inplace": True}
    assert (await client.post("/v1/load_lora_adapter", json=again)).status == 200
    assert await text(client, "sql") != before
    assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status == 200
    assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status == 404


async def test_a_server_with_static_adapters_has_no_api_paths_to_change_them(start):
    client = await start(VLLM_ALLOW_RUNTIME_LORA_UPDATING="0")
    assert (await client.post("/v1/load_lora_adapter", json={})).status == 404


def test_a_simulated_server_does_not_start_with_max_cpu_loras_below_max_loras():
    words = ["vllm", "serve", LLAMA, "--enable-lora", "--max-loras=4", "--max-cpu-loras=2"]
    with pytest.raises(StartRefusal, match="max_cpu_loras"):
        settings(words, {})


def test_a_simulated_server_does_not_start_without_its_adapter_folder():
    options = settings(["vllm", "serve", LLAMA, "--enable-lora"], UPDATES)
    assert options.adapters is not None
    with pytest.raises(StartRefusal, match="VLLM_LORA_RESOLVER_CACHE_DIR"):
        ServedAdapters(options.adapters, BASE, LLAMA, ContainerFiles({}), print)


async def info(client: Any) -> list[tuple[str, float]]:
    """Return the labels of `vllm:lora_requests_info` and the times at which they last held, the latest last."""
    lines = (await (await client.get("/metrics")).text()).splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith("vllm:lora_requests_info{")]
    return sorted(((labels, float(time_s)) for labels, _, time_s in found), key=lambda item: item[1])


def labels(names: str) -> str:
    """The labels of vLLM, which lists the same adapters as running and as waiting."""
    sets = f'max_lora="2",running_lora_adapters="{names}",waiting_lora_adapters="{names}"'
    return f"vllm:lora_requests_info{{{sets}}}"


async def counted(client: Any, name: str) -> int:
    lines = (await (await client.get("/metrics")).text()).splitlines()
    return int(float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2]))


async def test_the_adapter_metric_lists_an_adapter_only_while_requests_for_it_run(start, tmp_path: Path):
    client = await start("--max-loras=2")
    adapter(tmp_path, "sql-1")
    assert await info(client) == []
    await text(client, "sql-1")
    assert {item for item, _ in await info(client)} == {labels(""), labels("sql-1")}
    assert (await info(client))[-1][0] == labels("")


async def test_a_request_that_waits_for_an_adapter_slot_does_not_block_later_requests(start, tmp_path: Path):
    client = await start("--max-loras=2")
    adapter(tmp_path, "sql-1", "sql-2", "sql-3")
    names = ["sql-1", "sql-2", "sql-3", "sql-1", LLAMA]
    answers = await asyncio.gather(*(ask(client, name, 40) for name in names))
    assert [status for status, _ in answers] == [200] * 5
    listed = {item for item, _ in await info(client)}
    assert labels("sql-1,sql-2") in listed
    assert not any("sql-3" in item and "sql-1" in item and "sql-2" in item for item in listed)


async def test_an_adapter_is_loaded_only_once_while_it_stays_in_an_adapter_slot(start, tmp_path: Path):
    client = await start("--max-loras=2")
    adapter(tmp_path, "sql-1", "sql-2", "sql-3")
    for name in ("sql-1", "sql-2", "sql-1", "sql-3", "sql-1", "sql-2", LLAMA):
        await text(client, name)
    assert await counted(client, "llmd_oke_simulator_adapter_requests_total") == 6
    assert await counted(client, "llmd_oke_simulator_adapter_loads_total") == 4
