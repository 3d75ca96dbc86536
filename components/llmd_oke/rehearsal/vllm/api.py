"""vLLM's HTTP server for one engine."""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from llmd_oke.rehearsal.vllm import protocol
from llmd_oke.rehearsal.vllm.answers import Answer, Stream
from llmd_oke.rehearsal.vllm.command import Settings
from llmd_oke.rehearsal.vllm.engine import Engine
from llmd_oke.rehearsal.vllm.metrics import CONTENT_TYPE
from llmd_oke.rehearsal.vllm.prompts import Prompt, chat_prompt
from llmd_oke.rehearsal.vllm.protocol import ApiError, Generation, Limits
from llmd_oke.rehearsal.vllm.sequences import RemoteBlocks, Sequence

_METRICS_HEADERS = {"Content-Type": CONTENT_TYPE}
_EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Api:
    """The routes of one server. `version` is what `/version` answers."""

    def __init__(self, settings: Settings, engine: Engine, version: str, seed: int, created: int) -> None:
        self._settings = settings
        self._engine = engine
        self._version = version
        self._created = created
        self._limits = Limits(settings.served_model_names, engine.cache.max_model_len, seed)
        self._routes: dict[str, dict[str, Handler]] = {
            "/metrics": {"GET": self._metrics},
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat_completions},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version_},
            "/tokenize": {"POST": self._tokenize},
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        methods = self._routes.get(request.path)
        if methods is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        handler = methods.get(request.method)
        if handler is None:
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body, status=error.status)

    async def _metrics(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=self._engine.metrics.text().encode(), headers=_METRICS_HEADERS)

    async def _health(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    async def _version_(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"version": self._version})

    async def _models(self, _: web.BaseRequest) -> web.StreamResponse:
        root = self._settings.model
        entries: list[dict[str, Any]] = [
            {"id": name, "object": "model", "created": self._created, "owned_by": "vllm", "root": root, "parent": None,
             "max_model_len": self._limits.max_model_len, "permission": []}
            for name in self._limits.model_names
        ]  # fmt: skip
        return web.json_response({"object": "list", "data": entries})

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request)
        prompt = chat_prompt(body["messages"]) if "messages" in body else Prompt(str(body.get("prompt", "")))
        count = prompt.tokens
        tokens = list(range(count))
        return web.json_response({"count": count, "max_model_len": self._limits.max_model_len, "tokens": tokens})

    async def _completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, protocol.completion(await _body(request), self._limits))

    async def _chat_completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, protocol.chat(await _body(request), self._limits))

    async def _generate(self, request: web.BaseRequest, generation: Generation) -> web.StreamResponse:
        asked_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        response_id = f"{'chatcmpl' if generation.chat else 'cmpl'}-{asked_id}"
        answer = (Stream if generation.stream else Answer)(generation, response_id)
        sequence = self._sequence(generation, answer)
        try:
            if isinstance(answer, Stream):
                return await self._stream(request, sequence, answer)
            self._engine.submit(sequence)
            await answer.done
            return web.json_response(answer.body(sequence, self._transfer(sequence), cached=self._cached))
        finally:
            # A client that went away leaves nothing running, as in vLLM.
            self._engine.abort(sequence)

    async def _stream(self, request: web.BaseRequest, sequence: Sequence, answer: Stream) -> web.StreamResponse:
        response = web.StreamResponse(headers=_EVENT_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._engine.submit(sequence)
        await answer.started
        await response.write(answer.take())
        if request.transport is not None:
            answer.attach(request.transport)
        await answer.done
        await response.write(answer.take() + answer.closing(sequence, cached=self._cached))
        await response.write_eof()
        return response

    @property
    def _cached(self) -> bool:
        return self._settings.prompt_tokens_details

    def _sequence(self, generation: Generation, answer: Answer) -> Sequence:
        """A new sequence. Without the NIXL connector `kv_transfer_params` mean nothing."""
        settings = self._settings
        nixl = settings.transfer is not None and settings.transfer.nixl
        return Sequence(
            request_id=f"{answer.response_id}-{uuid.uuid4().hex[:8]}",
            prompt_tokens=generation.prompt.tokens,
            max_tokens=generation.max_tokens,
            hashes=generation.prompt.block_hashes(settings.block_size) if settings.enable_prefix_caching else [],
            emit=answer.emit,
            arrival_s=self._engine.clock.now(),
            end=generation.end,
            remote=_remote(generation.transfer) if nixl and generation.wants_remote_prefill else None,
            hold=nixl and generation.wants_remote_decode,
        )

    def _transfer(self, sequence: Sequence) -> dict[str, Any] | None:
        """`kv_transfer_params` of an answer: where the KV cache of the prompt waits."""
        transfer = self._settings.transfer
        if transfer is None or not self._engine.holds(sequence.request_id):
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": sequence.blocks,
            "remote_engine_id": transfer.engine_id,
            "remote_request_id": sequence.request_id,
            "remote_host": transfer.side_channel_host,
            "remote_port": transfer.side_channel_port,
            "tp_size": self._settings.tensor_parallel_size,
        }


async def _body(request: web.BaseRequest) -> Mapping[str, Any]:
    # Past the request's own reader, which stops at 1 MiB: a prompt of token ids may be longer.
    return protocol.json_object(await request.content.read(), request.headers.get("Content-Type", ""))


def _remote(transfer: Mapping[str, Any]) -> RemoteBlocks:
    return RemoteBlocks(
        engine_id=str(transfer["remote_engine_id"]),
        request_id=str(transfer.get("remote_request_id")),
        host=str(transfer["remote_host"]),
        port=int(transfer["remote_port"]),
    )
