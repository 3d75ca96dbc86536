"""Arguments that many components of a stack have in common."""

from typing import TypedDict

from llmd_oke.objects import OverrideArgs
from llmd_oke.planning import Plan
from llmd_oke.program.arguments import arguments
from llmd_oke.serving.args import NodeTaintArgs, TracingArgs


class CommonArgs(TypedDict):
    """Arguments that components that serve models take from the plan alike; each takes what it has an argument for."""

    namespace: str
    """Namespace of the models."""
    release: str
    """llm-d release of the catalogue."""
    override: OverrideArgs | None
    """Parts of the release that others take the place of."""
    shape: str
    """OCI shape of the nodes, from the catalogue."""
    node_taints: list[NodeTaintArgs]
    """Taints of the stack file's GPU pools, each once; the pods of all models tolerate those of all pools."""
    rdma: bool
    """Whether KV cache is handed over by the RDMA network."""
    control_plane_cidrs: list[str] | None
    """Addresses that the API server speaks to pods from."""
    signed_in: bool
    """Whether clients sign in at the stack's front door."""
    tracing: TracingArgs | None
    """Where traces go."""


def common_args(plan: Plan) -> CommonArgs:
    """Give what components that serve models have in common."""
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
    """The taints that the pods of all models tolerate."""
    return common_args(plan)["node_taints"]
