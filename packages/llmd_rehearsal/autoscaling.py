"""Scaling by load in a rehearsal: KEDA and the HPA controller, the Prometheus that both query, and the scaling speed.

Windows of minutes would make a rehearsal last for hours, so the scaling speed divides all durations of scaling: those
of ScaledObjects, the ranges of their PromQL queries, the HPA controller's own periods, and the scrape interval.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from llmd_oke.catalogue.releases import CrdFiles
from llmd_oke.catalogue.serving import scaling
from llmd_oke.planning import Plan
from llmd_oke.values import Entry, entry_reader

from llmd_rehearsal.control_plane import NODE_ADDRESS

if TYPE_CHECKING:
    import pulumi

SCALED_OBJECT = "kubernetes:keda.sh/v1alpha1:ScaledObject"

_TIMES = frozenset(
    ("pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "stabilizationWindowSeconds", "periodSeconds")
)
"""Fields of a ScaledObject whose values are durations in seconds."""

_RANGE = re.compile(r"\[(\d+)(ms|s|m|h|d)\]")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = re.compile(r"\bi?rate\((?:[^()]|\([^()]*\))*\)")


class KedaParts(Entry):
    """Content of `values/rehearsal/keda.yaml`: KEDA's definitions and objects for the local cluster, the default
    scaling speed (seconds of scaling for each wall second), and the durations in seconds at speed 1.
    """

    definitions: CrdFiles
    speed: float
    sync_period_s: float
    stabilization_s: float
    scrape_interval_s: float
    objects: tuple[dict[str, Any], ...]


keda_parts = entry_reader("rehearsal", "keda", KedaParts)
"""Return the content of `values/rehearsal/keda.yaml`."""


def is_scaled(plan: Plan) -> bool:
    """Tell whether the number of servers of at least one model follows the load, that is, whether the plan has
    ScaledObjects.
    """
    return any(model.scaling is not None for model in plan.models)


@dataclass(frozen=True)
class ScalingTime:
    """Conversion of the durations of scaling to wall time: `speed` seconds of scaling pass in one wall second.

    `time_scale` is the wall seconds that the simulated servers take for one second of work on real hardware. Prometheus
    measures rates per wall second; multiplied by `time_scale` they are rates per second on real hardware.
    """

    speed: float
    time_scale: float = 1.0

    @property
    def controller_flags(self) -> list[str]:
        """Flags of the controller manager with the HPA controller's durations in wall time: the period between two
        evaluations of a HorizontalPodAutoscaler, and the default scale-down stabilization window.
        """
        parts = keda_parts()
        durations_s = {"sync-period": parts.sync_period_s, "downscale-stabilization": parts.stabilization_s}
        return [f"--horizontal-pod-autoscaler-{name}={time_s / self.speed:g}s" for name, time_s in durations_s.items()]

    @property
    def scrape_interval_s(self) -> float:
        """Wall seconds between two scrapes of a server by Prometheus."""
        return keda_parts().scrape_interval_s / self.speed

    def seconds(self, seconds: float) -> int:
        """Return the wall seconds for a scaling duration in seconds: a whole number, as KEDA and the HPA controller
        require, at least 1; 0 stays 0.
        """
        return max(1, round(seconds / self.speed)) if seconds else 0

    def query(self, query: str) -> str:
        """Return a PromQL query whose ranges are divided by the scaling speed, so that each range covers as many
        scrapes as at speed 1, and whose rates are converted to rates per second on real hardware.
        """
        if self.speed != 1:
            query = _RANGE.sub(lambda match: f"[{self.seconds(int(match[1]) * _SECONDS[match[2]])}s]", query)
        if self.time_scale != 1:
            query = _RATE.sub(lambda match: f"({self.time_scale:g} * {match[0]})", query)
        return query

    def __str__(self) -> str:
        if self.speed == 1:
            return "times of scaling pass as set"
        facts = scaling()
        up, down = (self.seconds(pace.period_s) for pace in (facts.scale_up, facts.scale_down))
        return (
            f"times of scaling are divided by {self.speed:g}, in ScaledObjects too: polling every "
            f"{facts.polling_interval_s} s becomes {self.seconds(facts.polling_interval_s)} s, periods of "
            f"{facts.scale_up.period_s} and {facts.scale_down.period_s} s become {up} and {down} s"
        )


def preinstalled_scaling(plan: Plan) -> list[dict[str, Any]]:
    """Return the objects that a cluster must have before a stack whose servers are scaled by load is deployed: KEDA,
    and, if the stack has no monitoring, the PodMonitors and ServiceMonitors of servers and routers. The list is empty
    for other stacks.
    """
    if not is_scaled(plan):
        return []
    return [*keda_parts().objects, *([] if plan.monitoring else _monitors(plan))]


def _monitors(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the PodMonitors and ServiceMonitors of a stack with monitoring, moved to KEDA's namespace. The stack's own
    namespace doesn't exist before the stack is deployed.
    """
    from llmd_oke.program.models import unit_name  # noqa: PLC0415 - it loads Pulumi, and so does the next import
    from llmd_oke.serving.monitoring import monitoring_manifests  # noqa: PLC0415

    routers = [unit_name(plan, model, unit) for model in plan.models if model.routed for unit in model.units]
    namespace: str = keda_parts().objects[0]["metadata"]["name"]
    for manifest in monitoring_manifests({"namespace": plan.namespace, "routers": routers}):
        if manifest["kind"] in {"PodMonitor", "ServiceMonitor"}:
            yield {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


def rehearsed_spec(spec: Mapping[str, Any], time: ScalingTime) -> dict[str, Any]:
    """Return a ScaledObject's spec adapted to a rehearsal: durations in wall seconds, queries by `ScalingTime.query`,
    and the address of the rehearsal's Prometheus.
    """
    return {key: _rehearsed(key, value, time) for key, value in spec.items()}


def _rehearsed(key: str, value: Any, time: ScalingTime) -> Any:
    if isinstance(value, Mapping):
        return rehearsed_spec(cast("Mapping[str, Any]", value), time)
    if isinstance(value, list):
        return [_rehearsed(key, item, time) for item in cast("list[Any]", value)]
    if key in _TIMES:
        return time.seconds(value)
    if key == "query":
        import pulumi  # noqa: PLC0415 - slow to import, and needed only in Pulumi programs

        return pulumi.Output.from_input(value).apply(time.query)
    if key == "serverAddress":
        return prometheus_address()
    return value


def prometheus_address() -> str:
    """Return the base URL at which pods reach the rehearsal's Prometheus."""
    from llmd_rehearsal.prometheus_operator import PROMETHEUS_PORT  # noqa: PLC0415 - it loads lightkube

    return f"http://{NODE_ADDRESS}:{PROMETHEUS_PORT}"


def rehearse_scaled_objects(time: ScalingTime) -> None:
    """Register a Pulumi stack transformation that adapts each ScaledObject to the rehearsal (`rehearsed_spec`); to be
    called inside a Pulumi program.
    """
    import pulumi  # noqa: PLC0415 - slow to import, and needed only in Pulumi programs

    def transform(args: "pulumi.ResourceTransformationArgs") -> "pulumi.ResourceTransformationResult | None":
        if args.type_ != SCALED_OBJECT:
            return None
        props = cast("dict[str, Any]", args.props)
        spec = rehearsed_spec(props["spec"], time)
        return pulumi.ResourceTransformationResult({**props, "spec": spec}, args.opts)

    pulumi.runtime.register_stack_transformation(transform)
