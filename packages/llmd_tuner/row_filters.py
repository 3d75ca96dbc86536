"""Filters of measured rows: impossible rows and those of another operating range are rejected, doubtful
ones flagged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from llmd_base.row import Row
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.catalogue.latency_figures import bound_figures
from llmd_oke.config import Topology
from llmd_oke.config.engine import DEFAULT_ENGINE
from llmd_oke.planning.planned_model import memory
from llmd_oke.values import Entry, entry_reader

from llmd_tuner.latency import LatencyModel, ideal, least_step_s
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.measurements import decode_points, parallelism_of, requests_per_s

RowVerdict = Literal["rejected", "flagged"]


class Rule(StrEnum):
    """Rules by which measured rows are checked, such as a prefix cache that answered prompts."""

    HARDWARE_BOUND = "above the hardware's bound"
    PREFIX_CACHE = "prefix cache hits"
    MAX_NUM_SEQS = "concurrency above max_num_seqs"
    KEY_VALUE_CACHE = "concurrency above the KV cache"
    WAVES = "too few waves"
    ACHIEVED = "achieved below offered"
    RESERVED = "GPUs reserved but not counted"
    FILL = "filling of the KV cache counted as decode"
    FAILURES = "failed requests"
    DRAFTS = "tokens of drafts"


@dataclass(frozen=True)
class RowFinding:
    """Violation of a rule by a row. A flagged row is still used, a rejected one is not."""

    row: Row
    rule: Rule
    verdict: RowVerdict
    why: str

    def __str__(self) -> str:
        return f"{place(self.row)}: {self.verdict}, {self.rule}: {self.why}"


@dataclass(frozen=True)
class RowLimits:
    """Limits for measured rows of one model on one GPU product. `key_value_tokens` is the number of tokens that a
    server's KV cache holds over all its ranks.
    """

    model: LatencyModel | None = None
    key_value_tokens: Mapping[Parallelism, int] = field(default_factory=dict[Parallelism, int])


@dataclass(frozen=True)
class Inspection:
    """Result of filtering: the rows that may be used, and all violations of rules."""

    accepted: tuple[Row, ...]
    findings: tuple[RowFinding, ...]

    @property
    def rejected(self) -> tuple[RowFinding, ...]:
        """Violations of rules for which rows are rejected."""
        return tuple(finding for finding in self.findings if finding.verdict == "rejected")


class FilterThresholds(Entry):
    """Content of `values/tuning/row-filters.yaml`: the thresholds beyond which a row is flagged or rejected."""

    prefix_cache_flagged_share: float
    prefix_cache_rejected_share: float
    fewest_waves: float
    achieved_share: float
    failed_share: float
    fill_share: float
    long_prompt_tokens: int


thresholds = entry_reader("tuning", "row-filters", FilterThresholds)
"""Return the thresholds beyond which a measured row is flagged or rejected, from
`values/tuning/row-filters.yaml`.
"""


def inspect(rows: Iterable[Row], limits: RowLimits) -> Inspection:
    """Check each measured row against every rule, with limits for the rows' model and GPU."""
    accepted: list[Row] = []
    findings: list[RowFinding] = []
    for row in rows:
        own = [finding for rule in _RULES for finding in rule(row, limits)]
        findings += own
        if all(finding.verdict == "flagged" for finding in own):
            accepted.append(row)
    return Inspection(tuple(accepted), tuple(findings))


def place(row: Row) -> str:
    """Return, for messages, the file and line that a row was read from; without a file, its servers and load."""
    if row.origin.file:
        return row.origin.file if row.origin.line is None else f"{row.origin.file}:{row.origin.line}"
    spread = parallelism_of(row)
    size = f" {spread.kind.upper()}" if spread else ""
    load = f" concurrency {row.concurrency:g}" if row.concurrency else ""
    return f"{row.subject}{size}{load}"


def _hardware_bound(row: Row, limits: RowLimits) -> Iterator[RowFinding]:
    spread = parallelism_of(row)
    if limits.model is None or spread is None:
        return
    rate = requests_per_s(row)
    if row.subject == "prefill" and rate is not None:
        tokens_per_s = rate * row.input_tokens
        # At the peak rate of the GPUs' matrix units, with nothing else to do; ranks compute prompts side by side.
        prompt = round(row.input_tokens)
        most = prompt * spread.data_parallel_size / ideal(limits.model).server(spread).prefill_s(prompt)
        if tokens_per_s > most:
            why = f"{tokens_per_s:,.0f} prompt tokens/s, at most {most:,.0f} can be computed: a cache answered"
            yield RowFinding(row, Rule.HARDWARE_BOUND, "rejected", why)
    for point in decode_points([row]):
        least_s = least_step_s(limits.model, point.sequences, point.tokens, spread)
        if point.seconds < least_s:
            why = f"a step of {point.seconds * 1000:.2f} ms; reading the weights alone takes {least_s * 1000:.2f} ms"
            yield RowFinding(row, Rule.HARDWARE_BOUND, "rejected", why)


def _prefix_cache(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    share = row.prefix_cache_hit_share or 0.0
    if share > thresholds().prefix_cache_flagged_share:
        verdict: RowVerdict = "rejected" if share > thresholds().prefix_cache_rejected_share else "flagged"
        used = "" if verdict == "rejected" else "; a fit takes them out of the rate"
        yield RowFinding(row, Rule.PREFIX_CACHE, verdict, f"{share:.0%} of the prompts were cached{used}")


def _drafts(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    if row.draft_tokens and row.subject != "prefill":
        why = f"servers drafted {row.draft_tokens} tokens at each step, which gives more than one token"
        yield RowFinding(row, Rule.DRAFTS, "rejected", why)


def _max_num_seqs(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    if not row.concurrency or not row.max_num_seqs or row.subject == "prefill":
        return
    servers = Topology.model_validate(row.topology).servers() if row.topology else {}
    ranks = [part.replicas * part.data_parallel_size for role, part in servers.items() if role != "prefill"]
    alone = parallelism_of(row)
    generating = sum(ranks) if ranks else alone.data_parallel_size if alone else 1
    most = row.max_num_seqs * row.copies * generating  # each rank has its own limit
    if row.concurrency > most:
        why = f"{row.concurrency:g} in flight, {most} at a time: the rest waited"
        yield RowFinding(row, Rule.MAX_NUM_SEQS, "rejected" if row.subject == "decode" else "flagged", why)


def _key_value_cache(row: Row, limits: RowLimits) -> Iterator[RowFinding]:
    spread = parallelism_of(row)
    tokens = limits.key_value_tokens.get(spread) if spread else None
    if tokens is None or not row.concurrency or row.subject != "decode":
        return
    fit = int(tokens / (row.input_tokens + row.output_tokens))
    if row.concurrency > fit:
        why = f"{row.concurrency:g} in flight, {fit} fit the KV cache: the rest waited or was preempted"
        yield RowFinding(row, Rule.KEY_VALUE_CACHE, "rejected", why)


def _waves(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    if row.arrival != "closed" or not row.requests or not row.concurrency:
        return
    waves = row.requests / row.concurrency
    if waves < thresholds().fewest_waves:
        why = f"{row.requests} requests, {row.concurrency:g} in flight: {waves:.1f} waves"
        yield RowFinding(row, Rule.WAVES, "flagged", f"{why}, of which filling and draining are a large part")


def _achieved(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    achieved, offered = row.achieved_requests_per_s, row.offered_requests_per_s
    if achieved and offered and achieved < thresholds().achieved_share * offered:
        why = f"{achieved:.2f} of {offered:.2f} requests/s ({achieved / offered:.0%}): not a steady state"
        yield RowFinding(row, Rule.ACHIEVED, "flagged", why)


def _reserved(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    if row.gpus_reserved and row.gpus_reserved != row.gpus_counted:
        why = f"{row.gpus_reserved} GPUs are held, rates are for {row.gpus_counted}"
        yield RowFinding(row, Rule.RESERVED, "flagged", why)


def _fill(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    if row.subject != "decode" or not row.concurrency or not row.output_tokens_per_s:
        return
    if not row.tpot_ms.mean:
        if row.input_tokens >= thresholds().long_prompt_tokens:
            why = "the row has no TPOT, so that filling the cache can't be told from decoding"
            yield RowFinding(row, Rule.FILL, "flagged", why)
        return
    stepping = row.concurrency * 1000 / row.tpot_ms.mean
    if row.output_tokens_per_s < (1 - thresholds().fill_share) * stepping:
        why = f"{row.output_tokens_per_s:,.0f} tokens/s, {stepping:,.0f} by TPOT, which a fit goes by"
        yield RowFinding(row, Rule.FILL, "flagged", why)


def _failures(row: Row, _limits: RowLimits) -> Iterator[RowFinding]:
    if row.failures and row.failures > thresholds().failed_share * (row.requests or row.failures):
        yield RowFinding(row, Rule.FAILURES, "rejected", f"{row.failures} of {row.requests or row.failures} failed")


_RULES: Sequence[Callable[[Row, RowLimits], Iterator[RowFinding]]] = (
    _hardware_bound,
    _prefix_cache,
    _drafts,
    _max_num_seqs,
    _key_value_cache,
    _waves,
    _achieved,
    _reserved,
    _fill,
    _failures,
)


def inspect_by_model(rows: list[Row]) -> Inspection:
    """Check rows of several models and GPUs against every rule, with the limits of each row's own model and GPU."""
    accepted: list[Row] = []
    findings: list[RowFinding] = []
    for key in dict.fromkeys((row.model, row.gpu) for row in rows):
        own = [row for row in rows if (row.model, row.gpu) == key]
        inspection = inspect(own, _limits(*key, {spread for row in own if (spread := parallelism_of(row))}))
        accepted += inspection.accepted
        findings += inspection.findings
    return Inspection(tuple(accepted), tuple(findings))


def _limits(name: str, gpu: str, spreads: Iterable[Parallelism]) -> RowLimits:
    """Return the limits of a model on a GPU, with the room of servers of these spreads; none where the catalogue lacks
    either.
    """
    model = catalogue.model(name) or catalogue.model_of_repository(name)
    node = catalogue.node_of_gpu(gpu)
    if model is None or node is None:
        return RowLimits()
    share = DEFAULT_ENGINE.gpu_memory_utilization
    room = {spread: memory(model, node, spread, share).key_value_tokens for spread in spreads}
    return RowLimits(latency_model_of(bound_figures(model, node.gpu), model, node), room)
