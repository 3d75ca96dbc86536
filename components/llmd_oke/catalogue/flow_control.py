"""Configuration of an endpoint picker's flow control: requests wait there while servers are saturated, and clients take
turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from llmd_oke.values import Entry

Detector = Literal["utilization", "concurrency"]
"""Signal by which an endpoint picker counts servers as saturated: `utilization`, their own queue and KV cache;
`concurrency`, the requests that the picker has sent to them.
"""

FAIRNESS_KEY, ORDERING_KEY = "fairnessPolicyRef", "orderingPolicyRef"


@dataclass(frozen=True)
class PriorityBand:
    """Queue limits for requests of one priority, in requests and MiB; None for the picker's default."""

    priority: int
    max_requests: int | None = None
    max_mib: int | None = None


@dataclass(frozen=True)
class FlowControl:
    """Flow control of one router.

    Attributes:
        detector: detector of saturated servers.
        request_ttl_s: maximum time in seconds that a request waits.
        bands: queue limits by priority.
        max_concurrency: threshold of requests in flight per server; None for the picker's default, as for the other
            thresholds.
        queue_depth_threshold: threshold of waiting requests of a server.
        kv_cache_util_threshold: threshold of the used share of a server's KV cache.
        metrics_staleness_ms: age of a server's metrics in milliseconds from which the server counts as saturated.
    """

    detector: Detector
    request_ttl_s: int
    bands: tuple[PriorityBand, ...]
    max_concurrency: int | None = None
    queue_depth_threshold: int | None = None
    kv_cache_util_threshold: float | None = None
    metrics_staleness_ms: int | None = None

    def thresholds(self) -> dict[str, JsonValue]:
        """Return the thresholds that are set, as parameters of the detector in the picker's config."""
        stale = self.metrics_staleness_ms
        values: dict[str, JsonValue] = {
            "maxConcurrency": self.max_concurrency,
            "queueDepthThreshold": self.queue_depth_threshold,
            "kvCacheUtilThreshold": self.kv_cache_util_threshold,
            "metricsStalenessThreshold": None if stale is None else f"{stale}ms",
        }
        return {name: value for name, value in values.items() if value is not None}


class FlowControlDialect(Entry):
    """Configuration format of flow control in one version of the endpoint picker.

    Attributes:
        gate: feature gate that turns flow control on.
        detectors: plugin of each detector; None if the version has no such plugin and reads the thresholds directly.
        detector_in: object of the config that contains `saturationDetector`.
        fairness: plugin that lets clients take turns.
        ordering: plugin that orders the requests of one client.
        counts_requests: whether queues can be limited by number of requests, not only by bytes.
        objective_api: version of InferenceObjective in the release's definitions.
        objective_header: HTTP header with the name of the request's InferenceObjective.
        fairness_header: HTTP header with the client whose turn a request counts for.
        source: source of these facts.
    """

    gate: str
    detectors: dict[Detector, str | None]
    detector_in: Literal["config", "flowControl"]
    fairness: str
    ordering: str
    counts_requests: bool
    objective_api: str
    objective_header: str
    fairness_header: str
    source: str

    def gated(self, gates: JsonValue) -> bool:
        """Tell whether the feature gates of an endpoint picker's config turn flow control on."""
        names = [str(gate).partition("=") for gate in gates] if isinstance(gates, list) else []
        return any(name == self.gate and value != "false" for name, _, value in names)

    def refusals(self, asked: FlowControl) -> dict[str, str]:
        """Return the reasons why this version of the endpoint picker doesn't support the flow control `asked`, by the
        key of the stack file's `flowControl`; empty if it does.
        """
        found: dict[str, str] = {}
        if asked.detector not in self.detectors:
            found["detector"] = f"it has no {asked.detector} detector"
        if not self.counts_requests and any(band.max_requests is not None for band in asked.bands):
            found["bands"] = "it bounds bands by bytes alone"
        return found

    def applied(self, config: dict[str, JsonValue], asked: FlowControl) -> dict[str, JsonValue]:
        """Return the config `config` of an endpoint picker with the flow control `asked` added; this version must
        support that flow control.
        """
        plugin, thresholds = self.detectors[asked.detector], asked.thresholds()
        detector: dict[str, JsonValue] = thresholds if plugin is None else {"pluginRef": plugin}
        flow: dict[str, JsonValue] = {
            "defaultRequestTTL": f"{asked.request_ttl_s}s",
            "priorityBands": [self._band(band) for band in asked.bands],
        }
        beside: dict[str, JsonValue] = {}
        if detector:
            (flow if self.detector_in == "flowControl" else beside)["saturationDetector"] = detector
        plugins: list[JsonValue] = [{"type": self.fairness}, {"type": self.ordering}]
        if plugin is not None:
            plugins.append({"type": plugin, **({"parameters": thresholds} if thresholds else {})})
        return {
            **config,
            "featureGates": [*_listed(config.get("featureGates")), self.gate],
            "plugins": [*_listed(config.get("plugins")), *plugins],
            **beside,
            "flowControl": flow,
        }

    def _band(self, band: PriorityBand) -> JsonValue:
        limits: dict[str, JsonValue] = {
            "maxRequests": band.max_requests,
            "maxBytes": None if band.max_mib is None else band.max_mib * 2**20,
        }
        return {
            "priority": band.priority,
            **{name: limit for name, limit in limits.items() if limit is not None},
            FAIRNESS_KEY: self.fairness,
            ORDERING_KEY: self.ordering,
        }


def _listed(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else ()
