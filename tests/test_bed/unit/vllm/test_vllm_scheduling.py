"""Engines, KV blocks and the prompts that fill them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_rehearsal.vllm.clocks import WallClock
from llmd_rehearsal.vllm.scheduler import BlockPool
from llmd_rehearsal.vllm.sequences import Prompt, chat_prompt, completion_prompts, responses_prompt

DECODE_BENCH = '{"kv_connector":"DecodeBenchConnector","kv_role":"kv_both"}'


def test_a_single_request_takes_a_prefill_and_a_decode_step_for_each_later_token(serve, clock):
    """TTFT is overhead and prefill, each gap one decode step of batch 1."""
    server = serve()
    request = server.request(4096, 4)
    clock.run()
    latency = server.latency
    assert request.times[0] == pytest.approx(latency.factors.prefill_overhead_s + latency.prefill_s(4096))
    steps = [server.latency.decode_step_s(1, 4096 + generated) for generated in range(3)]
    assert request.gaps == pytest.approx(steps)


def test_a_prompt_longer_than_the_token_budget_is_prefilled_in_chunks(serve, clock):
    server = serve("--max-num-batched-tokens", "2048")
    request = server.request(5000, 1)
    clock.run()
    chunks = [server.latency.prefill_s(2048), server.latency.prefill_s(2048, 2048), server.latency.prefill_s(904, 4096)]
    assert request.times == [pytest.approx(server.latency.factors.prefill_overhead_s + sum(chunks))]


def test_sequences_are_decoded_together_in_one_step(serve, clock):
    """Seven sequences that came during the prefill of the first are prefilled together and stay together."""
    server = serve()
    first, *others = [server.request(16, 20, start=1000 * index) for index in range(8)]
    clock.run()
    assert len({tuple(request.times) for request in others}) == 1
    assert first.times[2:] == others[0].times[1:19]
    assert first.gaps[3] == pytest.approx(server.latency.decode_step_s(8, 18), rel=0.01)


def test_the_prefill_of_a_new_prompt_delays_the_tokens_of_running_sequences(serve, clock):
    """Aggregated serving: the step with the newcomer's prompt is as much longer as its prefill takes."""
    server = serve()
    running = server.request(16, 100)
    clock.run(until_s=0.2)
    server.request(4096, 1, start=50_000)
    clock.run()
    usual = server.latency.decode_step_s(1, 100)
    assert max(running.gaps) == pytest.approx(usual + server.latency.prefill_s(4096), rel=0.01)


def test_no_more_sequences_run_than_max_num_seqs(serve, clock):
    server = serve("--max-num-seqs", "2")
    requests = [server.request(16, 10, start=1000 * index) for index in range(3)]
    clock.run(until_s=0.1)
    assert (server.metrics.running, server.metrics.waiting) == (2, 1)
    clock.run()
    assert requests[2].times[0] > requests[0].times[-1]
    assert server.metrics.queue.total > 0.05


def test_a_cached_prefix_is_not_prefilled_again(serve, clock):
    """The second of two equal prompts computes its last block only."""
    server = serve()
    first = server.compute(4096, 0)
    start_s = clock.now()
    second = server.compute(4096, 0)
    assert first.times[0] > 0.2
    assert second.times[0] - start_s < 0.1
    assert server.metrics.prefix_hits == 4096 - 16
    assert server.metrics.prefix_queries == 2 * 4096


def test_without_prefix_caching_equal_prompts_take_equal_times(serve, clock):
    server = serve("--no-enable-prefix-caching")
    first = server.request(4096, 1)
    first.sequence.hashes.clear()
    clock.run()
    start_s = clock.now()
    second = server.request(4096, 1)
    second.sequence.hashes.clear()
    clock.run()
    assert second.times[0] - start_s == pytest.approx(first.times[0])
    assert server.metrics.prefix_queries == 0


def test_the_youngest_sequence_is_preempted_when_blocks_run_out_and_restarts(serve, clock):
    server = serve("--num-gpu-blocks-override", "8", "--max-model-len", "100", "--no-enable-prefix-caching")
    old, young = server.request(30, 60), server.request(30, 60, start=500)
    clock.run()
    assert server.metrics.preemptions == 1
    assert (len(old.times), len(young.times)) == (60, 60)
    assert young.times[-1] > old.times[-1]
    assert server.metrics.cache_usage == 0.0


def test_a_prompt_waits_until_there_are_free_kv_blocks_for_it(serve, clock):
    server = serve("--num-gpu-blocks-override", "8", "--max-model-len", "100", "--no-enable-prefix-caching")
    first = server.request(90, 5)
    second = server.request(90, 5, start=500)
    clock.run()
    assert second.times[0] > first.times[-1]
    assert server.metrics.preemptions == 0


def test_an_aborted_request_frees_its_kv_blocks(serve, clock):
    server = serve("--max-num-seqs", "1")
    running, waiting = server.request(16, 1000), server.request(16, 1000)
    clock.run(until_s=0.1)
    arriving = server.request(16, 1000)
    for request in (running, waiting, arriving):
        server.engine.abort(request.sequence)
    clock.run()
    assert server.engine.idle
    assert server.metrics.finished["abort"] == 3
    assert server.metrics.cache_usage == 0.0
    assert clock.now() < 1


def test_the_decode_bench_connector_fills_the_prompts_kv_cache_without_prefill(serve, clock):
    """The first token comes after one decode step, and the prompt counts as externally cached."""
    server = serve("--kv-transfer-config", DECODE_BENCH)
    request = server.request(4096, 3)
    clock.run()
    assert request.times[0] == pytest.approx(server.latency.decode_step_s(1, 4095))
    assert server.metrics.external_hits == 4096


def test_metrics_of_the_simulated_vllm_agree_with_its_finished_requests(serve, clock):
    server = serve()
    for index in range(5):
        server.request(1000, 50, start=1000 * index)
    clock.run()
    metrics = server.metrics
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (5000, 250)
    assert metrics.finished["length"] == metrics.whole.count == metrics.first_token.count == 5
    assert metrics.between_tokens.count == 245
    parts = metrics.queue.total + metrics.prefill.total + metrics.decode.total
    assert metrics.whole.total == pytest.approx(parts + 5 * server.latency.factors.prefill_overhead_s)
    assert metrics.decode.total == pytest.approx(metrics.between_tokens.total)


def test_simulated_requests_at_constant_concurrency_obey_littles_law(serve, clock):
    server = serve("--no-enable-prefix-caching")
    done = []

    def again():
        request = server.request(512, 64)
        inner = request.sequence.emit

        def emit(sequence):
            inner(sequence)
            if sequence.finish is not None:
                done.append(request)
                again()

        request.sequence.emit = emit

    for _ in range(16):
        again()
    clock.run(until_s=60.0)
    latencies = [request.times[-1] - request.sequence.arrival_s for request in done]
    assert len(done) / 60.0 * sum(latencies) / len(latencies) == pytest.approx(16, rel=0.03)


def test_a_released_kv_block_is_found_by_its_content_until_it_is_reused():
    """Eviction takes the least recently used, the tail of a prompt before its head."""
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, content in zip(blocks, (11, 12, 13), strict=True):
        pool.cache(block, content)
    pool.release(blocks)
    assert pool.cached([11, 12, 13]) == blocks
    pool.allocate(1)
    assert pool.cached([11, 12, 13]) == blocks[:2]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 9)), max_size=60))
def test_the_pool_of_kv_blocks_never_loses_or_duplicates_a_block(actions):
    pool, users = BlockPool(10), []
    for count, release, content in actions:
        if release and users:
            pool.release(users.pop(0))
        elif (blocks := pool.allocate(count)) is not None:
            pool.cache(blocks[0], content)
            users.append(blocks)
        shared = pool.cached([content])
        pool.share(shared)
        users.append(shared)
        held = {block for blocks in users for block in blocks}
        assert pool.available == 10 - len(held)
    for blocks in users:
        pool.release(blocks)
    assert (pool.available, pool.usage) == (10, 0.0)


def test_four_characters_count_as_a_token_and_token_ids_count_exactly():
    """The endpoint picker estimates in the same way."""
    assert [Prompt("x" * length).tokens for length in (1, 4, 5)] == [1, 1, 2]
    assert Prompt((1, 2, 3)).tokens == 3


def test_equal_prompt_prefixes_have_equal_block_hashes_and_different_ones_do_not():
    """A block's hash covers all that was before it."""
    one, other = Prompt("a" * 64 + "b" * 64 + "c").block_hashes(16), Prompt("z" * 64 + "b" * 64).block_hashes(16)
    assert one == Prompt("a" * 64 + "b" * 64 + "rest").block_hashes(16)
    assert len(one) == 2
    assert one[1] != other[1]


def test_the_simulated_vllm_accepts_all_forms_of_prompts_and_messages():
    """Text, ids, or a list of these; messages with text or parts; instructions and items of a response."""
    assert completion_prompts("text") == completion_prompts(["text"]) == [Prompt("text")]
    assert completion_prompts([1, 2]) == completion_prompts([[1, 2]]) == [Prompt((1, 2))]
    assert completion_prompts([[1], []]) == [Prompt((1,)), Prompt(())]
    assert completion_prompts([]) == completion_prompts(None) == []
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert chat_prompt(parts) == chat_prompt([{"role": "user", "content": "hi"}]) == responses_prompt(None, "hi")
    call = {"type": "function_call_output", "call_id": "c", "output": "4"}
    messages = [{"role": "system", "content": "be short"}, *parts, {"role": call["type"], "content": "4"}]
    assert responses_prompt("be short", [*parts, call]) == chat_prompt(messages)


class _Loop:
    """An event loop's clock, set by hand."""

    def __init__(self):
        self.now = 100.0
        self.planned = []

    def time(self):
        return self.now

    def call_at(self, when, callback):
        self.planned.append(when)


def test_a_simulated_second_takes_as_many_wall_seconds_as_the_time_scale():
    loop = _Loop()
    clock = WallClock(loop, 0.5)
    clock.call_at(10.0, lambda: None)
    loop.now += 2.0
    assert loop.planned == [105.0]
    assert clock.now() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("scale", "passed_s", "stood_still_s", "resumed_s", "lag"),
    [
        pytest.param(1.0, 1.02, 0.0, 1.0, {"recent_s": 0.02, "late_steps": 1}, id="late timers shorten the next wait"),
        pytest.param(2.0, 10.0, 0.0, 5.0, {"slipped_s": 8.0}, id="model time jumps over more than a second"),
        pytest.param(1.0, 1.0, 60.0, 1.0, {"slipped_s": 60.0, "recent_s": 60.0}, id="the process was paused"),
    ],
)
def test_lag_of_the_simulator_is_made_up_for_or_dropped_and_counted(scale, passed_s, stood_still_s, resumed_s, lag):
    """The loop's time leaves out what a process stood still; whoever reads the lag of a benchmark must know of it."""
    loop, paused_s = _Loop(), 0.0
    clock = WallClock(loop, scale, stood_still_s=lambda: paused_s)
    loop.now += passed_s
    paused_s = stood_still_s
    assert clock.resume_at(1.0) == pytest.approx(resumed_s)
    assert {name: getattr(clock.lag, name) for name in lag} == pytest.approx(lag)


async def test_the_simulators_clock_keeps_its_average_step_time_on_a_real_event_loop():
    """100 steps of 1 ms end after 100 ms, although timers are coarser than that."""
    clock, done = WallClock(asyncio.get_running_loop(), 1.0), asyncio.Event()
    start_s, steps = clock.now(), 100

    def step(number, deadline_s):
        if number == steps:
            done.set()
            return
        following_s = clock.resume_at(deadline_s) + 0.001
        clock.call_at(following_s, lambda: step(number + 1, following_s))

    step(0, start_s)
    await asyncio.wait_for(done.wait(), 10)
    assert clock.now() - start_s >= 0.1
    assert clock.now() - start_s < 1 + clock.lag.recent_s
