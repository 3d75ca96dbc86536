"""Continuous batching on virtual time."""

import pytest

DECODE_BENCH = '{"kv_connector":"DecodeBenchConnector","kv_role":"kv_both"}'


def test_a_lone_request_takes_a_prefill_and_a_decode_step_for_each_further_token(serve, clock):
    """TTFT is overhead and prefill, each gap one decode step of batch 1."""
    server = serve()
    request = server.request(4096, 4)
    clock.run()
    latency = server.latency
    assert request.times[0] == pytest.approx(latency.factors.prefill_overhead_s + latency.prefill_s(4096))
    steps = [server.latency.decode_step_s(1, 4096 + generated) for generated in range(3)]
    assert request.gaps == pytest.approx(steps)


def test_a_prompt_longer_than_the_token_budget_is_prefilled_in_chunks(serve, clock):
    """The first token comes after all chunks."""
    server = serve("--max-num-batched-tokens", "2048")
    request = server.request(5000, 1)
    clock.run()
    chunks = [server.latency.prefill_s(2048), server.latency.prefill_s(2048, 2048), server.latency.prefill_s(904, 4096)]
    assert request.times == [pytest.approx(server.latency.factors.prefill_overhead_s + sum(chunks))]


def test_sequences_decode_together_in_one_step(serve, clock):
    """Seven sequences that came during the prefill of the first are prefilled together and stay together."""
    server = serve()
    first, *others = [server.request(16, 20, start=1000 * index) for index in range(8)]
    clock.run()
    assert len({tuple(request.times) for request in others}) == 1
    assert first.times[2:] == others[0].times[1:19]
    assert first.gaps[3] == pytest.approx(server.latency.decode_step_s(8, 18), rel=0.01)


def test_a_prefill_delays_the_tokens_of_running_sequences(serve, clock):
    """Aggregated serving: the step with the newcomer's prompt is as much longer as its prefill takes."""
    server = serve()
    running = server.request(16, 100)
    clock.run(until_s=0.2)
    server.request(4096, 1, start=50_000)
    clock.run()
    usual = server.latency.decode_step_s(1, 100)
    assert max(running.gaps) == pytest.approx(usual + server.latency.prefill_s(4096), rel=0.01)


def test_no_more_sequences_run_than_max_num_seqs(serve, clock):
    """The others wait for a place, in order of arrival."""
    server = serve("--max-num-seqs", "2")
    requests = [server.request(16, 10, start=1000 * index) for index in range(3)]
    clock.run(until_s=0.1)
    assert (server.metrics.running, server.metrics.waiting) == (2, 1)
    clock.run()
    assert requests[2].times[0] > requests[0].times[-1]
    assert server.metrics.queue.total > 0.05


def test_a_prompt_with_a_known_prefix_is_prefilled_from_where_it_differs(serve, clock):
    """The second of two equal prompts computes its last block only."""
    server = serve()
    first = server.request(4096, 1)
    clock.run()
    start_s = clock.now()
    second = server.request(4096, 1)
    clock.run()
    assert first.times[0] > 0.2
    assert second.times[0] - start_s < 0.1
    assert server.metrics.prefix_hits == 4096 - 16
    assert server.metrics.prefix_queries == 2 * 4096


def test_without_prefix_caching_equal_prompts_cost_the_same(serve, clock):
    """No lookups are counted either."""
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


def test_the_youngest_sequence_is_preempted_when_blocks_run_out_and_starts_again(serve, clock):
    """All tokens come in the end; what was computed is computed again."""
    server = serve("--num-gpu-blocks-override", "8", "--max-model-len", "100", "--no-enable-prefix-caching")
    old, young = server.request(30, 60), server.request(30, 60, start=500)
    clock.run()
    assert server.metrics.preemptions == 1
    assert (len(old.times), len(young.times)) == (60, 60)
    assert young.times[-1] > old.times[-1]
    assert server.metrics.cache_usage == 0.0


def test_a_prompt_waits_until_there_are_blocks_for_it(serve, clock):
    """It is admitted after the running sequence has given its blocks back."""
    server = serve("--num-gpu-blocks-override", "8", "--max-model-len", "100", "--no-enable-prefix-caching")
    first = server.request(90, 5)
    second = server.request(90, 5, start=500)
    clock.run()
    assert second.times[0] > first.times[-1]
    assert server.metrics.preemptions == 0


def test_an_aborted_request_leaves_nothing_behind(serve, clock):
    """Running, waiting and arriving ones alike."""
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


def test_decode_bench_fills_the_prompt_without_prefill(serve, clock):
    """The first token comes after one decode step, and the prompt counts as externally cached."""
    server = serve("--kv-transfer-config", DECODE_BENCH)
    request = server.request(4096, 3)
    clock.run()
    assert request.times[0] == pytest.approx(server.latency.decode_step_s(1, 4095))
    assert server.metrics.external_hits == 4096


def test_metrics_add_up_after_a_run(serve, clock):
    """Counts of tokens and requests, and times that are parts of the whole."""
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


def test_a_closed_loop_obeys_littles_law(serve, clock):
    """Requests in flight are rate times latency."""
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
