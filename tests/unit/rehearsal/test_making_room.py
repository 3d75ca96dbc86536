"""Which servers leave a stack, by the engine's own state."""

import json
from pathlib import Path
from typing import Any

from llmd_oke import config, planning
from llmd_oke.rehearsal.making_room import leaving

PLAN = planning.plan(
    config.validate(
        {
            "cluster": {"mode": "existing", "identifier": "here"},
            "gpuPools": [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 1}],
            "release": "llm-d-0.9.0",
            "models": [
                {
                    "model": "gpt-oss-120b",
                    "topology": "4p-tp1-2d-tp2",
                    "workload": {"inputTokens": 1024, "outputTokens": 16},
                }
            ],
        }
    )
)


def deployment(name: str, gpus: int) -> dict[str, Any]:
    container = {"resources": {"limits": {"amd.com/gpu": str(gpus)} if gpus else {}}}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {"type": "kubernetes:apps/v1:Deployment", "inputs": {"metadata": {"name": name}, "spec": spec}}


def state(folder: Path, *resources: dict[str, Any]) -> Path:
    file = folder / "stack.json"
    file.write_text(json.dumps({"version": 3, "checkpoint": {"latest": {"resources": resources}}}))
    return file


def test_servers_that_the_plan_no_longer_has_leave(tmp_path: Path):
    file = state(tmp_path, deployment("gpt-oss-120b-aggregated", 1), deployment("gpt-oss-120b-prefill", 1))
    assert leaving(file, PLAN) == ["gpt-oss-120b-aggregated"]


def test_what_has_no_gpus_is_no_server(tmp_path: Path):
    assert leaving(state(tmp_path, deployment("old-router-epp", 0)), PLAN) == []


def test_a_stack_without_state_has_no_servers(tmp_path: Path):
    assert leaving(tmp_path / "absent.json", PLAN) == []
    (tmp_path / "empty.json").write_text('{"version": 3, "checkpoint": {"stack": "s"}}')
    assert leaving(tmp_path / "empty.json", PLAN) == []
