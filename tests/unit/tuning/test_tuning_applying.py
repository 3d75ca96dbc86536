"""Answers written into stack files: values change, comments and order stay, and the result can be planned."""

from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke import config, planning
from llmd_oke.config import yaml_files
from llmd_oke.config.yaml_files import difference
from llmd_oke.config.yaml_files import plain as document_of
from llmd_tuner import ranking
from llmd_tuner.search import at_loads, search
from llmd_tuner.stack_file_edit import (
    RoleThresholds,
    StackFileChange,
    Threshold,
    apply_change,
    scaling_share,
    thresholds,
)
from tuning_for_tests import question

STACKS = Path(__file__).parents[3] / "stacks"
CHOICE = StackFileChange("10p-tp1-3d-tp2", 2, 141)

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


def stack_of(text):
    return document_of(text)["config"]["llmd-oke:stack"]


def changed_lines(before, after):
    lines = difference(before, after, "f").splitlines()
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]


def test_applying_a_topology_changes_only_its_values_in_the_stack_file_and_once():
    once = apply_change(FILE, 0, CHOICE)
    assert changed_lines(FILE, once) == [
        "-        topology: 8p-tp1-4d-tp2   # as published",
        "+        topology: 10p-tp1-3d-tp2  # as published",
        "+        copies: 2",
        "+          maxNumSeqs: 141",
    ]
    assert difference(once, apply_change(once, 0, CHOICE), "f") == ""


def test_one_copy_of_a_topology_is_not_written_if_the_key_copies_is_absent():
    after = apply_change(FILE, 1, StackFileChange("agg-tp2-4r", 1, 64))
    assert changed_lines(FILE, after) == [
        '-        topology: "agg-tp1-1r"',
        '+        topology: "agg-tp2-4r"',
        "+        engine: {maxNumSeqs: 64}",
    ]


def test_applying_aggregated_servers_ends_a_models_disaggregatedset():
    text = FILE.replace("slo: {ttftMs: 2000}", "disaggregatedSet: true")
    after = apply_change(text, 0, StackFileChange("agg-tp2-4r", 1, 64))
    assert stack_of(after)["models"][0]["disaggregatedSet"] is False
    assert "+        disaggregatedSet: false" not in changed_lines(text, apply_change(text, 0, CHOICE))


def test_a_topology_written_as_a_mapping_is_replaced_by_its_short_name():
    text = FILE.replace('"agg-tp1-1r"', "{aggregated: {replicas: 1, tensorParallelSize: 1}}")
    assert stack_of(apply_change(text, 1, CHOICE))["models"][1]["topology"] == CHOICE.topology


@pytest.mark.parametrize("stack", [path.stem.removeprefix("Pulumi.") for path in sorted(STACKS.glob("Pulumi.*.yaml"))])
def test_in_the_projects_stack_files_only_topology_copies_and_engine_are_changed(stack):
    before = (STACKS / f"Pulumi.{stack}.yaml").read_text()
    after = apply_change(before, 0, StackFileChange("8p-tp1-4d-tp2", 1, 141))
    changed = changed_lines(before, after)
    assert all(any(key in line for key in ("topology", "copies", "engine", "maxNumSeqs")) for line in changed)


def test_a_stack_file_to_which_a_topology_was_applied_can_be_planned():
    before = (STACKS / "Pulumi.reference.yaml").read_text()
    plan = planning.plan(config.parse(document_of(apply_change(before, 0, CHOICE))))
    model = plan.models[0]
    assert (str(model.topology), len(model.units), model.engine.max_num_seqs) == ("10p-tp1-3d-tp2", 2, 141)


SCALED = {
    "prefill": RoleThresholds(10, (Threshold("promptTokensPerS", 17828, "calibrated: p"),)),
    "decode": RoleThresholds(3, (Threshold("requests", 77, "calibrated: d"),)),
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
    return stack_of(text)["models"][0].get("scaling")


def test_scaling_is_added_on_request_with_thresholds_and_limits_around_the_topology():
    assert scaling_of(apply_change(FILE, 0, replace(CHOICE, thresholds=SCALED))) is None
    after = apply_change(FILE, 0, replace(CHOICE, thresholds=SCALED, add_scaling=True))
    assert scaling_of(after) == {
        "prefill": {"minReplicas": 3, "maxReplicas": 10, "promptTokensPerS": 17828},
        "decode": {"minReplicas": 1, "maxReplicas": 3, "requests": 77},
    }


def test_existing_scaling_is_widened_to_the_topology_once_with_its_basis_in_comments():
    after = apply_change(WITH_SCALING, 0, replace(CHOICE, thresholds=SCALED))
    assert scaling_of(after) == {
        "prefill": {"minReplicas": 4, "maxReplicas": 16, "promptTokensPerS": 17828},
        "decode": {"minReplicas": 3, "maxReplicas": 8, "requests": 77, "kvCacheUsage": 0.8},
    }
    lines = [" ".join(line.split()) for line in after.splitlines()]
    assert "promptTokensPerS: 17828 # calibrated: p" in lines
    assert "requests: 77 # calibrated: d" in lines
    assert {"# The night needs few.", "kvCacheUsage: 0.8 # as in the guide"} <= set(lines)
    assert difference(after, apply_change(after, 0, replace(CHOICE, thresholds=SCALED)), "f") == ""


def test_scaling_of_server_roles_that_the_new_topology_lacks_is_removed():
    alone = {"aggregated": RoleThresholds(4, (Threshold("requests", 50, "calibrated: a"),))}
    after = apply_change(WITH_SCALING, 0, replace(CHOICE, topology="agg-tp2-4r", thresholds=alone))
    assert scaling_of(after) == {"aggregated": {"minReplicas": 1, "maxReplicas": 4, "requests": 50}}


def test_check_gives_no_advice_on_scaling_thresholds_added_by_tune_apply():
    before = (STACKS / "Pulumi.reference.yaml").read_text()
    after = apply_change(before, 0, replace(CHOICE, thresholds=SCALED, add_scaling=True))
    plan = planning.plan(config.parse(document_of(after)))
    assert plan.models[0].scaling is not None
    assert not [advice for advice in plan.advice if "scaling" in advice.path]


@pytest.fixture(scope="module")
def asked():
    return question()


@pytest.fixture(scope="module")
def best(asked):
    result = ranking.rank(asked, sensitivity=False).best
    assert result is not None
    return result


def keys(item):
    return [threshold.key for threshold in item.thresholds]


def values(result):
    return {threshold.key: threshold.value for item in result.values() for threshold in item.thresholds}


def test_scaling_thresholds_of_each_role_are_a_share_of_the_highest_load_in_targets(asked, best):
    result = thresholds(asked, best, "calibrated")
    assert {role: (keys(item), item.replicas) for role, item in result.items()} == {
        "prefill": (["promptTokensPerS"], best.prefill),
        "decode": (["requests", "kvCacheUsage"], best.decode),
    }
    (full,) = at_loads(asked, best, [best.capacity_per_s])
    assert full.feasible
    prompts = best.capacity_per_s * 4096 / best.prefill
    assert best.topology.endswith("-1d-tp2dp2")
    assert values(result) == {
        "promptTokensPerS": int(prompts * scaling_share()),
        "requests": int(full.batch * 2 * scaling_share()),  # of both ranks
        "kvCacheUsage": scaling_share(),
    }


def test_scaling_thresholds_do_not_depend_on_the_number_of_copies(asked, best):
    two = replace(best, copies=2, capacity_per_s=2 * best.capacity_per_s)
    assert values(thresholds(asked, best, "")) == values(thresholds(asked, two, ""))


def test_aggregated_servers_scale_by_requests(asked):
    aggregated = next(item for item in search(asked).deployments() if not item.prefill)
    result = thresholds(asked, aggregated, "calibrated")
    assert {role: keys(item) for role, item in result.items()} == {"aggregated": ["requests", "kvCacheUsage"]}


def test_each_scaling_threshold_states_its_basis_targets_and_share(asked, best):
    for item in thresholds(asked, best, "bound").values():
        assert item.thresholds[0].basis.startswith("bound: ")
        assert all(threshold.basis for threshold in item.thresholds)
        assert item.thresholds[0].basis.endswith("the most within ttft=2000,itl=25,qps=45, times 0.8")


def with_base(folder, own="", base=WITH_SCALING):
    """The text of a stack file that builds on another, which has the models."""
    (folder / "stacks").mkdir()
    (folder / "stacks" / "shared.yaml").write_text(yaml_files.text_of(stack_of(base)))
    return f"config:\n  llmd-oke:stack:\n    base: shared.yaml   # of all\n{own}"


def planned_model(text, folder):
    return config.effective_object(stack_of(text), folder).value["models"][0]


def test_tune_apply_changes_a_model_of_a_base_stack_file_in_the_stacks_own_file(tmp_path):
    before = with_base(tmp_path)
    shared = (tmp_path / "stacks" / "shared.yaml").read_text()
    after = apply_change(before, 0, CHOICE, tmp_path)
    assert stack_of(after) == {
        "base": "shared.yaml",
        "models": {"gpt-oss-120b": {"topology": "10p-tp1-3d-tp2", "copies": 2, "engine": {"maxNumSeqs": 141}}},
    }
    assert "# of all" in after
    assert (tmp_path / "stacks" / "shared.yaml").read_text() == shared
    assert planned_model(after, tmp_path)["engine"] == {"blockSize": 32, "maxNumSeqs": 141}
    assert difference(after, apply_change(after, 0, CHOICE, tmp_path), "f") == ""


def test_tune_apply_changes_scaling_of_a_base_stack_file_in_the_stacks_own_file(tmp_path):
    after = apply_change(with_base(tmp_path), 0, replace(CHOICE, thresholds=SCALED), tmp_path)
    assert planned_model(after, tmp_path)["scaling"] == {
        "prefill": {"minReplicas": 4, "maxReplicas": 16, "promptTokensPerS": 17828},
        "decode": {"minReplicas": 3, "maxReplicas": 8, "requests": 77, "kvCacheUsage": 0.8},
    }
    alone = {"aggregated": RoleThresholds(4, (Threshold("requests", 50, "calibrated: a"),))}
    changed = replace(CHOICE, topology="agg-tp2-4r", thresholds=alone)
    assert planned_model(apply_change(after, 0, changed, tmp_path), tmp_path)["scaling"].keys() == {"aggregated"}


def test_tune_apply_edits_a_model_that_the_stacks_own_file_overrides_by_name(tmp_path):
    own = "    models:\n      gpt-oss-120b: {copies: 3}   # more here\n"
    after = apply_change(with_base(tmp_path, own), 0, replace(CHOICE, copies=4), tmp_path)
    assert "copies: 4" in after
    assert "# more here" in after
