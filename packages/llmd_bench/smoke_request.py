"""Request of a smoke benchmark: what it must measure and reach, as plain data that fits a file."""

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
    """Limits in model time; a figure that is None is not judged.

    `min_remote_prefill_share` holds for disaggregated models only, `min_accuracy` is a share of right answers.
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
    """One limit held against what was measured; `value` is None when that was not possible."""

    name: str
    bound: Literal["at most", "at least"]
    limit: float
    value: float | None
    units: str
    evidence: str

    @property
    def passed(self) -> bool:
        """True if the measurement is on the right side of the limit; a missing one never is."""
        if self.value is None:
            return False
        return self.value <= self.limit if self.bound == "at most" else self.value >= self.limit


@dataclass(frozen=True)
class SmokeVerdict:
    """All checks of a run."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
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
    """Hold a run against its thresholds; `remote_prefill` is None for a model that isn't disaggregated, `examined` for
    one that was asked no questions, `stability` where nobody can tell.

    Each of `other_apis` must have answered, with its prompt prefilled remotely where the endpoint picker does that for
    the API, and each of `adapters` otherwise than the model itself. A run without any answer measured nothing and
    passes nothing, whatever the thresholds are; and where servers restarted, what was measured is not the deployment
    that was meant.
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
    """An adapter whose answers are all the base's is loaded and not applied, or changes nothing."""
    evidence = f"{answers.different} of {answers.compared} answers differ from those of the base model"
    if answers.compared == 0:
        evidence = "the base model answers no prompt alike twice, so that nothing can be compared"
    different = None if answers.error or not answers.compared else answers.different
    return Check(f"adapter {answers.name}", "at least", 1, different, "answers", answers.error or evidence)


def accuracy(limit: float, examined: BuiltinResult | None) -> Check:
    """Hold the least share of right answers against what was asked; `examined` is None where nothing was."""
    if examined is None:
        return Check("accuracy", "at least", limit, None, "share", "no question was asked")
    right = f"{examined.answers.count('1')} of {len(examined.answers)} questions answered right"
    wrong = f"; wrong: {'; '.join(examined.examples)}" if examined.score < limit else ""
    return Check("accuracy", "at least", limit, examined.score, "share", right + wrong)


@dataclass(frozen=True)
class PodGroup:
    """Equal pods of one unit, and the port where they show their counters; an autoscaler may change their number."""

    unit: str
    role: EndpointRole
    selector: Mapping[str, str]
    metrics_port: int
    scaled: bool = False


@dataclass(frozen=True)
class SmokeRequest:
    """A smoke benchmark of one model, without anything that is known only when its pods are there.

    `service` takes requests on port 80; `server_port` is where each server, behind its routing sidecar if it has one,
    takes them itself, and `prefill_header` what tells a routing sidecar which prefill server to use. `other_apis`
    are the model's beside the measured one, `adapters` the names of its adapters. `evidence` is None where there is
    nothing to prove, `questions` where answers are not evaluated.
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
        """Return the request as the text of a file; equal requests give equal texts."""
        return _adapter().dump_json(self, indent=1).decode()


def from_json(text: str | bytes) -> SmokeRequest:
    """Read the request that `to_json` wrote."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[SmokeRequest]:
    return TypeAdapter(SmokeRequest)
