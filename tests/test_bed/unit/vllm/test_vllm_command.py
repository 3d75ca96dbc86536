import json

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue import release, release_names
from llmd_oke.config.engine import engine_settings, further_flags
from llmd_rehearsal.vllm.command import settings
from llmd_rehearsal.vllm.flags import StartRefusal
from vllm_for_tests import NIXL, REPOSITORY, read_flags, refusal


def test_flags_missing_in_a_simulated_servers_command_have_vllms_defaults():
    options = read_flags()
    assert (options.port, options.parallelism.gpus, options.block_size) == (8000, 1, 16)
    assert (options.max_num_seqs, options.max_num_batched_tokens, options.gpu_memory_utilization) == (256, 8192, 0.9)
    assert options.enable_prefix_caching
    assert options.served_model_names == (REPOSITORY,)
    assert options.transfer is None


def test_no_vllm_flag_is_listed_both_as_simulated_and_as_accepted_without_effect():
    assert not engine_settings().flags().keys() & further_flags().keys()


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
def test_a_vllm_flag_is_accepted_with_dashes_underscores_equals_sign_or_short_name(flags):
    assert read_flags(*flags).parallelism == Parallelism(2)


def test_vllms_module_openai_api_server_takes_the_model_as_a_flag():
    """The second plain form of a command."""
    options = settings(["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", REPOSITORY], {})
    assert options.model == REPOSITORY


def test_a_boolean_vllm_flag_has_a_negative_form():
    assert not read_flags("--no-enable-prefix-caching").enable_prefix_caching
    assert read_flags("--no-enable-prefix-caching", "--enable-prefix-caching").enable_prefix_caching


@pytest.mark.parametrize(("text", "tokens"), [("32000", 32000), ("32k", 32000), ("32K", 32768), ("0.5M", 524_288)])
def test_numbers_in_vllm_flags_may_have_a_suffix_such_as_8k(text, tokens):
    assert read_flags("--max-model-len", text).max_model_len == tokens


def test_a_vllm_flag_with_a_json_value_can_be_given_key_by_key():
    options = read_flags("--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both")
    assert options.transfer is not None
    assert options.transfer.nixl


def test_the_nixl_side_channels_address_comes_from_environment_variables():
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.244.0.7", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"}
    transfer = read_flags("--kv-transfer-config", NIXL, environment=environment).transfer
    assert transfer is not None
    assert (transfer.side_channel_host, transfer.side_channel_port) == ("10.244.0.7", 5700)
    assert not transfer.recompute_on_failure


def test_idle_connections_close_after_five_seconds_or_as_vllms_variable_says():
    """VLLM_HTTP_TIMEOUT_KEEP_ALIVE (vLLM v0.26.0, vllm/envs.py)."""
    assert read_flags().keep_alive_s == 5
    assert read_flags(environment={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"}).keep_alive_s == 120
    assert "int()" in refusal(environment={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "2m"}).text


def test_a_prefills_lease_has_the_duration_in_the_kv_connectors_config():
    longer = json.dumps({**json.loads(NIXL), "kv_connector_extra_config": {"kv_lease_duration": 90}})
    transfers = [read_flags("--kv-transfer-config", config).transfer for config in (NIXL, longer)]
    assert [transfer.lease_s for transfer in transfers] == [30, 90]


@pytest.mark.parametrize("name", release_names())
def test_the_simulated_vllm_accepts_the_arguments_of_every_release(name):
    """The flags that the kit itself emits are known."""
    read_flags(*release(name).vllm.arguments)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--foo"], "vllm: error: unrecognized arguments: --foo"),
        (["--foo", "3"], "vllm: error: unrecognized arguments: --foo 3"),
        (["--num-scheduler-steps", "8"], "vllm: error: unrecognized arguments: --num-scheduler-steps 8"),
        (["--kv-transfer-confg", "{}"], "vllm: error: unrecognized arguments: --kv-transfer-confg {}"),
        (["--tensor-parallel", "2"], "vllm: error: unrecognized arguments: --tensor-parallel 2"),
        (["--port", "http"], "argument --port: invalid int value: 'http'"),
        (["--block-size", "17"], "argument --block-size: invalid choice: 17"),
        (["--all2all-backend=mori"], "invalid choice: 'mori'"),
        (["--kv-transfer-config", "{"], "argument --kv-transfer-config: Value { cannot be converted"),
        (["--max-model-len", "long"], "argument --max-model-len"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_an_unknown_flag_or_a_value_with_a_wrong_type_is_refused_as_by_argparse(flags, words):
    """Removed flags and abbreviations are unknown too."""
    error = refusal(*flags)
    assert error.exit_code == 2
    assert words in error.text


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
def test_an_invalid_kv_transfer_config_is_refused_as_by_vllm(config, words):
    """Exit code 1, as for an exception at start."""
    error = refusal("--kv-transfer-config", json.dumps(config))
    assert error.exit_code == 1
    assert words in error.text


@pytest.mark.parametrize("argv", [["/bin/sh", "-c", "vllm serve m"], ["sleep", "3600"], [], ["vllm", "bench"]])
def test_a_command_other_than_vllm_serve_is_refused_with_the_accepted_ones(argv):
    with pytest.raises(StartRefusal, match=r"vllm serve MODEL") as error:
        settings(argv, {})
    assert error.value.exit_code == 2


def over_nodes(*flags, ranks=16, nodes=2):
    words = ("--data-parallel-size", str(ranks), f"--nnodes={nodes}", "--data-parallel-hybrid-lb")
    return (*words, "--data-parallel-address=set-0.set.ns", *flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pipeline-parallel-size", "2"], "isn't simulated"),
        (["--data-parallel-size", "2", "--data-parallel-hybrid-lb"], "isn't simulated"),
        (
            ["--attention-backend=TRITON_ATTN", "-ac.backend", "TRITON_ATTN"],
            "attention_backend and attention_config.backend are mutually exclusive",
        ),
        (["--attention-config", "[1]"], "--attention-config: not an object"),
        (over_nodes("--node-rank=2"), "`--node-rank` must be between 0 and 1"),
        (over_nodes(ranks=15), "must evenly divide"),
        (["--nnodes=2", "--data-parallel-size=16"], "--data-parallel-hybrid-lb"),
    ],
)
def test_flags_that_the_simulation_lacks_or_vllm_refuses_are_not_ignored(flags, words):
    """Layers or ranks in other pods change what a server is."""
    assert words in refusal(*flags).text


def test_a_misnamed_quick_reduce_variable_has_no_effect():
    """vLLM reads the name without _VALS alone."""
    assert read_flags(environment={"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT4"}).quick_reduce == "INT4"
    assert read_flags(environment={"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_VALS": "INT4"}).quick_reduce == "NONE"


def test_each_pod_of_a_server_over_nodes_starts_the_ranks_of_its_own_node():
    options = read_flags(*over_nodes("--node-rank=1", "--enable-expert-parallel", "--data-parallel-size-local=8"))
    assert options.parallelism == Parallelism(1, 16, expert_parallel=True, nodes=2)
    assert options.ranks == range(8, 16)
    assert options.group is not None
    assert (options.group.node_rank, options.group.address, options.group.rpc_port) == (1, "set-0.set.ns", 29550)


def test_moris_heap_takes_memory_only_if_experts_exchange_tokens_through_mori():
    experts = ("--enable-expert-parallel", "--data-parallel-size=8")
    heap = {"MORI_SHMEM_HEAP_SIZE": str(16 * 2**30)}
    assert read_flags(*experts, "--all2all-backend=mori_low_latency", environment=heap).exchange_bytes == 16 * 2**30
    assert read_flags(*experts, environment=heap).exchange_bytes == 0
    assert read_flags("--all2all-backend=mori_low_latency", environment=heap).exchange_bytes == 0
