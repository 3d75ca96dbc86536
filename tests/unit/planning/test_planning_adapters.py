"""LoRA adapters of a stack file: room in the servers, names, and what refuses them."""

from pathlib import Path
from typing import Any

import pytest
from project_entries import kit_entry, write_entry
from stack_files import model, plan, problems

REVISION = "a" * 40
SQL = {"name": "sql", "repository": "acme/llama-sql", "revision": REVISION}
CACHE = {"modelCache": {"kind": "node-disk"}}
GATEWAY = {"mode": "create", "provider": "istio"}
LLAMA = "llama-3.1-8b-instruct"
LORA_ARGUMENT = {"extraArgs": ["--enable-lora"]}


def llama(*adapters: dict[str, Any], room: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    engine = {} if room is None else {"engine": {"adapters": room}}
    return model("agg-tp1-2r", model=LLAMA, adapters=list(adapters), **engine, **changes)


def refused(*models: dict[str, Any], **changes: Any) -> dict[str, str]:
    return {problem.path: str(problem) for problem in problems(*models, **{"storage": CACHE, **changes})}


def test_adapter_slots_take_memory_from_the_kv_cache_as_in_vllm():
    without, beside = (
        plan(llama(room=room), storage=CACHE).models[0].units[0].roles[0].memory
        for room in (None, {"slots": 4, "maxRank": 16})
    )
    # 32 layers: q, k, v, o, gate, up and down; embedding and head; 4 slots of rank 16 in BF16
    layer = (4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3
    expected = (32 * layer + 2 * (128256 + 4096)) * 16 * 4 * 2 / 2**30
    assert beside.adapters_gib == pytest.approx(expected)
    assert without.key_value_gib - beside.key_value_gib == pytest.approx(expected)


def test_a_refusal_for_lack_of_memory_counts_that_of_adapter_slots():
    engine = {"adapters": {"slots": 4, "maxRank": 16}, "gpuMemoryUtilization": 0.12}
    entry = model("agg-tp1-1r", model=LLAMA, engine=engine)
    (problem,) = problems(entry, storage=CACHE)
    assert "15 GiB of weights, 0.3 GiB of room for adapters and 6 GiB of activations" in problem.why
    (other,) = problems({**entry, "engine": {"gpuMemoryUtilization": 0.12}}, storage=CACHE)
    assert "15 GiB of weights and 6 GiB of activations" in other.why


def test_tensor_parallelism_does_not_split_all_of_an_adapters_memory():
    def gib(size: int) -> float:
        entry = model(f"agg-tp{size}-1r", model=LLAMA, engine={"adapters": {}})
        return plan(entry, storage=CACHE).models[0].units[0].roles[0].memory.adapters_gib

    assert gib(1) < gib(2) < 2 * gib(1)


def test_each_adapter_revision_is_served_by_vllm_under_a_name_of_its_own():
    (adapter,) = plan(llama(SQL, room={}), storage=CACHE).models[0].adapters
    assert adapter.served_name == "sql-aaaaaaaaaaaa"


@pytest.mark.parametrize(
    ("entry", "stack", "path", "words"),
    [
        (llama(SQL), {}, "engine.adapters", "no room"),
        (llama(SQL, room={}), {"storage": {}}, "engine.adapters", "model cache"),
        (llama(SQL, room={}), {"storage": {**CACHE, "prewarm": {"source": "none"}}}, "engine.adapters", "model cache"),
        (model("agg-tp1-1r", engine={"adapters": {}}), {}, "engine.adapters", "gpt_oss"),
        (llama(SQL, room={}), {"release": "llm-d-0.7.0"}, "engine.adapters", "llm-d-0.7.0"),
        (llama(SQL, room={}, router={"mode": "none"}), {}, "router.mode", "endpoint picker"),
        (llama(SQL, room={}, router={"mode": "gateway"}), {"gateway": GATEWAY}, "router.mode", "/v1/load_lora_adapter"),
        (llama(room={"slots": 4, "hostSlots": 3}), {}, "engine.adapters.hostSlots", "at least 4"),
        (llama(room={"maxRank": 24}), {}, "engine.adapters.maxRank", "320"),
        (llama({**SQL, "revision": "main"}, room={}), {}, "adapters[0].revision", "commit"),
        (llama(SQL, SQL, room={}, name="llama"), {}, "adapters[1].name", "sql"),
        (llama(SQL, {**SQL, "name": "llama"}, room={}, name="llama"), {}, "adapters[1].name", "llama"),
        (llama(SQL, {**SQL, "name": "sql-aaaaaaaaaaaa"}, room={}), {}, "adapters[1].name", "sql-aaaaaaaaaaaa"),
        (model("agg-tp1-1r", model=LLAMA, engine=LORA_ARGUMENT), {}, "engine.extraArgs[0]", "llmd-oke migrate"),
    ],
    ids=[
        *("no slots", "no model cache", "no pre-warming", "layers without known support", "an older release"),
        *("no endpoint picker", "a Gateway, whose clients could load adapters", "fewer slots in host memory"),
        *("a rank that vLLM lacks", "a branch as revision", "an equal name", "the model's name"),
        *("the name that another is served under", "vLLM's argument in place of the key"),
    ],
)
def test_adapters_that_servers_could_not_load_or_tell_apart_are_refused(
    entry: dict[str, Any], stack: dict[str, Any], path: str, words: str
):
    assert words in refused(entry, **stack)[f"models[0].{path}"]


def test_as_many_adapter_slots_in_host_memory_as_on_gpus_are_accepted():
    assert refused(llama(room={"slots": 4, "hostSlots": 4})) == {}


def test_adapters_are_refused_with_a_router_not_known_to_rewrite_names(tmp_path: Path):
    release = kit_entry("releases/llm-d-0.6.0", name="older")
    del release["router"]["rewrites"], release["former_names"]
    write_entry(tmp_path, "releases/older", release)
    problem = refused(llama(SQL, room={}), override={"router": "older"})["models[0].engine.adapters"]
    assert "endpoint picker of older" in problem


def test_check_reports_the_memory_of_adapter_slots_and_how_many_adapters_share_them():
    adapters = ({**SQL, "name": name} for name in ("a", "b", "c"))
    told = [item.text for item in plan(llama(*adapters, room={"slots": 2}), storage=CACHE).advice]
    assert any("2 slots of rank 16" in text for text in told)
    assert any("3 adapters share 2 places" in text for text in told)
