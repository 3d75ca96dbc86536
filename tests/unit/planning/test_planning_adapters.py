"""LoRA adapters of a stack file: room in the servers, names, and what refuses them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke.values import open_project, read_yaml, values_folder
from stack_files import model, plan, problems

REVISION = "a" * 40
SQL = {"name": "sql", "repository": "acme/llama-sql", "revision": REVISION}
CACHE = {"modelCache": {"kind": "node-disk"}}


def llama(*adapters: dict[str, Any], room: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    engine = {} if room is None else {"engine": {"adapters": room}}
    return model("agg-tp1-2r", model="llama-3.1-8b-instruct", adapters=list(adapters), **engine, **changes)


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
    entry = model("agg-tp1-1r", model="llama-3.1-8b-instruct", engine=engine)
    (problem,) = problems(entry, storage=CACHE)
    assert "15 GiB of weights, 0.3 GiB of room for adapters and 6 GiB of activations" in problem.why
    (other,) = problems({**entry, "engine": {"gpuMemoryUtilization": 0.12}}, storage=CACHE)
    assert "15 GiB of weights and 6 GiB of activations" in other.why


def test_tensor_parallelism_does_not_split_all_of_an_adapters_memory():
    def gib(size: int) -> float:
        entry = model(f"agg-tp{size}-1r", model="llama-3.1-8b-instruct", engine={"adapters": {}})
        return plan(entry, storage=CACHE).models[0].units[0].roles[0].memory.adapters_gib

    assert gib(1) < gib(2) < 2 * gib(1)


def test_each_adapter_revision_is_served_by_vllm_under_a_name_of_its_own():
    (adapter,) = plan(llama(SQL, room={}), storage=CACHE).models[0].adapters
    assert adapter.served_name == "sql-aaaaaaaaaaaa"


def test_lora_adapters_without_configured_adapter_slots_are_refused():
    assert "no room" in refused(llama(SQL))["models[0].engine.adapters"]


def test_adapters_without_a_pre_warmed_model_cache_are_refused():
    assert "model cache" in refused(llama(SQL, room={}), storage={})["models[0].engine.adapters"]
    source = {**CACHE, "prewarm": {"source": "none"}}
    assert "model cache" in refused(llama(SQL, room={}), storage=source)["models[0].engine.adapters"]


def test_adapters_for_layers_without_known_support_are_refused():
    assert "gpt_oss" in refused(model("agg-tp1-1r", engine={"adapters": {}}))["models[0].engine.adapters"]


def test_adapters_are_refused_with_a_release_not_known_to_support_them():
    assert "llm-d-0.7.0" in refused(llama(SQL, room={}), release="llm-d-0.7.0")["models[0].engine.adapters"]


def test_adapters_are_refused_with_a_router_not_known_to_rewrite_names(tmp_path: Path):
    release = read_yaml(values_folder() / "releases" / "llm-d-0.6.0.yaml")
    release["name"] = "older"
    del release["router"]["rewrites"], release["former_names"]
    (tmp_path / "values" / "releases").mkdir(parents=True)
    (tmp_path / "values" / "releases" / "older.yaml").write_text(yaml.safe_dump(release))
    open_project(tmp_path)
    problem = refused(llama(SQL, room={}), override={"router": "older"})["models[0].engine.adapters"]
    assert "endpoint picker of older" in problem


def test_servers_without_an_endpoint_picker_cannot_have_adapters():
    assert "endpoint picker" in refused(llama(SQL, room={}, router={"mode": "none"}))["models[0].router.mode"]


def test_adapters_behind_a_gateway_are_refused_as_clients_could_call_vllms_load_api():
    gateway = {"mode": "create", "provider": "istio"}
    problem = refused(llama(SQL, room={}, router={"mode": "gateway"}), gateway=gateway)["models[0].router.mode"]
    assert "/v1/load_lora_adapter" in problem


@pytest.mark.parametrize("name", ["sql", "llama", "sql-aaaaaaaaaaaa"])
def test_an_adapter_with_the_name_of_a_model_or_another_adapter_is_refused(name: str):
    entry = llama(SQL, {**SQL, "name": name}, room={}, name="llama")
    assert "models[0].adapters[1].name" in refused(entry)


@pytest.mark.parametrize(("host_slots", "paths"), [(3, ["models[0].engine.adapters.hostSlots"]), (4, [])])
def test_fewer_adapter_slots_in_host_memory_than_on_gpus_are_refused(host_slots: int, paths: list[str]):
    assert list(refused(llama(room={"slots": 4, "hostSlots": host_slots}))) == paths


def test_an_adapter_rank_that_vllm_does_not_support_is_refused():
    assert "320" in refused(llama(room={"maxRank": 24}))["models[0].engine.adapters.maxRank"]


def test_a_branch_is_refused_as_an_adapters_revision():
    assert "commit" in refused(llama({**SQL, "revision": "main"}, room={}))["models[0].adapters[0].revision"]


def test_vllm_arguments_for_adapters_are_refused_with_the_key_to_use_instead():
    entry = model("agg-tp1-1r", model="llama-3.1-8b-instruct", engine={"extraArgs": ["--enable-lora"]})
    told = refused(entry)["models[0].engine.extraArgs[0]"]
    assert "engine.adapters" in told
    assert "llmd-oke migrate" in told


def test_check_reports_the_memory_of_adapter_slots_and_how_many_adapters_share_them():
    adapters = ({**SQL, "name": name} for name in ("a", "b", "c"))
    told = [item.text for item in plan(llama(*adapters, room={"slots": 2}), storage=CACHE).advice]
    assert any("2 slots of rank 16" in text for text in told)
    assert any("3 adapters share 2 places" in text for text in told)
