"""Engines on virtual time: simulations of minutes that take milliseconds. Engines behind their API, on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import test_utils
from llmd_rehearsal.vllm.adapters import ServedAdapters
from llmd_rehearsal.vllm.api import ServerApi
from llmd_rehearsal.vllm.clocks import Lag, WallClock
from llmd_rehearsal.vllm.command import KeyValueTransfer, settings
from llmd_rehearsal.vllm.engine import SimulatedEngine
from llmd_rehearsal.vllm.kv_events import EventBatch, KvEventLog
from llmd_rehearsal.vllm.kv_files import KvFiles
from llmd_rehearsal.vllm.metrics import AdapterMetrics, ServerMetrics
from llmd_rehearsal.vllm.nixl import Identity, TransferNetwork
from llmd_rehearsal.vllm.sequences import Prompt, RemoteBlocks, Sequence
from llmd_rehearsal.vllm.startup import ContainerFiles, cache_size, splits_by_heads
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model
from llmd_tuner.search_inputs import known_model, known_shape
from virtual_clock import VirtualClock
from vllm_for_tests import NIXL


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


@pytest.fixture(name="pair")
def pair_fixture(serve: Callable[..., Server]) -> tuple[Server, Server]:
    """A prefill server and a decode server."""
    prefill = serve("--kv-transfer-config", NIXL)
    return prefill, serve("-tp", "2", "--kv-transfer-config", NIXL, host="10.244.0.3")


@pytest.fixture(name="pull_from_vanished")
def pull_from_vanished_fixture(clock: VirtualClock) -> Callable[[Server, Server], Request]:
    """Pull a prompt from a prefill server that vanished; return the decode request."""

    def pull(prefill: Server, decode: Server) -> Request:
        filled = prefill.request(4096, 1, hold=True)
        clock.run(until_s=1)
        prefill.leave()
        request = decode.request(4096, 8, remote=prefill.remote_blocks(filled))
        clock.run(until_s=20)
        return request

    return pull


@pytest.fixture(name="start_api")
async def start_api_fixture(network: TransferNetwork) -> AsyncIterator[Callable[..., Any]]:
    """Start servers a hundred times faster than real ones; return a client of each, with its engines and its log."""
    clients: list[Any] = []
    clock = WallClock(asyncio.get_running_loop(), 0.01)

    async def start(
        *flags: str,
        name: str = "gpt-oss-120b",
        port: int = 5600,
        environment: Mapping[str, str] | None = None,
        version: str = "v1",
        adapters_of: tuple[str, ContainerFiles] | None = None,
        **format_: Any,
    ) -> Any:
        chosen, nodes = known_model(name), known_shape("BM.GPU.MI300X.8")
        environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port), **(environment or {})}
        options = settings(["vllm", "serve", chosen.repository, *flags], environment)
        cache, latency = cache_size(options, chosen, nodes), latency_model(known_model("gpt-oss-120b"), nodes)
        assert latency is not None
        served, drafted = options.served_model_names[0], options.draft.tokens if options.draft else 0
        adapters = AdapterMetrics(options.adapters.room.slots) if options.adapters else None
        engines: list[SimulatedEngine] = []
        ends: list[str] = []
        for rank in range(options.parallelism.data_parallel_size):
            own = options.of_rank(rank)
            connector = own.transfer is not None
            metrics = ServerMetrics(
                served, {}, connector=connector, lag=clock.lag, rank=rank, drafted=drafted, adapters=adapters
            )
            engine = SimulatedEngine(own, cache, latency, metrics, clock, network, crash=lambda: ends.append("crashed"))
            if own.transfer is not None:
                place = (own.transfer.engine_id, "localhost", own.transfer.side_channel_port)
                network.join(Identity(*place, None, "m", "i", 16, "auto", 1, False), engine)
            engines.append(engine)
        lines: list[str] = []
        if adapters_of and options.adapters:
            folder, files = adapters_of
            format_["adapters"] = ServedAdapters(options.adapters, folder, served, files, lines.append)
        api = ServerApi(options, engines, version, 0, 0, lines.append, **format_)
        client: Any = test_utils.TestClient(test_utils.RawTestServer(api.handle, handler_cancellation=True))
        client.engine, client.engines, client.ends, client.log = engines[0], engines, ends, lines
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()
