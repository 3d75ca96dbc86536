"""Router profiles on the real endpoint picker: what each gains, by what the servers count."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

ADDRESS = "http://front-door.llm-d.svc.cluster.local"
LOAD = Path(__file__).with_name("adapter_load.py")
STACK = "affinity"
SLOTS, SERVERS = 2, 4
WITH, WITHOUT = "qwen3-8b", "llama-3.1-8b-instruct"
WITHOUT_AFFINITY = {
    "plugins": [{"type": kind} for kind in ("single-profile-handler", "queue-scorer", "kv-cache-utilization-scorer")],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "queue-scorer", "weight": 2},
                {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
            ],
        }
    ],
}
"""The profile lora-affinity, less its scorer."""


def adapters(prefix: str) -> list[dict[str, str]]:
    """Return as many adapters as all servers together have slots."""
    names = [f"{prefix}-{index}" for index in range(SLOTS * SERVERS)]
    return [
        {"name": name, "repository": f"acme/{name}", "revision": f"{index}" * 40} for index, name in enumerate(names)
    ]


@pytest.fixture(scope="module")
def adapted(project: Project) -> dict[str, Any]:
    routers = {WITH: {"profile": "lora-affinity"}, WITHOUT: {"config": WITHOUT_AFFINITY}}
    models = [
        model(
            model=name,
            topology=f"agg-tp1-{SERVERS}r",
            engine={"adapters": {"slots": SLOTS, "maxRank": 16}},
            adapters=adapters(name.partition("-")[0]),
            router=router,
        )
        for name, router in routers.items()
    ]
    storage = {"modelCache": {"kind": "node-disk"}}
    project.write(STACK, models=models, storage=storage, frontDoor={}, smoke={"where": "none"})
    done = project.command("rehearse", "--stack", STACK, "--time-scale", "1", "--no-benchmark")
    assert done.status == 0, done.errors
    cases = {name: [adapter["name"] for adapter in adapters(name.partition("-")[0])] for name in routers}
    asked = (sys.executable, str(LOAD), ADDRESS, json.dumps(cases))
    sent = project.inside(STACK, *asked)
    print(sent.output)
    return json.loads(sent.output.splitlines()[-1])


def test_metrics_of_servers_count_every_answered_request_for_an_adapter(adapted: dict[str, Any]) -> None:
    for name in (WITH, WITHOUT):
        assert adapted[name]["statuses"] == {"200": adapted[name]["requests"]}


def test_with_lora_affinity_more_requests_find_their_adapter_loaded_than_without(adapted: dict[str, Any]) -> None:
    assert adapted[WITH]["hits"] > adapted[WITHOUT]["hits"] + 0.2
