"""Keeps blocks of KV cache by vLLM's own tiers, in memory and in files, as a server's scheduler does, with bytes in
place of a GPU's: `kv_files.py < asked.json`.

It runs in vLLM's environment. `extra_config` is a connector's `kv_connector_extra_config`, `blocks` the number of
blocks that its memory holds, and `limit` a program with a class `Limit` that deletes files of more than `most_blocks`.
Three times as many blocks are stored as the memory holds, one each minute, and files deleted; then a request looks
each block up. At last one request looks up the first `blocks` of those that are left, together; the second one's file
vanishes after vLLM has found it and before it reads it. The answer is a list, as JSON: `hit` if a block came back with
its own bytes, `other` if with others, `miss` if it is gone.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vllm.v1.kv_offload import config
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

BLOCK_BYTES = 4 * 4096
LIMIT_S = 30
WAITING = (LookupResult.RETRY, LookupResult.HIT_PENDING)


def manager(extra_config: dict, blocks: int) -> TieringOffloadingManager:
    """Return vLLM's manager of tiers for a connector's configuration, with memory for so many blocks."""
    parallel = config.OffloadingParallelConfig(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, data_parallel_size=1,
        data_parallel_rank_local=None, is_parallelism_agnostic=True,
    )  # fmt: skip
    asked = config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer",), group_id=0),),
        worker_kv_bytes_per_block=BLOCK_BYTES,
        enable_kv_cache_events=False,
        extra_config={**extra_config, "cpu_bytes_to_use": blocks * BLOCK_BYTES},
        engine_id=f"kv-files-{time.time_ns()}",
        model=config.OffloadingModelConfig(name="acme/tiny", dtype="bfloat16"),
        cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=parallel,
    )
    return OffloadingSpecFactory.create_spec(asked).get_manager()


def step(tiers: TieringOffloadingManager) -> None:
    """End a step of the scheduler, and wait a little for what it began."""
    tiers.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
    time.sleep(0.005)


def settle(tiers: TieringOffloadingManager) -> None:
    """Step until nothing is under way."""
    end_s = time.monotonic() + LIMIT_S
    while tiers.has_pending_work():
        if time.monotonic() > end_s:
            raise TimeoutError("transfers between memory and files don't end")
        step(tiers)


def store(tiers: TieringOffloadingManager, content: int) -> None:
    """Store a block whose bytes are all `content`, as if a GPU had computed it."""
    request, key = ReqContext(req_id=f"store-{content}"), offload_key(content)
    tiers.on_new_request(request)
    stored = tiers.prepare_store([key], request)
    view = tiers.primary_tier.get_kv_memoryview().cast("B")
    for chunk in stored.store_spec.chunk_ids:
        view[int(chunk) * BLOCK_BYTES : (int(chunk) + 1) * BLOCK_BYTES] = bytes([content]) * BLOCK_BYTES
    tiers.complete_store([key], request)
    tiers.on_request_finished(request)
    settle(tiers)


def look_up(tiers: TieringOffloadingManager, contents: Sequence[int], vanishing: Path | None = None) -> list[str]:
    """Look blocks up as a request that waits for them does, and return what became of each. All files in `vanishing`
    with the second block are deleted between the step in which vLLM finds them and that in which it reads them.
    """
    request, end_s = ReqContext(req_id=f"load-{time.time_ns()}"), time.monotonic() + LIMIT_S
    keys = [offload_key(content) for content in contents]
    tiers.on_new_request(request)
    while any((found := [tiers.lookup(key, request) for key in keys])[i] in WAITING for i in range(len(keys))):
        if time.monotonic() > end_s:
            raise TimeoutError("a block is neither found nor missing")
        if vanishing and tiers._pending_load_submissions:
            file_of(vanishing, contents[1]).unlink(missing_ok=True)
        step(tiers)
    hits = [key for key, result in zip(keys, found, strict=True) if result is LookupResult.HIT]
    chunks = dict(zip(hits, tiers.prepare_load(hits, request).chunk_ids, strict=True)) if hits else {}
    view = tiers.primary_tier.get_kv_memoryview().cast("B")
    said: list[str] = []
    for key, content in zip(keys, contents, strict=True):
        start = int(chunks.get(key, 0)) * BLOCK_BYTES
        own = view[start : start + BLOCK_BYTES] == bytes([content]) * BLOCK_BYTES
        said.append("miss" if key not in chunks else "hit" if own else "other")
    tiers.complete_load(hits, request)
    tiers.on_request_finished(request)
    settle(tiers)
    return said


def file_of(folder: Path, content: int) -> Path:
    """Return the path of a block's file, whether or not it is there."""
    name = f"{bytes([content]).hex() * 32}.bin"
    return next(folder.rglob(name), folder / name)


def offload_key(content: int) -> OffloadKey:
    """Return vLLM's key of a block."""
    return make_offload_key(bytes([content]) * 32, 0)


def limit_of(program: str) -> type:
    """Return the class `Limit` of a program."""
    spec = importlib.util.spec_from_file_location("limiting", program)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Limit


def main() -> None:
    """Answer with what became of each block."""
    asked = json.load(sys.stdin)
    (tier,) = asked["extra_config"]["secondary_tiers"]
    tiers = manager(asked["extra_config"], asked["blocks"])
    contents = range(1, 3 * asked["blocks"] + 1)
    folder = Path(tier["root_dir"])
    for content in contents:
        store(tiers, content)
        os.utime(file_of(folder, content), (content * 60, content * 60))
    limit_of(asked["limit"])(folder.parent, folder.name, asked["most_blocks"] * BLOCK_BYTES, 0.0).keep(0.0)
    found = [said for content in contents for said in look_up(tiers, [content])]
    left = [content for content, said in zip(contents, found, strict=True) if said == "hit"]
    found += look_up(tiers, left[: asked["blocks"]], vanishing=folder)
    tiers.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
