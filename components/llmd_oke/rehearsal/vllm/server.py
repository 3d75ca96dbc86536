"""The life of one simulated vLLM: load, serve, exit, with the log and the exit code that a container would leave."""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from aiohttp import web

from llmd_oke.catalogue import Model, Shape, model_names
from llmd_oke.catalogue.models import model as model_of_name
from llmd_oke.catalogue.releases import release_of_vllm
from llmd_oke.rehearsal.vllm import sockets
from llmd_oke.rehearsal.vllm.api import Api
from llmd_oke.rehearsal.vllm.attention import check_backend, splits_by_heads
from llmd_oke.rehearsal.vllm.cache_size import CacheSize, cache_size
from llmd_oke.rehearsal.vllm.clocks import WallClock
from llmd_oke.rehearsal.vllm.command import Settings, settings
from llmd_oke.rehearsal.vllm.engine import Engine
from llmd_oke.rehearsal.vllm.metrics import ServerMetrics
from llmd_oke.rehearsal.vllm.model_files import ContainerFiles, read_model
from llmd_oke.rehearsal.vllm.refusal import Refusal
from llmd_oke.rehearsal.vllm.transfers import Identity, Network
from llmd_oke.tuning.servers.conditions import Conditions
from llmd_oke.tuning.servers.figures import latency_model
from llmd_oke.tuning.servers.latency import LatencyModel

# Loading takes minutes, as the startup probes of the llm-d guides expect. Model seconds, shortened by `startup_scale`.
_LOAD_FIXED_S = 60.0
_LOAD_GIB_PER_S = 1.0
_LOG_LINES = 2000
_CLOSE_S = 1.0
_LOGGER = logging.getLogger(__name__)


class State(StrEnum):
    """Where a server is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class Container:
    """What the pod runner asks for. `gpus` is None where it doesn't say how many the container has; `mounts` are
    folders of this machine by the paths that they have in the container.
    """

    id: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    image: str
    network_namespace: str | None = None
    gpus: int | None = None
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Simulation:
    """What all servers share. `startup_s` is the wall time that each takes to start, in place of its loading time."""

    clock: WallClock
    shape: Shape
    startup_scale: float
    seed: int
    startup_s: float | None = None
    network: Network = field(default_factory=Network)


@dataclass(frozen=True)
class _Parts:
    """A server that could start."""

    settings: Settings
    model: Model
    cache: CacheSize
    engine: Engine


class SimulatedServer:
    """One vLLM container."""

    def __init__(self, container: Container, simulation: Simulation) -> None:
        self.container = container
        self.state = State.STARTING
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self._simulation = simulation
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._runner: web.ServerRunner | None = None
        self._leave: Callable[[], None] = lambda: None
        self._parts: _Parts | None = None
        self._starting: asyncio.Task[None] | None = None
        self._crashing: asyncio.Task[None] | None = None

    @property
    def log(self) -> str:
        """Everything that it wrote, or the last of it."""
        return "".join(f"{line}\n" for line in self._log)

    def start(self) -> None:
        """Begin to load."""
        self._starting = asyncio.create_task(self._start(), name=f"vllm {self.container.id}")

    async def stop(self, grace_s: float) -> None:
        """End as on SIGTERM: requests may finish within `--shutdown-timeout`, at most `grace_s` wall seconds."""
        if self.state is State.EXITED:
            return
        self._write("INFO Shutting down")
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._parts is not None:
            await self._drain(self._parts, grace_s)
        if self._runner is not None:
            await self._runner.cleanup()
        self._exit(0)

    async def kill(self, exit_code: int) -> None:
        """End at once, as by a signal: connections break, and nothing is answered any more."""
        if self.state is State.EXITED:
            return
        self._leave()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
            for connection in self._runner.server.connections if self._runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
        self._exit(exit_code)

    def _crash(self) -> None:
        """A worker is dead, so that the engine is, and with it the server."""
        self._write("ERROR EngineCore encountered a fatal error.\nvllm.v1.engine.exceptions.EngineDeadError")
        self._crashing = asyncio.create_task(self.kill(1), name=f"crash of vllm {self.container.id}")

    async def _start(self) -> None:
        try:
            parts = self._parts = self._prepare()
            listener = sockets.bind(parts.settings.host, parts.settings.port, self.container.network_namespace)
            try:
                await asyncio.sleep(self._startup_s(parts))
                await self._serve(parts, listener)
            except BaseException:
                listener.close()
                raise
        except Refusal as refusal:
            self._write(refusal.text)
            self._exit(refusal.exit_code)
        except OSError as error:
            self._write(f"OSError: {error}")
            self._exit(1)

    def _startup_s(self, parts: _Parts) -> float:
        simulation = self._simulation
        if simulation.startup_s is not None:
            return simulation.startup_s
        load_s = _LOAD_FIXED_S + parts.model.weights.gib / parts.settings.tensor_parallel_size / _LOAD_GIB_PER_S
        return load_s * simulation.startup_scale

    def _prepare(self) -> _Parts:
        """Everything but the listening.

        Raises:
            Refusal: vLLM would not start.
        """
        asked = settings(self.container.argv, self.container.environment)
        check_backend(asked, self.container.image)
        model = _model(asked.model)
        if self.container.environment.get("HF_HUB_OFFLINE") == "1":
            folder = read_model(
                model, self.container.environment, ContainerFiles(self.container.mounts), asked.revision
            )
            self._write(f"INFO Loaded config, tokenizer and index of weights from {folder}")
        cache = cache_size(asked, model, self._simulation.shape, self.container.gpus)
        release = release_of_vllm(self.container.image)
        started = Conditions(
            release=release and release.name, quick_reduce=asked.quick_reduce, block_size=asked.block_size
        )
        latency = latency_model(model, self._simulation.shape, started, cache.bytes_per_token)
        if latency is None:
            raise Refusal(1, f"llmd-oke rehearsal: values/latency has no figures for {model.name} on this shape.")
        self._write(f"INFO Available KV cache memory: {cache.available_gib_per_gpu:.2f} GiB")
        self._write(f"INFO GPU KV cache size: {cache.tokens:,} tokens")
        return _Parts(asked, model, cache, self._engine(asked, model, cache, latency))

    def _engine(self, asked: Settings, model: Model, cache: CacheSize, latency: LatencyModel) -> Engine:
        nixl = asked.transfer is not None and asked.transfer.nixl
        simulation = self._simulation
        metrics = ServerMetrics(
            asked.served_model_names[0],
            _cache_config(asked, cache),
            connector=asked.transfer is not None,
            lag=simulation.clock.lag,
        )
        engine = Engine(asked, cache, latency, metrics, simulation.clock, simulation.network, self._write, self._crash)
        if nixl:
            self._leave = simulation.network.join(self._identity(asked, model), engine)
        return engine

    def _identity(self, asked: Settings, model: Model) -> Identity:
        transfer = asked.transfer
        if transfer is None:
            raise AssertionError("only servers with a connector have an identity")
        return Identity(
            engine_id=transfer.engine_id,
            host=transfer.side_channel_host,
            port=transfer.side_channel_port,
            network=sockets.network_of(self.container.network_namespace),
            model=model.name,
            image=self.container.image,
            block_size=asked.block_size,
            kv_cache_dtype=asked.kv_cache_dtype,
            tensor_parallel_size=asked.tensor_parallel_size,
            latent_attention=model.architecture.latent_attention is not None,
            attention_backend=asked.attention_backend,
            splits_by_heads=splits_by_heads(asked, self.container.image),
            kv_cache_layout=transfer.layout,
        )

    async def _serve(self, parts: _Parts, listener: socket.socket) -> None:
        version = self.container.image.partition("@")[0].rpartition(":")[2]
        harmony, created = parts.model.name.startswith("gpt-oss"), int(time.time())
        api = Api(parts.settings, parts.engine, version, self._simulation.seed, created, harmony=harmony)
        idle_s = parts.settings.keep_alive_s
        server = web.Server(api.handle, handler_cancellation=True, access_log=None, keepalive_timeout=idle_s)
        self._runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=2048).start()
        self.state = State.RUNNING
        self._write(f"INFO Starting vLLM API server 0 on http://{parts.settings.host}:{parts.settings.port}")
        self._write("INFO: Application startup complete.")

    async def _drain(self, parts: _Parts, grace_s: float) -> None:
        limit_s = min(grace_s, parts.settings.shutdown_timeout_s * self._simulation.clock.scale)
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not parts.engine.idle and loop.time() < deadline_s:  # noqa: ASYNC110 - the engine knows no event loop
            await asyncio.sleep(min(0.05, max(0.0, deadline_s - loop.time())))
        parts.engine.abort_all()
        await asyncio.sleep(0)

    def _exit(self, exit_code: int) -> None:
        self._leave()
        self.state = State.EXITED
        self.exit_code = exit_code
        self.exited.set()

    def _write(self, text: str) -> None:
        _LOGGER.info("%s: %s", self.container.id, text)
        stamp = time.strftime("%m-%d %H:%M:%S")
        self._log.extend(f"{stamp} {line}" for line in text.splitlines())


def _model(name: str) -> Model:
    """The catalogue's model of a repository, of a name, or of a folder that is called like one of these."""
    for known in filter(None, map(model_of_name, model_names())):
        folder = known.repository.rpartition("/")[2]
        if name in {known.repository, known.name} or name.rstrip("/").rpartition("/")[2] in {folder, known.name}:
            return known
    raise Refusal(
        1,
        f"OSError: {name} is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\n"
        f"llmd-oke rehearsal: the catalogue has {', '.join(model_names())}.",
    )


def _cache_config(asked: Settings, cache: CacheSize) -> dict[str, object]:
    return {
        "block_size": cache.block_size,
        "cache_dtype": asked.kv_cache_dtype,
        "enable_prefix_caching": asked.enable_prefix_caching,
        "gpu_memory_utilization": asked.gpu_memory_utilization,
        "num_gpu_blocks": cache.blocks,
        "num_gpu_blocks_override": asked.num_gpu_blocks_override,
    }
