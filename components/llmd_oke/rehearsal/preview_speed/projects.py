"""The projects that are previewed: a stack of the user's, larger ones made of it, and the plain one."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_oke.config import CONFIG_KEY, read, stack_file
from llmd_oke.config.model import MOST_COPIES
from llmd_oke.config.pulumi_yaml import text_of

_RECORDING = """\
from pathlib import Path
from llmd_oke.rehearsal.preview_speed import graph

graph.record(graph.graph_file())
"""

_PLAIN = """\
from llmd_oke.rehearsal.preview_speed import graph

graph.declare(graph.load(graph.graph_file()))
"""

GPUS_PER_UNIT = 2
"""One prefill and one decode server with one GPU each: the smallest unit has as many resources as the largest."""

GPUS_PER_NODE = 8
PODS_PER_ROUTER = 2
"""A leader and one that stands by (`router.replicas` of the release)."""

ROUTERS_PER_NODE = 3


@dataclass(frozen=True)
class BenchProject:
    """A folder with a project of one stack."""

    folder: Path
    stack: str


def same(source: Path, stack: str, folder: Path) -> BenchProject:
    """The project as it is."""
    return with_change(source, stack, folder, lambda config: config)


def recording(source: Path, stack: str, folder: Path) -> BenchProject:
    """The project, whose program writes down what it declares."""
    program = _RECORDING + (source / "__main__.py").read_text()
    return _write(folder, stack, _stack(source, stack), source, program)


def plain(source: Path, stack: str, folder: Path) -> BenchProject:
    """The plain program in place of the stack's."""
    return _write(folder, stack, _stack(source, stack), source, _PLAIN)


def larger(source: Path, stack: str, folder: Path, units: int) -> BenchProject:
    """The stack with that many small units in place of its models, and nodes for all of them."""
    return with_change(source, stack, folder, lambda config: with_units(config, units))


def with_change(
    source: Path, stack: str, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> BenchProject:
    """The project with what becomes of its stack."""
    return _write(folder, stack, change(_stack(source, stack)), source, (source / "__main__.py").read_text())


def system_nodes(units: int) -> int:
    """How many nodes the routers of so many units need, and one for the rest."""
    return 1 + -(-units * PODS_PER_ROUTER // ROUTERS_PER_NODE)


def with_units(stack: dict[str, Any], units: int) -> dict[str, Any]:
    """A stack of a created cluster that serves that many units, spread over as few models as copies allow."""
    made, template = copy.deepcopy(stack), stack["models"][0]
    sizes = [min(MOST_COPIES, units - done) for done in range(0, units, MOST_COPIES)]
    made["models"] = [
        {**template, "name": f"model-{index}", "topology": "1p-tp1-1d-tp1", "copies": size}
        for index, size in enumerate(sizes)
    ]
    made["gpuPools"][0]["size"] = -(-units * GPUS_PER_UNIT // GPUS_PER_NODE)
    if "systemPool" in made:
        made["systemPool"]["size"] = system_nodes(units)
    return made


def _stack(source: Path, stack: str) -> dict[str, Any]:
    found: dict[str, Any] = read(source, stack)
    return found


def _write(folder: Path, stack: str, config: dict[str, Any], source: Path, program: str) -> BenchProject:
    file = stack_file(folder, stack)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of({"config": {CONFIG_KEY: config}}))
    shutil.copyfile(source / "Pulumi.yaml", folder / "Pulumi.yaml")
    (folder / "__main__.py").write_text(program)
    return BenchProject(folder, stack)
