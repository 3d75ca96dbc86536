"""Proof by metrics that prompts were prefilled remotely.

Counters of three kinds of programs are compared over the same requests:

1. endpoint picker: number of requests for which it chose a prefill server;
2. prefill servers: number of prompt tokens that they computed;
3. decode servers: number of prompt tokens that they received from other servers instead of computing them.

The endpoint picker's counter alone proves nothing: up to v0.8.0 the routing sidecar hands a request to its own decode
server when the prefill server answers with an error other than 4xx, and the client never notices. The share of remote
prefills of a run is therefore the smallest of the three shares.

No routing sidecar counts failed prefills (llm-d-router v0.10.0, pkg/sidecar/proxy). Their number is the number of
requests for which the endpoint picker chose a prefill server, minus the number of prompts that prefill servers
finished. That is correct whether the sidecar falls back to decode, returns the error to the client, or retries and
fails. A prefill that succeeds on a retry doesn't count as failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmd_bench.deployment import Counter, CounterIncrease, Snapshot, change


@dataclass(frozen=True)
class DecisionCounter:
    """Prometheus counter of an endpoint picker's decisions; `remote` has the values of `label` that mean remote
    prefill.
    """

    names: tuple[str, ...]
    label: str
    remote: tuple[str, ...]


@dataclass(frozen=True)
class ServerCounters:
    """Prometheus counters of a model server; `finished` counts requests that were neither aborted nor failed."""

    prompt_tokens: Counter
    requests: Counter
    finished: Counter
    cached_tokens: Counter
    received_tokens: Counter
    transfers: Counter
    transferred_bytes: Counter
    transfer_seconds: Counter
    failed_transfers: Counter


EMULATION = 1.2
"""Highest ratio of the measured rate of KV transfers to `EvidenceSettings.emulated_gb_per_s` at which the transfers
still count as emulated. Chosen by us to exceed the measured spread of emulated transfers, 0.246 to 0.279 GB/s.
"""

VLLM_COUNTERS = ServerCounters(
    prompt_tokens=Counter(("vllm:prompt_tokens_total", "vllm:prompt_tokens")),
    requests=Counter(("vllm:request_success_total", "vllm:request_success")),
    finished=Counter(("vllm:request_success_total", "vllm:request_success"), {"finished_reason": ("stop", "length")}),
    cached_tokens=Counter(("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")),
    received_tokens=Counter(("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_hits")),
    transfers=Counter(("vllm:nixl_xfer_time_seconds_count",)),
    transferred_bytes=Counter(("vllm:nixl_bytes_transferred_sum",)),
    transfer_seconds=Counter(("vllm:nixl_xfer_time_seconds_sum",)),
    failed_transfers=Counter(("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_transfers")),
)
"""Counters of vLLM and of its NIXL connector by their names in Prometheus text (vllm/v1/metrics/loggers.py)."""

DRAFTED_TOKENS = Counter(("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"))
"""Tokens that drafts proposed (vllm/v1/spec_decode/metrics.py); servers without drafts have no such counter."""

ACCEPTED_TOKENS = Counter(("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"))
"""Drafted tokens that the model accepted."""


@dataclass(frozen=True)
class Sent:
    """Numbers of requests and prompt tokens that the client sent between two readings of the counters.

    Attributes:
        requests: number of requests that were answered.
        prompt_tokens: prompt tokens of the answered requests, as counted by the servers.
        attempted: number of all requests, including failed ones, which the servers may have processed.
    """

    requests: int
    prompt_tokens: int
    attempted: int


@dataclass(frozen=True)
class EvidenceSettings:
    """Names of the counters, and properties of a deployment, that are needed to prove that its prompts were prefilled
    remotely.
    """

    decisions: DecisionCounter
    decode_tensor_parallel_size: int = 1
    block_size: int = 16
    """vLLM's `--block-size` in tokens: decode servers may compute up to one block of each prompt themselves."""
    servers: ServerCounters = VLLM_COUNTERS
    emulated_gb_per_s: float | None = None
    """Rate in GB/s (10^9 bytes per second) of KV cache reads that UCX emulates with messages over TCP; None if the
    reads use the RDMA network, whose rate acceptance measures.
    """


@dataclass(frozen=True)
class RemotePrefill:
    """Share of the uncached prompts that prefill servers computed.

    Attributes:
        requests: number of answered requests.
        prompt_tokens: prompt tokens of the answered requests.
        share: smallest of the three known shares; None if none is known.
        by_epp: share by the endpoint picker's counters; None if unknown.
        by_prefill: share by the prefill servers' counters; None if unknown.
        by_decode: share by the decode servers' counters; None if unknown.
        proven: False if no server's counters could be read.
        consistent: False if the counters contradict each other.
        fallback_requests: number of requests with a chosen prefill server whose prompts decode servers computed.
        counters: increases of the counters by description.
        notes: contradictions and limits of the proof in words.
        failed_prefills: number of requests with a chosen prefill server whose prompts no prefill server finished,
            whatever the outcome of the requests; None if unknown.
    """

    requests: int
    prompt_tokens: int
    share: float | None
    by_epp: float | None
    by_prefill: float | None
    by_decode: float | None
    proven: bool
    consistent: bool
    fallback_requests: int
    counters: Mapping[str, CounterIncrease]
    notes: tuple[str, ...]
    failed_prefills: int | None = None


OtherApiName = Literal["chat", "responses"]


@dataclass(frozen=True)
class OtherApi:
    """API of the model, other than the measured one, that gets a single request in a smoke benchmark. `remote_prefill`
    says whether the endpoint picker may send its prompts to prefill servers; None if the model isn't disaggregated.
    """

    name: OtherApiName
    remote_prefill: bool | None = None


@dataclass(frozen=True)
class ApiAnswer:
    """Result of the single request that a smoke benchmark sends to one of the model's other APIs.

    Attributes:
        api: the API.
        path: URL path of the request.
        error: reason why the answer violates the API; None for a valid answer.
        prompt_tokens: length of the prompt in tokens.
        remote_prefill: proof by counters, which simultaneous traffic distorts; None without an answer or if the model
            isn't disaggregated.
    """

    api: OtherApi
    path: str
    error: str | None
    prompt_tokens: int = 0
    remote_prefill: RemotePrefill | None = None

    @property
    def answered(self) -> bool:
        """True if the answer conforms to the API."""
        return self.error is None

    @property
    def sentence(self) -> str:
        """Result of the request in one sentence."""
        if self.error:
            return f"{self.path}: {self.error}"
        if self.remote_prefill is None:
            return f"{self.path}: answered"
        share = self.remote_prefill.share
        where = "nobody's counters say where" if share is None else f"{share:.0%} by prefill servers"
        known = "" if self.api.remote_prefill else "; this release's endpoint picker never disaggregates it"
        return f"{self.path}: answered; prompt of {self.prompt_tokens} tokens computed {where}{known}"


def prove_remote_prefill(before: Snapshot, after: Snapshot, sent: Sent, settings: EvidenceSettings) -> RemotePrefill:
    """Return the share of the client's prompts (`sent`) that prefill servers computed, from the increases of the
    counters between two snapshots. Simultaneous traffic of other clients makes all shares upper bounds, since the
    counters don't say whose prompt was prefilled where.
    """
    counters = _changes(before, after, settings)
    uncached = max(sent.prompt_tokens - (counters["decode cached tokens"].value or 0.0), 0.0)
    decisions, remote = counters["router decisions"], counters["router remote decisions"]
    by_epp = None  # a counter never used isn't shown
    if decisions.read and not decisions.unread:
        decided = min(decisions.value or 0.0, sent.attempted)  # more are others', which may be the local ones
        by_epp = _share(remote.value or 0.0, max(decided, sent.requests))
    by_prefill = _share(counters["prefill prompt tokens"].value, uncached)
    by_decode = _by_decode(sent, counters, uncached, settings)
    servers = [share for share in (by_prefill, by_decode) if share is not None]
    known = [share for share in (by_epp, *servers) if share is not None]
    fallback = max(round((by_epp - min(servers)) * sent.requests), 0) if by_epp is not None and servers else 0
    newcomers = {pod.name for pod in after.servers or ()} - {pod.name for pod in before.servers or ()}
    failed = None if newcomers else _failed_prefills(counters)
    contradictions = _contradictions(sent, counters, fallback, by_prefill, by_decode)
    if failed is not None and failed > fallback:
        contradictions.append(f"{failed} prefills failed: a server was chosen for them and none finished the prompt")
    too_slow, told = _path(before, after, settings)
    contradictions += too_slow
    return RemotePrefill(
        requests=sent.requests,
        prompt_tokens=sent.prompt_tokens,
        share=min(known) if known else None,
        by_epp=by_epp,
        by_prefill=by_prefill,
        by_decode=by_decode,
        proven=bool(servers),
        consistent=not contradictions,
        fallback_requests=fallback,
        counters=counters,
        notes=(*contradictions, *told, *_gaps(counters, settings)),
        failed_prefills=failed,
    )


def _changes(before: Snapshot, after: Snapshot, settings: EvidenceSettings) -> dict[str, CounterIncrease]:
    decisions, servers = settings.decisions, settings.servers
    remote = Counter(decisions.names, {decisions.label: decisions.remote})
    return {
        "router decisions": change(before, after, "router", Counter(decisions.names)),
        "router remote decisions": change(before, after, "router", remote),
        "prefill prompt tokens": change(before, after, "prefill", servers.prompt_tokens),
        "prefill requests": change(before, after, "prefill", servers.requests),
        "prefill finished requests": change(before, after, "prefill", servers.finished),
        "decode prompt tokens": change(before, after, "decode", servers.prompt_tokens),
        "decode cached tokens": change(before, after, "decode", servers.cached_tokens),
        "decode received tokens": change(before, after, "decode", servers.received_tokens),
        "decode transfers": change(before, after, "decode", servers.transfers),
        "decode transferred bytes": change(before, after, "decode", servers.transferred_bytes),
        "decode failed transfers": change(before, after, "decode", servers.failed_transfers),
    }


def _path(before: Snapshot, after: Snapshot, settings: EvidenceSettings) -> tuple[list[str], list[str]]:
    """Return the contradictions and the remarks on the rate of KV transfers; both empty if the RDMA network carries the
    transfers.
    """
    emulated, servers = settings.emulated_gb_per_s, settings.servers
    if emulated is None:
        return [], []
    moved = change(before, after, "decode", servers.transferred_bytes).value
    taken_s = change(before, after, "decode", servers.transfer_seconds).value
    if not moved or not taken_s:
        return [], ["the rate of KV transfers is not known: decode servers count no bytes, or no time"]
    rate = moved / 1e9 / taken_s
    text = f"KV cache was read at {rate:.2g} GB/s, without the RDMA network"
    if rate > EMULATION * emulated:
        return [], [text]
    return [f"{text}: as slow as UCX's software emulation over TCP, about {emulated:g} GB/s"], []


def _by_decode(
    sent: Sent, counters: Mapping[str, CounterIncrease], uncached: float, settings: EvidenceSettings
) -> float | None:
    received = counters["decode received tokens"].value
    if received is not None:
        within_a_block = uncached - received < settings.block_size * sent.requests
        return 1.0 if uncached and received and within_a_block else _share(received, uncached)
    return _share(counters["decode transfers"].value, sent.requests * settings.decode_tensor_parallel_size)


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else min(max(part / whole, 0.0), 1.0)


def _failed_prefills(counters: Mapping[str, CounterIncrease]) -> int | None:
    """Return the number of failed prefills; None if a program's counters couldn't be read or were reset by a restart
    between the snapshots.
    """
    chosen, finished = counters["router remote decisions"], counters["prefill finished requests"]
    whole = chosen.read and not any(counter.unread or counter.restarted for counter in (chosen, finished))
    if not whole or finished.value is None:
        return None
    return max(round((chosen.value or 0.0) - finished.value), 0)


def _contradictions(
    sent: Sent,
    counters: Mapping[str, CounterIncrease],
    fallback: int,
    by_prefill: float | None,
    by_decode: float | None,
) -> list[str]:
    contradictions: list[str] = []
    if fallback:
        cause = f", which took only {by_decode:.1%} over from prefill servers" if by_decode is not None else ""
        if by_decode is None or (by_prefill is not None and by_prefill <= by_decode):
            cause = f": prefill servers account for {by_prefill:.1%} only"
        contradictions.append(
            f"silent fallback: the endpoint picker chose a prefill server, but {fallback} of {sent.requests} prompts "
            f"were computed by decode servers{cause}"
        )
    decisions = counters["router decisions"].value
    if decisions is not None and decisions > sent.attempted:
        contradictions.append(
            f"other traffic: the endpoint picker decided {decisions:.0f} times for {sent.attempted} requests of ours, "
            "so that all shares are upper bounds"
        )
    computed = counters["prefill prompt tokens"].value
    if computed is not None and sent.requests == sent.attempted and computed > 1.05 * sent.prompt_tokens:
        contradictions.append(
            f"other traffic: prefill servers computed {computed:.0f} tokens of {sent.prompt_tokens} that we sent"
        )
    if counters["decode failed transfers"].value:
        contradictions.append(f"{counters['decode failed transfers'].value:.0f} KV transfers failed on decode servers")
    if counters["decode received tokens"].value and counters["decode transfers"].value == 0:
        contradictions.append("decode servers counted remote prompt tokens but no KV transfer")
    return contradictions


def _gaps(counters: Mapping[str, CounterIncrease], settings: EvidenceSettings) -> list[str]:
    """Return the limits of the proof: programs that could not be read, counters that are missing, restarts."""
    notes: list[str] = []
    unread = sorted({pod for counter in counters.values() for pod in counter.unread})
    restarted = sorted({pod for counter in counters.values() for pod in counter.restarted})
    if unread:
        notes.append(f"metrics could not be read: {', '.join(unread)}")
    if restarted:
        notes.append(f"restarted during the run, so that counters are lower bounds: {', '.join(restarted)}")
    decisions = counters["router decisions"]
    if decisions.read and decisions.after is None:
        notes.append(
            f"the endpoint picker shows none of {', '.join(settings.decisions.names)} (no decision, or another release)"
        )
    if counters["decode received tokens"].value is None and counters["decode transfers"].value is not None:
        notes.append("decode servers don't count received tokens; their share is transfers per tensor-parallel rank")
    return notes


@dataclass(frozen=True)
class AdapterAnswers:
    """Comparison of an adapter's answers with the base model's.

    Attributes:
        name: name of the adapter in requests.
        compared: number of prompts to which the base model gave the same answer twice.
        different: number of those prompts to which the adapter answered differently.
        error: reason why there is no comparison; None if there is one.
    """

    name: str
    compared: int = 0
    different: int = 0
    error: str | None = None
