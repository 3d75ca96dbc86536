"""Request for a smoke benchmark as JSON in a file: load, limits and pods; and the judgement of a run by the limits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from llmd_base.metrics import LATENCIES
from pydantic import TypeAdapter

from llmd_bench.deployment import EndpointRole, ReportedTopology, Stability
from llmd_bench.evals import BuiltinResult, BuiltinSet
from llmd_bench.evidence import AdapterAnswers, ApiAnswer, EvidenceSettings, OtherApi, RemotePrefill
from llmd_bench.performance import Performance, Statistics


@dataclass(frozen=True)
class SmokeLimits:
    """Limits of a smoke benchmark's figures; None means that a figure isn't judged. Times are those of real hardware,
    also where servers are simulated at another speed. `min_remote_prefill_share` applies to disaggregated models only,
    `min_accuracy` is a share of right answers (0.9 is 90 %).
    """

    max_failures: int | None = 0
    min_remote_prefill_share: float | None = None
    max_ttft_p95_ms: float | None = None
    max_itl_p95_ms: float | None = None
    max_e2e_p95_ms: float | None = None
    min_output_tokens_per_s: float | None = None
    min_accuracy: float | None = None


@dataclass(frozen=True)
class Check:
    """Limit of one figure of a smoke benchmark with the measured value; `value` is None if the figure could not be
    measured.
    """

    name: str
    bound: Literal["at most", "at least"]
    limit: float
    value: float | None
    units: str
    evidence: str

    @property
    def passed(self) -> bool:
        """True if the value meets the limit; False without a value."""
        if self.value is None:
            return False
        return self.value <= self.limit if self.bound == "at most" else self.value >= self.limit


@dataclass(frozen=True)
class SmokeVerdict:
    """Verdict on a smoke benchmark: its checks against limits."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if every check of the smoke benchmark passed."""
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks of figures that missed their limits or could not be measured."""
        return tuple(check for check in self.checks if not check.passed)


def judge(
    thresholds: SmokeLimits,
    performance: Performance,
    remote_prefill: RemotePrefill | None,
    other_apis: Sequence[ApiAnswer] = (),
    examined: BuiltinResult | None = None,
    stability: Stability | None = None,
    adapters: Sequence[AdapterAnswers] = (),
) -> SmokeVerdict:
    """Judge a run by its limits. `remote_prefill` is None for a model that isn't disaggregated, `examined` without an
    evaluation, `stability` if restarts are unknown.

    Each of `other_apis` must have answered, with its prompt prefilled remotely if the endpoint picker does that for the
    API. Each of `adapters` must have answered differently from the base model. A run without any answer fails whatever
    the limits are, and so does a run in which servers restarted, since it didn't measure the configured deployment.
    """
    checks = list(_of_performance(thresholds, performance))
    if thresholds.min_remote_prefill_share is not None and remote_prefill is not None:
        checks.append(_remote_prefill(thresholds.min_remote_prefill_share, remote_prefill))
    if thresholds.min_accuracy is not None:
        checks.append(accuracy(thresholds.min_accuracy, examined))
    checks += map(_applied, adapters)
    if stability is not None:
        number = None if stability.restarted is None else len(stability.restarted)
        checks.append(Check("server restarts", "at most", 0, number, "servers", str(stability)))
    if performance.failures >= performance.requests:
        reasons = "; ".join(performance.failure_reasons[:3])
        checks.append(Check("answers", "at least", 1, 0, "requests", reasons))
    for answer in other_apis:
        name, evidence = answer.api.name, f"{answer.path}: {answer.error or 'answered'}"
        checks.append(Check(f"{name} answers", "at least", 1, 0 if answer.error else 1, "requests", evidence))
        limit, proof = thresholds.min_remote_prefill_share, answer.remote_prefill
        if limit is not None and proof is not None and answer.api.remote_prefill:
            checks.append(_remote_prefill(limit, proof, f"{name} remote prefill"))
    return SmokeVerdict(tuple(checks))


def _of_performance(thresholds: SmokeLimits, performance: Performance) -> Iterator[Check]:
    """Yield the checks of failures, latencies and throughput."""
    if thresholds.max_failures is not None:
        reasons = "; ".join(performance.failure_reasons[:3])
        evidence = reasons or f"all {performance.requests} requests answered"
        yield Check("failures", "at most", thresholds.max_failures, performance.failures, "requests", evidence)
    for latency in LATENCIES:
        limit_ms: float | None = getattr(thresholds, f"max_{latency.key}_p95_ms", None)
        statistics: Statistics | None = getattr(performance, latency.key)
        if limit_ms is None:
            continue
        value_ms, evidence = None, "no request gave a sample"
        if statistics and statistics.p95 is not None:
            median_ms, longest_ms = (1000 * (value or 0.0) for value in (statistics.p50, statistics.max))
            value_ms, evidence = 1000 * statistics.p95, f"p50 {median_ms:.1f} ms, max {longest_ms:.1f} ms"
        yield Check(f"{latency.title} p95", "at most", limit_ms, value_ms, "ms", evidence)
    if thresholds.min_output_tokens_per_s is not None:
        evidence = f"{performance.output_tokens} tokens in {performance.duration_s:.1f} s"
        limit, rate = thresholds.min_output_tokens_per_s, performance.output_tokens_per_s
        yield Check("output", "at least", limit, rate, "tokens/s", evidence)


def _remote_prefill(limit: float, remote: RemotePrefill, name: str = "remote prefill") -> Check:
    parties = (
        ("endpoint picker", remote.by_epp),
        ("prefill servers", remote.by_prefill),
        ("decode servers", remote.by_decode),
    )
    shares = ", ".join(f"{party} {'unknown' if share is None else f'{share:.1%}'}" for party, share in parties)
    failed = "unknown" if remote.failed_prefills is None else f"{remote.failed_prefills}"
    unproven = () if remote.proven else ("no server's counters could be read, so nothing is proven",)
    measured = remote.share if remote.proven else None
    evidence = "; ".join((f"{shares}, failed prefills {failed}", *unproven, *remote.notes))
    return Check(name, "at least", limit, measured, "share", evidence)


def _applied(answers: AdapterAnswers) -> Check:
    """Return the check that at least one of an adapter's answers differs from the base model's: otherwise the adapter
    isn't applied or changes nothing.
    """
    evidence = f"{answers.different} of {answers.compared} answers differ from those of the base model"
    if answers.compared == 0:
        evidence = "the base model answers no prompt alike twice, so that nothing can be compared"
    different = None if answers.error or not answers.compared else answers.different
    return Check(f"adapter {answers.name}", "at least", 1, different, "answers", answers.error or evidence)


def accuracy(limit: float, examined: BuiltinResult | None) -> Check:
    """Return the check that at least the share `limit` of answers was right; `examined` is None without an evaluation,
    which fails.
    """
    if examined is None:
        return Check("accuracy", "at least", limit, None, "share", "no question was asked")
    right = f"{examined.answers.count('1')} of {len(examined.answers)} questions answered right"
    wrong = f"; wrong: {'; '.join(examined.examples)}" if examined.score < limit else ""
    return Check("accuracy", "at least", limit, examined.score, "share", right + wrong)


@dataclass(frozen=True)
class PodGroup:
    """Identical pods of one unit of a model (servers behind one router), with the port of their metrics; `scaled` means
    that an autoscaler may change their number.
    """

    unit: str
    role: EndpointRole
    selector: Mapping[str, str]
    metrics_port: int
    scaled: bool = False


@dataclass(frozen=True)
class SmokeRequest:
    """Request for a smoke benchmark of one model, without addresses that are known only when its pods run.

    Attributes:
        namespace: namespace of the model.
        service: Service of the model, which takes requests on port 80.
        model: name of the model in requests.
        topology: servers and routers, for the report.
        input_tokens: length of the prompts.
        output_tokens: length of the answers.
        requests: number of measured requests.
        concurrency: number of requests in flight.
        timeout_s: limit of the whole run in wall time.
        thresholds: limits, in simulated seconds (wall seconds / time scale) for times.
        groups: pods of servers and routers, with the ports of their metrics.
        server_port: port on which each server takes requests, behind its routing sidecar if it has one.
        prefill_header: HTTP header that tells a routing sidecar which prefill server to use.
        other_apis: further APIs of the model.
        evidence: settings for the proof of remote prefill; None if there is nothing to prove.
        questions: parameters of the built-in questions; None without an evaluation.
        adapters: names of the model's adapters.
        facts: further facts for the report.
    """

    namespace: str
    service: str
    model: str
    topology: ReportedTopology
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    timeout_s: float
    thresholds: SmokeLimits
    groups: tuple[PodGroup, ...]
    server_port: int
    prefill_header: str
    other_apis: tuple[OtherApi, ...] = ()
    evidence: EvidenceSettings | None = None
    questions: BuiltinSet | None = None
    adapters: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> str:
        """Return the request as JSON text for `from_json`; equal requests give equal texts."""
        return _adapter().dump_json(self, indent=1).decode()


def from_json(text: str | bytes) -> SmokeRequest:
    """Return the request for a smoke benchmark from the JSON text that `SmokeRequest.to_json` wrote."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[SmokeRequest]:
    return TypeAdapter(SmokeRequest)
