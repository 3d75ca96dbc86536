"""The load generator: streams completions from one address and records what happened to each request.

It never raises for a request that fails; a failure is a record with its kind and text.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter

import httpx

from llmd_oke.bench.clients import open_client
from llmd_oke.bench.prompts import PromptSource
from llmd_oke.bench.records import Failure, RequestRecord
from llmd_oke.bench.shapes import ClosedLoop, LoadShape, OpenLoop, arrivals_s
from llmd_oke.bench.streams import PATHS, Api, EventStream

CONNECT_TIMEOUT_S = 10.0
"""Limit for opening a connection; the limit of the whole request is the plan's."""

_MAX_ERROR_CHARACTERS = 400


@dataclass(frozen=True)
class Target:
    """Where requests go: `base_url` is what stands before `/v1/...`, so the path of a proxy may be part of it."""

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    verify: ssl.SSLContext | bool = True
    api: Api = "completions"


@dataclass(frozen=True)
class Load:
    """What is sent.

    `request_timeout_s` is wall time; rates of `shape` are in model time (`time_scale` wall seconds a second).
    """

    requests: int
    shape: LoadShape
    prompts: PromptSource
    output_tokens: int
    request_timeout_s: float = 300.0
    time_scale: float = 1.0
    label: str = ""
    """Name of this load within its run: loads with different labels have different prompts."""


async def run_load(
    target: Target, load: Load, *, limit_s: float, on_record: Callable[[RequestRecord], None] | None = None
) -> list[RequestRecord]:
    """Send the load and return a record for each request that was sent, in the order in which they ended, in wall time.

    After `limit_s` of wall time no request is started and those in flight end as timed out, so there may be fewer
    records than requests.
    """
    async with open_client(
        target.base_url,
        verify=target.verify,
        headers=target.headers,
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        connections=load.shape.concurrency if isinstance(load.shape, ClosedLoop) else None,
    ) as client:
        sender = _Sender(client, target, load, asyncio.get_running_loop().time() + limit_s, on_record)
        if isinstance(load.shape, ClosedLoop):
            await sender.closed_loop(load.shape.concurrency)
        else:
            await sender.open_loop(load.shape)
        return sender.records


class _Sender:
    """One run of a load."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        target: Target,
        load: Load,
        deadline_s: float,
        on_record: Callable[[RequestRecord], None] | None,
    ) -> None:
        self.records: list[RequestRecord] = []
        self._client = client
        self._target = target
        self._load = load
        self._deadline_s = deadline_s
        self._on_record = on_record
        self._clock = asyncio.get_running_loop().time
        self._began_s = perf_counter()

    async def closed_loop(self, concurrency: int) -> None:
        indices = iter(range(self._load.requests))

        async def user() -> None:
            for index in indices:
                if self._clock() >= self._deadline_s:
                    return
                await self._send(index)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, self._load.requests)):
                group.create_task(user())

    async def open_loop(self, shape: OpenLoop) -> None:
        began_s = self._clock()
        async with asyncio.TaskGroup() as group:
            for index, arrival_s in zip(range(self._load.requests), arrivals_s(shape), strict=False):
                due_s = began_s + arrival_s * self._load.time_scale
                if due_s >= self._deadline_s:
                    return
                await asyncio.sleep(due_s - self._clock())
                group.create_task(self._send(index))

    async def _send(self, index: int) -> None:
        body = _body(self._target, self._load, index)
        stream = EventStream(self._target.api)
        started_s = perf_counter()
        failure, error = await self._receive(body, stream, started_s)
        record = RequestRecord(
            index=index,
            started_s=started_s - self._began_s,
            latency_s=perf_counter() - started_s,
            event_times_s=tuple(stream.event_times_s),
            input_tokens=self._load.prompts.input_tokens if stream.input_tokens is None else stream.input_tokens,
            output_tokens=len(stream.event_times_s) if stream.output_tokens is None else stream.output_tokens,
            counted_by_server=stream.output_tokens is not None,
            failure=failure,
            error=error,
        )
        self.records.append(record)
        if self._on_record:
            self._on_record(record)

    async def _receive(
        self, body: Mapping[str, object], stream: EventStream, started_s: float
    ) -> tuple[Failure | None, str | None]:
        limit_s = min(self._load.request_timeout_s, max(self._deadline_s - self._clock(), 0))
        try:
            async with (
                asyncio.timeout(limit_s),
                self._client.stream("POST", PATHS[self._target.api], json=body) as answer,
            ):
                if answer.status_code != HTTPStatus.OK:
                    text = (await answer.aread()).decode(errors="replace").strip()
                    return Failure.STATUS, f"HTTP {answer.status_code}: {text[:_MAX_ERROR_CHARACTERS]}"
                async for data in answer.aiter_raw():
                    stream.feed(data, perf_counter() - started_s)
        except TimeoutError:
            return Failure.TIMEOUT, f"the answer did not end within {limit_s:.1f} s"
        except httpx.HTTPError as error:
            kind = Failure.CUT if stream.event_times_s else Failure.CONNECTION
            return kind, f"{type(error).__name__}: {error}"
        stream.end()
        return _judge(stream)


def _judge(stream: EventStream) -> tuple[Failure | None, str | None]:
    if stream.error:
        return Failure.SERVER, stream.error
    if not stream.finished:
        return Failure.CUT, f"the stream stopped after {len(stream.event_times_s)} events without its end mark"
    if not stream.event_times_s:
        return Failure.SERVER, "the stream ended without output"
    return None, None


def _body(target: Target, load: Load, index: int) -> dict[str, object]:
    prompt = load.prompts.prompt(f"{load.label}{index}")
    content: dict[str, object] = (
        {"prompt": prompt} if target.api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    )
    return {
        "model": target.model,
        **content,
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
