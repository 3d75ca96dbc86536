"""First stack file of a project: a commented YAML text, made from the answers to a few questions, that planning
accepts.
"""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from llmd_base.errors import InvalidStack

from llmd_oke import planning
from llmd_oke.config import yaml_files
from llmd_oke.config.load import stack_object
from llmd_oke.planning import Plan

_TEMPLATE = Path(__file__).with_name("first_stack.yaml.j2")

_COMMENT_WIDTH = 110

MOST_SYSTEM_NODES = 24
"""Maximum number of system nodes that is tried until a stack's routers fit."""


class Target(StrEnum):
    """Platform of the first deployment: `oci`, or a rehearsal on this machine."""

    OCI = "oci"
    REHEARSAL = "rehearsal"


@dataclass(frozen=True)
class Adopted:
    """Properties of an existing cluster: the name and number of nodes of the pool to serve on, whether pods get virtual
    functions as oci-hpc-oke names them, the addresses of its API endpoint, and the namespace of the stack's objects
    where the usual one is in use.
    """

    pool: str
    nodes: int
    has_virtual_functions: bool
    control_plane_cidrs: tuple[str, ...] = ()
    namespace: str | None = None


@dataclass(frozen=True)
class FirstStack:
    """Contents of a first stack file. Fields about an existing cluster are None where the stack creates one, and the
    other way round.

    `assumptions` are choices that no answer decided, `forecast` is the forecast by which the topology was chosen,
    `purpose` completes the comment about the nodes in the file's first line, and `adopted` describes a cluster that
    somebody else made.
    """

    name: str
    target: Target
    model: str
    shape: str
    nodes: int
    topology: str
    copies: int
    release: str
    input_tokens: int
    output_tokens: int
    ttft_ms: float | None = None
    itl_ms: float | None = None
    cluster_id: str | None = None
    region: str | None = None
    compartment_id: str | None = None
    tenancy_id: str | None = None
    kubernetes_version: str | None = None
    availability_domain: str | None = None
    image_id: str | None = None
    client_cidrs: tuple[str, ...] = ()
    system_nodes: int = 3
    assumptions: tuple[str, ...] = ()
    forecast: str = ""
    purpose: str = ""
    adopted: "Adopted | None" = None

    def text(self, *, schema: bool) -> str:
        """Return the stack file as YAML. With `schema` its first line tells editors the address of the JSON Schema."""
        environment = Environment(trim_blocks=True, undefined=StrictUndefined)  # noqa: S701 - YAML, of quoted values
        environment.filters |= {"yaml": _flow, "line": _one_line}
        slo = {"ttftMs": self.ttft_ms, "itlMs": self.itl_ms}
        shape = self.shape.split(".")
        return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
            asdict(self) | {"forecast": wrap(self.forecast, _COMMENT_WIDTH)},
            schema=schema,
            rehearsed=self.target is Target.REHEARSAL,
            pool=shape[2].lower() if len(shape) > 2 else "gpus",
            slo={key: int(limit) if limit == int(limit) else limit for key, limit in slo.items() if limit},
            disaggregated="p-" in self.topology,
        )


def _flow(value: Any) -> str:
    """A value as YAML on one line, quoted where it has to be."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("...\n").strip()


def _one_line(text: str) -> str:
    """A text that stays within its comment."""
    return " ".join(text.split())


def checked(first: FirstStack, *, schema: bool) -> tuple[FirstStack, str, Plan]:
    """Plan a first stack, after raising its number of system nodes to the number that its routers need, and return the
    changed stack, its file and its plan.

    Raises:
        InvalidStack: the stack can't be deployed; carries every problem.
    """
    while True:
        text = first.text(schema=schema)
        try:
            plan = planning.plan_object(stack_object(yaml_files.plain(text)), nodes_pull=first.target is Target.OCI)
        except InvalidStack as refused:
            only_routers = all(problem.path == "systemPool.size" for problem in refused.problems)
            if not only_routers or first.system_nodes >= MOST_SYSTEM_NODES:
                raise
            first = replace(first, system_nodes=first.system_nodes + 1)
        else:
            return first, text, plan
