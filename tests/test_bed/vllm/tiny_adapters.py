"""A model cache with a tiny model and adapters of it, as pre-warming leaves it, and a server that reads it."""

import array
import json
import math
import random
import shutil
import struct
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from free_ports import free_port
from llmd_base.progress import SilentProgress
from llmd_pods.prewarm import adapters
from llmd_pods.prewarm.places import CacheFolder
from llmd_rehearsal.real_vllm import tiny_models
from llmd_rehearsal.real_vllm.differences import on_processor
from llmd_rehearsal.real_vllm.environment import RealVllm
from real_servers import CONTEXT, READY_S, TINY, process, variables_of

REPOSITORY, COMMIT = "rehearsal/tiny", "c" * 40
LIST, RANK = "tiny-adapters", 8


def weights(path: Path, matrices: Mapping[str, tuple[int, ...]], scale: float, seed: int) -> None:
    """Write random numbers of those shapes in the format of safetensors."""
    drawn = random.Random(seed)  # noqa: S311 - weights, no secret
    header: dict[str, object] = {}
    content = b""
    for name, shape in matrices.items():
        numbers = array.array("f", (drawn.gauss(0, scale) for _ in range(math.prod(shape))))
        ends = [len(content), len(content) + len(numbers) * numbers.itemsize]
        header[name] = {"dtype": "F32", "shape": [*shape], "data_offsets": ends}
        content += numbers.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


class AdaptedCache:
    """A model cache; `adapter` brings one more, as the Job of an update does."""

    def __init__(self, folder: Path, vllm: RealVllm) -> None:
        self.folder = folder
        self.base = CacheFolder(folder, REPOSITORY, COMMIT)
        files = tiny_models.ensure_files(vllm, TINY, SilentProgress())
        shutil.copytree(files, self.base.snapshot(COMMIT))
        self.base.point_to(COMMIT)
        self.resolved = adapters.folder(self.base, adapters.AdapterRoom(LIST, RANK, ()))

    def adapter(self, name: str, seed: int, prefix: str = "base_model.model.model", scale: float = 0.3) -> str:
        """Return the name that servers know an adapter by, whose matrices are named `prefix` and layer."""
        commit = f"{seed:040x}"
        place = CacheFolder(self.folder, f"rehearsal/{name}", commit)
        snapshot = place.snapshot(commit)
        snapshot.mkdir(parents=True)
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
        (snapshot / adapters.CONFIG).write_text(json.dumps({**config, "base_model_name_or_path": "somebody/elses"}))
        sizes = TINY.config()
        outputs = {"q_proj": sizes["num_attention_heads"], "v_proj": sizes["num_key_value_heads"]}
        matrices: dict[str, tuple[int, int]] = {}
        for layer in range(sizes["num_hidden_layers"]):
            for module, heads in outputs.items():
                of_module = f"{prefix}.layers.{layer}.self_attn.{module}"
                matrices[f"{of_module}.lora_A.weight"] = (RANK, sizes["hidden_size"])
                matrices[f"{of_module}.lora_B.weight"] = (heads * sizes["head_dim"], RANK)
        weights(snapshot / "adapter_model.safetensors", matrices, scale, seed)
        place.point_to(commit)
        served = f"{name}-{commit[-12:]}"
        files = adapters.AdapterFiles(served, place.repository, commit)
        adapters.place(self.base, adapters.AdapterRoom(LIST, RANK, (files,)), files)
        return served


@contextmanager
def adapted_server(vllm: RealVllm, cache: AdaptedCache, log: Path, arguments: list[str]) -> Generator[str]:
    """A server of the tiny model with room for adapters, by its address; `arguments` are those that make the room."""
    port = free_port()
    place = ["--host=127.0.0.1", f"--port={port}", f"--revision={COMMIT}", f"--served-model-name={REPOSITORY}"]
    own = [f"--max-model-len={CONTEXT}", *arguments]
    argv = on_processor([str(vllm.programs / "vllm"), "serve", REPOSITORY, *place, *own], TINY.server_values)
    asked = {
        "HF_HOME": str(cache.folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_LORA_RESOLVER_CACHE_DIR": str(cache.resolved),
        "PYTHONPATH": "",
    }
    variables = variables_of(vllm, asked)
    url = f"http://127.0.0.1:{port}"
    with process(argv, log, f"{url}/health", READY_S, **variables):
        yield url
