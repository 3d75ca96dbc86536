"""KV cache that a simulated server keeps in its node's memory."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_rehearsal.vllm.command import settings
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.kv_files import KvFiles
from llmd_rehearsal.vllm.scheduler import HostCache

OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
BLOCK = 16


def connector(gib: float, **more: object) -> dict[str, object]:
    return {**OFFLOADING, "kv_connector_extra_config": {"cpu_bytes_to_use": int(gib * 2**30), **more}}


def flags(config: dict[str, object]) -> tuple[str, str]:
    return "--kv-transfer-config", json.dumps(config)


SMALL = ("--num-gpu-blocks-override", "57", "--max-model-len", "912")


def several(*connectors: dict[str, object]) -> dict[str, object]:
    extra = {"kv_connector_extra_config": {"connectors": list(connectors)}}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_producer", **extra}


def test_a_prompt_evicted_from_gpu_memory_is_loaded_from_the_kv_cache_in_host_memory(serve, clock):
    server = serve(*SMALL, *flags(connector(4)))
    server.compute(900, 0, 5000)  # the second takes the blocks of the first
    start_s, metrics = clock.now(), server.metrics
    assert metrics.external_hits == 0
    again = server.compute(900, 0)
    loaded = 900 // BLOCK * BLOCK
    assert (metrics.external_hits, metrics.loaded_blocks) == (loaded, loaded // BLOCK)
    latency = server.latency
    step_s = max(latency.prefill_s(900 - loaded, loaded), latency.decode_step_s(1, 0.0))
    expected_s = latency.server(1).host_load_s(loaded) + step_s
    assert again.times[0] - start_s == pytest.approx(latency.factors.prefill_overhead_s + expected_s)
    assert again.sequence.cached_tokens == loaded


def test_without_a_kv_cache_in_host_memory_an_evicted_prompt_is_computed_again(serve):
    server = serve(*SMALL)
    server.compute(900, 0, 5000, 0)
    assert server.metrics.prefix_hits == 0
    assert server.metrics.external_queries == 0


def test_blocks_still_in_gpu_cache_are_not_loaded_from_host_memory(serve):
    server = serve(*SMALL, *flags(connector(4)))
    server.compute(512, 0, 0)
    assert server.metrics.prefix_hits == 512 - BLOCK
    assert server.metrics.loaded_blocks == 0


def test_prefill_servers_with_host_memory_still_transfer_kv_cache(serve):
    server = serve(*flags(several(NIXL, connector(4))))
    assert server.transfer.nixl
    assert server.engine.cache.host_blocks > 0


def test_a_request_aborted_while_its_blocks_load_from_host_memory_leaves_no_block(serve, clock):
    server = serve(*SMALL, *flags(connector(4)))
    server.compute(900, 0, 5000)
    loading = server.request(900, 1)
    clock.run(until_s=clock.now() + server.latency.factors.prefill_overhead_s + 1e-6)
    server.engine.abort(loading.sequence)
    clock.run()
    assert server.engine.idle
    assert server.metrics.cache_usage == 0.0


@given(st.lists(st.lists(st.integers(0, 20), max_size=8, unique=True), max_size=20), st.integers(0, 6))
def test_host_memory_never_holds_more_blocks_than_its_capacity(chains: list[list[int]], size: int):
    cache = HostCache(size)
    for chain in chains:
        cache.store(chain)
        assert cache.cached(chain)[0] <= size
    assert sum(cache.cached([content])[0] for content in range(21)) <= size


def with_files(gib: float, **changes: object) -> dict[str, object]:
    tiers = [{"type": "fs", "root_dir": "/kv-cache"}]
    return connector(gib, **{"spec_name": "TieringOffloadingSpec", "secondary_tiers": tiers, **changes})


def test_a_prompt_evicted_from_memory_is_read_from_files_unless_they_are_gone(serve, tmp_path: Path):
    files = KvFiles(tmp_path, 1000)
    small = 56.5 * BLOCK * 73728 / 2**30  # the memory has room for one of the prompts
    server = serve(*SMALL, *flags(with_files(small)), files=files)
    server.compute(900, 0, 5000)
    loaded = 900 // BLOCK * BLOCK
    assert len(list(tmp_path.rglob("*.bin"))) == 2 * loaded // BLOCK
    server.compute(900, 0)
    assert (server.metrics.external_hits, server.metrics.read_blocks) == (loaded, loaded // BLOCK)
    server.compute(900, 9000)
    for file in tmp_path.rglob("*.bin"):
        file.unlink()
    server.compute(900, 0)
    assert (server.metrics.external_hits, server.metrics.read_blocks) == (loaded, loaded // BLOCK)


def test_files_of_a_server_that_ended_are_read_by_the_next(serve, tmp_path: Path):
    files = KvFiles(tmp_path, 1000)
    for _ in range(2):
        server = serve(*SMALL, *flags(with_files(4)), files=files)
        server.compute(900, 0)
    loaded = 900 // BLOCK
    assert (server.metrics.read_blocks, server.metrics.loaded_blocks) == (loaded, loaded)
    assert server.metrics.written_blocks == 0


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (several(NIXL, NIXL), "isn't simulated"),
        (dict(OFFLOADING), "cpu_bytes_to_use must be specified"),
        (with_files(4, spec_name="OtherSpec"), "Unsupported spec type: OtherSpec"),
        (with_files(4, secondary_tiers=[{"type": "p2p"}]), "only one, `fs`, is simulated"),
    ],
    ids=["two connectors between servers", "no size", "another kind of tiers", "tiers other than files"],
)
def test_a_server_does_not_start_with_kv_connectors_that_are_not_simulated(config: dict[str, object], reason: str):
    with pytest.raises(StartRefusal, match=reason):
        settings(["vllm", "serve", "m", *flags(config)], {})
