"""Pictures of plans: what is drawn, and that it is well-formed, equal for equal plans, and quick."""

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from llmd_oke import planning
from llmd_oke.cli.main import app
from llmd_oke.operations.diagram import MOST_NODES, diagram
from stack_files import PROJECT, cluster_layer, created_stack, model, stack
from typer.testing import CliRunner

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = PROJECT / "docs" / "how-to" / "reference-stack.svg"


def drawn(value: Mapping[str, Any], name: str = "prod") -> str:
    return diagram(name, planning.plan_object(value))


def elements(svg: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter())  # noqa: S314 - the kit's own


def styles(svg: str) -> Counter[str]:
    return Counter(part.get("class", "") for part in elements(svg))


def test_the_stack_diagram_draws_a_server_on_a_whole_node_as_one_box():
    assert styles(drawn(stack(model("agg-tp8-1r"), nodes=1)))["aggregated"] == 2


@pytest.mark.parametrize(
    "value",
    [
        cluster_layer(),
        stack(model("agg-tp1dp16ep-1r", model="deepseek-r1"), nodes=3),
        stack(frontDoor={"exposure": "internal", "host": "llm.example.com"}),
        stack(model("agg-tp8-2r", router={"mode": "none"})),
    ],
    ids=["cluster", "over-nodes", "front-door", "no-router"],
)
def test_all_kinds_of_stacks_have_a_well_formed_diagram(value: Mapping[str, Any]):
    assert styles(drawn(value))["box"] > 0


def test_names_in_the_stack_diagram_are_escaped_and_many_nodes_counted():
    svg = drawn(stack(model(copies=60), nodes=200), "a <b> & c")
    said = [part.text for part in elements(svg) if part.tag == f"{SVG}text"]
    assert "a <b> & c" in said
    assert f"and {200 - MOST_NODES} more nodes" in said


def luminance(colour: str) -> float:
    """The relative luminance of a colour (WCAG 2.2)."""
    digits = colour.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_outline_of_free_gpus_stands_out_on_light_and_dark_pages():
    svg = drawn(stack())
    (outline,) = re.findall(r"\.free\{fill:var\(--free\);stroke:var\((--\w+)\)", svg)
    themes = [dict(re.findall(r"(--\w+):(#[0-9a-f]+)", theme)) for theme in re.findall(r"\{--ink[^}]*", svg)]
    assert len(themes) == 2
    for theme in themes:
        for around in ("--free", "--fill"):
            darker, lighter = sorted(map(luminance, (theme[outline], theme[around])))
            assert (lighter + 0.05) / (darker + 0.05) >= 3  # WCAG 2.2, 1.4.11


def test_a_stack_diagram_of_72_gpus_is_reproducible_and_takes_under_a_second():
    began_s = time.process_time()
    first = drawn(created_stack())
    assert time.process_time() - began_s < 1
    assert first == drawn(created_stack())


def test_the_diagram_command_writes_the_diagram_that_the_documentation_shows(tmp_path: Path):
    """`LLMD_OKE_UPDATE_GOLDEN=1` draws it anew."""
    file = PICTURE if os.environ.get("LLMD_OKE_UPDATE_GOLDEN") else tmp_path / "picture.svg"
    arguments = ["diagram", "--stack", "reference", "--project", str(PROJECT), "--output", str(file)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert file.read_text() == PICTURE.read_text()
