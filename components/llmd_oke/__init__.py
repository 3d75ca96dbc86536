"""Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X.

What other projects import: the components and their arguments. They are loaded when they are first used, because
Pulumi's packages take a second and much of the kit (planning, benchmarks, tuning) does without them.

    from llmd_oke import PrefillDecodeUnit, Router

For tests of your own programs there is `llmd_oke.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmd_oke.errors import KitError, Problem, Refused
    from llmd_oke.operators.crds import Crds, CrdsArgs
    from llmd_oke.serving.aggregated import AggregatedUnit, AggregatedUnitArgs
    from llmd_oke.serving.args import EngineArgs, ServersArgs, UnitArgs
    from llmd_oke.serving.endpoint import ModelEndpoint, ModelEndpointArgs
    from llmd_oke.serving.namespace import ServingNamespace, ServingNamespaceArgs
    from llmd_oke.serving.prefill_decode import PrefillDecodeUnit, PrefillDecodeUnitArgs
    from llmd_oke.serving.router import Router, RouterArgs

_MODULES = {
    "llmd_oke.errors": ("KitError", "Problem", "Refused"),
    "llmd_oke.operators.crds": ("Crds", "CrdsArgs"),
    "llmd_oke.serving.aggregated": ("AggregatedUnit", "AggregatedUnitArgs"),
    "llmd_oke.serving.args": ("EngineArgs", "ServersArgs", "UnitArgs"),
    "llmd_oke.serving.endpoint": ("ModelEndpoint", "ModelEndpointArgs"),
    "llmd_oke.serving.namespace": ("ServingNamespace", "ServingNamespaceArgs"),
    "llmd_oke.serving.prefill_decode": ("PrefillDecodeUnit", "PrefillDecodeUnitArgs"),
    "llmd_oke.serving.router": ("Router", "RouterArgs"),
}

__all__ = [
    "AggregatedUnit",
    "AggregatedUnitArgs",
    "Crds",
    "CrdsArgs",
    "EngineArgs",
    "KitError",
    "ModelEndpoint",
    "ModelEndpointArgs",
    "PrefillDecodeUnit",
    "PrefillDecodeUnitArgs",
    "Problem",
    "Refused",
    "Router",
    "RouterArgs",
    "ServersArgs",
    "ServingNamespace",
    "ServingNamespaceArgs",
    "UnitArgs",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
