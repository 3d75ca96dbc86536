"""Answers written into stack files: values change, comments and order stay, and the result can be planned."""

from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke import config, planning
from llmd_oke.config.round_trip import difference
from llmd_oke.config.round_trip import plain as document_of
from llmd_oke.tuning.answers.applying import Choice, applied
from llmd_oke.tuning.answers.thresholds import RoleThreshold, Threshold

STACKS = Path(__file__).parents[4] / "stacks"
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


SCALED = {
    "prefill": RoleThreshold(10, Threshold("promptTokensPerS", 17828, "calibrated: p")),
    "decode": RoleThreshold(3, Threshold("requests", 77, "calibrated: d")),
}
WITH_SCALING = FILE.replace(
    "          blockSize: 32\n",
    "          blockSize: 32\n"
    "        scaling:\n"
    "          # The night needs few.\n"
    "          prefill: {minReplicas: 4, maxReplicas: 16, promptTokensPerS: 9000}\n"
    "          decode:\n"
    "            minReplicas: 4\n"
    "            maxReplicas: 8\n"
    "            kvCacheUsage: 0.8   # as in the guide\n",
)


def scaling_of(text):
    return document_of(text)["config"]["llmd-oke:stack"]["models"][0].get("scaling")


def test_thresholds_are_never_added_unasked():
    assert scaling_of(applied(FILE, 0, replace(CHOICE, thresholds=SCALED))) is None


def test_thresholds_are_added_on_demand_with_limits_up_to_the_topology():
    after = applied(FILE, 0, replace(CHOICE, thresholds=SCALED, add_scaling=True))
    assert scaling_of(after) == {
        "prefill": {"minReplicas": 3, "maxReplicas": 10, "promptTokensPerS": 17828},
        "decode": {"minReplicas": 1, "maxReplicas": 3, "requests": 77},
    }


def test_thresholds_follow_where_the_file_has_scaling_and_limits_stay_around_the_topology():
    after = applied(WITH_SCALING, 0, replace(CHOICE, thresholds=SCALED))
    assert scaling_of(after) == {
        "prefill": {"minReplicas": 4, "maxReplicas": 16, "promptTokensPerS": 17828},
        "decode": {"minReplicas": 3, "maxReplicas": 8, "requests": 77, "kvCacheUsage": 0.8},
    }


def test_the_basis_of_a_threshold_is_a_comment_beside_it_and_other_comments_stay():
    after = applied(WITH_SCALING, 0, replace(CHOICE, thresholds=SCALED))
    lines = [" ".join(line.split()) for line in after.splitlines()]
    assert "promptTokensPerS: 17828 # calibrated: p" in lines
    assert "requests: 77 # calibrated: d" in lines
    assert {"# The night needs few.", "kvCacheUsage: 0.8 # as in the guide"} <= set(lines)


def test_roles_that_the_new_topology_lacks_are_no_longer_scaled():
    alone = {"aggregated": RoleThreshold(4, Threshold("requests", 50, "calibrated: a"))}
    after = applied(WITH_SCALING, 0, replace(CHOICE, topology="agg-tp2-4r", thresholds=alone))
    assert scaling_of(after) == {"aggregated": {"minReplicas": 1, "maxReplicas": 4, "requests": 50}}


def test_the_same_thresholds_again_change_nothing():
    once = applied(WITH_SCALING, 0, replace(CHOICE, thresholds=SCALED))
    assert difference(once, applied(once, 0, replace(CHOICE, thresholds=SCALED)), "f") == ""


def test_added_thresholds_can_be_planned_and_need_no_advice():
    before = (STACKS / "Pulumi.reference.yaml").read_text()
    after = applied(before, 0, replace(CHOICE, thresholds=SCALED, add_scaling=True))
    plan = planning.plan(config.parse(document_of(after)))
    assert plan.models[0].scaling is not None
    assert not [advice for advice in plan.advice if "scaling" in advice.path]
