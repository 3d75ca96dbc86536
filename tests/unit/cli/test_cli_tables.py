"""Tables in narrow terminals, and problems in terminals and as JSON."""

from io import StringIO
from typing import Any

import pytest
from llmd_base.errors import SET, Problem
from llmd_oke.cli import console
from llmd_oke.cli.tables import FittingTable
from rich.console import Console
from rich.table import Table

CELLS = ("8p-tp1-4d-tp2", "1,234,567", "17,408", "4 of 8")


def shown(width: int) -> list[str]:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("topology", "decode tok/s", "prompt tok/s", "GPUs"):
        table.add_column(heading)
    table.add_row(*CELLS)
    out = StringIO()
    Console(file=out, width=width).print(FittingTable(table))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_too_wide_table_wraps_its_headings_and_then_becomes_paragraphs():
    assert shown(80)[0].split() == ["topology", "decode", "tok/s", "prompt", "tok/s", "GPUs"]
    lines = shown(48)
    assert len(lines) == 3
    assert all(cell in lines[-1] for cell in CELLS)
    assert shown(40) == [
        "8p-tp1-4d-tp2",
        "    decode tok/s 1,234,567",
        "    prompt tok/s 17,408   GPUs 4 of 8",
    ]


@pytest.mark.parametrize("width", range(22, 80, 6))
def test_figures_in_tables_are_never_truncated(width: int):
    assert "1,234,567" in "\n".join(shown(width))


def test_no_name_in_a_problem_can_forge_output_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    written, name = StringIO(), "bob\r\n\x1b[2K\u202e"
    monkeypatch.setattr(console, "errors", lambda: Console(file=written, width=200))
    console.show_problems((Problem(f"keys.{name}", {name: name}, f"not {name}", f"{name} is taken"),), "no")
    assert written.getvalue().count(r"bob\r\n\x1b[2K\u202e") == 5
    assert written.getvalue().replace("\n", "").isprintable()


def test_a_digest_in_a_problem_can_be_copied_from_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch):
    written, image = StringIO(), f"registry.mine/vllm:v1@sha256:{'1' * 64}"
    monkeypatch.setattr(console, "errors", lambda: Console(file=written, width=80))
    console.show_problems((Problem("override.vllmImage", image, f"{image}, or the tag", "words " * 30),), "no")
    lines = written.getvalue().splitlines()
    assert sum(image in line for line in lines) == 2
    assert all(len(line) <= 80 for line in lines if image not in line)


@pytest.mark.parametrize(
    ("value", "plain"),
    [(None, None), (True, True), (2, 2), ("guide", "guide"), (float("nan"), "nan"), ([True], "[true]"), (SET, "(set)")],
)
def test_the_value_of_a_problem_in_json_output_is_plain_json(value: Any, plain: Any):
    assert console.problem_document(Problem("a", value, "b", "c"))["value"] == plain
