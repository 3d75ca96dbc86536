"""Plan and checks of flow control in a model's router: priorities of the front door's clients and their queue
limits.
"""

from collections.abc import Iterator
from typing import get_args

from llmd_base.errors import SET, Problem
from llmd_base.records import record
from pydantic.alias_generators import to_camel

from llmd_oke.catalogue.endpoint_pickers import EndpointPickerVersion
from llmd_oke.catalogue.flow_control import Detector, FlowControl, PriorityBand
from llmd_oke.config import ModelConfig, StackConfig
from llmd_oke.config.flow_control import FlowControlConfig

_THRESHOLDS: dict[Detector, tuple[str, ...]] = {
    "utilization": ("queue_depth_threshold", "kv_cache_util_threshold", "metrics_staleness_ms"),
    "concurrency": ("max_concurrency",),
}
"""Keys of `router.flowControl` that only one of the detectors of saturated servers reads, by detector."""


def priorities(config: StackConfig) -> tuple[int, ...]:
    """Return the distinct priorities of the front door's clients other than the default 0, from high to low."""
    given = config.front_door.priorities.values() if config.front_door else ()
    return tuple(sorted({priority for priority in given if priority}, reverse=True))


def flow_control(config: StackConfig, model: ModelConfig) -> FlowControl | None:
    """Return the flow control of a model's router with a queue for each priority; None if `router.flowControl` is left
    out.
    """
    asked = model.router.flow_control
    if asked is None:
        return None
    limits = {band.priority: band for band in asked.priority_bands}
    bands = sorted({0, *priorities(config), *limits}, reverse=True)
    return record(
        FlowControl,
        asked,
        bands=tuple(
            record(PriorityBand, limits[priority]) if priority in limits else PriorityBand(priority)
            for priority in bands
        ),
    )


def holds_back(model: ModelConfig, picker: EndpointPickerVersion) -> bool:
    """Tell whether a model's router queues requests while servers are busy: by `router.flowControl`, or by the endpoint
    picker's config in the stack file.
    """
    own = model.router.config
    return model.router.flow_control is not None or (own is not None and picker.holds_back(own))


def flow_control_problems(
    config: StackConfig, model: ModelConfig, path: str, picker: EndpointPickerVersion
) -> Iterator[Problem]:
    """Yield the problems of a model's flow control, and of a router without flow control whose clients have
    priorities.
    """
    clients = config.front_door is not None and bool(config.front_door.priorities)
    asked, place = model.router.flow_control, f"{path}.router.flowControl"
    if clients and not holds_back(model, picker):
        why = "clients have priorities (frontDoor.priorities), and without it none goes before another"
        yield Problem(place, None, "flow control, {} for upstream's defaults", why)
    if clients and model.router.mode == "gateway":
        why = "clients have priorities (frontDoor.priorities), which a Gateway doesn't know of"
        yield Problem(f"{path}.router.mode", "gateway", "standalone, or no priorities", why)
    if asked is None:
        return
    if model.router.config is not None:
        why = "router.config replaces this key, so that it would have no effect"
        yield Problem(place, SET, "nothing beside router.config", why)
        return
    if picker.flow_control is None:
        why = f"endpoint picker {picker.version} holds no requests back"
        yield Problem(place, SET, "nothing, or another release", why)
        return
    yield from _detector_problems(asked, place)
    yield from _band_problems(config, asked, place)
    planned = flow_control(config, model)
    for key, why in picker.flow_control.refusals(planned).items() if planned else ():
        source = f"endpoint picker {picker.version}: {why} ({picker.flow_control.source})"
        if key == "detector":
            known = " or ".join(picker.flow_control.detectors)
            yield Problem(f"{place}.detector", asked.detector, f"{known}, or a later release", source)
            continue
        for i, band in enumerate(asked.priority_bands):
            if band.max_requests is not None:
                path = f"{place}.priorityBands[{i}].maxRequests"
                yield Problem(path, band.max_requests, "maxMib in its place, or a later release", source)


def _detector_problems(asked: FlowControlConfig, place: str) -> Iterator[Problem]:
    for detector in get_args(Detector):
        for name in _THRESHOLDS[detector] if detector != asked.detector else ():
            if (value := getattr(asked, name)) is not None:
                why = f"the {asked.detector} detector doesn't read it"
                yield Problem(f"{place}.{to_camel(name)}", value, f"nothing, or detector: {detector}", why)
    if asked.detector == "concurrency" and asked.max_concurrency is None:
        accepted = "requests that a server may have under way, such as its engine.maxNumSeqs and a few that wait"
        why = "the concurrency detector goes by nothing else, and its default (100) is of no server in particular"
        yield Problem(f"{place}.maxConcurrency", None, accepted, why)


def _band_problems(config: StackConfig, asked: FlowControlConfig, place: str) -> Iterator[Problem]:
    """Yield a problem for queues of priorities that no client has, and for a second queue of one priority, which makes
    the endpoint picker exit.
    """
    known, seen = {0, *priorities(config)}, set[int]()
    for i, band in enumerate(asked.priority_bands):
        path = f"{place}.priorityBands[{i}].priority"
        if band.priority not in known:
            accepted = ", ".join(str(priority) for priority in sorted(known, reverse=True))
            why = "no client of the front door has this priority (frontDoor.priorities)"
            yield Problem(path, band.priority, f"one of {accepted}", why)
        if band.priority in seen:
            yield Problem(path, band.priority, "one band of each priority", "another band has it")
        seen.add(band.priority)


def priority_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for client priorities without authentication, and for those with a model without router."""
    door = config.front_door
    if door is None or not door.priorities:
        return
    if door.authentication is None:
        why = "without it clients can't be told apart"
        yield Problem("frontDoor.authentication", None, "kind api-keys or jwt, or no priorities", why)
    for i, model in enumerate(config.models):
        if model.router.mode == "none":
            why = "clients have priorities (frontDoor.priorities), and there is nothing that requests would wait in"
            yield Problem(f"models[{i}].router.mode", "none", "standalone, or no priorities", why)
