"""Answers written into stack files: values change, comments and order stay, and the result can be planned."""

from pathlib import Path

import pytest
from llmd_oke import config, planning
from llmd_oke.tuning.applying import Choice, applied, difference, document_of

STACKS = Path(__file__).parents[3] / "stacks"
CHOICE = Choice("10p-tp1-3d-tp2", 2, 141)

FILE = """\
# A comment on top.
config:
  llmd-oke:stack:
    gpuPools:
      - {name: mi300x, shape: BM.GPU.MI300X.8, size: 4}   # nodes
    models:
      # The first model.
      - model: gpt-oss-120b
        topology: 8p-tp1-4d-tp2   # as published
        slo: {ttftMs: 2000}
        engine:
          blockSize: 32
      - model: other
        topology: "agg-tp1-1r"
"""


def changed_lines(before, after):
    lines = difference(before, after, "f").splitlines()
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]


def test_only_the_values_of_the_choice_change():
    assert changed_lines(FILE, applied(FILE, 0, CHOICE)) == [
        "-        topology: 8p-tp1-4d-tp2   # as published",
        "+        topology: 10p-tp1-3d-tp2  # as published",
        "+        copies: 2",
        "+          maxNumSeqs: 141",
    ]


def test_one_copy_is_not_written_where_none_was():
    after = applied(FILE, 1, Choice("agg-tp2-4r", 1, 64))
    assert changed_lines(FILE, after) == [
        '-        topology: "agg-tp1-1r"',
        '+        topology: "agg-tp2-4r"',
        "+        engine: {maxNumSeqs: 64}",
    ]


def test_the_long_form_of_a_topology_becomes_the_short_one():
    text = FILE.replace('"agg-tp1-1r"', "{aggregated: {replicas: 1, tensorParallelSize: 1}}")
    assert document_of(applied(text, 1, CHOICE))["config"]["llmd-oke:stack"]["models"][1]["topology"] == CHOICE.topology


def test_the_same_choice_again_changes_nothing():
    once = applied(FILE, 0, CHOICE)
    assert difference(once, applied(once, 0, CHOICE), "f") == ""


@pytest.mark.parametrize("stack", [path.stem.removeprefix("Pulumi.") for path in sorted(STACKS.glob("Pulumi.*.yaml"))])
def test_in_our_own_stack_files_nothing_else_changes(stack):
    before = (STACKS / f"Pulumi.{stack}.yaml").read_text()
    after = applied(before, 0, Choice("8p-tp1-4d-tp2", 1, 141))
    changed = changed_lines(before, after)
    assert all(any(key in line for key in ("topology", "copies", "engine", "maxNumSeqs")) for line in changed)


def test_what_was_applied_can_be_planned():
    before = (STACKS / "Pulumi.reference.yaml").read_text()
    plan = planning.plan(config.parse(document_of(applied(before, 0, CHOICE))))
    model = plan.models[0]
    assert (str(model.topology), len(model.units), model.engine.max_num_seqs) == ("10p-tp1-3d-tp2", 2, 141)
