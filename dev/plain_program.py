"""Dependency graph of a Pulumi program's resources: recorded from one program, declared again by a plain one."""

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import settings

GRAPH_VARIABLE = "LLMD_OKE_PREVIEW_GRAPH"
"""Environment variable with the path of the file of recorded resources, which a recording program writes and the plain
program reads.
"""

PACKAGE = "plain"
"""Pulumi package name in the types of the plain program's resources."""


@dataclass(frozen=True)
class ResourceNode:
    """Resource in the recorded graph of dependencies. `parent` and `dependencies` are indices of earlier resources; a
    parent of -1 is the stack.
    """

    custom: bool
    parent: int
    dependencies: tuple[int, ...]


def graph_file() -> Path:
    """Return the path of the file of recorded resources, from the environment variable `GRAPH_VARIABLE`."""
    return Path(os.environ[GRAPH_VARIABLE])


def record(file: Path) -> None:
    """Write every resource that this Pulumi program declares from now on to a file, in the order of the engine's
    answers.

    The SDK resolves dependencies when it registers a resource, so only the registration requests contain all of them.
    """
    monitor: Any = settings.get_monitor()
    register, lock = monitor.RegisterResource, threading.Lock()
    positions: dict[str, int] = {}
    rows: list[dict[str, Any]] = []

    def registered(request: Any, *rest: Any, **options: Any) -> Any:
        answer = register(request, *rest, **options)
        with lock:
            positions[answer.urn] = len(rows)
            node = ResourceNode(
                custom=bool(request.custom),
                parent=positions.get(request.parent, -1),
                dependencies=tuple(positions[urn] for urn in request.dependencies if urn in positions),
            )
            rows.append(asdict(node))
            file.write_text(json.dumps(rows))
        return answer

    monitor.RegisterResource = registered


def load(file: Path) -> list[ResourceNode]:
    """Return the resources recorded in the graph's file; each follows its parent and dependencies."""
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return [ResourceNode(row["custom"], row["parent"], tuple(row["dependencies"])) for row in rows]


def declare(nodes: list[ResourceNode]) -> None:
    """Declare as many Pulumi resources as were recorded, with the same parents and dependencies."""
    resources: list[pulumi.Resource] = []
    for index, node in enumerate(nodes):
        opts = pulumi.ResourceOptions(
            parent=resources[node.parent] if node.parent >= 0 else None,
            depends_on=[resources[dependency] for dependency in node.dependencies],
        )
        kind = f"{PACKAGE}:index:{'Thing' if node.custom else 'Group'}"
        name = f"resource-{index}"
        if node.custom:
            resources.append(pulumi.CustomResource(kind, name, {"name": name}, opts))
        else:
            resources.append(pulumi.ComponentResource(kind, name, None, opts))
