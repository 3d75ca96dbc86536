"""ScaledObjects as a rehearsal's program declares them: with the times of its scaling, and its own Prometheus."""

from collections.abc import Mapping
from typing import Any, cast

import pulumi

from llmd_rehearsal.autoscaling import ScalingTime
from llmd_rehearsal.control_plane import NODE_ADDRESS
from llmd_rehearsal.prometheus_operator import PROMETHEUS_PORT

SCALED_OBJECT = "kubernetes:keda.sh/v1alpha1:ScaledObject"
PROMETHEUS = f"http://{NODE_ADDRESS}:{PROMETHEUS_PORT}"
"""Where pods reach the rehearsal's Prometheus."""

_TIMES = frozenset(
    ("pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "stabilizationWindowSeconds", "periodSeconds")
)
"""Fields of a ScaledObject that are seconds."""


def rehearsed_spec(spec: Mapping[str, Any], time: ScalingTime) -> dict[str, Any]:
    """A ScaledObject's spec with times as they pass in a rehearsal, and the rehearsal's Prometheus."""
    return {key: _rehearsed(key, value, time) for key, value in spec.items()}


def _rehearsed(key: str, value: Any, time: ScalingTime) -> Any:
    if isinstance(value, Mapping):
        return rehearsed_spec(cast("Mapping[str, Any]", value), time)
    if isinstance(value, list):
        return [_rehearsed(key, item, time) for item in cast("list[Any]", value)]
    if key in _TIMES:
        return time.seconds(value)
    if key == "query":
        return pulumi.Output.from_input(value).apply(time.query)
    if key == "serverAddress":
        return PROMETHEUS
    return value


def rehearse_scaled_objects(time: ScalingTime) -> None:
    """Has this program declare ScaledObjects with the times of a rehearsal. To be called inside a Pulumi program."""

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ != SCALED_OBJECT:
            return None
        props = cast("dict[str, Any]", args.props)
        spec = rehearsed_spec(props["spec"], time)
        return pulumi.ResourceTransformationResult({**props, "spec": spec}, args.opts)

    pulumi.runtime.register_stack_transformation(transform)
