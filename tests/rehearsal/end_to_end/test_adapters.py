"""LoRA adapters beside a model whose servers draft: asked for by name, through front door, picker and sidecar."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from asked_adapters import TOKENS
from user_project import ROOT, Project, model

sys.path.insert(0, str(ROOT / "dev"))

from documented_commands import documented_commands

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "adapters"
ADDRESS = "http://front-door.llm-d.svc.cluster.local"
ASKED = Path(__file__).with_name("asked_adapters.py")
COMMAND = next(command.text for command in documented_commands() if command.text.startswith("curl $ADDRESS/"))
"""As docs/how-to/serve-adapters.md has it."""

BASE = "meta-llama/Llama-3.1-8B-Instruct"
ADAPTERS = [
    {"name": "sql", "repository": "acme/llama-sql", "revision": "a" * 40},
    {"name": "legal", "repository": "acme/llama-legal", "revision": "b" * 40},
]


@pytest.fixture(scope="module")
def seen(project: Project) -> dict[str, Any]:
    engine = {"adapters": {"slots": 2, "maxRank": 16}, "speculation": {"tokens": 3, "revision": "c" * 40}}
    models = [model(model="llama-3.1-8b-instruct", topology="2p-tp1-1d-tp2", engine=engine, adapters=ADAPTERS)]
    storage = {"modelCache": {"kind": "node-disk"}}
    project.write(STACK, models=models, storage=storage, frontDoor={}, smoke={"where": "none"})
    done = project.command("rehearse", "--stack", STACK, "--time-scale", "0.5", "--no-benchmark")
    assert done.status == 0, done.errors
    asked = (sys.executable, str(ASKED), ADDRESS, BASE, "sql", "legal", "nobody")
    sent = project.inside(STACK, *asked)
    typed = project.inside(STACK, "bash", "-c", f"ADDRESS={ADDRESS}; {COMMAND}")
    return {**json.loads(sent.output.splitlines()[-1]), "typed": json.loads(typed.output.splitlines()[-1])}


def test_requests_by_an_adapters_name_are_answered_by_that_adapter(seen: dict[str, Any]) -> None:
    """Servers know each revision by a name of its own, and no `sql`: the picker has written theirs."""
    answers = [seen["answers"][name] for name in (BASE, "sql", "legal")]
    assert [answer["status"] for answer in answers] == [200, 200, 200]
    assert len({answer["text"] for answer in answers}) == 3
    assert seen["again"]["sql"] == seen["answers"]["sql"]["text"]


def test_the_documented_curl_command_is_answered_by_the_adapter_that_it_names(seen: dict[str, Any]) -> None:
    assert seen["typed"]["model"] in {"sql", f"sql-{'a' * 12}"}
    assert seen["typed"]["choices"]


def test_an_answer_has_the_requested_model_name_or_with_old_pickers_a_revisions_name(seen: dict[str, Any]) -> None:
    """Pickers before v0.10.0, one of which may stand in, leave the revision's name in the answer."""
    said = [seen["answers"][name]["model"] for name in (BASE, "sql", "legal")]
    assert said in ([BASE, "sql", "legal"], [BASE, f"sql-{'a' * 12}", f"legal-{'b' * 12}"])


def test_the_front_door_lists_adapters_and_refuses_other_model_names(seen: dict[str, Any]) -> None:
    assert {BASE, "sql", "legal"} <= set(seen["listed"])
    assert seen["answers"]["nobody"]["status"] == 404


def test_servers_with_speculative_decoding_yield_several_tokens_for_each_step(seen: dict[str, Any]) -> None:
    assert seen["events"] < TOKENS / 2
