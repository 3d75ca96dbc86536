"""Engines on virtual time: simulations of minutes that take milliseconds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from llmd_rehearsal.vllm.clocks import Lag
from llmd_rehearsal.vllm.command import KeyValueTransfer, settings
from llmd_rehearsal.vllm.engine import SimulatedEngine
from llmd_rehearsal.vllm.kv_events import EventBatch, KvEventLog
from llmd_rehearsal.vllm.kv_files import KvFiles
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.nixl import Identity, TransferNetwork
from llmd_rehearsal.vllm.sequences import Prompt, RemoteBlocks, Sequence
from llmd_rehearsal.vllm.startup import cache_size, splits_by_heads
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model
from llmd_tuner.search_inputs import known_model, known_shape
from virtual_clock import VirtualClock


@dataclass
class Request:
    """A sequence and when its tokens came."""

    sequence: Sequence
    times: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


@dataclass
class Server:
    """An engine and what tests want to know of it."""

    engine: SimulatedEngine
    clock: VirtualClock
    latency: LatencyModel
    transfer: KeyValueTransfer | None
    block_size: int
    log: list[str]
    published: list[EventBatch]
    leave: Callable[[], None] = lambda: None

    @property
    def metrics(self) -> ServerMetrics:
        return self.engine.metrics

    def request(
        self, tokens: int, outputs: int, start: int = 0, remote: RemoteBlocks | None = None, hold: bool = False
    ) -> Request:
        """Submit now a prompt of `tokens` ids that begin at `start`."""
        prompt = Prompt(tuple(range(start, start + tokens)))
        times: list[float] = []

        def emit(sequence: Sequence) -> None:
            if sequence.finish in {None, "length"}:
                times.append(self.clock.now())

        sequence = Sequence(
            f"request-{id(times)}",
            tokens,
            outputs,
            prompt.block_hashes(self.block_size),
            emit,
            self.clock.now(),
            remote=remote,
            hold=hold,
            token_ids=prompt.token_ids,
        )
        self.engine.submit(sequence)
        return Request(sequence, times)

    def compute(self, tokens: int, start: int, *later: int) -> Request:
        """Have prompts of `tokens` ids computed one after the other, which begin at these ids; return the last one."""
        request = self.request(tokens, 1, start)
        self.clock.run()
        return self.compute(tokens, *later) if later else request

    def remote_blocks(self, request: Request) -> RemoteBlocks:
        """Return what a decode server is told about a finished prefill here."""
        transfer = self.transfer
        assert transfer is not None
        return RemoteBlocks(
            transfer.engine_id, request.sequence.request_id, transfer.side_channel_host, transfer.side_channel_port
        )

    def hand_over_to(self, decode: "Server", start: int = 0, tokens: int = 4096) -> tuple[Request, float]:
        """Prefill here and decode there; return the decode request and when it was submitted."""
        filled = self.request(tokens, 1, start=start, hold=True)
        self.clock.run(until_s=self.clock.now() + 1)
        submitted_s = self.clock.now()
        request = decode.request(tokens, 8, start=start, remote=self.remote_blocks(filled))
        self.clock.run(until_s=submitted_s + 20)
        return request, submitted_s


@pytest.fixture(name="clock")
def clock_fixture() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(name="network")
def network_fixture() -> TransferNetwork:
    return TransferNetwork()


@pytest.fixture(name="serve")
def serve_fixture(clock: VirtualClock, network: TransferNetwork) -> Callable[..., Server]:
    """Make servers of gpt-oss-120b from flags, all on one clock and one network."""

    def serve(
        *flags: str,
        host: str = "10.244.0.2",
        name: str = "gpt-oss-120b",
        image: str = "vllm:v1",
        environment: Mapping[str, str] | None = None,
        files: KvFiles | None = None,
    ) -> Server:
        chosen, nodes = known_model(name), known_shape("BM.GPU.MI300X.8")
        environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, **(environment or {})}
        options = settings(["vllm", "serve", chosen.repository, *flags], environment)
        cache = cache_size(options, chosen, nodes)
        latency = latency_model(chosen, nodes, key_value_bytes_per_token=cache.bytes_per_token)
        assert latency is not None
        if options.hybrid is not None:
            latency = replace(latency, sizes=replace(latency.sizes, windows_alone=options.hybrid))
        drafted = options.draft.tokens if options.draft else 0
        metrics = ServerMetrics("m", {}, connector=options.transfer is not None, lag=Lag(), drafted=drafted)
        log: list[str] = []
        published: list[EventBatch] = []
        events = KvEventLog(options.block_size, "full_attention", 0, published.append) if options.kv_events else None
        engine = SimulatedEngine(
            options, cache, latency, metrics, clock, network, log.append, lambda: log.append("crashed"), events, files
        )
        server = Server(engine, clock, latency, options.transfer, options.block_size, log, published)
        if options.transfer is not None and options.transfer.nixl:
            identity = Identity(
                options.transfer.engine_id, host, options.transfer.side_channel_port, host, name, image,
                options.block_size, options.kv_cache_dtype, options.parallelism.tensor_parallel_size,
                latent_attention=False, attention_backend=options.attention_backend,
                splits_by_heads=splits_by_heads(options, image),
                kv_cache_layout=options.transfer.layout, hybrid=latency.sizes.windows_alone,
            )  # fmt: skip
            server.leave = network.join(identity, engine)
        return server

    return serve
