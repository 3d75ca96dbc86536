"""Conversion of a plan's records into components' arguments, and the arguments that many components share."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypedDict, TypeVar, cast

from llmd_base.records import collected
from pydantic import BaseModel

from llmd_oke.objects import OverrideArgs
from llmd_oke.planning import Plan
from llmd_oke.serving.args import NodeTaintArgs, TracingArgs
from llmd_oke.values import Entry

Arguments = TypeVar("Arguments")


class CommonArgs(TypedDict):
    """Arguments that all components that serve models share; each component uses those that it declares."""

    namespace: str
    """Namespace of the models."""
    release: str
    """Name of the llm-d release in the catalogue."""
    override: OverrideArgs | None
    """Replacements for parts of the release; None without any."""
    shape: str
    """OCI shape of the nodes, from the catalogue."""
    node_taints: list[NodeTaintArgs]
    """Taints of all GPU pools of the stack file, without duplicates, which the pods of all models tolerate."""
    rdma: bool
    """Whether KV caches are handed over by the RDMA network."""
    control_plane_cidrs: list[str] | None
    """CIDRs from which the API server opens connections to pods."""
    signed_in: bool
    """Whether the stack's front door authenticates clients."""
    tracing: TracingArgs | None
    """Export of traces; None without tracing."""


def arguments(kind: type[Arguments], /, *records: object, **values: Any) -> Arguments:
    """Return the arguments of a component: each key from `values`, else from the first record with a field of that
    name.

    Every key needs a source, optional keys too, so that no new argument of a component is forgotten: `key=None` leaves
    an argument out. Tuples become lists, and nested records become dictionaries without fields that are None; entries
    of the catalogue aren't converted.

    Args:
        kind: TypedDict of the component's arguments.
        records: dataclass instances, pydantic models and mappings.
        values: further values by key, such as outputs of other components.

    Raises:
        UnknownFieldError: `kind` has no key of that name.
        MissingSourceError: a key has no source.
    """
    found = collected(kind.__name__, kind.__annotations__, records, values)
    return cast("Arguments", {key: plain(value) for key, value in found.items()})


def plain(value: Any) -> Any:
    """Convert a record to a dictionary without the fields that are None, and a tuple to a list, recursively. Other
    values, such as Pulumi outputs and resources and entries of the catalogue, aren't converted.
    """
    if isinstance(value, BaseModel):
        if isinstance(value, Entry):
            return value
        return _present({name: getattr(value, name) for name in type(value).model_fields})
    if is_dataclass(value) and not isinstance(value, type):
        return _present({item.name: getattr(value, item.name) for item in fields(value)})
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def _present(items: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(item) for key, item in items.items() if item is not None}


def common_args(plan: Plan) -> CommonArgs:
    """Return the arguments that all components that serve models share."""
    replaced = plan.override.replacements()
    return arguments(
        CommonArgs,
        plan,
        release=plan.release.name,
        override=OverrideArgs(**replaced) if replaced else None,
        shape=plan.pools[0].shape.name,
        node_taints=plan.taints,
    )


def node_taints(plan: Plan) -> list[NodeTaintArgs]:
    """Return the taints that the pods of all models tolerate."""
    return common_args(plan)["node_taints"]
