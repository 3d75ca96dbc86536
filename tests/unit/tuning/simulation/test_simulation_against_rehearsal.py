"""The event simulation against the engine of the rehearsal's vLLM, which plays every step: both get the same requests.

They share the latency model and nothing else, so that times must agree to rounding errors. One difference is known, and
doesn't come up in these loads: where a step leaves exactly one token of a prompt, that token costs as a decode there.
"""

from random import Random

import pytest
from llmd_rehearsal.vllm.clocks import Lag
from llmd_rehearsal.vllm.command import settings
from llmd_rehearsal.vllm.engine import SimulatedEngine
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.nixl import Identity, TransferNetwork
from llmd_rehearsal.vllm.sequences import Prompt, RemoteBlocks, Sequence
from llmd_rehearsal.vllm.startup import cache_size
from llmd_tuner.simulation.deployment import RecordedTimes, RequestClass
from llmd_tuner.simulation.simulation import Extent, run_once
from tuning_for_tests import LATENCY, MODEL, SHAPE, deploy
from virtual_clock import VirtualClock

NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
WARM_S = 20.0
"""Prefill and decode have met by then; the handshake of a pair is no part of the event simulation."""


class RehearsedServers:
    """Servers of gpt-oss-120b on one virtual clock."""

    def __init__(self):
        self.clock = VirtualClock()
        self.network = TransferNetwork()

    def server(self, host, *flags):
        asked = settings(
            ["vllm", "serve", MODEL.repository, "--no-enable-prefix-caching", *flags],
            {"VLLM_NIXL_SIDE_CHANNEL_HOST": host},
        )
        metrics = ServerMetrics("m", {}, connector=asked.transfer is not None, lag=Lag())
        engine = SimulatedEngine(asked, cache_size(asked, MODEL, SHAPE), LATENCY, metrics, self.clock, self.network)
        if asked.transfer is not None:
            block_size, size = asked.block_size, asked.parallelism.tensor_parallel_size
            identity = Identity(
                asked.transfer.engine_id, host, asked.transfer.side_channel_port, host, "m", "i", block_size, "auto",
                size, latent_attention=False,
            )  # fmt: skip
            self.network.join(identity, engine)
        return engine, asked.transfer

    def request(self, number, tokens, outputs, emit, **more):
        prompt = Prompt(tuple(range(number * 100_000, number * 100_000 + tokens)))
        return Sequence(f"r{number}", tokens, outputs, prompt.block_hashes(16), emit, self.clock.now(), **more)


def load(count, rate, seed=1):
    """Requests of many sizes at random moments: (time, prompt tokens, output tokens)."""
    random = Random(seed)  # noqa: S311 - load, not secrets
    time_s = 0.0
    for _ in range(count):
        time_s += random.expovariate(rate)
        yield time_s, random.randint(500, 9000), random.randint(1, 300)


def rehearsed_aggregated(requests, flags):
    """First and last token of each request, as the rehearsal's engine has them."""
    rehearsal = RehearsedServers()
    engine, _ = rehearsal.server("10.0.0.1", *flags)
    times = [[] for _ in requests]
    for number, (time_s, tokens, outputs) in enumerate(requests):

        def submit(number=number, tokens=tokens, outputs=outputs):
            engine.submit(
                rehearsal.request(number, tokens, outputs, lambda _: times[number].append(rehearsal.clock.now()))
            )

        rehearsal.clock.call_at(time_s, submit)
    rehearsal.clock.run()
    return [(result[0], result[-1]) for result in times]


def rehearsed_pair(requests, block_size):
    """The same for one prefill server with one GPU and one decode server with two, with a sidecar's part played."""
    rehearsal = RehearsedServers()
    flags = ("--kv-transfer-config", NIXL, "--block-size", str(block_size))
    prefill, transfer = rehearsal.server("10.0.0.1", *flags)
    decode, _ = rehearsal.server("10.0.0.2", "-tp", "2", *flags)
    times = [[] for _ in range(len(requests) + 1)]  # the last is the one by which they meet

    def start(number, tokens, outputs):
        def prefilled(sequence):
            if sequence.finish is None:
                return
            remote = RemoteBlocks(
                transfer.engine_id, sequence.request_id, transfer.side_channel_host, transfer.side_channel_port
            )
            # The holder knows of it only after this call.
            rehearsal.clock.call_at(rehearsal.clock.now(), lambda: second(remote))

        def second(remote):
            decode.submit(rehearsal.request(number, tokens, outputs, seen, remote=remote))

        def seen(_):
            times[number].append(rehearsal.clock.now())

        prefill.submit(rehearsal.request(number, tokens, 1, prefilled, hold=True))

    rehearsal.clock.call_at(0.0, lambda: start(len(requests), 100, 1))
    for number, (time_s, tokens, outputs) in enumerate(requests):
        rehearsal.clock.call_at(WARM_S + time_s, lambda item=(number, tokens, outputs): start(*item))
    rehearsal.clock.run()
    return [(result[0] - WARM_S, result[-1] - WARM_S) for result in times[:-1]]


def simulated(deployment, requests):
    """First and last token of each request, as the event simulation has them."""
    arrivals = RecordedTimes([time_s for time_s, _, _ in requests])
    workload = [RequestClass(tokens, outputs) for _, tokens, outputs in requests]
    record = run_once(deployment, workload, arrivals, LATENCY, Extent(None, len(requests)), 0).record
    order = record.arrival_s.argsort()
    return list(zip(record.first_s[order], record.last_s[order], strict=True))


def differences(ours, theirs):
    return [abs(a - b) for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True)]


@pytest.mark.parametrize("rate", [0.5, 2, 6])
def test_simulation_and_rehearsal_of_an_aggregated_server_have_equal_times(rate):
    requests = list(load(75, rate))
    ours = simulated(deploy("agg-tp1-1r"), requests)
    assert max(differences(ours, rehearsed_aggregated(requests, []))) < 1e-6


def test_simulation_and_rehearsal_queue_alike_for_a_server_at_its_max_num_seqs():
    requests = list(load(100, 4))
    ours = simulated(deploy("agg-tp2-1r", max_num_seqs=8), requests)
    assert max(differences(ours, rehearsed_aggregated(requests, ["-tp", "2", "--max-num-seqs", "8"]))) < 1e-6


@pytest.mark.parametrize("block_size", [16, 128])
@pytest.mark.parametrize("rate", [0.5, 2, 4])
def test_simulation_and_rehearsal_of_a_disaggregated_pair_have_equal_times(rate, block_size):
    """Transfers included."""
    requests = list(load(75, rate))
    ours = simulated(deploy("1p-tp1-1d-tp2", block_size=block_size), requests)
    assert max(differences(ours, rehearsed_pair(requests, block_size))) < 1e-6
