"""Labels of everything that serves a model, and the selectors made of them."""

from llmd_oke.objects import PART_OF

MODEL = "llmd-oke/model"
UNIT = "llmd-oke/unit"
VERSION = "llmd-oke/version"
ROUTED = "llmd-oke/router"
FRONT_DOOR = "llmd-oke/front-door"
TENSOR_PARALLEL_SIZE = "llmd-oke/tensor-parallel-size"
DATA_PARALLEL_SIZE = "llmd-oke/data-parallel-size"
"""Of servers with more than one rank."""

CANARY = "llmd-oke/canary"
"""Of the pods that ask a model's servers known prompts: the model's name."""

SERVING = "llm-d.ai/inference-serving"
ROLE = "llm-d.ai/role"
"""The endpoint picker's filters go by this one (llm-d-inference-scheduler, pkg/plugins/filter)."""

_ROLE_VALUES = {"prefill": "prefill", "decode": "decode", "aggregated": "prefill-decode"}


def model_selector(model: str) -> dict[str, str]:
    """Select all servers of a model, whatever their unit and role."""
    return {SERVING: "true", MODEL: model}


def unit_selector(unit: str, version: str | None = None) -> dict[str, str]:
    """Select the model servers of a unit, whatever their role: those of one version, or all."""
    chosen = {SERVING: "true", UNIT: unit}
    return chosen if version is None else {**chosen, VERSION: version}


def role_selector(unit: str, role: str) -> dict[str, str]:
    """Select the model servers of one role of a unit; a Deployment's selector, so it must never change."""
    return {**unit_selector(unit), ROLE: _ROLE_VALUES[role]}


def model_server(model: str, unit: str, role: str) -> dict[str, str]:
    """All labels of a model server but those of its version and size."""
    return {**PART_OF, "app.kubernetes.io/name": model, MODEL: model, **role_selector(unit, role)}


def router(model: str, unit: str) -> dict[str, str]:
    """Labels that a router's pods carry beside those that a release's upstream chart gives them."""
    return {**PART_OF, MODEL: model, **router_selector(unit)}


def router_selector(unit: str) -> dict[str, str]:
    """Select the router of a unit. Charts select by a label that changes from release to release, and the selector of a
    Deployment can't change.
    """
    return {UNIT: unit, ROUTED: "true"}


def canary_selector(model: str) -> dict[str, str]:
    """Select the canaries of a model."""
    return {CANARY: model}


def canary(model: str) -> dict[str, str]:
    """Labels of a model's canaries."""
    return {**PART_OF, MODEL: model, "app.kubernetes.io/component": "canary", **canary_selector(model)}


def front_door_selector(model: str, version: str | None = None) -> dict[str, str]:
    """Select the front door of a model: that of one version, or all."""
    chosen = {MODEL: model, "app.kubernetes.io/component": "front-door"}
    return chosen if version is None else {**chosen, FRONT_DOOR: version}


def stack_front_door_selector(version: str | None = None) -> dict[str, str]:
    """Select the front door of all models of a stack: that of one version, or all."""
    chosen = {"app.kubernetes.io/component": "stack-front-door"}
    return chosen if version is None else {**chosen, FRONT_DOOR: version}
