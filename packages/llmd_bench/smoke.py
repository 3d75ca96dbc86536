"""Smoke benchmark: shows that a model is served, fast enough, with correct answers, and with remote prefill."""

import asyncio
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from llmd_base.errors import KitError
from llmd_base.row import Basis

from llmd_bench.deployment import (
    Counter,
    Directory,
    EndpointRole,
    MetricsEndpoint,
    ReportedTopology,
    ServerPod,
    ServerPods,
    Snapshot,
    Stability,
    change,
    stability,
)
from llmd_bench.evals import BuiltinResult, BuiltinSet
from llmd_bench.evidence import (
    ACCEPTED_TOKENS,
    DRAFTED_TOKENS,
    VLLM_COUNTERS,
    AdapterAnswers,
    ApiAnswer,
    EvidenceSettings,
    OtherApi,
    RemotePrefill,
    Sent,
    prove_remote_prefill,
)
from llmd_bench.load.completions import Api, CompletionsTarget
from llmd_bench.load.generator import ATTEMPT_TIMEOUT_S, GeneratedLoad, introduce, run_load, wait_for_answer
from llmd_bench.load.records import RequestRecord, classify
from llmd_bench.load.workload import ClosedLoop, PromptSource
from llmd_bench.performance import Performance, summarize
from llmd_bench.queries import OTHER_API_PATHS, ask_builtin_set, ask_other_api, compare_adapters, scrape
from llmd_bench.run_context import RunContext
from llmd_bench.smoke_request import SmokeLimits, SmokeRequest, SmokeVerdict, judge

WARMUP_OUTPUT_TOKENS = 16
"""Length in tokens of warm-up answers: enough for requests to be decoded in a common batch."""

QUESTIONS_AT_A_TIME = 16
"""Number of concurrent questions, the default of `llmd-oke eval`: the whole set takes about a minute."""

WAVES = 3
"""Minimum number of requests per user; with fewer, ramp-up and ramp-down dominate the throughput, which a remark says.
"""

CACHED_SHARE = 0.01
"""Share of prompt tokens in a prefix cache (0.01 is 1 %) above which a remark says that the prefills were not all
measured.
"""

LENGTH_TOLERANCE = 0.05

LATE_SHARE = 0.05
"""Share of late simulator steps (0.05 is 5 %) above which a remark says that the machine was too slow for the
simulation.
"""

TOO_SLOW = "this machine was too slow for the simulation"
"""Beginning of the remark on a machine that was too slow for the simulation."""

_SIMULATED_STEPS = Counter(("llmd_oke_simulator_steps_total",))
_SIMULATED_LATE_STEPS = Counter(("llmd_oke_simulator_late_steps_total",))

_PROMPT_SERVERS: tuple[EndpointRole, ...] = ("prefill", "aggregated")

PROGRAMS = {"endpoint-picker": "epp", "proxy": "envoy", "front-door": "envoy", "routing-proxy": "pd-sidecar"}
"""Names of the router's programs in `RunContext.ran`, by the label of the router part."""


@dataclass(frozen=True)
class SmokeProgress:
    """Progress of a smoke benchmark: `done` of `total` requests in the current phase."""

    phase: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.phase} {self.done}/{self.total}" if self.total else self.phase


OnProgress = Callable[[SmokeProgress], None]


@dataclass(frozen=True)
class SmokePlan:
    """Configuration of a smoke benchmark.

    Attributes:
        base_url: part of the URL before `/v1/...`, possibly of a proxy.
        model: name of the model in requests.
        topology: servers and routers, for the report.
        input_tokens: length of the prompts.
        output_tokens: length of the answers.
        requests: number of measured requests.
        concurrency: number of requests in flight.
        thresholds: limits, in simulated seconds (wall seconds / time scale) for times.
        metrics: URLs of the programs' Prometheus metrics.
        evidence: settings for the proof of remote prefill; None for models that aren't disaggregated or have no
            endpoint picker.
        other_apis: APIs that get one request each after the measurement.
        questions: parameters of the built-in questions, which are sent after the measurement; None without an
            evaluation.
        adapters: names of LoRA adapters whose answers are compared with the base model's.
        headers: HTTP headers of requests to `base_url`.
        verify: verification of the TLS certificate of `base_url`.
        api: API of the measured requests.
        time_scale: wall seconds per simulated second.
        basis: basis of the figures.
        simulated: names of the simulated parts.
        timeout_s: limit of the whole run in wall time.
        router_timeout_s: limit of the wait for the first answer in simulated seconds (wall seconds / time scale).
        servers: function that returns the model servers' pods with their restarts; None if they can't be listed.
        introductions: target for each pair of a prefill and a decode server, for their NIXL handshake before the
            warm-up.
        warmup_requests: number of unmeasured requests before the measurement; None means one per user, or one per pair
            of servers if there are no introductions and more pairs than users.
        seed: random seed of the prompts.
        facts: further facts for the report, for example the cost per hour.
    """

    base_url: str
    model: str
    topology: ReportedTopology
    input_tokens: int
    output_tokens: int
    requests: int = 64
    concurrency: int = 8
    thresholds: SmokeLimits = field(default_factory=SmokeLimits)
    metrics: tuple[MetricsEndpoint, ...] = ()
    evidence: EvidenceSettings | None = None
    other_apis: tuple[OtherApi, ...] = ()
    questions: BuiltinSet | None = None
    adapters: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True
    api: Api = "completions"
    time_scale: float = 1.0
    basis: Basis = Basis.MEASURED
    simulated: tuple[str, ...] = ()
    timeout_s: float = 600.0
    router_timeout_s: float = 120.0
    servers: Callable[[], ServerPods] | None = field(default=None, repr=False, compare=False)
    introductions: tuple[CompletionsTarget, ...] = field(default=(), repr=False)
    warmup_requests: int | None = None
    seed: int = 0
    facts: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def warmup(self) -> int:
        """Number of unmeasured requests that the benchmark sends before the measurement."""
        if self.warmup_requests is not None:
            return self.warmup_requests
        prefill, decode = self.topology.of("prefill"), self.topology.of("decode")
        strangers = prefill.replicas * decode.replicas if prefill and decode and not self.introductions else 0
        return max(strangers, self.concurrency)

    @property
    def target(self) -> CompletionsTarget:
        """Address, model and API of the measured requests."""
        return CompletionsTarget(self.base_url, self.model, self.headers, self.verify, self.api)


@dataclass(frozen=True)
class SmokeResult:
    """Result of a smoke benchmark. Times are simulated seconds (wall seconds / time scale), except dates and `wall_s`;
    `first_answer` is the date of the router's first answer.
    """

    plan: SmokePlan
    run: str
    started: datetime
    ended: datetime
    wall_s: float
    records: tuple[RequestRecord, ...]
    performance: Performance
    remote_prefill: RemotePrefill | None
    verdict: SmokeVerdict
    before: Snapshot
    after: Snapshot
    notes: tuple[str, ...]
    first_answer: datetime | None = None
    other_apis: tuple[ApiAnswer, ...] = ()
    examined: BuiltinResult | None = None
    adapters: tuple[AdapterAnswers, ...] = ()

    @property
    def passed(self) -> bool:
        """True if every check of the smoke benchmark passed."""
        return self.verdict.passed

    @property
    def excuses(self) -> tuple[str, ...]:
        """Remarks that the machine was too slow for the simulation, if a latency or rate missed its limit."""
        timed = any(check.units in {"ms", "tokens/s"} for check in self.verdict.failed)
        return tuple(note for note in self.notes if timed and note.startswith(TOO_SLOW))


def run_smoke(plan: SmokePlan, on_progress: OnProgress | None = None) -> SmokeResult:
    """Run a smoke benchmark from code without an event loop; see `smoke`."""
    return asyncio.run(smoke(plan, on_progress))


async def smoke(plan: SmokePlan, on_progress: OnProgress | None = None) -> SmokeResult:
    """Run a smoke benchmark: wait for an answer, warm up, measure, evaluate answers if configured, and judge.

    Raises:
        KitError: the model doesn't answer within `router_timeout_s`, or `timeout_s` is over before all requests were
            sent. Later failures are part of the result.
    """
    report: OnProgress = on_progress or (lambda _: None)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + plan.timeout_s
    run = uuid.uuid4().hex
    report(SmokeProgress("waiting for the model to answer"))
    limit_s = min(plan.router_timeout_s * max(1.0, plan.time_scale), plan.timeout_s)
    await wait_for_answer(plan.target, limit_s=limit_s, time_scale=plan.time_scale)
    answered = datetime.now(UTC)
    prompts = PromptSource(plan.input_tokens, plan.seed, run)
    introduced = await _introduce(plan, run, deadline_s, report)
    measured = GeneratedLoad(
        plan.requests,
        ClosedLoop(plan.concurrency),
        prompts,
        plan.output_tokens,
        plan.timeout_s,
        plan.time_scale,
        "measuring",
    )
    output_tokens = min(plan.output_tokens, WARMUP_OUTPUT_TOKENS)
    warmup_load = replace(measured, requests=plan.warmup, output_tokens=output_tokens, label="warm-up")
    warmup = [*introduced, *await _send(plan, warmup_load, deadline_s, report)]
    begun, ended, records, snapshots = await _measure(plan, measured, deadline_s, report)
    answers = await _ask_other_apis(plan, prompts, deadline_s, report)
    adapters = await _hold_adapters(plan, deadline_s - loop.time(), report)
    examined = await evaluate(plan, deadline_s - loop.time(), report)
    performance = summarize(records, planned=plan.requests, gpus=plan.topology.gpus, concurrency=plan.concurrency)
    proof = prove(plan, performance, snapshots)
    return SmokeResult(
        plan=plan,
        run=run,
        started=begun.at,
        ended=ended.at,
        wall_s=ended.loop_s - begun.loop_s,
        records=records,
        performance=performance,
        remote_prefill=proof,
        verdict=judge(
            plan.thresholds, performance, proof, answers, examined, server_stability(plan, snapshots), adapters
        ),
        before=snapshots[0],
        after=snapshots[1],
        notes=remarks(plan.input_tokens, plan.concurrency, performance, warmup, records, snapshots),
        first_answer=answered,
        other_apis=answers,
        examined=examined,
        adapters=adapters,
    )


class _Moment(NamedTuple):
    """A moment as a date and on the event loop's clock."""

    at: datetime
    loop_s: float


def _now() -> _Moment:
    return _Moment(datetime.now(UTC), asyncio.get_running_loop().time())


async def _measure(
    plan: SmokePlan, load: GeneratedLoad, deadline_s: float, report: OnProgress
) -> tuple[_Moment, _Moment, tuple[RequestRecord, ...], tuple[Snapshot, Snapshot]]:
    """Send the load between two snapshots; return its begin and end, the records in model time and the snapshots.

    Raises:
        KitError: the time limit was over before all requests were sent.
    """
    before, begun = await take_snapshot(plan), _now()
    sent = await _send(plan, load, deadline_s, report)
    ended, after = _now(), await take_snapshot(plan)
    records = sorted((record.in_model_time(plan.time_scale) for record in sent), key=lambda record: record.index)
    if len(records) < plan.requests:
        failures = "".join(f"; {failure}" for failure in classify(records))
        raise KitError(
            f"Only {len(records)} of {plan.requests} requests to {plan.model} could be sent: the benchmark's limit of "
            f"{plan.timeout_s:g} s was over{failures}",
            "Does it answer as fast as it should? "
            "If so: more time (smoke.timeoutS) or fewer requests (smoke.requests).",
        )
    return begun, ended, tuple(records), (before, after)


async def evaluate(plan: SmokePlan, limit_s: float, report: OnProgress) -> BuiltinResult | None:
    """Send the plan's questions and return the grades; None if the plan has no questions.

    Raises:
        KitError: some questions were never sent within `limit_s` of wall time, or none was answered.
    """
    if plan.questions is None:
        return None
    return await ask_builtin_set(
        plan.target,
        plan.questions,
        concurrency=QUESTIONS_AT_A_TIME,
        limit_s=max(limit_s, 0.0),
        on_answer=lambda done, of: report(SmokeProgress("evaluating answers", done, of)),
    )


async def _hold_adapters(plan: SmokePlan, limit_s: float, report: OnProgress) -> tuple[AdapterAnswers, ...]:
    if not plan.adapters:
        return ()
    report(SmokeProgress("holding adapters to the model itself"))
    return await compare_adapters(plan.target, plan.adapters, max(limit_s, 0.0))


async def take_snapshot(plan: SmokePlan) -> Snapshot:
    """Read all counters and list the model servers' pods; the snapshot is without pods if the cluster
    doesn't answer.
    """
    read = await scrape(plan.metrics)
    if plan.servers is None:
        return read
    with suppress(KitError):
        return replace(read, servers=await asyncio.to_thread(plan.servers))
    return read


async def _introduce(plan: SmokePlan, run: str, deadline_s: float, report: OnProgress) -> Sequence[RequestRecord]:
    total = len(plan.introductions)
    left_s = max(deadline_s - asyncio.get_running_loop().time(), 0)

    def on_done(done: int) -> None:
        report(SmokeProgress("introducing prefill and decode servers", done, total))

    if total:
        on_done(0)
    return await introduce(plan.introductions, run, limit_s=left_s, on_done=on_done)


async def _send(plan: SmokePlan, load: GeneratedLoad, deadline_s: float, report: OnProgress) -> Sequence[RequestRecord]:
    done = 0

    def on_record(_: RequestRecord) -> None:
        nonlocal done
        done += 1
        report(SmokeProgress(load.label, done, load.requests))

    left_s = max(deadline_s - asyncio.get_running_loop().time(), 0)
    return await run_load(plan.target, load, limit_s=left_s, on_record=on_record) if load.requests else []


async def _ask_other_apis(
    plan: SmokePlan, prompts: PromptSource, deadline_s: float, report: OnProgress
) -> tuple[ApiAnswer, ...]:
    evidence, answers = _evidence(plan), list[ApiAnswer]()
    for api in plan.other_apis:
        report(SmokeProgress(f"asking {OTHER_API_PATHS[api.name]}"))
        left_s = deadline_s - asyncio.get_running_loop().time()
        limit_s = max(min(left_s, ATTEMPT_TIMEOUT_S * max(1.0, plan.time_scale)), 0)
        prompt = prompts.prompt(api.name)
        answers.append(
            await ask_other_api(plan.target, api, prompt, limit_s=limit_s, metrics=plan.metrics, evidence=evidence)
        )
    return tuple(answers)


def prove(plan: SmokePlan, performance: Performance, snapshots: tuple[Snapshot, Snapshot]) -> RemotePrefill | None:
    """Return the proof of remote prefill, by the counters of two snapshots from before and after the run; None if the
    model isn't disaggregated or has no endpoint picker.
    """
    settings = _evidence(plan)
    if settings is None:
        return None
    answered = Sent(
        performance.requests - performance.failures, performance.input_tokens, attempted=performance.requests
    )
    return prove_remote_prefill(*snapshots, answered, settings)


def _evidence(plan: SmokePlan) -> EvidenceSettings | None:
    if plan.evidence is None or not plan.topology.disaggregated:
        return None
    decode = plan.topology.of("decode")
    return replace(plan.evidence, decode_tensor_parallel_size=decode.parallelism.tensor_parallel_size if decode else 1)


def server_stability(plan: SmokePlan, snapshots: tuple[Snapshot, Snapshot]) -> Stability | None:
    """Return the model servers that restarted or disappeared between two snapshots; None if the plan can't list their
    pods.
    """
    return None if plan.servers is None else stability(snapshots[0].servers, snapshots[1].servers)


def remarks(
    input_tokens: int,
    concurrency: int,
    performance: Performance,
    warmup: Sequence[RequestRecord],
    records: Sequence[RequestRecord],
    snapshots: tuple[Snapshot, Snapshot],
) -> tuple[str, ...]:
    """Return remarks on load, token counts, caches and simulation that affect comparisons with other runs."""
    return (
        *_about_load(concurrency, performance, warmup),
        *_about_lengths(input_tokens, performance, records),
        *_about_caches(performance, *snapshots),
        *about_drafts(*snapshots),
        *about_simulation(*snapshots),
    )


def _about_load(concurrency: int, performance: Performance, warmup: Sequence[RequestRecord]) -> Iterator[str]:
    if performance.planned < WAVES * concurrency:
        yield (
            f"{performance.planned} requests at concurrency {concurrency} are fewer than {WAVES} per user: "
            "throughput includes filling and draining"
        )
    failed = [record for record in warmup if not record.succeeded]
    if failed:
        first = f"{failed[0].failure}: {failed[0].error}"
        yield f"{len(failed)} of {len(warmup)} warm-up requests failed, the first with {first}"


def _about_lengths(input_tokens: int, performance: Performance, records: Sequence[RequestRecord]) -> Iterator[str]:
    if any(record.succeeded and not record.counted_by_server for record in records):
        yield "the server gave no token counts: input is what was asked for, output the number of events"
    length = performance.input_length
    if length is not None and abs(length.mean - input_tokens) > LENGTH_TOLERANCE * input_tokens:
        yield f"prompts have {length.mean:.0f} tokens to the server, {input_tokens} were asked for"
    if performance.tokens_per_event > 1 + LENGTH_TOLERANCE:
        yield (
            f"events carry {performance.tokens_per_event:.2f} tokens: inter-token latency is the time between events, "
            "time per output token isn't affected"
        )


def _about_caches(performance: Performance, before: Snapshot, after: Snapshot) -> Iterator[str]:
    for role in _PROMPT_SERVERS:
        cached = change(before, after, role, VLLM_COUNTERS.cached_tokens).value or 0.0
        if cached > CACHED_SHARE * performance.input_tokens:
            yield f"{role} servers found {cached:.0f} of {performance.input_tokens} prompt tokens in their prefix cache"


def about_drafts(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield the share of drafted tokens that servers accepted, which forecasts need (`acceptedShare`), if anything was
    drafted.
    """
    roles: tuple[EndpointRole, ...] = ("decode", "aggregated")
    for role in roles:
        drafted = change(before, after, role, DRAFTED_TOKENS).value
        accepted = change(before, after, role, ACCEPTED_TOKENS).value
        if drafted and accepted is not None:
            yield f"{role} servers accepted {accepted / drafted:.1%} of {drafted:.0f} drafted tokens (acceptedShare)"


def about_simulation(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield a remark if simulated servers computed their steps late. They share one process, so the counters of one
    role stand for all.
    """
    roles: tuple[EndpointRole, ...] = ("decode", "aggregated")
    for role in roles:
        steps = change(before, after, role, _SIMULATED_STEPS).value
        late = change(before, after, role, _SIMULATED_LATE_STEPS).value
        if steps and late and late > LATE_SHARE * steps:
            yield (
                f"{TOO_SLOW}: {late / steps:.0%} of its steps were late, so that latencies are too long; rehearse with "
                "three times the time scale (--time-scale)"
            )


def resolve(request: SmokeRequest, directory: Directory, how: RunContext) -> SmokePlan:
    """Return the plan of a benchmark with the addresses of the currently running pods.

    Raises:
        KitError: the model's pods are missing, or the cluster does not answer.
    """
    endpoint = directory.service(request.namespace, request.service)
    return replace(
        bare_plan(request, how),
        base_url=endpoint.url,
        headers=endpoint.headers,
        verify=endpoint.verify,
        metrics=tuple(endpoints(request, directory)),
        introductions=tuple(_introductions(request, directory)),
        servers=lambda: server_pods(request, directory),
    )


def bare_plan(request: SmokeRequest, how: RunContext) -> SmokePlan:
    """Return the plan of a smoke benchmark without addresses of pods, which suffices to interpret a result. Router
    parts have the versions of the programs that ran.
    """
    router = tuple(
        replace(part, version=how.ran.get(PROGRAMS.get(part.label, ""), part.version))
        for part in request.topology.router
    )
    return SmokePlan(
        base_url="",
        model=request.model,
        topology=replace(request.topology, router=router),
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        requests=request.requests,
        concurrency=request.concurrency,
        thresholds=request.thresholds,
        evidence=request.evidence,
        other_apis=request.other_apis,
        questions=request.questions,
        adapters=request.adapters,
        time_scale=how.time_scale,
        basis=how.basis_of(request.model),
        simulated=how.simulated,
        timeout_s=request.timeout_s,
        facts=request.facts,
    )


def endpoints(request: SmokeRequest, directory: Directory) -> Iterator[MetricsEndpoint]:
    """Yield the metrics URLs of the running programs of a model.

    Raises:
        KitError: the cluster does not answer.
    """
    for group in request.groups:
        for pod in directory.pods(request.namespace, group.selector):
            endpoint = directory.pod(request.namespace, pod, group.metrics_port)
            yield MetricsEndpoint(group.role, pod.name, f"{endpoint.url}/metrics", endpoint.headers, endpoint.verify)


def server_pods(request: SmokeRequest, directory: Directory) -> tuple[ServerPod, ...]:
    """Return the running pods of a model's servers.

    Raises:
        KitError: the cluster does not answer.
    """
    return tuple(
        ServerPod(group.role, pod.name, pod.restarts, group.scaled)
        for group in request.groups
        if group.role != "router"
        for pod in directory.pods(request.namespace, group.selector)
    )


def _introductions(request: SmokeRequest, directory: Directory) -> Iterator[CompletionsTarget]:
    """Yield the URL of each decode server's routing sidecar once for each prefill server of the unit, with the header
    that selects this prefill server.
    """
    prefill = {group.unit: group for group in request.groups if group.role == "prefill"}
    for group in request.groups:
        if group.role != "decode" or group.unit not in prefill:
            continue
        others = directory.pods(request.namespace, prefill[group.unit].selector)
        for pod in directory.pods(request.namespace, group.selector):
            endpoint = directory.pod(request.namespace, pod, request.server_port)
            for other in others:
                headers = {**endpoint.headers, request.prefill_header: f"{other.address}:{request.server_port}"}
                yield CompletionsTarget(endpoint.url, request.model, headers, endpoint.verify)
