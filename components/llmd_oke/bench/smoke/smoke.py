"""The smoke benchmark: is the model served, as fast as asked, and with prefill where it belongs?"""

import asyncio
import ssl
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from llmd_oke.bench.deployment.metrics import MetricsEndpoint, Servers, Snapshot, Stability, stability
from llmd_oke.bench.deployment.scraping import scrape
from llmd_oke.bench.deployment.streams import Api
from llmd_oke.bench.deployment.topology import Topology
from llmd_oke.bench.evals.asking import examine
from llmd_oke.bench.evals.items import BuiltinSet
from llmd_oke.bench.evals.result import Examined
from llmd_oke.bench.load.introductions import introduce
from llmd_oke.bench.load.load import Load, Target, run_load
from llmd_oke.bench.load.waiting import ATTEMPT_TIMEOUT_S, wait_for_answer
from llmd_oke.bench.records.failures import classify
from llmd_oke.bench.records.performance import Performance, summarize
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.smoke.evidence import (
    ApiAnswer,
    EvidenceSettings,
    OtherApi,
    RemotePrefill,
    Sent,
    prove_remote_prefill,
)
from llmd_oke.bench.smoke.hygiene import TOO_SLOW, remarks
from llmd_oke.bench.smoke.other_apis import PATHS, ask_other_api
from llmd_oke.bench.smoke.thresholds import Thresholds, Verdict, judge
from llmd_oke.bench.workload.prompts import PromptSource
from llmd_oke.bench.workload.shapes import ClosedLoop
from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis

WARMUP_OUTPUT_TOKENS = 16
"""Enough for a warm-up request to have been decoded together with others."""

QUESTIONS_AT_A_TIME = 16
"""As many as `llmd-oke eval` asks: the whole set takes about a minute."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: `done` of `total` requests of a phase."""

    phase: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.phase} {self.done}/{self.total}" if self.total else self.phase


@dataclass(frozen=True)
class SmokePlan:
    """Everything that a smoke benchmark needs to know.

    - `base_url` is what stands before `/v1/...`; `headers` and `verify` belong to it, so that it may be a proxy's.
    - `timeout_s` (wall time) limits the whole run, `router_timeout_s` (model time) the wait for the first answer in it.
    - `servers` lists the model servers' pods, whose restarts are counted; None where nobody can.
    - `introductions` has a target for each pair of prefill and decode server, to make them acquainted first.
    - `warmup_requests` are sent then and not measured; None means one for each user, without introductions as many as
      there are pairs, if those are more.
    - `time_scale` is wall seconds for a second of model time; thresholds and results are in model time.
    - `evidence` is needed for the proof of remote prefill; None for models that aren't disaggregated or have no
      endpoint picker.
    - `other_apis` are asked once each, after the measurement.
    - `questions` with known answers are asked after the measurement; None where answers are not evaluated.
    - `simulated` lists what was not real, and `facts` whatever else belongs into the report, for example the cost per
      hour.
    """

    base_url: str
    model: str
    topology: Topology
    input_tokens: int
    output_tokens: int
    requests: int = 64
    concurrency: int = 8
    thresholds: Thresholds = field(default_factory=Thresholds)
    metrics: tuple[MetricsEndpoint, ...] = ()
    evidence: EvidenceSettings | None = None
    other_apis: tuple[OtherApi, ...] = ()
    questions: BuiltinSet | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True
    api: Api = "completions"
    time_scale: float = 1.0
    basis: Basis = Basis.MEASURED
    simulated: tuple[str, ...] = ()
    timeout_s: float = 600.0
    router_timeout_s: float = 120.0
    servers: Callable[[], Servers] | None = field(default=None, repr=False, compare=False)
    introductions: tuple[Target, ...] = field(default=(), repr=False)
    warmup_requests: int | None = None
    seed: int = 0
    facts: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def warmup(self) -> int:
        """Requests that are sent before the measurement."""
        if self.warmup_requests is not None:
            return self.warmup_requests
        prefill, decode = self.topology.of("prefill"), self.topology.of("decode")
        strangers = prefill.replicas * decode.replicas if prefill and decode and not self.introductions else 0
        return max(strangers, self.concurrency)

    @property
    def target(self) -> Target:
        """Where the requests go."""
        return Target(self.base_url, self.model, self.headers, self.verify, self.api)


@dataclass(frozen=True)
class SmokeResult:
    """What a smoke benchmark found. Everything but moments and `wall_s` is in model time.

    `first_answer` is when the router gave its first answer.
    """

    plan: SmokePlan
    run: str
    started: datetime
    ended: datetime
    wall_s: float
    records: tuple[RequestRecord, ...]
    performance: Performance
    remote_prefill: RemotePrefill | None
    verdict: Verdict
    before: Snapshot
    after: Snapshot
    notes: tuple[str, ...]
    first_answer: datetime | None = None
    other_apis: tuple[ApiAnswer, ...] = ()
    examined: Examined | None = None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return self.verdict.passed

    @property
    def excuses(self) -> tuple[str, ...]:
        """Why latencies and rates that were missed may say more of a simulating machine than of the deployment."""
        timed = any(check.units in {"ms", "tokens/s"} for check in self.verdict.failed)
        return tuple(note for note in self.notes if timed and note.startswith(TOO_SLOW))


def run_smoke(plan: SmokePlan, on_progress: Callable[[Progress], None] | None = None) -> SmokeResult:
    """Run the benchmark from a program that has no event loop. See `smoke`."""
    return asyncio.run(smoke(plan, on_progress))


async def smoke(plan: SmokePlan, on_progress: Callable[[Progress], None] | None = None) -> SmokeResult:
    """Wait for an answer, warm up, measure, evaluate answers where that is asked, and judge.

    Raises `KitError` if the model doesn't answer within `router_timeout_s`, or if `timeout_s` is over before all was
    sent: that is no measurement. All else that goes wrong afterwards is in the result.
    """
    report = on_progress or _quiet
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + plan.timeout_s
    run = uuid.uuid4().hex
    report(Progress("waiting for the model to answer"))
    limit_s = min(plan.router_timeout_s * max(1.0, plan.time_scale), plan.timeout_s)
    await wait_for_answer(plan.target, limit_s=limit_s, time_scale=plan.time_scale)
    answered = datetime.now(UTC)
    prompts = PromptSource(plan.input_tokens, plan.seed, run)
    acquainted = await _introduce(plan, run, deadline_s, report)
    warmup = [*acquainted, *await _send(plan, _warmup(plan, prompts), deadline_s, report)]
    before = await take_snapshot(plan)
    started, started_s = datetime.now(UTC), loop.time()
    wall_records = await _send(plan, _measured(plan, prompts), deadline_s, report)
    ended, wall_s = datetime.now(UTC), loop.time() - started_s
    after = await take_snapshot(plan)
    records = tuple(sorted((each.in_model_time(plan.time_scale) for each in wall_records), key=lambda each: each.index))
    if len(records) < plan.requests:
        raise _unsent(plan, records)
    answers = await _ask_other_apis(plan, prompts, deadline_s, report)
    examined = await evaluate(plan, deadline_s - loop.time(), report)
    result = _conclude(plan, run, (started, ended, wall_s), (warmup, records), (before, after), answers, examined)
    return replace(result, first_answer=answered)


async def evaluate(plan: SmokePlan, limit_s: float, report: Callable[[Progress], None]) -> Examined | None:
    """Asks the plan's questions; None where it has none.

    Raises:
        KitError: `limit_s` of wall time was over before all were asked, or none was answered.
    """
    if plan.questions is None:
        return None
    return await examine(
        plan.target,
        plan.questions,
        concurrency=QUESTIONS_AT_A_TIME,
        limit_s=max(limit_s, 0.0),
        on_answer=lambda done, of: report(Progress("evaluating answers", done, of)),
    )


async def take_snapshot(plan: SmokePlan) -> Snapshot:
    """All counters of now, and the model servers' pods; without these where the cluster does not tell."""
    read = await scrape(plan.metrics)
    if plan.servers is None:
        return read
    with suppress(KitError):
        return replace(read, servers=await asyncio.to_thread(plan.servers))
    return read


def _unsent(plan: SmokePlan, records: Sequence[RequestRecord]) -> KitError:
    failures = "".join(f"; {failure}" for failure in classify(records))
    return KitError(
        f"Only {len(records)} of {plan.requests} requests to {plan.model} could be sent: the benchmark's limit of "
        f"{plan.timeout_s:g} s was over{failures}",
        "Does it answer as fast as it should? If so: more time (smoke.timeoutS) or fewer requests (smoke.requests).",
    )


async def _introduce(
    plan: SmokePlan, run: str, deadline_s: float, report: Callable[[Progress], None]
) -> Sequence[RequestRecord]:
    total = len(plan.introductions)
    left_s = max(deadline_s - asyncio.get_running_loop().time(), 0)

    def on_done(done: int) -> None:
        report(Progress("introducing prefill and decode servers", done, total))

    if total:
        on_done(0)
    return await introduce(plan.introductions, run, limit_s=left_s, on_done=on_done)


def _measured(plan: SmokePlan, prompts: PromptSource) -> Load:
    shape = ClosedLoop(plan.concurrency)
    return Load(plan.requests, shape, prompts, plan.output_tokens, plan.timeout_s, plan.time_scale, "measuring")


def _warmup(plan: SmokePlan, prompts: PromptSource) -> Load:
    output_tokens = min(plan.output_tokens, WARMUP_OUTPUT_TOKENS)
    return replace(_measured(plan, prompts), requests=plan.warmup, output_tokens=output_tokens, label="warm-up")


async def _send(
    plan: SmokePlan, load: Load, deadline_s: float, report: Callable[[Progress], None]
) -> Sequence[RequestRecord]:
    done = 0

    def on_record(_: RequestRecord) -> None:
        nonlocal done
        done += 1
        report(Progress(load.label, done, load.requests))

    left_s = max(deadline_s - asyncio.get_running_loop().time(), 0)
    return await run_load(plan.target, load, limit_s=left_s, on_record=on_record) if load.requests else []


async def _ask_other_apis(
    plan: SmokePlan, prompts: PromptSource, deadline_s: float, report: Callable[[Progress], None]
) -> tuple[ApiAnswer, ...]:
    evidence, answers = _evidence(plan), list[ApiAnswer]()
    for api in plan.other_apis:
        report(Progress(f"asking {PATHS[api.name]}"))
        left_s = deadline_s - asyncio.get_running_loop().time()
        limit_s = max(min(left_s, ATTEMPT_TIMEOUT_S * max(1.0, plan.time_scale)), 0)
        prompt = prompts.prompt(api.name)
        answers.append(
            await ask_other_api(plan.target, api, prompt, limit_s=limit_s, metrics=plan.metrics, evidence=evidence)
        )
    return tuple(answers)


def _conclude(
    plan: SmokePlan,
    run: str,
    times: tuple[datetime, datetime, float],
    sent: tuple[Sequence[RequestRecord], tuple[RequestRecord, ...]],
    snapshots: tuple[Snapshot, Snapshot],
    other_apis: tuple[ApiAnswer, ...],
    examined: Examined | None,
) -> SmokeResult:
    warmup, records = sent
    performance = summarize(records, planned=plan.requests, gpus=plan.topology.gpus, concurrency=plan.concurrency)
    proof = prove(plan, performance, snapshots)
    verdict = judge(plan.thresholds, performance, proof, other_apis, examined, server_stability(plan, snapshots))
    started, ended, wall_s = times
    return SmokeResult(
        plan=plan,
        run=run,
        started=started,
        ended=ended,
        wall_s=wall_s,
        records=records,
        performance=performance,
        remote_prefill=proof,
        verdict=verdict,
        before=snapshots[0],
        after=snapshots[1],
        notes=remarks(plan.input_tokens, plan.concurrency, performance, warmup, records, snapshots),
        other_apis=other_apis,
        examined=examined,
    )


def prove(plan: SmokePlan, performance: Performance, snapshots: tuple[Snapshot, Snapshot]) -> RemotePrefill | None:
    """The proof of remote prefill by the counters before and after; None where there is nothing to prove."""
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
    return replace(plan.evidence, decode_tensor_parallel_size=decode.tensor_parallel_size if decode else 1)


def server_stability(plan: SmokePlan, snapshots: tuple[Snapshot, Snapshot]) -> Stability | None:
    """Which model servers restarted between two snapshots; None where nobody lists their pods."""
    return None if plan.servers is None else stability(snapshots[0].servers, snapshots[1].servers)


def _quiet(_: Progress) -> None:
    pass
