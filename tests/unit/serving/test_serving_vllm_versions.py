from dataclasses import replace

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.serving import handshake
from llmd_oke.serving import vllm
from llmd_oke.serving.args import EngineArgs, UnitArgs
from llmd_oke.serving.units import server_spec
from llmd_oke.serving.vllm import revision, version

UNIT: UnitArgs = {
    "release": "llm-d-0.9.0",
    "model": "gpt-oss-120b",
    "shape": "BM.GPU.MI300X.8",
    "namespace": "n",
    "service_account": "s",
}
BASE = server_spec(UNIT, "decode", Parallelism(2))


def with_engine(engine: EngineArgs) -> str:
    return version(replace(BASE, engine=engine))


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 64},
        {"max_model_len": 8192},
        {"gpu_memory_utilization": 0.8},
        {"extra_args": ["--max-num-batched-tokens", "4096"]},
        {"extra_args": ["--max-num-batched-tokens=4096"]},
        {"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
    ],
    ids=str,
)
def test_the_version_label_omits_settings_that_the_kv_transfer_handshake_ignores(engine: EngineArgs):
    assert with_engine(engine) == version(BASE)


@pytest.mark.parametrize(
    "engine",
    [
        {"block_size": 32},
        {"extra_args": ["--kv-cache-dtype", "fp8"]},
        {"extra_args": ["--attention-backend=ROCM_ATTN"]},
        {"extra_args": ["--dtype=float16"]},
        {"extra_args": ["--something-that-nobody-knows-yet"]},
        {"env": {"VLLM_ROCM_USE_AITER": "0"}},
        {"env": {"A": "1"}},
    ],
    ids=str,
)
def test_settings_that_the_kv_transfer_handshake_compares_are_in_the_version_label(engine: EngineArgs):
    assert with_engine(engine) != version(BASE)


def test_the_version_label_reads_a_flag_in_any_notation_and_takes_the_last_one():
    words = [["--kv-cache-dtype", "fp8"], ["--kv-cache-dtype=fp8"], ["--kv-cache-dtype=auto", "--kv-cache-dtype=fp8"]]
    assert len({with_engine({"extra_args": item}) for item in words}) == 1


def test_servers_with_a_new_kv_role_have_the_version_label_of_those_with_kv_both():
    connectors = BASE.release.vllm.kv_connector.model_copy(
        update={"roles": {"prefill": "kv_both", "decode": "kv_both"}}
    )
    former = BASE.release.vllm.model_copy(update={"kv_connector": connectors})
    before = replace(BASE, release=BASE.release.model_copy(update={"vllm": former}))
    assert vllm.arguments(before) != vllm.arguments(BASE)
    assert version(before) == version(BASE)


def test_another_vllm_image_gives_another_version_label():
    assert version(server_spec({**UNIT, "release": "llm-d-0.7.0"}, "decode", Parallelism(2))) != version(BASE)


def test_arguments_omitted_from_the_version_label_are_written_as_in_server_pods():
    assert all(name.startswith("--") for name in handshake().arguments)
    names = {word.partition("=")[0] for word in vllm.arguments(BASE)}
    assert {"--port", "--tensor-parallel-size", "--max-num-seqs"} <= names & handshake().arguments


def test_servers_of_another_size_release_or_name_have_another_revision():
    def named(unit: str = "u", release: str = "llm-d-0.9.0", size: int = 2) -> str:
        return revision(unit, release, {"decode": version(BASE)}, {"decode": Parallelism(size)})

    assert len({named(), named(unit="v"), named(release="llm-d-0.7.0"), named(size=4)}) == 4
    assert named() == named()


def test_servers_without_data_parallel_ranks_keep_the_revision_of_earlier_versions():
    """A unit's name ends with it: another one would replace all servers of running deployments."""
    spreads = {"prefill": Parallelism(1), "decode": Parallelism(2)}
    assert revision("u", "llm-d-0.9.0", dict.fromkeys(spreads, "5b0c3f4e"), spreads) == "d110179b"
