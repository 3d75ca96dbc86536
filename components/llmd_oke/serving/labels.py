"""Labels of all objects that serve a model, and selectors made of these labels."""

from llmd_oke.objects import PART_OF

MODEL = "llmd-oke/model"
UNIT = "llmd-oke/unit"
VERSION = "llmd-oke/version"
ROUTED = "llmd-oke/router"
FRONT_DOOR = "llmd-oke/front-door"
TENSOR_PARALLEL_SIZE = "llmd-oke/tensor-parallel-size"
DATA_PARALLEL_SIZE = "llmd-oke/data-parallel-size"
"""Label of servers with more than one data-parallel rank; its value is the number of ranks."""

CANARY = "llmd-oke/canary"
"""Label of the canaries' pods; its value is the model's name."""

SERVING = "llm-d.ai/inference-serving"
ROLE = "llm-d.ai/role"
"""Label by which the endpoint picker's filters recognise roles (llm-d-inference-scheduler, pkg/plugins/filter)."""

_ROLE_VALUES = {"prefill": "prefill", "decode": "decode", "aggregated": "prefill-decode"}


def model_selector(model: str) -> dict[str, str]:
    """Return the selector of all servers of a model, whatever their unit and role."""
    return {SERVING: "true", MODEL: model}


def unit_selector(unit: str, version: str | None = None) -> dict[str, str]:
    """Return the selector of all servers of a unit (a router and its servers), whatever their role; of one version if
    `version` is given.
    """
    chosen = {SERVING: "true", UNIT: unit}
    return chosen if version is None else {**chosen, VERSION: version}


def role_selector(unit: str, role: str) -> dict[str, str]:
    """Return the selector of the servers of one role of a unit. It is a Deployment's selector, which Kubernetes doesn't
    allow to change.
    """
    return {**unit_selector(unit), ROLE: _ROLE_VALUES[role]}


def _of_model(model: str) -> dict[str, str]:
    return {**PART_OF, "app.kubernetes.io/name": model, MODEL: model}


def unit(model: str, unit: str) -> dict[str, str]:
    """Return the labels of an object that is of all servers of a unit."""
    return {**_of_model(model), UNIT: unit}


def model_server(model: str, unit: str, role: str) -> dict[str, str]:
    """Return all labels of a model server except its version and size."""
    return {**_of_model(model), **role_selector(unit, role)}


def router(model: str, unit: str) -> dict[str, str]:
    """Return the labels of a router's pods beyond those of a release's upstream chart."""
    return {**PART_OF, MODEL: model, **router_selector(unit)}


def router_selector(unit: str) -> dict[str, str]:
    """Return the selector of a unit's router. The charts select by a label that differs between releases, but the
    selector of a Deployment must not change.
    """
    return {UNIT: unit, ROUTED: "true"}


def canary_selector(model: str) -> dict[str, str]:
    """Return the selector of a model's canary."""
    return {CANARY: model}


def canary(model: str) -> dict[str, str]:
    """Return the labels of a model's canary."""
    return {**PART_OF, MODEL: model, "app.kubernetes.io/component": "canary", **canary_selector(model)}


def front_door_selector(model: str) -> dict[str, str]:
    """Return the selector of a model's front door, whatever its version."""
    return {MODEL: model, "app.kubernetes.io/component": "front-door"}


def stack_front_door_selector() -> dict[str, str]:
    """Return the selector of a stack's front door, whatever its version."""
    return {"app.kubernetes.io/component": "stack-front-door"}


def of_front_door_version(selector: dict[str, str], version: str) -> dict[str, str]:
    """Return the selector of a front door's pods of one version, from that of all its pods."""
    return {**selector, FRONT_DOOR: version}
