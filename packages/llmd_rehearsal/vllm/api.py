"""vLLM's HTTP server for one engine."""

import asyncio
import hashlib
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from llmd_rehearsal.vllm import answers, requests
from llmd_rehearsal.vllm.adapters import AdapterChange, ServedAdapters
from llmd_rehearsal.vllm.answers import ChoiceAnswer, ResponsesStream, Stream
from llmd_rehearsal.vllm.bodies import ErrorAnswer
from llmd_rehearsal.vllm.command import CommandSettings
from llmd_rehearsal.vllm.engine import SimulatedEngine
from llmd_rehearsal.vllm.metrics import CONTENT_TYPE, text_of_ranks
from llmd_rehearsal.vllm.requests import Generation, RequestLimits
from llmd_rehearsal.vllm.sequences import Finish, Prompt, RemoteBlocks, chat_prompt
from llmd_rehearsal.vllm.sequences import Sequence as EngineSequence

_TRANSFER_SINCE_0_30 = {"dcp_size": 1, "pp_size": 1, "transfer_mode": "pull"}
_METRICS_HEADERS = {"Content-Type": CONTENT_TYPE}
_EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Judge = Callable[[Mapping[str, Any], RequestLimits], Generation]


class ServerApi:
    """HTTP routes of one simulated vLLM server, which distributes requests over the engines of its data parallel ranks.
    `version` is the answer of `/version`; `write` takes lines of the log; `harmony` tells whether the model speaks
    OpenAI's Harmony format, as gpt-oss does, and `vocabulary_error` why its vocabulary can't be read; `adapters` are
    the server's LoRA adapters.
    """

    def __init__(
        self,
        settings: CommandSettings,
        engines: Sequence[SimulatedEngine],
        version: str,
        seed: int,
        created: int,
        write: Callable[[str], None],
        *,
        harmony: bool = False,
        vocabulary_error: str | None = None,
        adapters: ServedAdapters | None = None,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._next_rank = 0
        self._version = version
        self._created = created
        numbers = re.match(r"v?(\d+)\.(\d+)", version)
        self._limits = RequestLimits(
            settings.served_model_names,
            engines[0].cache.max_model_len,
            seed,
            harmony,
            settings.calls_tools,
            since_0_30=numbers is not None and (int(numbers[1]), int(numbers[2])) >= (0, 30),
        )
        self._fingerprint = _fingerprint(settings, version)
        self._prefills = 0
        self._write = write
        self._vocabulary_error = vocabulary_error
        self._adapters = adapters
        self._routes: dict[str, dict[str, Handler]] = {
            "/metrics": {"GET": self._metrics},
            "/v1/completions": {"POST": lambda request: self._create(request, requests.completion)},
            "/v1/chat/completions": {"POST": lambda request: self._create(request, requests.chat)},
            "/v1/responses": {"POST": lambda request: self._create(request, requests.responses)},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version_},
            "/tokenize": {"POST": self._tokenize},
        }
        if settings.scale_out or not self._limits.since_0_30:
            for path, judge in (("/v1/completions", requests.completion), ("/v1/chat/completions", requests.chat)):
                self._routes[f"{path}/render"] = {"POST": partial(self._render, judge=judge)}
        if adapters is not None and adapters.updates:
            self._routes["/v1/load_lora_adapter"] = {"POST": lambda request: self._change(request, adapters.load)}
            self._routes["/v1/unload_lora_adapter"] = {"POST": lambda request: self._change(request, adapters.unload)}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the server's response to one HTTP request."""
        methods = self._routes.get(request.path) or self._stored_response(request.path)
        if not methods:
            return web.json_response({"detail": "Not Found"}, status=404)
        handler = methods.get(request.method)
        if handler is None:
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        try:
            return await handler(request)
        except ErrorAnswer as error:
            return web.json_response(error.body, status=error.status)

    def _stored_response(self, path: str) -> Mapping[str, Handler]:
        """Return the handlers of a path below `/v1/responses/`; they answer that no response is stored."""
        name = path.removeprefix("/v1/responses/")
        response_id, _, action = name.partition("/")
        if name == path or not name:
            return {}

        async def refuse(_: web.BaseRequest) -> web.StreamResponse:
            raise requests.no_response(response_id)

        routes: dict[str, dict[str, Handler]] = {"": {"GET": refuse}, "cancel": {"POST": refuse}}
        return routes.get(action, {})

    @property
    def _dead(self) -> bool:
        return any(engine.dead for engine in self._engines)

    def _least_loaded(self) -> SimulatedEngine:
        """Return the engine of the data parallel rank for the next request: the rank with the lowest load, in which a
        waiting request counts as four running ones; among equals, the first after the previously chosen rank
        (`DPLBAsyncMPClient.get_core_engine_for_request`).
        """
        first, count = self._next_rank, len(self._engines)
        ordered = [self._engines[(first + i) % count] for i in range(count)]
        self._next_rank = (first + 1) % count
        return min(ordered, key=lambda engine: 4 * engine.metrics.waiting + engine.metrics.running + engine.arriving)

    async def _metrics(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.Response(
            body=text_of_ranks([engine.metrics for engine in self._engines]).encode(), headers=_METRICS_HEADERS
        )

    async def _health(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503 if self._dead else 200)

    async def _version_(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"version": self._version})

    async def _models(self, _: web.BaseRequest) -> web.StreamResponse:
        root = self._settings.model
        entries: list[dict[str, Any]] = [
            {"id": name, "object": "model", "created": self._created, "owned_by": "vllm", "root": root, "parent": None,
             "max_model_len": self._limits.max_model_len, "permission": [_permission(self._created)]}
            for name in self._limits.model_names
        ]  # fmt: skip
        for name, path in (self._adapters.paths if self._adapters else {}).items():
            card = {"id": name, "root": path, "parent": self._limits.model_names[0], "max_model_len": None}
            entries.append({**entries[0], **card, "permission": [_permission(self._created)]})
        return web.json_response({"object": "list", "data": entries})

    async def _change(self, request: web.BaseRequest, change: AdapterChange) -> web.StreamResponse:
        return web.Response(text=change(await _body(request, since_0_30=self._limits.since_0_30)))

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request, since_0_30=self._limits.since_0_30)
        prompt = chat_prompt(body["messages"]) if "messages" in body else Prompt(str(body.get("prompt", "")))
        tokens, limit = list(prompt.token_ids), self._limits.max_model_len
        answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None}
        return web.json_response(answer)

    async def _render(self, request: web.BaseRequest, judge: Judge) -> web.StreamResponse:
        """Return what a request would have the engine compute: the tokens of each prompt (of a chat, of its only one),
        with which `/inference/v1/generate` goes on.
        """
        body = await _body(request, since_0_30=self._limits.since_0_30)
        generation = self._judged(body, judge)
        limits, prompts = self._limits, generation.choices[:: generation.n]
        rendered = [
            answers.rendered(generation, choice, body, limits.max_model_len, since_0_30=limits.since_0_30)
            for choice in prompts
        ]
        return web.json_response(rendered[0] if generation.chat else rendered)

    async def _create(self, request: web.BaseRequest, judge: Judge) -> web.StreamResponse:
        """Return the response to a request, or an error; errors of the engine become an event of a stream that has
        begun.
        """
        if self._dead:
            raise ErrorAnswer(500, "InternalServerError", "EngineCore encountered an issue.")
        body = await _body(request, since_0_30=self._limits.since_0_30)
        try:
            generation = self._judged(body, judge)
        except ErrorAnswer as error:
            if not (error.late and body.get("stream")):
                raise
            response = await _begin(request)
            await response.write(answers.data(error.body) + answers.DONE)
            await response.write_eof()
            return response
        if self._vocabulary_error and judge is not requests.completion:
            self._write(f"ERROR openai_harmony.HarmonyError: {self._vocabulary_error}")
            raise ErrorAnswer(500, "InternalServerError", self._vocabulary_error)
        if generation.wants_remote_decode and self._fails_prefill():
            raise ErrorAnswer(500, "InternalServerError", "a prefill that fails was rehearsed")
        return await self._generate(request, generation)

    def _judged(self, body: Mapping[str, Any], judge: Judge) -> Generation:
        """Return a checked request for the model or for an adapter; the adapter is loaded at its first request."""
        named, model = self._adapters, body.get("model")
        if named is None or not isinstance(model, str) or model in self._limits.model_names:
            return judge(body, self._limits)
        named.resolve(model)
        names = (*self._limits.model_names, *named.paths)
        generation = judge(body, replace(self._limits, model_names=names))
        return replace(generation, adapter=named.applied(model))

    def _fails_prefill(self) -> bool:
        """Tell whether the fault `failed_prefill_percent` hits this prompt; the failing prompts are spread evenly."""
        transfer = self._settings.transfer
        self._prefills += 1
        share = transfer.failed_prefill_percent / 100 if transfer else 0.0
        return int(self._prefills * share) > int((self._prefills - 1) * share)

    async def _generate(self, request: web.BaseRequest, generation: Generation) -> web.StreamResponse:
        stream_type = Stream if generation.responses is None else ResponsesStream
        kind = stream_type if generation.stream else ChoiceAnswer
        response_id = _response_id(request, generation)
        parts = [kind(generation, index, response_id, self._fingerprint) for index in range(len(generation.choices))]
        engine = self._least_loaded()
        sequences = self._sequences(engine, generation, parts)
        try:
            streams = [part for part in parts if isinstance(part, Stream)]
            if streams:
                return await self._stream(engine, request, sequences, streams)
            for sequence in sequences:
                engine.submit(sequence)
            await asyncio.gather(*(part.done for part in parts))
            return web.json_response(self._whole(engine, generation, parts, sequences))
        finally:
            # A client that went away leaves nothing running, as in vLLM.
            for sequence in sequences:
                engine.abort(sequence)

    def _whole(
        self,
        engine: SimulatedEngine,
        generation: Generation,
        parts: list[ChoiceAnswer],
        sequences: list[EngineSequence],
    ) -> dict[str, Any]:
        transfer = self._transfer(engine, sequences[0]) if sequences else None
        if generation.responses is not None:
            return answers.response_body(parts[0], sequences[0], transfer, harmony=self._limits.harmony)
        since_0_30 = self._limits.since_0_30
        return answers.body(parts, sequences, transfer, cached=self._cached, since_0_30=since_0_30)

    async def _stream(
        self,
        engine: SimulatedEngine,
        request: web.BaseRequest,
        sequences: list[EngineSequence],
        streams: list[Stream],
    ) -> web.StreamResponse:
        response = await _begin(request)
        for stream in streams:
            if isinstance(stream, ResponsesStream):
                await response.write(stream.opening())
        for sequence in sequences:
            engine.submit(sequence)
        await asyncio.wait([stream.started for stream in streams], return_when=asyncio.FIRST_COMPLETED)
        for stream in streams:
            if events := stream.take():
                await response.write(events)
            if request.transport is not None:
                stream.attach(request.transport)
        await asyncio.gather(*(stream.done for stream in streams))
        rest = b"".join(stream.take() for stream in streams) + self._closing(engine, streams, sequences)
        if not rest and request.transport is not None:
            request.transport.close()
            return response
        await response.write(rest)
        await response.write_eof()
        return response

    def _closing(self, engine: SimulatedEngine, streams: list[Stream], sequences: list[EngineSequence]) -> bytes:
        """Return the last bytes of a stream; empty if vLLM has no event for this end and closes the connection."""
        first = streams[0]
        if not isinstance(first, ResponsesStream):
            return answers.closing(streams, sequences, cached=self._cached)
        if sequences[0].finish is Finish.ERROR:
            return b""
        return first.ending(sequences[0], self._transfer(engine, sequences[0]), harmony=self._limits.harmony)

    @property
    def _cached(self) -> bool:
        return self._settings.prompt_tokens_details

    def _sequences(
        self, engine: SimulatedEngine, generation: Generation, parts: list[ChoiceAnswer]
    ) -> list[EngineSequence]:
        """Return one sequence for each choice. `kv_transfer_params` are ignored without the NIXL connector."""
        settings = self._settings
        nixl = settings.transfer is not None and settings.transfer.nixl
        prompts = {id(choice.prompt): choice.prompt for choice in generation.choices}
        cached, transfer, remote = settings.enable_prefix_caching, generation.transfer, None
        if nixl and generation.ends_the_engine:
            engine.fail()
            raise ErrorAnswer(500, "InternalServerError", "EngineCore encountered an issue. See stack trace (above).")
        if nixl and generation.wants_remote_prefill:
            remote = RemoteBlocks(
                engine_id=str(transfer["remote_engine_id"]),
                request_id=str(transfer.get("remote_request_id")),
                host=str(transfer["remote_host"]),
                port=int(transfer["remote_port"]),
            )
        # As vLLM has it, by the adapter's name alone (vllm/v1/core/kv_cache_utils.py: _gen_lora_extra_hash_keys).
        keys = [key for key in (generation.adapter and generation.model, generation.cache_salt) if key]
        size, salt = settings.block_size, "|".join(keys) or None
        adapter = generation.model if self._adapters and generation.model in self._adapters.paths else None
        hashes = {key: prompt.block_hashes(size, salt) if cached else [] for key, prompt in prompts.items()}
        return [
            EngineSequence(
                request_id=f"{part.response_id}-{uuid.uuid4().hex[:8]}",
                prompt_tokens=part.choice.prompt.tokens,
                max_tokens=part.choice.max_tokens,
                hashes=hashes[id(part.choice.prompt)],
                emit=part.emit,
                arrival_s=engine.clock.now(),
                end=part.choice.end,
                remote=remote,
                hold=nixl and generation.wants_remote_decode,
                adapter=adapter,
                cache_salt=generation.cache_salt,
                token_ids=part.choice.prompt.token_ids if settings.kv_events else (),
            )
            for part in parts
        ]

    def _transfer(self, engine: SimulatedEngine, sequence: EngineSequence) -> dict[str, Any] | None:
        """Return the `kv_transfer_params` of an answer, which say from where the prompt's KV cache can be pulled; None
        without a held KV cache.
        """
        transfer = engine.settings.transfer
        if transfer is None or not engine.holds(sequence.request_id):
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": engine.block_groups(sequence),
            "remote_engine_id": transfer.engine_id,
            "remote_request_id": sequence.request_id,
            "remote_host": transfer.side_channel_host,
            "remote_port": transfer.side_channel_port,
            "tp_size": self._settings.parallelism.tensor_parallel_size,
            "remote_num_tokens": sequence.prompt_tokens,
            "remote_blocks_expiry_time": None,
            **(_TRANSFER_SINCE_0_30 if self._limits.since_0_30 else {}),
        }


async def _begin(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENT_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def _response_id(request: web.BaseRequest, generation: Generation) -> str:
    """Return the id of an answer: from the header `X-Request-Id` (except for `/v1/responses`), else from the request's
    body, else a random one.
    """
    if generation.responses is not None:
        return generation.request_id or f"resp_{uuid.uuid4().hex}"
    request_id = request.headers.get("X-Request-Id") or generation.request_id or uuid.uuid4().hex
    return f"{'chatcmpl' if generation.chat else 'cmpl'}-{request_id}"


def _fingerprint(settings: CommandSettings, version: str) -> str:
    """Return the `system_fingerprint`: version, parallelism and a hash of the configuration."""
    spread = settings.parallelism
    sizes = {"tp": spread.tensor_parallel_size, "dp": spread.data_parallel_size}
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
    return "-".join(
        [f"vllm-{version.removeprefix('v')}", *(f"{name}{size}" for name, size in sizes.items() if size > 1), digest]
    )


def _permission(created: int) -> dict[str, Any]:
    """Return the permission that `/v1/models` lists for every model."""
    return {
        "id": f"modelperm-{uuid.uuid4().hex}",
        "object": "model_permission",
        "created": created,
        **dict.fromkeys(("allow_sampling", "allow_logprobs", "allow_view"), True),
        **dict.fromkeys(("allow_create_engine", "allow_search_indices", "allow_fine_tuning", "is_blocking"), False),
        "organization": "*",
        "group": None,
    }


async def _body(request: web.BaseRequest, *, since_0_30: bool) -> Mapping[str, Any]:
    # Past the request's own reader, which stops at 1 MiB: a prompt of token ids may be longer.
    content, kind = await request.content.read(), request.headers.get("Content-Type", "")
    return requests.json_object(content, kind, since_0_30=since_0_30)
