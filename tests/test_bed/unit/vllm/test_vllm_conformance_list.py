"""The list of what vLLM answers: whole, with sources that can be looked up, and shown in the documentation."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from vllm_conformance import Case, conformance

PAGE = Path(__file__).parents[4] / "docs" / "simulated-vllm.md"
BEGIN, END = "<!-- differences -->\n", "<!-- end of differences -->\n"
SOURCE = "https://github.com/vllm-project/vllm/blob"
REQUEST_LENGTH = 90


@pytest.mark.parametrize("name", conformance().cases)
def test_each_conformance_case_of_the_simulated_vllm_names_a_line_of_vllms_source(name):
    assert re.fullmatch(r"vllm/[a-z0-9_/]+\.py#L\d+", conformance().cases[name].source)


def test_the_docs_page_on_the_simulated_vllm_lists_every_difference_from_vllm():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes the tables."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    expected = head + BEGIN + _tables() + END + tail
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected, "set LLMD_OKE_UPDATE_GOLDEN=1 to write them"


def _tables() -> str:
    cases = conformance().cases.values()
    different = [case for case in cases if case.ours is not None or case.other is not None]
    alike = f"{len(cases)} things are asked of both; in {len(cases) - len(different)} both answer as vLLM does.\n"
    head = "| what | vLLM | simulated vLLM | llm-d-inference-sim | like vLLM |\n|---|---|---|---|---|\n"
    real = [case for case in cases if case.real is not None]
    asked = f"vLLM {conformance().release} itself, on a processor, answers {len(cases) - len(real)} of them as listed"
    own = "".join(f"; {case.what}: {_own(case.real, case)} ({case.why})" for case in real)
    changes = [case for case in cases if case.newer is not None]
    versions = conformance().release, conformance().newer
    same = len(cases) - len(changes)
    unchanged = f"vLLM {versions[1]} answers {same} of them as {versions[0]}; servers simulated of its"
    newer = f"| what | {' | '.join(versions)} |\n|---|---|---|\n" + "".join(map(_changed, changes))
    table = head + "".join(map(_row, different))
    return f"\n{alike}{asked}{own}.\n\n{table}\n{unchanged} image differ with it:\n\n{newer}\n"


def _changed(case: Case) -> str:
    """A row of what a newer version answers otherwise: only where the answers differ."""
    newer = case.newer or {}
    names = [name for name in newer if newer[name] != case.vllm.get(name)]
    old = {name: case.vllm[name] for name in names if name in case.vllm}
    before, now = _cell(old, case) if old else "as listed", _cell({name: newer[name] for name in names}, case)
    return f"| {case.what} | {before} | {now} |\n"


def _row(case: Case) -> str:
    link = f"{SOURCE}/{conformance().release}/{case.source}"
    request = "" if case.request is None else f"<br>`{_request(case)}`"
    reason = "" if case.ours is None else f": {case.why}"
    answers = [_cell(case.vllm, case), _own(case.ours, case) + reason, _own(case.other, case)]
    cells = [f"{case.what}{request}", f"[{answers[0]}]({link})", *answers[1:], _like(case)]
    return f"| {' | '.join(cells)} |\n"


def _request(case: Case) -> str:
    if case.request is None:
        return ""
    body = case.request.text if case.request.body is None else json.dumps(case.request.body)
    text = f"{case.request.path} {body or ''}".strip().replace("|", "\\|")
    return text if len(text) <= REQUEST_LENGTH else text[:REQUEST_LENGTH] + "…"


def _like(case: Case) -> str:
    return {(True, False): "ours", (False, True): "llm-d-inference-sim", (False, False): "neither"}[
        case.ours is None, case.other is None
    ]


def _own(answer: Mapping[str, object] | None, case: Case) -> str:
    return "the same" if answer is None else _cell(answer, case)


def _cell(answer: Mapping[str, object], case: Case) -> str:
    """An answer in a cell: what it has, in few words."""
    if case.see == "fields" and "missing" not in answer and "more" not in answer:
        return f"{answer['status']}, these fields" if answer.get("status") == 200 else f"{answer.get('status')}"
    return ", ".join(f"{key} {_short(value)}" for key, value in answer.items()).replace("|", "\\|")


def _short(value: object) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
