"""KV hand-over between engines on virtual time."""

import pytest
from llmd_bench.evals import builtin_items, right
from llmd_oke.catalogue.benchmarks import builtin_set
from llmd_rehearsal.vllm.requests import answer_to_question, corrupt_answer
from vllm_for_tests import NIXL

NIXL_OR_RECOMPUTE = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute"}'


def test_only_the_first_transfer_between_two_servers_pays_the_handshake(pair):
    """5 s once; afterwards the bytes over the port and one decode step."""
    prefill, decode = pair
    first, first_s = prefill.hand_over_to(decode)
    second, second_s = prefill.hand_over_to(decode, start=10_000)
    transfer_s = decode.latency.key_value_transfer_s(4096, 1, 16)
    step_s = decode.latency.decode_step_s(1, 4095, 2)
    assert first.times[0] - first_s == pytest.approx(5.0 + transfer_s + step_s)
    assert second.times[0] - second_s == pytest.approx(transfer_s + step_s)


def test_a_pulled_prompt_counts_as_external_cache_hit_and_frees_the_prefills_blocks(pair):
    prefill, decode = pair
    request, _ = prefill.hand_over_to(decode)
    assert len(request.times) == 8
    assert decode.metrics.external_hits == 4096
    assert decode.metrics.transferred.total == pytest.approx(4096 * 73_728)
    assert decode.metrics.transfer.count == 1
    assert prefill.metrics.cache_usage == 0.0


HYBRID = "--no-disable-hybrid-kv-cache-manager"


@pytest.mark.parametrize(
    ("block_size", "whole_tokens", "window_tokens"), [("16", 4112, 144), ("64", 4160, 192), ("128", 4224, 256)]
)
def test_sliding_window_layers_transfer_only_the_blocks_of_the_last_window(
    serve, block_size, whole_tokens, window_tokens
):
    """18 of gpt-oss-120b's 36 layers have a window of 128 tokens; 2 KiB of each token in each layer."""
    flags = ("--kv-transfer-config", NIXL, "--block-size", block_size, HYBRID)
    decode = serve(*flags, host="10.244.0.3")
    request, _ = serve(*flags).hand_over_to(decode, tokens=4101)
    assert len(request.times) == 8
    assert decode.metrics.transferred.total == pytest.approx(2048 * 18 * (whole_tokens + window_tokens))


def test_no_kv_cache_is_transferred_if_only_one_server_has_the_hybrid_cache_manager(serve):
    decode = serve("--kv-transfer-config", NIXL, "--disable-hybrid-kv-cache-manager", host="10.244.0.3")
    request, _ = serve("--kv-transfer-config", NIXL, HYBRID).hand_over_to(decode)
    assert request.sequence.finish == "error"
    assert "compatibility hash mismatch: hybrid" in decode.log[0]


def test_a_decode_server_pulls_only_the_kv_blocks_that_it_lacks(pair):
    """The same prompt again: all but its last block is in the decode server's own cache."""
    prefill, decode = pair
    prefill.hand_over_to(decode)
    before = decode.metrics.transferred.total
    prefill.hand_over_to(decode)
    assert decode.metrics.transferred.total - before == 16 * 73_728


def test_a_prefill_server_holds_kv_blocks_until_they_are_pulled_or_their_lease_ends(pair, clock):
    """Expiry by kv_lease_duration, 30 s unless told otherwise."""
    prefill, _ = pair
    filled = prefill.request(4096, 1, hold=True)
    clock.run(until_s=28)
    assert prefill.engine.holds(filled.sequence.request_id)
    assert prefill.metrics.cache_usage > 0
    assert prefill.engine.idle
    assert not prefill.engine.at_rest
    clock.run(until_s=40)
    assert not prefill.engine.holds(filled.sequence.request_id)
    assert prefill.engine.at_rest
    assert prefill.metrics.cache_usage == 0.0
    assert prefill.metrics.expired_transfers == 1


@pytest.fixture
def claimed(serve, clock):
    """A finished prefill, and a decode server with a request for it that waits for a place in the full batch: both
    servers and both requests.
    """
    prefill = serve("--kv-transfer-config", NIXL)
    decode = serve("-tp", "2", "--max-num-seqs", "1", "--kv-transfer-config", NIXL, host="10.244.0.3")
    decode.request(64, 30_000, start=100_000)
    clock.run(until_s=2)
    filled = prefill.request(4096, 1, hold=True)
    clock.run(until_s=4)
    waiting = decode.request(4096, 1, remote=prefill.remote_blocks(filled))
    clock.run(until_s=40)
    assert waiting.times == []
    return prefill, decode, filled, waiting


def test_prefilled_kv_blocks_whose_lease_a_decode_server_renews_do_not_expire(claimed, clock):
    """The decode server's heartbeat renews the lease while the request waits there."""
    prefill, decode, filled, waiting = claimed
    assert prefill.engine.holds(filled.sequence.request_id)
    clock.run()
    assert (len(waiting.times), decode.metrics.finished["length"]) == (1, 2)
    assert prefill.metrics.expired_transfers == 0


def test_blocks_of_a_vanished_decode_server_are_freed_when_its_last_renewal_ends(claimed, clock):
    """A heartbeat extends the lease by two thirds of its 30 s."""
    prefill, decode, filled, _ = claimed
    decode.leave()
    clock.run(until_s=59)
    assert prefill.engine.holds(filled.sequence.request_id)
    clock.run(until_s=61)
    assert prefill.engine.at_rest
    assert prefill.metrics.cache_usage == 0.0
    assert prefill.metrics.expired_transfers == 1


def test_blocks_of_a_request_that_is_aborted_before_its_pull_are_freed_at_once(claimed):
    prefill, decode, filled, waiting = claimed
    decode.engine.abort(waiting.sequence)
    assert not prefill.engine.holds(filled.sequence.request_id)
    assert (prefill.metrics.expired_transfers, prefill.metrics.cache_usage) == (0, 0.0)
    assert decode.metrics.failed_notifications == 0


def test_an_abort_that_does_not_reach_the_prefill_server_is_counted(claimed):
    prefill, decode, _, waiting = claimed
    prefill.leave()
    decode.engine.abort(waiting.sequence)
    assert decode.metrics.failed_notifications == 1


def test_blocks_that_a_decode_server_fails_to_pull_are_freed_after_their_lease(serve, clock):
    """The handshake fails, as block sizes differ."""
    prefill = serve("--kv-transfer-config", NIXL)
    request, _ = prefill.hand_over_to(serve("--kv-transfer-config", NIXL, "--block-size", "64", host="10.244.0.3"))
    assert request.sequence.finish == "error"
    assert prefill.metrics.cache_usage > 0
    clock.run(until_s=40)
    assert prefill.metrics.cache_usage == 0.0
    assert prefill.metrics.expired_transfers == 1


def test_kv_transfers_from_one_prefill_server_run_one_after_the_other(pair, clock):
    """One port: the last of four transfers ends four transfer times after it could begin."""
    prefill, decode = pair
    prefill.hand_over_to(decode, start=900_000)
    filled = [prefill.request(4096, 1, start=10_000 * index, hold=True) for index in range(4)]
    clock.run(until_s=clock.now() + 5)
    start_s = clock.now()
    requests = [
        decode.request(4096, 1, start=10_000 * index, remote=prefill.remote_blocks(one))
        for index, one in enumerate(filled)
    ]
    clock.run(until_s=start_s + 5)
    last_s = max(request.times[0] for request in requests) - start_s
    assert last_s >= 4 * decode.latency.key_value_transfer_s(4096, 1, 16)
    assert last_s < 4 * decode.latency.key_value_transfer_s(4096, 1, 16) + 0.02


def test_by_default_a_request_whose_prefill_server_vanished_fails(pair, pull_from_vanished):
    _, decode = pair
    assert pull_from_vanished(*pair).sequence.finish == "error"
    assert decode.metrics.failed_transfers == 1
    assert decode.metrics.cache_usage == 0.0
    assert "no engine" in decode.log[0]


def test_with_the_load_failure_policy_recompute_a_decode_server_repeats_the_prefill(serve, pull_from_vanished):
    prefill = serve("--kv-transfer-config", NIXL)
    decode = serve("--kv-transfer-config", NIXL_OR_RECOMPUTE, host="10.244.0.3")
    request = pull_from_vanished(prefill, decode)
    assert len(request.times) == 8
    assert request.times[0] == pytest.approx(1 + 5 + decode.latency.prefill_s(4096))


@pytest.mark.parametrize(
    ("flags", "extra", "why"),
    [
        (["-tp", "1"], {}, "not divisible by remote TP size 2"),
        (["-tp", "2", "--block-size", "32"], {}, "block_size"),
        (["-tp", "2", "--kv-cache-dtype", "fp8"], {}, "kv_cache_dtype"),
        (["-tp", "2"], {"image": "vllm:v2"}, "image"),
        (["-tp", "2", "--attention-backend", "TRITON_ATTN"], {}, "attention_backend"),
        (["-tp", "2"], {"environment": {"VLLM_KV_CACHE_LAYOUT": "NHD"}}, "same kv_cache_layout"),
        (["-tp", "2"], {"name": "llama-3.3-70b-instruct-fp8-dynamic"}, "model"),
    ],
)
def test_servers_with_different_settings_cannot_transfer_kv_cache(serve, flags, extra, why):
    decode = serve(*flags, "--kv-transfer-config", NIXL, host="10.244.0.3", **extra)
    request, _ = serve("-tp", "2", "--kv-transfer-config", NIXL).hand_over_to(decode)
    assert request.sequence.finish == "error"
    assert why in decode.log[0]


def test_a_nixl_side_channel_on_loopback_cannot_be_reached_from_another_pod(serve):
    """VLLM_NIXL_SIDE_CHANNEL_HOST was forgotten: vLLM advertises localhost."""
    decode = serve("--kv-transfer-config", NIXL, host="10.244.0.3")
    request, _ = serve("--kv-transfer-config", NIXL, host="localhost").hand_over_to(decode)
    assert request.sequence.finish == "error"
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in decode.log[0]


def test_a_request_aborted_during_its_transfer_frees_blocks_on_both_servers(pair, clock):
    """The transfer ends first, as RDMA can't be called back."""
    prefill, decode = pair
    filled = prefill.request(4096, 1, hold=True)
    clock.run(until_s=1)
    request = decode.request(4096, 8, remote=prefill.remote_blocks(filled))
    clock.run(until_s=2)
    decode.engine.abort(request.sequence)
    assert decode.metrics.cache_usage > 0
    clock.run(until_s=20)
    assert decode.metrics.cache_usage == 0.0
    assert prefill.metrics.cache_usage == 0.0
    assert decode.engine.idle


def test_successful_and_refused_nixl_handshakes_of_server_versions_are_counted(serve, network):
    prefill = serve("--kv-transfer-config", NIXL)
    prefill.hand_over_to(serve("--kv-transfer-config", NIXL, host="10.244.0.3"))
    prefill.hand_over_to(serve("--block-size", "64", "--kv-transfer-config", NIXL, host="10.244.0.4"))
    paired = [prefill == decode for prefill, decode in network.pairings]
    assert sorted(paired) == [False, True]
    assert set(network.pairings.values()) == {1}


@pytest.mark.parametrize(("variable", "crashes"), [("1", True), ("0", False)])
def test_only_an_injected_fault_makes_a_new_prefill_server_crash_decode_servers(serve, variable, crashes):
    fault = {"LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART": variable}
    decode = serve("-tp", "2", "--kv-transfer-config", NIXL, host="10.244.0.3", environment=fault)
    first, second, third = (serve("--kv-transfer-config", NIXL, host=f"10.244.1.{index}") for index in range(3))
    first.hand_over_to(decode)
    second.hand_over_to(decode, start=10_000)
    assert "crashed" not in decode.log
    first.leave()
    second.hand_over_to(decode, start=20_000)
    assert "crashed" not in decode.log  # it is met already
    third.hand_over_to(decode, start=30_000)
    assert ("crashed" in decode.log) == crashes


def test_the_crash_fault_ignores_the_loss_of_a_prefill_server_without_connections(serve):
    fault = {"LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART": "1"}
    decode = serve("-tp", "2", "--kv-transfer-config", NIXL, host="10.244.0.3", environment=fault)
    serve("--kv-transfer-config", NIXL, host="10.244.1.0").leave()
    serve("--kv-transfer-config", NIXL, host="10.244.1.1").hand_over_to(decode)
    assert "crashed" not in decode.log


NEW, OLD = "docker.io/vllm/vllm-openai-rocm:v0.26.0", "ghcr.io/llm-d/llm-d-rocm:v0.6.0"


@pytest.mark.parametrize(
    ("image", "backend", "size", "garbled"),
    [
        (NEW, "TRITON_ATTN", "2", False),
        (OLD, "ROCM_AITER_UNIFIED_ATTN", "2", True),
        (OLD, "ROCM_AITER_UNIFIED_ATTN", "1", False),
        (OLD, "ROCM_ATTN", "2", False),
    ],
)
def test_an_unsplit_kv_cache_gives_wrong_answers_at_another_tensor_parallel_size(serve, image, backend, size, garbled):
    """vLLM doesn't ask, and answers."""
    flags = ("--kv-transfer-config", NIXL, "--attention-backend", backend)
    decode = serve("-tp", size, *flags, host="10.244.0.3", image=image)
    request, _ = serve(*flags, image=image).hand_over_to(decode)
    assert len(request.times) == 8
    assert request.sequence.corrupted is garbled


@pytest.mark.parametrize(("size", "finish"), [("1", "length"), ("2", "error")])
def test_a_kv_cache_in_nhd_layout_is_not_pulled_at_another_tensor_parallel_size(serve, size, finish):
    flags = ("--kv-transfer-config", NIXL)
    apart = {"environment": {"VLLM_KV_CACHE_LAYOUT": "NHD"}}
    request, _ = serve(*flags, **apart).hand_over_to(serve("-tp", size, *flags, host="10.244.0.3", **apart))
    assert request.sequence.finish == finish


@pytest.mark.parametrize("item", builtin_items(builtin_set()), ids=lambda item: item.id)
def test_corrupted_kv_cache_makes_answers_to_the_kits_evaluation_questions_wrong(item):
    answer = answer_to_question(f"<|user|>{item.prompt}")
    assert right(item, answer)
    assert not right(item, corrupt_answer(answer))


def test_the_simulated_vllm_does_not_solve_a_sum_in_a_prompt_that_is_no_evaluation():
    assert answer_to_question("Write a poem about the number 7 + 5") is None


@pytest.mark.parametrize(("percent", "corrupted"), [("0", False), ("100", True)])
def test_the_corruption_fault_corrupts_kv_cache_that_decode_servers_pull(serve, percent, corrupted):
    fault = {"LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": percent}
    decode = serve("--kv-transfer-config", NIXL, host="10.244.0.3", environment=fault)
    request, _ = serve("--kv-transfer-config", NIXL).hand_over_to(decode)
    assert request.sequence.corrupted is corrupted
