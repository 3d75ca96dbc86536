"""The page of the first run on OCI: what is open, made from `values/operations/first-run.yaml`."""

import os
from pathlib import Path
from typing import NamedTuple

from llmd_oke.values import read_yaml, values_folder

ROOT = Path(__file__).resolve().parents[3]
HOW_TO = ROOT / "docs" / "how-to"
PAGE = HOW_TO / "first-run-on-oci.md"


class Question(NamedTuple):
    """Something that nobody has seen, the command that asks it, and what its answers mean."""

    asks: str
    probe: str
    expected: str
    otherwise: str
    relies: str


class Stage(NamedTuple):
    """Questions that are asked at the same point of a first deployment, and what costs meanwhile."""

    name: str
    costs: str
    questions: list[dict[str, str]]

    def asked(self) -> list[Question]:
        return [Question(**question) for question in self.questions]


HEADS = ("| question | probe | as expected | otherwise |", "|---|---|---|---|")
STAGES = [Stage(**stage) for stage in read_yaml(values_folder() / "operations" / "first-run.yaml")["stages"]]


def test_the_first_run_page_equals_what_is_generated_from_its_data():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_each_how_to_page_not_run_on_oci_yet_is_in_a_question_of_the_first_run_page():
    relying = {(HOW_TO / question.relies).resolve() for stage in STAGES for question in stage.asked()}
    pages = [path for path in HOW_TO.glob("*.md") if "not run on oci yet" in path.read_text().lower() and path != PAGE]
    assert [path.name for path in pages if path.resolve() not in relying] == []


def page() -> str:
    """The page of the docs."""
    lines = [
        "# First run on OCI: what is open",
        "",
        "Everything here runs in tests and rehearsals; **none of it has run on OCI or on MI300X yet**. What only these",
        "can answer stands below, in the order of a first deployment: the question, the command that asks it, and what",
        "the answer means. Steps: [get started on OCI](get-started-on-oci.md). Versions:",
        "[compatibility](../compatibility.md).",
        "",
        "`llmd-oke support --stack prod` packs what a report of an answer needs. Made from",
        "`values/operations/first-run.yaml`.",
    ]
    for stage in STAGES:
        lines += ["", f"## {stage.name}", "", f"Costs meanwhile: {stage.costs}.", "", *HEADS]
        for question in stage.asked():
            asks = f"{question.asks} ([relied on]({question.relies}))"
            lines.append(f"| {asks} | `{question.probe}` | {question.expected} | {question.otherwise} |")
    return "\n".join([*lines, ""])
