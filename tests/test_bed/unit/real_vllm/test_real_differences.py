"""Servers of vLLM itself: every argument and variable is the stack's, but for what the data file lists."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.config import stacks
from llmd_oke.program.declare import render
from llmd_rehearsal.real_vllm.differences import EXTRA_CONFIG, TRANSFER_FLAG, lines, real_vllm_data
from llmd_rehearsal.real_vllm.servers import RealServers
from real_vllm_for_tests import rendered_servers
from stack_files import PROJECT

VALUES = {"family": "llama", "dtype": "float32", "kv_cache_bytes": "1024"}


@cache
def rendered(stack: str) -> list[tuple[list[str], dict[str, str]]]:
    """Return command line and variables of each container of vLLM."""
    containers = rendered_servers(render(stack, project=PROJECT))
    return [(["vllm", "serve", *args], variables) for args, variables in containers]


def servers(argv: list[str], values: Mapping[str, str] = VALUES) -> RealServers:
    return RealServers(folder=Path("/vllm"), authority=Path("/ca.pem"), empty=Path("/empty"), values={argv[2]: values})


def without_extra_config(word: str) -> str:
    flag, _, text = word.partition("=")
    if flag != TRANSFER_FLAG:
        return word
    config: dict[str, Any] = json.loads(text)
    assert config.pop(EXTRA_CONFIG) == dict(real_vllm_data().kv_connector_extra_config.value)
    return f"{flag}={json.dumps(config)}"


@pytest.mark.parametrize("stack", stacks(PROJECT))
def test_each_argument_of_the_real_vllm_is_the_rendered_one_or_a_listed_difference(stack: str) -> None:
    for argv, _ in rendered(stack):
        run, added = servers(argv).argv(argv), len(real_vllm_data().arguments)
        assert [without_extra_config(word) for word in run[:-added]] == [
            word for word in argv if word not in real_vllm_data().left_out
        ]
        assert run[-added:] == ["--dtype=float32", "--kv-cache-memory-bytes=1024"]


@pytest.mark.parametrize("family", real_vllm_data().families)
def test_arguments_of_a_model_family_are_listed_differences_behind_the_stacks_own(family: str) -> None:
    argv = rendered("small")[0][0]
    run = servers(argv, {**VALUES, "family": family}).argv(argv)
    of_family = [item.value for item in real_vllm_data().families[family].differences]
    added = [*of_family, "--dtype=float32", "--kv-cache-memory-bytes=1024"]
    assert run[-len(added) :] == added
    assert [without_extra_config(word) for word in run[: -len(added)]] == argv
    assert all(any(line.startswith(f"{value} of ") and family in line for line in lines()) for value in of_family)


@pytest.mark.parametrize("stack", stacks(PROJECT))
def test_each_variable_of_the_real_vllm_is_the_rendered_one_or_a_listed_difference(stack: str) -> None:
    listed = real_vllm_data().environment
    for argv, variables in rendered(stack):
        run = servers(argv).variables(variables)
        assert {name: value for name, value in run.items() if name not in listed} == {
            name: value for name, value in variables.items() if name not in listed
        }


def test_vllms_own_programs_are_before_those_of_the_stacks_path() -> None:
    assert servers(["vllm", "serve", "m"]).variables({"PATH": "/usr/bin"})["PATH"] == "/vllm/bin:/usr/bin"


def test_vllm_prefers_a_vocabulary_in_the_model_cache_to_that_of_the_rehearsal() -> None:
    own = servers(["vllm", "serve", "m"]).variables({"TIKTOKEN_ENCODINGS_BASE": "/model-cache/encodings"})
    assert own["TIKTOKEN_ENCODINGS_BASE"] == "/model-cache/encodings"


def test_a_stacks_kv_connector_config_is_merged_with_the_rehearsals_additions() -> None:
    argv = ["vllm", "serve", "m", TRANSFER_FLAG, json.dumps({"kv_connector": "c", EXTRA_CONFIG: {"backends": ["UCX"]}})]
    run = servers(argv).argv(argv)
    assert json.loads(run[4]) == {"kv_connector": "c", EXTRA_CONFIG: {"backends": ["UCX"], "num_threads": 0}}


def test_each_listed_difference_of_real_vllm_arguments_and_variables_has_a_reason() -> None:
    data = real_vllm_data()
    of_families = {item for family in data.families.values() for item in family.differences}
    listed = (data.arguments, of_families, data.left_out, data.environment, data.changed_lines)
    assert len(lines()) == sum(map(len, listed)) + 3
    assert all(": " in line for line in lines())


def test_servers_of_vllm_itself_see_no_numa_nodes() -> None:
    assert servers(["vllm", "serve", "m"]).mounts["/sys/devices/system/node"] == Path("/empty")


def test_servers_see_the_python_that_vllm_was_installed_with(tmp_path: Path) -> None:
    other, vllm = tmp_path / "other", tmp_path / "vllm"
    for folder in (other, vllm):
        (folder / "bin").mkdir(parents=True)
    (other / "bin/python3.11").touch()
    (vllm / "bin/python").symlink_to(other / "bin/python3.11")
    mounts = RealServers(folder=vllm, authority=Path("/ca.pem"), empty=Path("/empty"), values={}).mounts
    assert mounts[str(other)] == other
