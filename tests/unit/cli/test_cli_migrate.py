"""`llmd-oke migrate`: what becomes of a stack file's text."""

import json
from pathlib import Path

import pytest
import yaml
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.cli.main import app
from llmd_oke.cli.migrate import migration
from typer.testing import CliRunner

BEFORE = """\
# of the platform team
config:
  llmd-oke:stack:
    cluster:
      mode: create  # a new one
      # looked up in May
      given:  # results
        availabilityDomains: [x]
        # of OKE
        systemImageId: ocid1
      name: abc
    models:
      - model: a  # first
        engine:
          extraArgs:  # more
            - --foo=1
            # room for adapters
            - --enable-lora  # on
            - --max-lora-rank
            - "32"   # rank
            # the last
            - --bar
        slo: {ttftMs: 1}
      - model: b
        engine: {extraArgs: [--all2all-backend=mori_low_latency]}
      # end of models
  other:key: 1
"""
AFTER = """\
# of the platform team
config:
  llmd-oke:stack:
    cluster:
      mode: create  # a new one
      # looked up in May
      lookupResults:  # results
        availabilityDomains: [x]
        # of OKE
        systemImageId: ocid1
      name: abc
    models:
      - model: a  # first
        engine:
          extraArgs:  # more
            - --foo=1
            # room for adapters
            # the last
            - --bar
          adapters: # on
            maxRank: 32 # rank
        slo: {ttftMs: 1}
      - model: b
        engine: {all2AllBackend: mori_low_latency}
      # end of models
  other:key: 1
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "Pulumi.s.yaml"
    file.write_bytes(text.encode())
    return file


def said(*words: str) -> tuple[int, dict]:
    ended = CliRunner().invoke(app, ["migrate", *words, "--json"])
    return ended.exit_code, json.loads(ended.stdout)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["Unix", "Windows"])
def test_migrate_replaces_deprecated_keys_and_keeps_comments_order_and_line_ends(tmp_path: Path, end: str):
    assert migration(written(tmp_path, BEFORE.replace("\n", end))).after == AFTER.replace("\n", end)


@pytest.mark.parametrize("first", ["", "            - --foo=1\n"])
def test_comment_lines_below_a_replaced_argument_stay_above_the_next_argument(tmp_path: Path, first: str):
    kept = "            # the last\n            - --bar\n"
    head = f"config:\n  llmd-oke:stack:\n    models:\n      - engine:\n          extraArgs:\n{first}"
    migrated = migration(written(tmp_path, f"{head}            - --max-lora-rank=32\n{kept}"))
    assert migrated.after == f"{head}{kept}          adapters:\n            maxRank: 32\n"


def test_migrating_a_migrated_stack_file_changes_nothing(tmp_path: Path):
    found = migration(written(tmp_path, AFTER))
    assert (found.after, found.difference, found.replaced) == (AFTER, "", ())


def test_migrate_shows_the_difference_and_writes_only_with_its_option_and_once(tmp_path: Path):
    file = written(tmp_path, BEFORE)
    code, told = said("--file", str(file))
    assert (code, told["written"], file.read_text()) == (0, False, BEFORE)
    assert "+      lookupResults:  # results" in told["difference"]
    assert told["replaced"][0] == {
        "path": "cluster.given",
        "replacement": "cluster.lookupResults",
        "since": "0.1.0",
        "removed_in": "0.3.0",
    }
    assert said("--file", str(file), "--write")[1]["written"]
    assert file.read_text() == AFTER
    assert not said("--file", str(file), "--write")[1]["written"]


def test_migrate_reports_keys_that_need_a_decision_by_line_and_writes_nothing(tmp_path: Path):
    text = BEFORE.replace("--foo=1", "--speculative-config={}").replace("- --bar", "- --enable-expert-parallel")
    file = written(tmp_path, text)
    with pytest.raises(InvalidStack) as refused:
        migration(file)
    assert sorted(problem.line or 0 for problem in refused.value.problems) == [16, 22]
    code, told = said("--file", str(file), "--write")
    assert (code, told["ok"], len(told["problems"]), file.read_text()) == (1, False, 2, text)


def test_migrate_refuses_deprecated_keys_inside_yaml_anchors(tmp_path: Path):
    text = (
        "config:\n  shared: &shared {given: {systemImageId: x}}\n  llmd-oke:stack:\n    cluster:\n      <<: *shared\n"
    )
    file = written(tmp_path, text)
    with pytest.raises(KitError, match="anchors") as refused:
        migration(file)
    assert "cluster.given (now cluster.lookupResults)" in str(refused.value.remedy)
    assert file.read_text() == text


@pytest.mark.parametrize("text", ["", "config: {}", "a: [", "config:\n  llmd-oke:stack: {a: 1, a: 2}\n", "\x00"])
def test_migrate_refuses_and_keeps_a_file_that_is_no_stack_file(tmp_path: Path, text: str):
    file = written(tmp_path, text)
    with pytest.raises(KitError):
        migration(file)
    assert file.read_bytes().decode() == text


def test_migrate_does_not_rewrite_values_of_other_pulumi_settings(tmp_path: Path):
    text = BEFORE.replace("other:key: 1", "other:key: yes\n  other:time: 12:30\n  other:octal: 0o17")
    before, after = yaml.safe_load(text), migration(written(tmp_path, text)).after
    assert after.endswith("other:key: yes\n  other:time: 12:30\n  other:octal: 0o17\n")
    assert yaml.safe_load(after)["config"]["other:key"] == before["config"]["other:key"]


def test_a_base_file_of_stacks_is_migrated_too(tmp_path: Path):
    shared = tmp_path / "shared.yaml"
    shared.write_text("cluster:\n  mode: create\n  given: {systemImageId: null}  # of the image\n")
    migrated = migration(shared)
    assert migrated.after == "cluster:\n  mode: create\n  lookupResults: {systemImageId: null}  # of the image\n"
