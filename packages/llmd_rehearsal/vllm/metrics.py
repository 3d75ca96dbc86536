"""vLLM's metrics in Prometheus text.

Each endpoint picker scrapes each server every 50 ms; therefore the constant text is built once, with `%` placeholders
for the numbers. Durations are model seconds.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from llmd_rehearsal.vllm.clocks import Lag
from llmd_rehearsal.vllm.sequences import Finish

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAMILY, _NEW_LINE = "# HELP ", "\n"

# attribute of ServerMetrics, name, type, help; in this order in the text
_ENGINE = (
    ("running", "vllm:num_requests_running", "gauge", "Number of requests in model execution batches."),
    ("waiting", "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    ("cache_usage", "vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    ("preemptions", "vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine."),
    ("prefix_queries", "vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in queried tokens."),
    ("prefix_hits", "vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in cached tokens."),
    ("prompt_tokens", "vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed."),
    ("generation_tokens", "vllm:generation_tokens_total", "counter", "Number of generation tokens processed."),
    ("external_queries", "vllm:external_prefix_cache_queries_total", "counter", "External cache queries, in tokens."),
    ("external_hits", "vllm:external_prefix_cache_hits_total", "counter", "External cache hits, in cached tokens."),
)
_CONNECTOR = (
    ("failed_transfers", "vllm:nixl_num_failed_transfers_total", "counter", "Number of failed NIXL transfers."),
    ("failed_notifications", "vllm:nixl_num_failed_notifications_total", "counter", "Number of failed notifications."),
    ("expired_transfers", "vllm:nixl_num_kv_expired_reqs_total", "counter", "Requests that had their KV expire."),
)
_HOST_MEMORY = (
    ("loaded_bytes", "vllm:kv_offload_load_bytes_total", "counter", "Total bytes loaded from offload storage to GPU."),
    ("stored_bytes", "vllm:kv_offload_store_bytes_total", "counter", "Total bytes stored from GPU to offload storage."),
)
_FILES = (
    ("read_bytes", "vllm:kv_offload_tiering_read_bytes_total", "counter", "Total bytes read from further tiers."),
    (
        "written_bytes",
        "vllm:kv_offload_tiering_write_bytes_total",
        "counter",
        "Total bytes written to further tiers.",
    ),
)
_DRAFTS = (
    ("drafts", "vllm:spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts."),
    ("drafted_tokens", "vllm:spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens."),
    ("accepted_tokens", "vllm:spec_decode_num_accepted_tokens_total", "counter", "Number of accepted tokens."),
)
_ADAPTERS = (
    ("requests", "llmd_oke_simulator_adapter_requests_total", "counter", "Requests admitted for a LoRA adapter."),
    ("loads", "llmd_oke_simulator_adapter_loads_total", "counter", "Of those, adapters that had to be loaded."),
)
_LAG = (
    ("recent_s", "llmd_oke_simulator_lag_seconds", "gauge", "Greatest lateness of the last seconds, wall time."),
    ("steps", "llmd_oke_simulator_steps_total", "counter", "Engine steps of the whole process."),
    ("late_steps", "llmd_oke_simulator_late_steps_total", "counter", "Engine steps more than 10 ms late."),
    ("slipped_s", "llmd_oke_simulator_slipped_seconds_total", "counter", "Wall time given up after lags over 1 s."),
)

# Buckets of vllm/v1/metrics/loggers.py and of the NIXL connector's metrics; seconds and bytes.
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(step * 10**power) for power in range(5) for step in (1, 2, 5))
"""Bucket bounds of token counts, up to 50,000; vLLM's go up to its `--max-model-len`."""
_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_TRANSFER_BYTES = tuple(float(2 ** (10 + power)) for power in range(1, 25, 2))


class Histogram:
    """Prometheus histogram, whose text is rebuilt only after an observation."""

    def __init__(self, name: str, labels: str, help_: str, bounds: Sequence[float]) -> None:
        self.total = 0.0
        self.count = 0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._head = f"# HELP {name} {help_}\n# TYPE {name} histogram\n"
        self._lines = [f'{name}_bucket{{{labels},le="{bound}"}} ' for bound in (*bounds, "+Inf")]
        self._tail = (f"{name}_sum{{{labels}}} ", f"{name}_count{{{labels}}} ")
        self._text: str | None = None

    def observe(self, value: float, times: int = 1) -> None:
        """Record the same value `times` times in the histogram."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times
        self.count += times
        self._text = None

    def text(self) -> str:
        """Return the histogram in Prometheus' text format."""
        if self._text is None:
            parts, cumulative = [self._head], 0
            for line, count in zip(self._lines, self._counts, strict=True):
                cumulative += count
                parts.append(f"{line}{cumulative}.0\n")
            parts.append(f"{self._tail[0]}{self.total}\n{self._tail[1]}{self.count}.0\n")
            self._text = "".join(parts)
        return self._text


class AdapterMetrics:
    """Metrics of a server's LoRA adapters: `vllm:lora_requests_info`, and counters of the simulator's own.

    As in vLLM (v1/metrics/stats.py, v1/metrics/loggers.py, v1/core/sched/scheduler.py; alike in 0.26 and 0.30), an
    adapter is listed from the first token of a request for it until no request for it is left, both as running and as
    waiting, in the order in which adapters came. Each combination of listed adapters is a series that is never removed;
    its value is the time at which the combination was last listed. All ranks of a server write into the same series.

    Attributes:
        requests: number of admitted requests for an adapter.
        loads: number of those whose adapter had to be loaded into a slot of the GPU.
    """

    def __init__(self, slots: int, now: Callable[[], float] = time.time) -> None:
        self.requests = 0
        self.loads = 0
        self._slots, self._now = slots, now
        self._listed = Counter[str]()
        self._last_s: dict[str, float] = {}

    def begin(self, adapter: str) -> None:
        """List in `vllm:lora_requests_info` the adapter of a request that got its first token."""
        self._listed[adapter] += 1

    def end(self, adapter: str) -> None:
        """List an adapter no longer if no other request for it is under way."""
        self._listed[adapter] -= 1
        if not self._listed[adapter]:
            del self._listed[adapter]

    def record(self) -> None:
        """Set the series of the listed adapters to the present time, after a step of an engine."""
        self._last_s[",".join(self._listed)] = self._now()

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        name = "vllm:lora_requests_info"
        label_sets = {
            f'max_lora="{self._slots}",running_lora_adapters="{names}",waiting_lora_adapters="{names}"': last_s
            for names, last_s in self._last_s.items()
        }
        samples = "".join(f"{name}{{{labels}}} {last_s}\n" for labels, last_s in label_sets.items())
        head = f"# HELP {name} Running stats on lora requests.\n# TYPE {name} gauge\n"
        return f"{head}{samples}{_template(_ADAPTERS, '') % _values(self, _ADAPTERS)}"


class ServerMetrics:
    """Metrics of one simulated engine, which is the whole server or one data parallel rank. Its number attributes are
    the values of gauges and counters.

    The simulator's own metrics, about `lag`, are part of the first rank's, and so are those of the server's `adapters`,
    None without LoRA adapters. `host_block_bytes` is the size in bytes of a KV block in the node's memory, 0 without
    blocks there, and `files` tells whether its disks have blocks too; `drafted` is the number of tokens that a draft
    proposes in a step, 0 without drafts.
    """

    def __init__(
        self,
        model_name: str,
        cache_config: Mapping[str, object],
        *,
        connector: bool,
        lag: Lag,
        rank: int = 0,
        host_block_bytes: float = 0.0,
        files: bool = False,
        drafted: int = 0,
        adapters: AdapterMetrics | None = None,
    ) -> None:
        labels = f'engine="{rank}",model_name="{model_name}"'
        self.running = 0
        self.waiting = 0
        self.cache_usage = 0.0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.external_queries = 0
        self.external_hits = 0
        self.failed_transfers = 0
        self.failed_notifications = 0
        self.expired_transfers = 0
        self.loaded_blocks = 0
        self.stored_blocks = 0
        self.read_blocks = 0
        self.written_blocks = 0
        self.drafts = 0
        self.accepted_tokens = 0
        self.adapters = adapters
        self._accepted_by_position = [0] * drafted
        self._host_block_bytes = host_block_bytes
        self.finished: dict[str, int] = dict.fromkeys(Finish, 0)
        self._lag = lag if rank == 0 else None
        self._connector = connector
        self._add_histograms(labels)
        name = "vllm:cache_config_info"
        facts = ",".join(f'{key}="{value}"' for key, value in cache_config.items())
        head = f"# HELP {name} Information of the LLMEngine CacheConfig\n# TYPE {name} gauge\n"
        cache_text = f'{head}{name}{{{facts},engine="{rank}"}} 1.0\n'.replace("%", "%%")
        name = "vllm:request_success_total"
        finished = [
            f"# HELP {name} Count of successfully processed requests.\n# TYPE {name} counter\n",
            *(f'{name}{{{labels},finished_reason="{reason}"}} %d.0\n' for reason in Finish),
        ]
        self._head = cache_text + _template(_ENGINE, labels) + "".join(finished)
        self._connector_template, self._lag_template = _template(_CONNECTOR, labels), _template(_LAG, labels)
        self._host_template = _template(_HOST_MEMORY, labels)
        self._files_template = _template(_FILES, f'{labels},tier="fs"') if files else ""
        self._drafts_template = _drafts_template(labels, drafted) if drafted else ""

    @property
    def loaded_bytes(self) -> float:
        """Bytes of KV cache that the server loaded from the node's memory."""
        return self.loaded_blocks * self._host_block_bytes

    @property
    def read_bytes(self) -> float:
        """Bytes of KV cache that the server read from files into the node's memory."""
        return self.read_blocks * self._host_block_bytes

    @property
    def written_bytes(self) -> float:
        """Bytes of KV cache that the server wrote to files."""
        return self.written_blocks * self._host_block_bytes

    @property
    def stored_bytes(self) -> float:
        """Bytes of KV cache that the server wrote to the node's memory."""
        return self.stored_blocks * self._host_block_bytes

    @property
    def drafted_tokens(self) -> int:
        """Number of tokens of all speculative drafts that were checked."""
        return self.drafts * len(self._accepted_by_position)

    def count_draft(self, accepted: int) -> None:
        """Count a speculative draft that was checked, of whose tokens the first `accepted` ones were accepted."""
        self.drafts += 1
        self.accepted_tokens += accepted
        for position in range(accepted):
            self._accepted_by_position[position] += 1

    def text(self) -> str:
        """Return all metrics of the engine in Prometheus' text format."""
        parts = [self._head % (*_values(self, _ENGINE), *self.finished.values())]
        parts += [histogram.text() for histogram in self._always]
        if self._connector:
            parts.append(self._connector_template % _values(self, _CONNECTOR))
            parts += [self.transfer.text(), self.transferred.text()]
        if self._host_block_bytes:
            parts.append(self._host_template % _values(self, _HOST_MEMORY))
        if self._files_template:
            parts.append(self._files_template % _values(self, _FILES))
        if self._drafts_template:
            counts = (float(count) for count in self._accepted_by_position)
            parts.append(self._drafts_template % (*_values(self, _DRAFTS), *counts))
        if self._lag is not None:
            if self.adapters is not None:
                parts.append(self.adapters.text())
            parts.append(self._lag_template % _values(self._lag, _LAG))
        return "".join(parts)

    def _add_histograms(self, labels: str) -> None:
        def histogram(name: str, help_: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", labels, f"Histogram of {help_}.", bounds)

        self.first_token = histogram("time_to_first_token_seconds", "time to first token in seconds", _FIRST_TOKEN_S)
        self.between_tokens = histogram(
            "inter_token_latency_seconds", "inter-token latency in seconds", _BETWEEN_TOKENS_S
        )
        self.whole = histogram("e2e_request_latency_seconds", "e2e request latency in seconds", _REQUEST_S)
        self.per_token = histogram(
            "request_time_per_output_token_seconds",
            "time_per_output_token_seconds per request",
            _BETWEEN_TOKENS_S,
        )
        self.inference = histogram(
            "request_inference_time_seconds", "time spent in RUNNING phase for request", _REQUEST_S
        )
        self.queue = histogram("request_queue_time_seconds", "time spent in WAITING phase for request", _REQUEST_S)
        self.prefill = histogram("request_prefill_time_seconds", "time spent in PREFILL phase for request", _REQUEST_S)
        self.decode = histogram("request_decode_time_seconds", "time spent in DECODE phase for request", _REQUEST_S)
        self.prompt_length = histogram("request_prompt_tokens", "number of prefill tokens processed", _TOKENS)
        self.output_length = histogram("request_generation_tokens", "generation tokens processed", _TOKENS)
        self.transfer = histogram("nixl_xfer_time_seconds", "NIXL transfer duration", _TRANSFER_S)
        self.transferred = histogram("nixl_bytes_transferred", "bytes per NIXL transfer", _TRANSFER_BYTES)
        tokens = (self.first_token, self.between_tokens, self.per_token, self.prompt_length, self.output_length)
        self._always = (*tokens, self.whole, self.queue, self.inference, self.prefill, self.decode)


def text_of_ranks(ranks: Sequence[ServerMetrics]) -> str:
    """Return the metrics of all of a server's data parallel ranks in Prometheus' text format, grouped by metric, the
    first rank first.
    """
    if len(ranks) == 1:
        return ranks[0].text()
    families = zip_longest(*(metrics.text().split(_FAMILY)[1:] for metrics in ranks), fillvalue="\n\n")
    return "".join(
        f"{_FAMILY}{first}{''.join(text.split(_NEW_LINE, 2)[2] for text in others)}" for first, *others in families
    )


def _values(holder: object, rows: Sequence[tuple[str, str, str, str]]) -> tuple[float, ...]:
    return tuple(float(getattr(holder, attribute)) for attribute, *_ in rows)


def _template(rows: Sequence[tuple[str, str, str, str]], labels: str) -> str:
    return "".join(
        f"# HELP {name} {help_}\n# TYPE {name} {kind}\n{name}{{{labels}}} %r\n" for _, name, kind, help_ in rows
    )


def _drafts_template(labels: str, drafted: int) -> str:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines = "".join(f'{name}{{{labels},position="{position}"}} %r\n' for position in range(drafted))
    return (
        f"{_template(_DRAFTS, labels)}# HELP {name} Accepted tokens per draft position.\n# TYPE {name} counter\n{lines}"
    )
