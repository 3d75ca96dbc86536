"""KV cache in files, kept by vLLM's own tiers and limited by the kit's program (`scripts/real-vllm`).

vLLM keeps no KV cache in a node's memory for a processor's server, so that its tiers run without a server, with bytes
in place of a GPU's.
"""

from pathlib import Path

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke.serving import units
from llmd_oke.serving.args import UnitArgs
from llmd_pods.kv_cache_disk import files
from real_vllm_for_tests import answered

pytestmark = pytest.mark.rehearsal

SERVER: UnitArgs = {
    "release": "llm-d-0.10.0",
    "model": "qwen3-32b",
    "shape": "BM.GPU.MI300X.8",
    "namespace": "llm-d",
    "service_account": "model-server",
    "engine": {"kv_cache": {"host_memory_gib": 20, "disk_gib": 500}},
}


def test_vllm_recomputes_blocks_whose_files_were_deleted_and_loads_the_others(tmp_path: Path) -> None:
    transfer = units.server_spec(SERVER, "aggregated", Parallelism(2)).settings.kv_transfer
    assert transfer is not None
    extra = transfer["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    (tier,) = extra["secondary_tiers"]
    here = {**extra, "secondary_tiers": [{**tier, "root_dir": str(tmp_path)}]}
    asked = {"extra_config": here, "blocks": 4, "limit": files.__file__, "most_blocks": 10}
    answers = answered("kv_files.py", asked, "0.30.0")
    assert answers[:12] == [*["miss"] * 3, *["hit"] * 9]
    before_the_one_that_vanished, vanished_and_behind = answers[12:13], answers[13:]
    assert before_the_one_that_vanished == ["hit"]
    assert vanished_and_behind == ["miss"] * 3
