"""What the simulated vLLM accepts on its command line, and how it refuses the rest."""

import json

import pytest
from llmd_oke.catalogue import model, release, release_names, shape
from llmd_oke.rehearsal.vllm.attention import check_backend
from llmd_oke.rehearsal.vllm.cache_size import cache_size
from llmd_oke.rehearsal.vllm.command import settings
from llmd_oke.rehearsal.vllm.refusal import Refusal

MODEL = "openai/gpt-oss-120b"
LLAMA = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


def serve(*flags, environment=None):
    return settings(["vllm", "serve", MODEL, *flags], environment or {})


def refusal(*flags, environment=None, argv=None):
    with pytest.raises(Refusal) as caught:
        settings(argv or ["vllm", "serve", MODEL, *flags], environment or {})
    return caught.value


def size_of(*flags, name="gpt-oss-120b", gpus=None):
    return cache_size(serve(*flags), model(name), shape("BM.GPU.MI300X.8"), gpus)


def size_refusal(*flags, name="gpt-oss-120b", gpus=None):
    with pytest.raises(Refusal) as caught:
        size_of(*flags, name=name, gpus=gpus)
    return caught.value


def test_vllms_defaults_hold_where_no_flag_says_otherwise():
    """Those that the simulation reads."""
    asked = serve()
    assert (asked.port, asked.tensor_parallel_size, asked.block_size) == (8000, 1, 16)
    assert (asked.max_num_seqs, asked.max_num_batched_tokens, asked.gpu_memory_utilization) == (256, 8192, 0.9)
    assert asked.enable_prefix_caching
    assert asked.served_model_names == (MODEL,)
    assert asked.transfer is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--tensor-parallel-size", "2"],
        ["--tensor-parallel-size=2"],
        ["--tensor_parallel_size=2"],
        ["-tp", "2"],
        ["-tp=2"],
    ],
)
def test_a_flag_may_be_written_in_each_of_vllms_forms(flags):
    """Dashes, underscores, equals sign, short name."""
    assert serve(*flags).tensor_parallel_size == 2


def test_the_api_server_module_takes_the_model_as_a_flag():
    """The second plain form of a command."""
    asked = settings(["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL], {})
    assert asked.model == MODEL


def test_a_boolean_flag_has_a_negative_form():
    """Both are accepted; the last wins."""
    assert not serve("--no-enable-prefix-caching").enable_prefix_caching
    assert serve("--no-enable-prefix-caching", "--enable-prefix-caching").enable_prefix_caching


@pytest.mark.parametrize(("text", "tokens"), [("32000", 32000), ("32k", 32000), ("32K", 32768), ("0.5M", 524_288)])
def test_lengths_may_have_a_suffix(text, tokens):
    """As vLLM reads them."""
    assert serve("--max-model-len", text).max_model_len == tokens


def test_a_json_flag_may_come_key_by_key():
    """--flag.key value, more than once."""
    asked = serve("--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both")
    assert asked.transfer is not None
    assert asked.transfer.nixl


def test_the_side_channel_comes_from_the_environment():
    """Its host is the pod's address in a right manifest."""
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.244.0.7", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"}
    transfer = serve("--kv-transfer-config", NIXL, environment=environment).transfer
    assert transfer is not None
    assert (transfer.side_channel_host, transfer.side_channel_port) == ("10.244.0.7", 5700)
    assert not transfer.recompute_on_failure


def test_idle_connections_are_kept_for_uvicorns_five_seconds_or_as_long_as_the_environment_says():
    """VLLM_HTTP_TIMEOUT_KEEP_ALIVE (vLLM v0.26.0, vllm/envs.py)."""
    assert serve().keep_alive_s == 5
    assert serve(environment={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"}).keep_alive_s == 120
    assert "int()" in refusal(environment={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "2m"}).text


def test_a_prefill_waits_for_its_decode_server_as_long_as_the_connector_is_told():
    """kv_lease_duration among the connector's own settings; 30 s otherwise."""
    longer = json.dumps({**json.loads(NIXL), "kv_connector_extra_config": {"kv_lease_duration": 90}})
    transfers = [serve("--kv-transfer-config", config).transfer for config in (NIXL, longer)]
    assert [transfer.lease_s for transfer in transfers] == [30, 90]


@pytest.mark.parametrize("name", release_names())
def test_every_release_of_the_kit_starts(name):
    """The flags that the kit itself emits are known."""
    serve(*release(name).vllm.arguments)


@pytest.mark.parametrize(
    "flags",
    [
        ["--foo"],
        ["--foo", "3"],
        ["--num-scheduler-steps", "8"],
        ["--kv-transfer-confg", "{}"],
        ["--tensor-parallel", "2"],
    ],
)
def test_an_unknown_flag_is_refused_as_argparse_refuses_it(flags):
    """Exit code 2; removed flags and abbreviations are unknown too."""
    refused = refusal(*flags)
    assert refused.exit_code == 2
    assert f"vllm: error: unrecognized arguments: {' '.join(flags)}" in refused.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "http"], "argument --port: invalid int value: 'http'"),
        (["--block-size", "17"], "argument --block-size: invalid choice: 17"),
        (["--kv-transfer-config", "{"], "argument --kv-transfer-config: Value { cannot be converted"),
        (["--max-model-len", "long"], "argument --max-model-len"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_as_argparse_refuses_it(flags, words):
    """Exit code 2."""
    refused = refusal(*flags)
    assert refused.exit_code == 2
    assert words in refused.text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kv_connector": "NixlConnector"}, "Please specify kv_role"),
        ({"kv_connector": "NixlConnector", "kv_role": "prefill"}, "Unsupported kv_role"),
        ({"kv_connector": "NixelConnector", "kv_role": "kv_both"}, "Unsupported connector type"),
        ({"kv_connector": "MultiConnector", "kv_role": "kv_both"}, "isn't simulated"),
        ({"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "retry"}, "retry"),
    ],
)
def test_a_transfer_config_that_vllm_would_not_take_is_refused(config, words):
    """Exit code 1, as for an exception at start."""
    refused = refusal("--kv-transfer-config", json.dumps(config))
    assert refused.exit_code == 1
    assert words in refused.text


@pytest.mark.parametrize("argv", [["/bin/sh", "-c", f"vllm serve {MODEL}"], ["sleep", "3600"], [], ["vllm", "bench"]])
def test_a_command_that_is_no_plain_vllm_is_refused_with_what_is_accepted(argv):
    """Exit code 2."""
    with pytest.raises(Refusal, match=r"vllm serve MODEL") as caught:
        settings(argv, {})
    assert caught.value.exit_code == 2


def test_what_the_simulation_lacks_is_refused_and_not_ignored():
    """Data parallelism changes what a server is."""
    assert "isn't simulated" in refusal("--data-parallel-size", "2").text


def test_the_useless_name_of_the_quick_reduce_variable_has_no_effect():
    """Only the name without _VALS is read."""
    assert serve(environment={"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT4"}).quick_reduce == "INT4"
    assert serve(environment={"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_VALS": "INT4"}).quick_reduce == "NONE"


def test_the_kv_cache_has_the_size_that_the_figures_give():
    """0.95 x 191.7 GiB without weights and activations, 73728 bytes for each token: 1.68 million tokens."""
    assert size_of("--gpu-memory-utilization", "0.95").tokens == pytest.approx(1_680_000, rel=0.01)
    llama = size_of("--gpu-memory-utilization", "0.95", name="llama-3.3-70b-instruct-fp8-dynamic")
    assert llama.tokens == pytest.approx(355_000, rel=0.01)


def test_an_fp8_kv_cache_holds_twice_as_many_tokens():
    """Half the bytes for each."""
    assert size_of("--kv-cache-dtype", "fp8").tokens == pytest.approx(2 * size_of().tokens, rel=0.001)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-tp", "3"], "Total number of attention heads (64) must be divisible by tensor parallel size (3)"),
        (["-tp", "16"], "World size (16) is larger than the number of available GPUs (8)"),
        (["--max-model-len", "200000"], "greater than the derived max_model_len (max_position_embeddings=131072"),
        (["--gpu-memory-utilization", "0.3"], "No available memory for the cache blocks"),
        (["--gpu-memory-utilization", "0.37"], "the estimated maximum model length is"),
        (["--no-enable-chunked-prefill", "--max-model-len", "10000"], "is smaller than max_model_len (10000)"),
    ],
)
def test_what_does_not_fit_is_refused_in_vllms_words(flags, words):
    """Exit code 1."""
    refused = size_refusal(*flags)
    assert refused.exit_code == 1
    assert words in refused.text


def test_a_container_has_no_more_gpus_than_it_asked_for():
    """The pod runner may say how many these are."""
    assert "available GPUs (1)" in size_refusal("-tp", "2", gpus=1).text


def test_a_longer_context_than_the_models_own_needs_the_override():
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."""
    asked = serve("--max-model-len", "200000", environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert cache_size(asked, model("gpt-oss-120b"), shape("BM.GPU.MI300X.8")).max_model_len == 200_000


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
def test_a_backend_whose_kv_cache_cannot_be_handed_over_is_refused_beside_a_kv_connector(flags):
    """In each form of the flag; exit code 1 and vLLM's words."""
    with pytest.raises(Refusal, match=r"Reason: \['KV connector not supported'\]") as caught:
        check_backend(serve("--kv-transfer-config", NIXL, *flags), NEW)
    assert caught.value.exit_code == 1


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
def test_a_backend_is_refused_only_beside_a_kv_connector_and_by_the_image_that_does_so(flags, image):
    """Older vLLM knows no such refusal; nothing is known of other images."""
    check_backend(serve(*flags), image)


def test_a_backend_that_is_said_twice_is_refused():
    flags = ["--attention-backend=TRITON_ATTN", "-ac.backend", "TRITON_ATTN"]
    assert "attention_backend and attention_config.backend are mutually exclusive" in refusal(*flags).text


def test_an_attention_config_that_is_no_object_is_refused():
    """As other flags that take JSON."""
    assert "--attention-config: not an object" in refusal("--attention-config", "[1]").text
