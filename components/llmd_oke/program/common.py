"""Arguments that all components that serve models share."""

from typing import TypedDict

from llmd_oke.objects import OverrideArgs
from llmd_oke.planning import Plan
from llmd_oke.program.arguments import arguments
from llmd_oke.serving.args import NodeTaintArgs, TracingArgs


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
