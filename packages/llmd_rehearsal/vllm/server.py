"""Simulated servers of one process, and the HTTP API by which the pod runner starts and stops them.

A server loads its model, serves and exits, with vLLM's log and exit code.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from aiohttp import web
from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_oke.catalogue import CatalogueModel, Shape, open_project
from llmd_oke.catalogue.conditions import Conditions
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.catalogue.models import weights_gib
from llmd_oke.catalogue.releases import release_of_vllm
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model_of

from llmd_rehearsal.pods.networks import bound_socket, network_of
from llmd_rehearsal.vllm.adapters import ServedAdapters
from llmd_rehearsal.vllm.api import ServerApi
from llmd_rehearsal.vllm.clocks import WallClock
from llmd_rehearsal.vllm.command import CommandSettings, ServerNode, settings
from llmd_rehearsal.vllm.compiled_code import CompiledCode
from llmd_rehearsal.vllm.engine import SimulatedEngine
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.groups import RankGroup
from llmd_rehearsal.vllm.kv_events import EventPublisher, KvEventLog
from llmd_rehearsal.vllm.kv_files import KvFiles
from llmd_rehearsal.vllm.metrics import AdapterMetrics, ServerMetrics
from llmd_rehearsal.vllm.nixl import Identity, TransferNetwork
from llmd_rehearsal.vllm.startup import (
    CacheSize,
    ContainerFiles,
    cache_size,
    catalogue_model,
    check_backend,
    read_draft,
    read_model,
    splits_by_heads,
    vocabulary_error,
)

# Loading takes minutes, as the startup probes of the llm-d guides expect. Model seconds, shortened by `startup_scale`.
_LOAD_FIXED_S = 60.0
_LOAD_GIB_PER_S = 1.0
_LOG_LINES = 2000
_CLOSE_S = 1.0
_EXITED_SERVERS = 256
_STOP_GRACE_S = 30.0
_WAIT_S = 30.0
_LEAST_WAIT_S = 60.0
"""Minimum of the limit in wall seconds for the connections between a server's containers, as pods may start late."""

_KILLED = 128 + signal.SIGKILL
"""Exit code of a container that was killed by SIGKILL, such as after its grace period."""

WATCHDOG_S = 5.0
"""Interval in seconds at which vLLM's API server checks whether its engine runs (vllm/entrypoints/launcher.py)."""

ANSWER_S = 0.1
"""Wall seconds between a crash of the simulated engine and the end of its connections, in which the request that caused
the crash is answered.
"""

_LOGGER = logging.getLogger(__name__)


class ServerState(StrEnum):
    """State of a simulated vLLM server."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class ServerContainer:
    """Container that a simulated server stands for. `gpus` is the number of its GPUs, None if its resources don't say;
    `mounts` are folders of this machine by their mount paths in the container.
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
    """Settings of all simulated servers of a rehearsal. `startup_s` is the wall time of each server's start; None for
    the simulated loading time of its model. `project` is the project whose own `values/` each server reads at its
    start.
    """

    clock: WallClock
    shape: Shape
    startup_scale: float
    seed: int
    startup_s: float | None = None
    project: Path | None = None
    network: TransferNetwork = field(default_factory=TransferNetwork)


@dataclass(frozen=True)
class _Parts:
    """Parts of a server that passed vLLM's checks at its start."""

    settings: CommandSettings
    model: CatalogueModel
    engines: tuple[SimulatedEngine, ...]
    adapters: ServedAdapters | None = None
    vocabulary_error: str | None = None


class SimulatedServer:
    """Simulated vLLM server, which stands for the program of one container."""

    def __init__(self, container: ServerContainer, simulation: Simulation) -> None:
        self.container = container
        self.state = ServerState.STARTING
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self._simulation = simulation
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._runner: web.ServerRunner | None = None
        self._leaves: list[Callable[[], None]] = []
        self._parts: _Parts | None = None
        self._compiled_code = CompiledCode(container.argv, ContainerFiles(container.mounts))
        self._starting: asyncio.Task[None] | None = None
        self._crashing: asyncio.Task[None] | None = None

    @property
    def log(self) -> str:
        """Log of the simulated server; only the last lines of a long one."""
        return "".join(f"{line}\n" for line in self._log)

    @property
    def at_rest(self) -> bool:
        """Tell whether the server has no request and holds no KV cache that another server may pull."""
        return (
            self.state is not ServerState.RUNNING
            or self._parts is None
            or all(engine.at_rest for engine in self._parts.engines)
        )

    def start(self) -> None:
        """Begin to load the model, which takes the simulated start-up time."""
        self._starting = asyncio.create_task(self._start(), name=f"vllm {self.container.id}")

    async def stop(self, grace_s: float) -> None:
        """End the simulated server as by SIGTERM: requests may finish within `--shutdown-timeout`, at most `grace_s`
        wall seconds.
        """
        if self.state is ServerState.EXITED:
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
        """End the simulated server at once, as by SIGKILL: its connections are reset, and its exit code is
        `exit_code`.
        """
        if self.state is ServerState.EXITED:
            return
        self._leave()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
            self._break_connections()
            await self._runner.cleanup()
        self._exit(exit_code)

    def _crash(self) -> None:
        """Crash the engine, which the server's watchdog notices later and then ends the server."""
        self._write("ERROR EngineCore encountered a fatal error.\nvllm.v1.engine.exceptions.EngineDeadError")
        self._crashing = asyncio.create_task(self._end_without_engine(), name=f"crash of vllm {self.container.id}")

    async def _end_without_engine(self) -> None:
        """Reset all connections after `ANSWER_S`; until the watchdog's check the API lists its models, but `/health`
        fails; then end the server.
        """
        await asyncio.sleep(ANSWER_S)
        if self._parts is not None:
            for engine in self._parts.engines:
                engine.dead = True
        self._leave()
        self._break_connections()
        await asyncio.sleep(WATCHDOG_S)
        await self.kill(0)  # vLLM's watchdog ends it as if it were asked to (vllm/entrypoints/launcher.py)

    def _break_connections(self) -> None:
        for connection in self._runner.server.connections if self._runner and self._runner.server else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def _start(self) -> None:
        try:
            self._compiled_code.begin(self._write)
            parts = self._parts = self._prepare()
            listener = bound_socket(parts.settings.host, parts.settings.port, self.container.network_namespace)
            try:
                startup_s = self._simulation.startup_s
                if startup_s is None:
                    spread = parts.settings.parallelism
                    weights_gib_per_gpu = weights_gib(parts.model, spread) / spread.gpus
                    load_s = _LOAD_FIXED_S + weights_gib_per_gpu / _LOAD_GIB_PER_S
                    startup_s = load_s * self._simulation.startup_scale
                if parts.settings.group is not None:
                    await self._join(parts.settings.group, parts.settings.parallelism.nodes)
                await asyncio.sleep(startup_s)
                await self._serve(parts, listener)
            except BaseException:
                listener.close()
                raise
        except StartRefusal as refusal:
            self._write(refusal.text)
            self._exit(refusal.exit_code)
        except OSError as error:
            self._write(f"OSError: {error}")
            self._exit(1)
        except KitError as error:  # of the project's own entries
            self._write(f"llmd-oke rehearsal: {error}")
            self._exit(1)

    async def _join(self, place: ServerNode, nodes: int) -> None:
        """Connect to the other containers of the server, as ranks do before they load the model.

        Raises:
            StartRefusal: a container didn't connect in time.
        """
        self._write(f"INFO Waiting for {nodes - 1} other nodes at {place.address}:{place.rpc_port}")
        namespace, scale = self.container.network_namespace, self._simulation.startup_scale
        group = await RankGroup.join(place, nodes, namespace, max(_LEAST_WAIT_S, place.wait_s * scale))
        self._leaves.append(group.close)
        group.on_loss(self._lose_peer)

    def _lose_peer(self) -> None:
        if self.state is not ServerState.EXITED and self._crashing is None:
            self._write("ERROR torch.distributed.DistBackendError: a rank of another node is gone")
            self._crash()

    def _prepare(self) -> _Parts:
        """Make vLLM's checks of the container, and return the server's parts, without the socket.

        Raises:
            StartRefusal: vLLM wouldn't start.
        """
        open_project(self._simulation.project)
        container, shape = self.container, self._simulation.shape
        options = settings(container.argv, container.environment, release_of_vllm(container.image))
        check_backend(options, container.image)
        model = catalogue_model(options.model)
        files, base, no_vocabulary = ContainerFiles(container.mounts), options.model, None
        if container.environment.get("HF_HUB_OFFLINE") == "1":
            base = folder = read_model(model, container.environment, files, options.revision)
            self._write(f"INFO Loaded config, tokenizer and index of weights from {folder}")
            no_vocabulary = vocabulary_error(model, container.environment, files)
            if options.draft is not None and options.draft.model is not None:
                folder = read_draft(options.draft, container.environment, files)
                self._write(f"INFO Loaded the draft's config and weights from {folder}")
        cache = cache_size(options, model, shape, container.gpus)
        release = release_of_vllm(container.image)
        conditions = Conditions(
            release=release and release.name, quick_reduce=options.quick_reduce, block_size=options.block_size
        )
        figures = known_figures(model, shape.gpu)
        latency = latency_model_of(figures, model, shape, conditions, cache.bytes_per_token)
        if options.hybrid is not None:
            latency = replace(latency, sizes=replace(latency.sizes, windows_alone=options.hybrid))
        if not figures.measured:
            self._write(f"INFO llmd-oke rehearsal: times of {model.name} are bounds; there are no figures for this GPU")
        self._write(f"INFO Available KV cache memory: {cache.available_gib_per_gpu:.2f} GiB")
        self._write(f"INFO GPU KV cache size: {cache.tokens:,} tokens")
        shared = AdapterMetrics(options.adapters.room.slots) if options.adapters else None
        engines = tuple(
            self._engine(options.of_rank(rank), rank, model, cache, latency, shared) for rank in options.ranks
        )
        served = options.served_model_names[0]
        adapters = ServedAdapters(options.adapters, base, served, files, self._write) if options.adapters else None
        return _Parts(options, model, engines, adapters, no_vocabulary)

    def _kv_files(self, options: CommandSettings, block_bytes: float) -> KvFiles | None:
        """Return the server's KV cache in files; None without any.

        Raises:
            StartRefusal: the directory isn't mounted, or can't be written to.
        """
        if options.files is None:
            return None
        folder = ContainerFiles(self.container.mounts).place(options.files)
        if folder is None or not os.access(folder, os.W_OK):
            raise StartRefusal(1, f"PermissionError: [Errno 13] Permission denied: {options.files!r}")
        return KvFiles(folder, int(block_bytes))

    def _engine(
        self,
        options: CommandSettings,
        rank: int,
        model: CatalogueModel,
        cache: CacheSize,
        latency: LatencyModel,
        adapters: AdapterMetrics | None,
    ) -> SimulatedEngine:
        simulation, transfer = self._simulation, options.transfer
        config = document(
            "block_size cache_dtype enable_prefix_caching gpu_memory_utilization num_gpu_blocks"
            " num_gpu_blocks_override",
            cache,
            options,
            cache_dtype=options.kv_cache_dtype,
            num_gpu_blocks=cache.blocks,
        )
        lag = simulation.clock.lag
        name = options.served_model_names[0]
        block_bytes = cache.bytes_per_token * cache.block_size if cache.host_blocks else 0.0
        metrics = ServerMetrics(
            name,
            config,
            connector=transfer is not None,
            lag=lag,
            rank=rank,
            host_block_bytes=block_bytes,
            files=options.files is not None,
            drafted=options.draft.tokens if options.draft else 0,
            adapters=adapters,
        )
        events = None
        if options.kv_events is not None:
            publisher = EventPublisher(options.kv_events, rank, self.container.network_namespace)
            self._leaves.append(publisher.close)
            kind = "full_attention" if model.architecture.latent_attention is None else "mla_attention"
            events = KvEventLog(options.block_size, kind, rank, publisher.send)
        engine = SimulatedEngine(
            options,
            cache,
            latency,
            metrics,
            simulation.clock,
            simulation.network,
            self._write,
            self._crash,
            events,
            self._kv_files(options, block_bytes),
        )
        if transfer is not None and transfer.nixl:
            identity = Identity(
                engine_id=transfer.engine_id,
                host=transfer.side_channel_host,
                port=transfer.side_channel_port,
                network=network_of(self.container.network_namespace),
                model=model.name,
                image=self.container.image,
                block_size=options.block_size,
                kv_cache_dtype=options.kv_cache_dtype,
                tensor_parallel_size=options.parallelism.tensor_parallel_size,
                latent_attention=model.architecture.latent_attention is not None,
                attention_backend=options.attention_backend,
                splits_by_heads=splits_by_heads(options, self.container.image),
                kv_cache_layout=transfer.layout,
                hybrid=latency.sizes.windows_alone,
            )
            self._leaves.append(simulation.network.join(identity, engine))
        return engine

    async def _serve(self, parts: _Parts, listener: socket.socket) -> None:
        version = self.container.image.partition("@")[0].rpartition(":")[2]
        harmony = parts.model.vocabulary is not None  # of Harmony, the form of its answers
        created, seed = int(time.time()), self._simulation.seed
        api = ServerApi(
            parts.settings,
            parts.engines,
            version,
            seed,
            created,
            self._write,
            harmony=harmony,
            vocabulary_error=parts.vocabulary_error,
            adapters=parts.adapters,
        )
        idle_s = parts.settings.keep_alive_s
        server = web.Server(api.handle, handler_cancellation=True, access_log=None, keepalive_timeout=idle_s)
        self._runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=2048).start()
        self._compiled_code.confirm()
        self.state = ServerState.RUNNING
        self._write(f"INFO Starting vLLM API server 0 on http://{parts.settings.host}:{parts.settings.port}")
        self._write("INFO: Application startup complete.")

    async def _drain(self, parts: _Parts, grace_s: float) -> None:
        limit_s = min(grace_s, parts.settings.shutdown_timeout_s * self._simulation.clock.scale)
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not all(engine.idle for engine in parts.engines) and loop.time() < deadline_s:  # noqa: ASYNC110 - the engine knows no event loop
            await asyncio.sleep(min(0.05, max(0.0, deadline_s - loop.time())))
        for engine in parts.engines:
            engine.abort_all()
        await asyncio.sleep(0)

    def _leave(self) -> None:
        for leave in self._leaves:
            leave()

    def _exit(self, exit_code: int) -> None:
        self._leave()
        self._compiled_code.leave()
        self.state = ServerState.EXITED
        self.exit_code = exit_code
        self.exited.set()

    def _write(self, text: str) -> None:
        _LOGGER.info("%s: %s", self.container.id, text)
        stamp = time.strftime("%m-%d %H:%M:%S")
        self._log.extend(f"{stamp} {line}" for line in text.splitlines())


class Control:
    """HTTP API by which simulated servers are started and stopped. Exited servers are kept until they are replaced or
    many newer ones exited.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._servers: dict[str, SimulatedServer] = {}

    def application(self) -> web.Application:
        """Return the web application that serves the HTTP API of the simulated servers."""
        application = web.Application(client_max_size=4 * 2**20)
        application.add_routes([
            web.get("/healthz", self._healthz),
            web.post("/servers", self._create),
            web.get("/pairings", self._pairings),
            web.post("/transfers/slowdown/{times}", self._slow_transfers),
            web.post("/transfers/corruption/{percent}", self._corrupt_transfers),
            web.get("/servers/{id}", self._show),
            web.get("/servers/{id}/wait", self._wait),
            web.get("/servers/{id}/log", self._log),
            web.post("/servers/{id}/kill", self._kill),
            web.delete("/servers/{id}", self._delete),
        ])  # fmt: skip
        application.on_shutdown.append(self._stop_all)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        lag = self._simulation.clock.lag
        health = document(
            "servers at_rest time_scale lag_s steps late_steps slipped_s",
            lag,
            servers=sum(server.state is not ServerState.EXITED for server in self._servers.values()),
            at_rest=all(server.at_rest for server in self._servers.values()),
            time_scale=self._simulation.clock.scale,
            lag_s=lag.recent_s,
        )
        return web.json_response(health)

    async def _pairings(self, _: web.Request) -> web.Response:
        pairs = self._simulation.network.pairings.items()
        return web.json_response([{"prefill": prefill, "decode": decode, "pulls": n} for (prefill, decode), n in pairs])

    async def _slow_transfers(self, request: web.Request) -> web.Response:
        try:
            self._simulation.network.slowdown = float(request.match_info["times"])
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        return web.Response()

    async def _corrupt_transfers(self, request: web.Request) -> web.Response:
        try:
            self._simulation.network.corrupted_percent = int(request.match_info["percent"])
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        return web.Response()

    async def _create(self, request: web.Request) -> web.Response:
        container = _container(await request.json())
        previous = self._servers.get(container.id)
        if previous is not None and previous.state is not ServerState.EXITED:
            raise web.HTTPConflict(text=f"server {container.id} is {previous.state}")
        exited = [id_ for id_, server in self._servers.items() if server.state is ServerState.EXITED]
        for id_ in exited[:-_EXITED_SERVERS]:
            del self._servers[id_]
        self._servers.pop(container.id, None)
        server = self._servers[container.id] = SimulatedServer(container, self._simulation)
        server.start()
        return web.json_response({"id": container.id, "process": os.getpid()}, status=201)

    async def _show(self, request: web.Request) -> web.Response:
        return _status(self._server(request))

    async def _wait(self, request: web.Request) -> web.Response:
        server = self._server(request)
        try:
            await asyncio.wait_for(server.exited.wait(), float(request.query.get("timeout_s", _WAIT_S)))
        except TimeoutError:
            return web.Response(status=204)
        return _status(server)

    async def _log(self, request: web.Request) -> web.Response:
        return web.Response(text=self._server(request).log)

    async def _delete(self, request: web.Request) -> web.Response:
        server = self._servers.get(request.match_info["id"])
        if server is not None:
            # Shielded: a pod runner that doesn't wait for the answer must not leave a half-stopped server behind.
            grace_s = float(request.query.get("grace_s", _STOP_GRACE_S))
            await asyncio.shield(server.stop(grace_s) if grace_s else server.kill(_KILLED))
        return web.Response(status=204)

    async def _kill(self, request: web.Request) -> web.Response:
        await asyncio.shield(self._server(request).kill(_KILLED))
        return web.Response(status=204)

    def _server(self, request: web.Request) -> SimulatedServer:
        try:
            return self._servers[request.match_info["id"]]
        except KeyError:
            raise web.HTTPNotFound(text=f"no server {request.match_info['id']}") from None

    async def _stop_all(self, _: web.Application) -> None:
        await asyncio.gather(*(server.stop(0.0) for server in self._servers.values()))


def _container(body: Any) -> ServerContainer:
    """Return the container in a request's body; raise HTTPBadRequest if the body is invalid."""
    try:
        values = cast("dict[str, Any]", body)
        return ServerContainer(
            id=str(values["id"]),
            argv=tuple(map(str, values["argv"])),
            environment={str(name): str(value) for name, value in values.get("env", {}).items()},
            image=str(values.get("image", "")),
            network_namespace=values.get("netns"),
            gpus=values.get("gpus"),
            mounts={str(path): str(source) for path, source in values.get("mounts", {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise web.HTTPBadRequest(text=f"not a server: {error!r}") from error


def _status(server: SimulatedServer) -> web.Response:
    return web.json_response(document("state exit_code", server))
