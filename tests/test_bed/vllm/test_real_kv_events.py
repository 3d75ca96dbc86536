"""KV cache events of simulated servers, held to the bytes that vLLM's own classes make of the same events."""

from typing import Any

import msgspec
import pytest
from llmd_rehearsal.vllm.kv_events import BlockRemoved, BlockStored, EventBatch
from real_vllm_for_tests import answered

pytestmark = pytest.mark.rehearsal

STORED: dict[str, Any] = {
    "block_hashes": [2**64 - 1, 3],
    "parent_block_hash": None,
    "token_ids": [*range(32)],
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
ADAPTED = {
    **STORED,
    "parent_block_hash": 9,
    "lora_id": 1,
    "lora_name": "sql",
    "extra_keys": [("sql", "salt"), ("sql",)],
}
REMOVED: dict[str, Any] = {"block_hashes": [3], "medium": "GPU", "group_idx": 0}


@pytest.mark.parametrize("version", ["0.26.0", "0.30.0"], ids=["real-0.26", "real-0.30"])
def test_a_batch_of_kv_cache_events_has_the_same_bytes_as_in_vllm(version: str) -> None:
    fields = [("BlockStored", STORED), ("BlockStored", ADAPTED), ("BlockRemoved", REMOVED)]
    ours = EventBatch(1.5, [BlockStored(**STORED), BlockStored(**ADAPTED), BlockRemoved(**REMOVED)], 1)
    asked = answered("kv_events.py", fields, version)
    assert asked == {"medium": "GPU", "bytes": msgspec.msgpack.encode(ours).hex()}
