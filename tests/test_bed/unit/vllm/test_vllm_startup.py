import json
from pathlib import Path

import pytest
from llmd_oke.catalogue import model, release, shape
from llmd_rehearsal import model_sources
from llmd_rehearsal.model_sources import source_hosts
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.startup import ContainerFiles, cache_size, check_backend, read_model, vocabulary_error
from vllm_for_tests import MODEL, NIXL, read_flags

SNAPSHOT = "hub/models--openai--gpt-oss-120b/snapshots/abc"
ENVIRONMENT = {"HF_HOME": "/model-cache", "TIKTOKEN_ENCODINGS_BASE": "/model-cache/encodings"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache as the pre-warm program leaves it."""
    files = {
        f"{SNAPSHOT}/{path}": model_sources.content(MODEL.repository, path, size)
        for path, size in source_hosts().files.items()
    }
    assert MODEL.vocabulary
    files["encodings/o200k_base.tiktoken"] = model_sources.vocabulary("o200k_base.tiktoken", MODEL.vocabulary.bytes)
    files["hub/models--openai--gpt-oss-120b/refs/main"] = b"abc"
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def read(cache: Path, **environment: str) -> str:
    files = ContainerFiles({"/model-cache": str(cache), "/": "/nonexistent"})
    return read_model(MODEL, {**ENVIRONMENT, **environment}, files)


def test_a_complete_model_is_loaded_from_the_mounted_model_cache(cache: Path):
    assert read(cache) == f"/model-cache/{SNAPSHOT}"
    assert read(cache, HF_HUB_CACHE="/model-cache/hub", HF_HOME="/elsewhere") == f"/model-cache/{SNAPSHOT}"


def test_a_models_pinned_commit_must_be_in_the_model_cache(cache: Path):
    files = ContainerFiles({"/model-cache": str(cache)})
    (cache / "hub/models--openai--gpt-oss-120b/refs/main").unlink()
    assert read_model(MODEL, ENVIRONMENT, files, "abc") == f"/model-cache/{SNAPSHOT}"
    with pytest.raises(StartRefusal, match="LocalEntryNotFoundError"):
        read_model(MODEL, ENVIRONMENT, files, "def")


def test_a_server_whose_model_cache_folder_is_not_mounted_finds_no_model(cache: Path):
    with pytest.raises(StartRefusal, match="LocalEntryNotFoundError"):
        read(cache, HF_HOME="/elsewhere")


def test_vllm_uses_a_vocabulary_in_the_model_cache_only_if_a_variable_names_it(cache: Path):
    (cache / "encodings").rename(cache / "other")
    files = ContainerFiles({"/model-cache": str(cache)})
    assert vocabulary_error(MODEL, {"TIKTOKEN_ENCODINGS_BASE": "/model-cache/other"}, files) is None
    assert vocabulary_error(MODEL, {"HF_HOME": "/model-cache"}, files)
    (cache / "other/o200k_base.tiktoken").write_bytes(b"half")
    assert vocabulary_error(MODEL, {"TIKTOKEN_ENCODINGS_BASE": "/model-cache/other"}, files)


def test_a_model_cache_with_another_models_config_is_refused(cache: Path):
    (cache / SNAPSHOT / "config.json").write_text(json.dumps({"num_hidden_layers": 80, "hidden_size": 8192}))
    with pytest.raises(StartRefusal, match=r"config\.json has num_hidden_layers 80, gpt-oss-120b has 36"):
        read(cache)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model-00001-of-00002.safetensors", b"\xff" * 9, "Error while deserializing header"),
        ("model.safetensors.index.json", b"{", "JSONDecodeError"),
        ("model.safetensors.index.json", b'{"weight_map": {}}', "Cannot find any model weights"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"w": "model-00001-of-00002.safetensors"}}',
            "File does not contain tensor w",
        ),
    ],
)
def test_a_model_cache_with_incomplete_weights_is_refused(cache: Path, name: str, content: bytes, words: str):
    (cache / SNAPSHOT / name).write_bytes(content)
    with pytest.raises(StartRefusal, match=words):
        read(cache)


def test_a_model_cache_with_a_truncated_weights_file_is_refused(cache: Path):
    file = cache / SNAPSHOT / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StartRefusal, match="file not fully covered"):
        read(cache)


def size_of(*flags, name="gpt-oss-120b", gpus=None, environment=None):
    return cache_size(read_flags(*flags, environment=environment), model(name), shape("BM.GPU.MI300X.8"), gpus)


def test_the_kv_cache_has_the_size_computed_from_gpu_and_model_memory():
    """0.95 x 191.7 GiB without weights and activations, 73728 bytes for each token: 1.68 million tokens."""
    assert size_of("--gpu-memory-utilization", "0.95").tokens == pytest.approx(1_680_000, rel=0.01)
    llama = size_of("--gpu-memory-utilization", "0.95", name="llama-3.3-70b-instruct-fp8-dynamic")
    assert llama.tokens == pytest.approx(355_000, rel=0.01)
    assert size_of("--kv-cache-dtype", "fp8").tokens == pytest.approx(2 * size_of().tokens, rel=0.001)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-tp", "3"], "Total number of attention heads (64) must be divisible by tensor parallel size (3)"),
        (["-tp", "16"], "World size (16) is larger than the number of available GPUs (8)"),
        (["--max-model-len", "200000"], "greater than the derived max_model_len (max_position_embeddings=131072"),
        (["--gpu-memory-utilization", "0.3"], "No available memory for the cache blocks"),
        (["--gpu-memory-utilization", "0.37"], "the estimated maximum model length is"),
        (
            ["--no-enable-chunked-prefill", "--max-model-len", "10000", "--max-num-batched-tokens", "8192"],
            "is smaller than max_model_len (10000)",
        ),
    ],
)
def test_a_model_that_does_not_fit_gpu_memory_is_refused_in_vllms_words(flags, words):
    with pytest.raises(StartRefusal) as error:
        size_of(*flags)
    assert error.value.exit_code == 1
    assert words in error.value.text


def test_a_server_does_not_start_if_moris_heap_does_not_fit_beside_vllms_memory():
    flags = ("--enable-expert-parallel", "-dp", "8", "--all2all-backend=mori_low_latency", "--gpu-memory-utilization")
    heap = {"MORI_SHMEM_HEAP_SIZE": str(16 * 2**30)}
    with pytest.raises(StartRefusal, match="MoRI's heap takes"):
        size_of(*flags, "0.95", environment=heap)
    assert size_of(*flags, "0.86", environment=heap).tokens > 0


def test_a_server_is_refused_that_needs_more_gpus_than_its_container_requests():
    """The pod runner may say how many these are."""
    with pytest.raises(StartRefusal, match=r"available GPUs \(1\)"):
        size_of("-tp", "2", gpus=1)


def test_vllms_override_variable_permits_a_max_model_len_above_the_models_own():
    permitted = size_of("--max-model-len", "200000", environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert permitted.max_model_len == 200_000


UNIFIED = "ROCM_AITER_UNIFIED_ATTN"
NEW, OLD = (release(name).vllm.image.reference for name in ("llm-d-0.9.0", "llm-d-0.6.0"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--attention-backend", UNIFIED],
        ["--attention-backend=rocm_attn"],
        ["--attention-backend=TRITON_ATTN", f"--attention-backend={UNIFIED}"],
        ["-ac.backend", UNIFIED],
        ["--attention-config", json.dumps({"backend": UNIFIED})],
    ],
)
def test_an_attention_backend_that_cannot_transfer_is_refused_with_a_kv_connector(flags):
    with pytest.raises(StartRefusal, match=r"Reason: \['KV connector not supported'\]") as error:
        check_backend(read_flags("--kv-transfer-config", NIXL, *flags), NEW)
    assert error.value.exit_code == 1


def test_a_kv_offloading_size_replaces_the_configured_kv_connector():
    """`_post_init_kv_transfer_config` drops the hand-over without a word."""
    options = read_flags("--kv-transfer-config", NIXL, "--kv-offloading-size", "10", "--attention-backend", UNIFIED)
    assert options.transfer is None
    with pytest.raises(StartRefusal, match="KV connector not supported"):
        check_backend(options, NEW)


@pytest.mark.parametrize(
    ("flags", "image"),
    [
        (["--attention-backend", UNIFIED], NEW),
        (["--kv-transfer-config", NIXL, "--attention-backend", "TRITON_ATTN"], NEW),
        (["--kv-transfer-config", NIXL], NEW),
        (["--kv-transfer-config", NIXL, "--attention-backend", UNIFIED], OLD),
        (["--kv-transfer-config", NIXL, "--attention-backend", UNIFIED], "vllm:v1"),
    ],
)
def test_a_backend_that_cannot_transfer_kv_starts_without_connector_or_in_old_vllm(flags, image):
    """Older vLLM knows no such refusal; nothing is known of other images."""
    check_backend(read_flags(*flags), image)
