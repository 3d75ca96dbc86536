from collections.abc import Sequence
from typing import Any

import pytest
from llmd_oke import planning
from llmd_oke.program.smoke import conditions, measured, smoke_request
from llmd_tuner.experiments.recipes import DECODE_BENCH
from stack_files import StackObject, model, plan


@pytest.mark.parametrize(
    ("made", "block_size", "profile"),
    [
        (plan(model("1p-tp2-1d-tp2")), 128, "token-load"),
        (plan(model("agg-tp2-1r")), 64, "token-load"),
        (plan(model("agg-tp2-1r", engine={"extraArgs": [DECODE_BENCH]}, router={"mode": "none"})), 128, "none"),
        (plan(model("1p-tp2-1d-tp2", engine={"blockSize": 64}, router={"profile": "prefix"})), 64, "prefix"),
        (plan(model("1p-tp2-1d-tp2"), override={"quickReduce": "INT4"}), 128, "token-load"),
    ],
    ids=["hand-over", "aggregated", "decode alone", "asked for", "override"],
)
def test_the_server_settings_recorded_with_a_measurement_are_those_of_the_pods(
    made: planning.Plan, block_size: int, profile: str
):
    told = conditions(made, made.models[0])
    assert (told["block_size"], told["router_profile"]) == (block_size, profile)
    for servers in smoke_request(made, made.models[0]).topology.servers:
        (backend,) = [word for word in servers.args["args"] if word.startswith("--attention-backend=")]
        assert f"--block-size={told['block_size']}" in servers.args["args"]
        assert backend == f"--attention-backend={told['attention_backend']}"
        assert servers.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE") == told["quick_reduce"]
        assert (servers.image, made.release.name) == (told["image"], told["release"])


LLAMA: StackObject = {"model": "llama-3.1-8b-instruct", "engine": {"adapters": {}}}
SQL = {"name": "sql", "repository": "acme/llama-sql", "revision": "a" * 40}


def digest(
    router: StackObject | None = None, adapters: Sequence[StackObject] = (), path: str = "/mnt/nvme/models"
) -> str:
    """The digest of what serves a model on a full node, whose updates change no names."""
    entry = model("4p-tp1-4d-tp1", **LLAMA, router=router or {}, adapters=[*adapters])
    made = plan(entry, nodes=1, storage={"modelCache": {"kind": "node-disk", "path": path}})
    return measured(made, made.models[0])


@pytest.mark.parametrize(
    "changed",
    [
        {"router": {"nonCachedTokens": 64}},
        {"adapters": [SQL]},
        {"path": "/mnt/raid/models"},
    ],
    ids=["router", "adapters", "model cache"],
)
def test_the_smoke_benchmark_runs_again_after_each_part_of_serving_changes(changed: dict[str, Any]):
    assert digest(**changed) != digest()
    assert digest(adapters=[SQL]) != digest(adapters=[{**SQL, "revision": "b" * 40}])
