"""Queries of a status to Prometheus: firing alerts, and counters at two times."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import httpx2
from llmd_base.addresses import HttpEndpoint
from llmd_bench.deployment import MetricSample, MetricsEndpoint, Reading, Snapshot

from llmd_oke.catalogue.signatures import signature_metrics
from llmd_oke.operations import prometheus
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.counters import counter_names
from llmd_oke.operations.prometheus import FiringAlert
from llmd_oke.operations.status.load import CounterGrowth
from llmd_oke.operations.status.servers import CountedProgram

RANGES_S = (300.0, 120.0, 60.0)
"""Intervals in seconds over which counters are compared, in the order in which they are tried: ten scrapes of the llm-d
charts' PodMonitor (30 s), or less if Prometheus has no older data of a server.
"""

_HARMLESS = ("none", "info")
"""Severities of alerts that aren't faults, such as kube-prometheus-stack's Watchdog, which always fires."""


@dataclass(frozen=True)
class ActiveAlert:
    """Alert that fires in the stack's Prometheus; `about` is the rule's summary or description, or else the labels,
    `remedy` the URL of its runbook.
    """

    name: str
    severity: str
    about: str
    remedy: str | None
    since: datetime | None


@dataclass(frozen=True)
class PrometheusServer:
    """Prometheus at `url`. The URL of a Service is reached through the API server's proxy.

    `namespace` is the stack's, `decisions` are the names of the counters of its endpoint pickers' decisions.
    """

    url: str
    access: ClusterAccess
    namespace: str
    decisions: tuple[str, ...] = ()

    def alerts(self) -> tuple[ActiveAlert, ...]:
        """Return the firing alerts, without those of harmless severities.

        Raises:
            KitError: the server doesn't answer, or isn't Prometheus.
        """
        with self._client() as http:
            firing = prometheus.alerts(self._way().url, http=http)
        return tuple(_alert(alert) for alert in firing if alert.labels.get("severity") not in _HARMLESS)

    def counters(self, programs: Sequence[CountedProgram]) -> CounterGrowth:
        """Return the counters of programs now, and at the earliest of the times `RANGES_S` ago for which Prometheus has
        data of all programs.

        Raises:
            KitError: the server doesn't answer, or isn't Prometheus.
        """
        after = self._snapshot(programs)
        known = {reading.endpoint.pod for reading in after.readings if reading.series}
        scraped = {reading.endpoint.role for reading in after.readings if reading.series}
        unscraped = tuple(dict.fromkeys(program.role for program in programs if program.role not in scraped))
        before, range_s = after, 0.0
        for range_s in RANGES_S:
            before = self._snapshot(programs, range_s)
            if known <= {reading.endpoint.pod for reading in before.readings if reading.series}:
                break
        source = f"Prometheus over {range_s / 60:.0f} min"
        if range_s != RANGES_S[0]:
            source += ", as it doesn't know all servers for longer"
        return CounterGrowth(before, after, range_s, source, unscraped)

    def _snapshot(self, programs: Sequence[CountedProgram], ago_s: float = 0.0) -> Snapshot:
        offset, unknown = "", "Prometheus has nothing of it"
        if ago_s:
            offset, unknown = f" offset {ago_s:.0f}s", f"Prometheus has known it for less than {ago_s:.0f} s"
        names = "|".join(dict.fromkeys((*counter_names(), *self.decisions, *signature_metrics())))
        promql = f'{{namespace="{self.namespace}",__name__=~"{names}"}}{offset}'
        series: dict[str, dict[str, list[MetricSample]]] = {}
        with self._client() as http:
            for row in prometheus.query(self._way().url, promql, http=http):
                pod, name = row.labels.get("pod", ""), row.labels.get("__name__", "")
                series.setdefault(pod, {}).setdefault(name, []).append(MetricSample(row.labels, row.value))
        readings: list[Reading] = []
        for program in programs:
            endpoint, own = MetricsEndpoint(program.role, program.pod, program.pod), series.get(program.pod)
            if own is None:
                readings.append(Reading(endpoint, error=unknown))
            else:
                readings.append(Reading(endpoint, {name: tuple(samples) for name, samples in own.items()}))
        return Snapshot(tuple(readings))

    def _client(self) -> httpx2.Client:
        way = self._way()
        return httpx2.Client(headers=dict(way.headers), verify=way.verify)

    def _way(self) -> HttpEndpoint:
        path = prometheus.service_path(self.url)
        return HttpEndpoint(self.url.rstrip("/")) if path is None else self.access.api(path)


def _alert(firing: FiringAlert) -> ActiveAlert:
    labels = {name: value for name, value in firing.labels.items() if name not in {"alertname", "severity"}}
    about = firing.annotations.get("summary") or firing.annotations.get("description")
    return ActiveAlert(
        name=firing.labels.get("alertname", "an alert without a name"),
        severity=firing.labels.get("severity", "warning"),
        about=about or ", ".join(f"{name}={value}" for name, value in labels.items()),
        remedy=firing.annotations.get("runbook_url"),
        since=firing.since,
    )
