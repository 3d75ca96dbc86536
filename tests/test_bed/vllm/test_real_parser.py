"""Command lines and variables of all servers, held to vLLM's own parser (`scripts/real-vllm`)."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from llmd_base.errors import InvalidStack
from llmd_base.progress import SilentProgress
from llmd_oke import planning
from llmd_oke.catalogue import default_release, release
from llmd_oke.catalogue import model as catalogue_model
from llmd_oke.config import stacks
from llmd_oke.program.declare import Rendered, render
from llmd_oke.values import names
from llmd_rehearsal.real_vllm import tiny_models
from llmd_rehearsal.real_vllm.differences import real_vllm_data
from real_servers import TINY
from real_vllm_for_tests import VERSION, answered, need_real_vllm, rendered_servers
from stack_files import PROJECT, model, stack

pytestmark = pytest.mark.rehearsal

RELEASES = {"llm-d-0.9.0": "0.26.0", "llm-d-0.10.0": "0.30.0"}
"""Versions of vLLM by the releases that serve with them."""

HOST_MEMORY = [("1p-tp2-1d-tp4", {"hostMemoryGib": 20}), ("agg-tp2-1r", {"hostMemoryGib": 20})]
CONNECTORS: dict[str, list[tuple[str, dict[str, object]]]] = {
    "llm-d-0.9.0": HOST_MEMORY,
    "llm-d-0.10.0": [
        *HOST_MEMORY,
        ("1p-tp2-1d-tp2", {"connector": "mori-io", "hostMemoryGib": 20}),
        ("1p-tp2-1d-tp2", {"connector": "mooncake"}),
        ("1p-tp2-1d-tp2", {"hostMemoryGib": 20, "diskGib": 500}),
    ],
}
TOPOLOGIES = ("1p-tp8-1d-tp8", "agg-tp8-1r", "agg-tp4-1r", "agg-tp1-1r")
CommandLine: TypeAlias = dict[str, Any]


def servers(rendered: Rendered) -> Iterator[CommandLine]:
    """Yield what each container of vLLM is started with: what follows `vllm serve`, and its variables."""
    for args, variables in rendered_servers(rendered):
        yield {"args": args, "env": variables}


def problems(lines: list[CommandLine], version: str = VERSION) -> list[list[str]]:
    """Return what a version of vLLM finds wrong with each command line."""
    return answered("parse_arguments.py", lines, version)


def test_each_vllm_version_in_the_tests_is_that_of_an_llm_d_release() -> None:
    deployed = {name: release(name) for name in names("releases")}
    tags = {name: found.vllm.image.tag for name, found in deployed.items() if found}
    assert {name: tag[1:] for name, tag in tags.items() if tag[1:] in real_vllm_data().versions} == RELEASES
    assert RELEASES[default_release().name] == VERSION


def test_vllm_accepts_the_arguments_of_every_server_of_every_stack() -> None:
    lines = [line for name in stacks(PROJECT) for line in servers(render(name, project=PROJECT))]
    assert problems(lines) == [[]] * len(lines)


@pytest.mark.parametrize("deployed", RELEASES)
def test_vllm_accepts_the_arguments_of_servers_for_every_model(deployed: str) -> None:
    lines: list[CommandLine] = []
    for name in names("models"):
        documents = [stack(model(topology, model=name), release=deployed) for topology in TOPOLOGIES]
        fitting = [document for document in documents if _fits(document)]
        assert fitting, f"{name} fits none of {', '.join(TOPOLOGIES)}"
        lines += [line for document in fitting for line in servers(render(document))]
    assert problems(lines, RELEASES[deployed]) == [[]] * len(lines)


@pytest.mark.parametrize("deployed", RELEASES)
def test_vllm_has_every_kv_connector_of_the_catalogue(deployed: str) -> None:
    version, lines = RELEASES[deployed], list[CommandLine]()
    for topology, kv_cache in CONNECTORS[deployed]:
        image = {"vllmImage": f"docker.io/acme/vllm:v{version}"} if "mooncake" in kv_cache.values() else {}
        servers_of = model(topology, model="qwen3-32b", engine={"kvCache": kv_cache})
        storage = {"modelCache": {"kind": "node-disk"}}
        lines += servers(render(stack(servers_of, release=deployed, override=image, storage=storage)))
    assert problems(lines, version) == [[]] * len(lines)


@pytest.mark.parametrize("deployed", RELEASES)
def test_vllm_accepts_the_arguments_of_servers_that_span_nodes(deployed: str) -> None:
    servers_of = model("1p-tp1dp16ep-1d-tp1dp16ep", model="deepseek-r1")
    lines = list(servers(render(stack(servers_of, nodes=4, release=deployed))))
    assert len(lines) == 2
    assert problems(lines, RELEASES[deployed]) == [[], []]


def test_vllm_has_every_backend_for_the_exchange_between_experts() -> None:
    engine = {
        "gpuMemoryUtilization": 0.8,
        "kvCache": {"connector": "mori-io"},
        "prefill": {"all2AllBackend": "mori_high_throughput"},
        "decode": {"all2AllBackend": "mori_low_latency"},
    }
    own = {"vllmImage": "docker.io/acme/vllm:v0.30.0", "routingSidecarImage": "docker.io/acme/sidecar:wide-ep"}
    servers_of = model("1p-tp1dp16ep-1d-tp1dp16ep", model="deepseek-v3", engine=engine)
    lines = list(servers(render(stack(servers_of, nodes=4, release="llm-d-0.10.0", override=own))))
    assert problems(lines, "0.30.0") == [[], []]


@pytest.mark.parametrize("deployed", RELEASES)
def test_vllm_accepts_the_arguments_for_adapter_slots(deployed: str) -> None:
    room = {"adapters": {"slots": 2, "maxRank": 64, "hostSlots": 8}}
    servers_of = model("1p-tp1-1d-tp2", model="llama-3.1-8b-instruct", engine=room)
    document = stack(servers_of, release=deployed, storage={"modelCache": {"kind": "node-disk"}})
    lines = list(servers(render(document)))
    assert problems(lines, RELEASES[deployed]) == [[]] * len(lines)


@pytest.mark.parametrize("deployed", RELEASES)
def test_vllm_accepts_the_arguments_of_every_draft(deployed: str) -> None:
    lines: list[CommandLine] = []
    for known in (known for name in names("models") if (known := catalogue_model(name)) and known.draft):
        servers_of = (model(topology, model=known.name, engine={"speculation": {}}) for topology in TOPOLOGIES)
        stores = ({}, {"modelCache": {"kind": "node-disk"}})
        documents = [stack(entry, release=deployed, storage=store) for entry in servers_of for store in stores]
        fitting = [document for document in documents if _fits(document)]
        assert fitting, f"{known.name} drafts in none of {', '.join(TOPOLOGIES)}"
        lines += [line for document in fitting for line in servers(render(document))]
    assert all(any(word.startswith("--speculative-config=") for word in line["args"]) for line in lines)
    assert problems(lines, RELEASES[deployed]) == [[]] * len(lines)


@pytest.mark.parametrize("version", RELEASES.values())
def test_parsers_of_answers_of_every_model_read_with_the_tokenizer_of_tiny_models(version: str) -> None:
    known = (known for name in names("models") if (known := catalogue_model(name)))
    flags = {word for model in known for feature in model.features.values() for word in feature.arguments}
    assert "--tool-call-parser=hermes" in flags
    folder = tiny_models.ensure_files(need_real_vllm(version), TINY, SilentProgress())
    asked = {"folder": str(folder), "args": sorted(flags)}
    assert answered("answer_parsers.py", asked, version) == {}


def test_the_check_of_vllm_arguments_reports_a_draft_method_that_vllm_lacks() -> None:
    config = '--speculative-config={"method": "no_such", "num_speculative_tokens": 1, "no_such_key": 1}'
    (found,) = problems([{"args": ["m", config], "env": {}}])
    assert any("no_such_key" in problem for problem in found)
    assert any(problem.startswith("method: ") for problem in found)


def test_the_check_of_vllm_arguments_reports_an_unknown_flag_and_variable() -> None:
    (found,) = problems([{"args": ["m", "--no-such-flag"], "env": {"VLLM_NO_SUCH": "1"}}])
    assert found[0] == "VLLM_NO_SUCH"
    assert "--no-such-flag" in found[1]


def _fits(document: dict[str, Any]) -> bool:
    try:
        planning.plan_object(document)
    except InvalidStack:
        return False
    return True
