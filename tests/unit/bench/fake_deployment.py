"""A small deployment of prefill, decode and endpoint picker on the loopback, with answers that tests can script."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.test_utils import TestServer
from llmd_bench.deployment import (
    EndpointRole,
    MetricsEndpoint,
    Parallelism,
    ReportedServers,
    ReportedTopology,
    RouterPart,
)
from llmd_bench.evidence import DecisionCounter, EvidenceSettings, OtherApi
from llmd_bench.load.generator import CompletionsTarget
from llmd_bench.smoke import SmokePlan, SmokeResult, smoke
from llmd_bench.smoke_request import PodGroup, SmokeLimits, SmokeRequest
from llmd_oke.catalogue.benchmarks import builtin_set

DECISIONS = DecisionCounter(
    ("llm_d_inference_scheduler_disagg_decision_total", "llm_d_inference_scheduler_pd_decision_total"),
    "decision_type",
    ("prefill-decode",),
)
MODEL = "openai/gpt-oss-120b"
JsonObject: TypeAlias = dict[str, Any]


@dataclass
class Answer:
    """An answer to one request: `events` of `tokens_per_event` tokens each, then usage and end mark unless `cut`."""

    status: int = 200
    events: int | None = None
    tokens_per_event: int = 1
    usage: bool = True
    error: str | None = None
    cut: bool = False
    hang: bool = False
    remote: bool = True
    whole: JsonObject | None = None
    """The body for a request without a stream, instead of the usual one."""


@dataclass
class Deployment:
    """The running fake: `script` gives the answer to the request of a number (counted from 0)."""

    url: str = ""
    script: Callable[[int], Answer] = lambda _: Answer()
    reply: Callable[[str], str] = lambda _: ""
    """What is answered to a question, which asks for no stream."""
    requests: list[JsonObject] = field(default_factory=list[JsonObject])
    counters: Counter[str] = field(default_factory=Counter[str])
    dead_metrics: set[str] = field(default_factory=set[str])
    released: asyncio.Event = field(default_factory=asyncio.Event)
    release_at: int | None = None
    """Number of requests after which those that hang are answered."""

    @property
    def target(self) -> CompletionsTarget:
        return CompletionsTarget(self.url, MODEL)

    def endpoints(self) -> tuple[MetricsEndpoint, ...]:
        roles: tuple[EndpointRole, ...] = ("router", "prefill", "decode")
        return tuple(MetricsEndpoint(role, f"{role}-0", f"{self.url}/metrics/{role}") for role in roles)

    def plan(self, **changes: object) -> SmokePlan:
        usual = SmokePlan(
            base_url=self.url,
            model=MODEL,
            topology=TOPOLOGY,
            input_tokens=64,
            output_tokens=5,
            requests=8,
            concurrency=2,
            metrics=self.endpoints(),
            evidence=EvidenceSettings(DECISIONS),
            warmup_requests=1,
            timeout_s=20.0,
        )
        return replace(usual, **changes)

    def count(self, answer: Answer, tokens: int) -> None:
        self.counters["decisions"] += 1
        self.counters["decode_prompt_tokens"] += tokens
        if answer.remote:
            self.counters.update(prefill_tokens=tokens, prefill_requests=1, received=tokens, transfers=2)


TOPOLOGY = ReportedTopology(
    "2p-tp1-1d-tp2",
    (
        ReportedServers("prefill", 2, Parallelism(1), image="vllm:1"),
        ReportedServers("decode", 1, Parallelism(2), image="vllm:1", args={"--block-size": 16}),
    ),
    (RouterPart("epp", "llm-d-inference-scheduler", "v0.7.1", {"plugins": []}), RouterPart("envoy", "envoy", "1.34")),
)

REQUEST = SmokeRequest(
    namespace="llm-d",
    service="gpt",
    model=MODEL,
    topology=TOPOLOGY,
    input_tokens=64,
    output_tokens=5,
    requests=8,
    concurrency=2,
    timeout_s=20.0,
    thresholds=SmokeLimits(min_remote_prefill_share=0.95),
    groups=(
        PodGroup("a", "router", {"role": "router"}, 9090),
        PodGroup("a", "prefill", {"role": "prefill"}, 8000),
        PodGroup("a", "decode", {"role": "decode"}, 8200),
    ),
    server_port=8000,
    prefill_header="x-prefiller-host-port",
    other_apis=(OtherApi("responses", remote_prefill=True),),
    evidence=EvidenceSettings(DECISIONS),
    facts={"stack": "mine"},
)
"""A smoke benchmark of the deployment as pods of a cluster."""

QUESTIONS = builtin_set().model_copy(update={"registers": {50: 20}})
"""Few short questions of the kit's own."""

_METRICS = {
    "router": 'llm_d_inference_scheduler_disagg_decision_total{{decision_type="prefill-decode"}} {decisions}\n',
    "prefill": "vllm:prompt_tokens_total {prefill_tokens}\n"
    'vllm:request_success_total{{finished_reason="length"}} {prefill_requests}\n'
    "vllm:prefix_cache_hits_total 0\n",
    "decode": "vllm:prompt_tokens_total {decode_prompt_tokens}\nvllm:external_prefix_cache_hits_total {received}\n"
    "vllm:prefix_cache_hits_total 0\nvllm:nixl_xfer_time_seconds_count {transfers}\n",
}
_NAMES = ("decisions", "prefill_tokens", "prefill_requests", "decode_prompt_tokens", "received", "transfers")


async def _metrics(deployment: Deployment, request: web.Request) -> web.Response:
    role = request.match_info["role"]
    if role in deployment.dead_metrics:
        return web.Response(status=401)
    return web.Response(text=_METRICS[role].format(**{name: deployment.counters[name] for name in _NAMES}))


async def _complete(deployment: Deployment, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    number = len(deployment.requests)
    deployment.requests.append(body)
    if len(deployment.requests) == deployment.release_at:
        deployment.released.set()
    answer = deployment.script(number)
    if answer.hang:
        await deployment.released.wait()
    if answer.status != 200:
        return web.Response(status=answer.status, text=answer.error or "no healthy upstream")
    tokens = len(_prompt(body)) // 4
    deployment.count(answer, tokens)
    if not body.get("stream"):
        return web.json_response(answer.whole or _whole(body, tokens, deployment.reply))
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    events = body["max_tokens"] if answer.events is None else answer.events
    for event in _events("messages" in body, events):
        await response.write(_line(event))
    if answer.cut:
        assert request.transport is not None
        request.transport.close()
        return response
    if answer.error:
        await response.write(_line({"error": {"message": answer.error, "code": 500}}))
    if answer.usage:
        usage = {"prompt_tokens": tokens, "completion_tokens": events * answer.tokens_per_event}
        await response.write(_line({"choices": [], "usage": usage}))
    await response.write(b"data: [DONE]\n\n")
    return response


def _prompt(body: JsonObject) -> str:
    return body.get("prompt") or body.get("input") or body["messages"][0]["content"]


def _whole(body: JsonObject, tokens: int, reply: Callable[[str], str]) -> JsonObject:
    if "input" in body:
        return {"object": "response", "status": "incomplete", "usage": {"input_tokens": tokens, "output_tokens": 16}}
    message = {"role": "assistant", "content": reply(body["messages"][0]["content"])}
    choices = [{"finish_reason": "length", "message": message}]
    return {"choices": choices, "usage": {"prompt_tokens": tokens, "completion_tokens": 16}}


def _events(chat: bool, count: int) -> list[JsonObject]:
    if not chat:
        return [{"choices": [{"text": " tok"}], "usage": None} for _ in range(count)]
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    return [role, *({"choices": [{"delta": {"content": " tok"}}]} for _ in range(count))]


def _line(event: JsonObject) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@asynccontextmanager
async def served() -> AsyncGenerator[Deployment]:
    """A deployment that prefills remotely and answers every request in full."""
    fake = Deployment()
    app = web.Application(client_max_size=2**24)
    for api in ("completions", "chat/completions", "responses"):
        app.router.add_post(f"/v1/{api}", partial(_complete, fake))
    app.router.add_get("/metrics/{role}", partial(_metrics, fake))
    server = TestServer(app)
    await server.start_server()
    fake.url = str(server.make_url("/")).rstrip("/")
    try:
        yield fake
    finally:
        fake.released.set()
        await server.close()


def measured(**changes: object) -> SmokeResult:
    """The result of a smoke benchmark of such a deployment, for the tests of a module to read."""

    async def measure() -> SmokeResult:
        async with served() as deployment:
            return await smoke(deployment.plan(**changes))

    return asyncio.run(measure())
