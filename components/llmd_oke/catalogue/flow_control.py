"""Flow control of endpoint pickers: requests wait there while servers are saturated, and clients take turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from llmd_oke.values import Entry

Detector = Literal["utilization", "concurrency"]
"""What servers are found saturated by: their own queue and KV cache, or requests that the picker has sent."""

FAIRNESS_KEY, ORDERING_KEY = "fairnessPolicyRef", "orderingPolicyRef"


@dataclass(frozen=True)
class PriorityBand:
    """Room for requests of one priority that wait. None is the picker's own limit."""

    priority: int
    max_requests: int | None = None
    max_mib: int | None = None


@dataclass(frozen=True)
class FlowControl:
    """Flow control of one router. `request_ttl_s` is how long a request waits at most; thresholds that are None are the
    picker's own.
    """

    detector: Detector
    request_ttl_s: int
    bands: tuple[PriorityBand, ...]
    max_concurrency: int | None = None
    queue_depth_threshold: int | None = None
    kv_cache_util_threshold: float | None = None
    metrics_staleness_ms: int | None = None

    def thresholds(self) -> dict[str, JsonValue]:
        """The thresholds that are set, as parameters of the detector."""
        stale = self.metrics_staleness_ms
        values: dict[str, JsonValue] = {
            "maxConcurrency": self.max_concurrency,
            "queueDepthThreshold": self.queue_depth_threshold,
            "kvCacheUtilThreshold": self.kv_cache_util_threshold,
            "metricsStalenessThreshold": None if stale is None else f"{stale}ms",
        }
        return {name: value for name, value in values.items() if value is not None}


class FlowControlDialect(Entry):
    """Flow control as a version of the endpoint picker reads it.

    `detectors` are plugins by what they go by; None is no plugin: its thresholds stand in place of a plugin's name.
    `detector_in` is the key of the config with that place, which is below `flowControl` or beside it. Bands are limited
    by bytes, and by requests where it `counts_requests`. `objective_api` is the version of InferenceObjectives that the
    release's definitions have, and the headers are those in which it reads an objective and whose turn is counted.
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
        """Tell whether the feature gates of a config turn flow control on."""
        names = [str(gate).partition("=") for gate in gates] if isinstance(gates, list) else []
        return any(name == self.gate and value != "false" for name, _, value in names)

    def refusals(self, asked: FlowControl) -> dict[str, str]:
        """Explain by the stack file's key what of flow control this version can't do."""
        found: dict[str, str] = {}
        if asked.detector not in self.detectors:
            found["detector"] = f"it has no {asked.detector} detector"
        if not self.counts_requests and any(band.max_requests is not None for band in asked.bands):
            found["bands"] = "it bounds bands by bytes alone"
        return found

    def applied(self, config: dict[str, JsonValue], asked: FlowControl) -> dict[str, JsonValue]:
        """Complete a config of the kit's by flow control that this version can do."""
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
