"""Servers that keep the code that they compile, as data."""

import dataclasses
from typing import Any

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.serving import units, vllm
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.vllm import ServerSpec

ARGS: UnitArgs = {
    "release": "llm-d-0.9.0",
    "model": "gpt-oss-120b",
    "shape": "BM.GPU.MI300X.8",
    "namespace": "llm-d",
    "service_account": "model-server",
    "model_cache": {"path": "/mnt/nvme/models", "compiled_path": "/mnt/nvme/models-compiled/llm-d"},
}


def spec(role: Any = "decode", **changes: Any) -> ServerSpec:
    return dataclasses.replace(units.server_spec(ARGS, role, Parallelism(2)), **changes)


def named(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"extra_args": ["--max-num-seqs=9"]}},
        {"engine": {"env": {"VLLM_ROCM_USE_AITER": "0"}}},
        {"engine": {"user": {"id": 1000}}},
        {"parallelism": Parallelism(4)},
        {"role": "prefill"},
        {"release": catalogue.release("llm-d-0.10.0")},
        {"shape": catalogue.shape("BM.GPU.MI355X.8")},
    ],
)
def test_only_servers_of_equal_image_gpu_arguments_and_user_share_a_code_folder(changes: dict[str, Any]):
    assert vllm.compiled_key(spec(**changes)) != vllm.compiled_key(spec())
    assert vllm.compiled_key(spec()) == vllm.compiled_key(spec())


def test_servers_mount_only_their_own_folder_of_compiled_code_at_a_fixed_path():
    container, pod = vllm.container(spec()), units.pod_spec(spec(), ARGS)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/compiled"]["subPath"] == vllm.compiled_key(spec())
    folder = {"path": "/mnt/nvme/models-compiled/llm-d", "type": "DirectoryOrCreate"}
    assert named(pod["volumes"])["compiled-code"]["hostPath"] == folder
    links = {word.partition("=")[2] for word in container["command"] if word.startswith("--link=")}
    values = named(container["env"])
    assert links == {values[name]["value"] for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")}
    assert all(any(link.startswith(f"{folder}/") for folder in mounts) for link in links)


def test_the_wrapper_that_keeps_compiled_code_waits_as_long_as_the_start_up_probe():
    container = vllm.container(spec())
    probe = container["startupProbe"]
    assert f"--limit-s={probe['periodSeconds'] * probe['failureThreshold']}" in container["command"]
    assert container["command"][-3:] == ["--", "vllm", "serve"]


def test_keeping_compiled_code_does_not_change_the_version_label_of_servers():
    without = spec(cache={"path": "/mnt/nvme/models"})
    assert vllm.version(spec()) == vllm.version(without)
    assert vllm.container(without)["command"] == ["vllm", "serve"]
    assert not [volume for volume in units.pod_spec(without, ARGS)["volumes"] if "compiled" in volume["name"]]


def test_the_folder_of_compiled_code_belongs_to_the_user_that_vllm_runs_as():
    own = spec(engine={"user": {"id": 1000}})
    container = named(units.pod_spec(own, ARGS)["initContainers"])["compiled-code"]
    assert {f"--key={vllm.compiled_key(own)}", "--user=1000"} < set(container["args"])
