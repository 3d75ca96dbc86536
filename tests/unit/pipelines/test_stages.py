"""The file of stages: order of a merge, what is wrong with it, and environments that would ask nobody."""

import json
from pathlib import Path

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.cli.main import app
from llmd_oke.pipelines.stages import read_stages, unprotected_stages
from stack_files import PROJECT, stack, write
from typer.testing import CliRunner

FILE = """
stages:
  - {stack: dev}
  - {stack: prod, approval: true}
gates: ["ttft_ms.p95>+10%"]
"""


def project(folder: Path, text: str = FILE) -> Path:
    (folder / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: {name: python}\nstackConfigDir: stacks\n")
    for name in ("dev", "prod"):
        write(folder, name, stack(nodes=2))
    (folder / "stacks" / "pipeline.yaml").write_text(text)
    return folder


def test_pipeline_stages_lists_the_promotion_stages_in_order(tmp_path: Path):
    argv = ["pipeline", "stages", "--project", str(project(tmp_path))]
    assert CliRunner().invoke(app, argv).output == "dev\nprod, after an approval\n"
    assert json.loads(CliRunner().invoke(app, [*argv, "--json"]).output) == ["dev", "prod"]


def test_the_last_promotion_stage_of_the_kit_requires_an_approval():
    assert [stage.approval for stage in read_stages(PROJECT).stages][-1]


def test_all_problems_of_the_promotion_stages_file_are_reported_with_their_lines(tmp_path: Path):
    stages = "stages:\n  - {stack: dev}\n  - {stack: dev}\n  - {stack: live}\n"
    wrong = f'{stages}gates: ["ttft>+10%", "output_tokens_per_s<-5%"]\n'
    with pytest.raises(InvalidStack) as refused:
        read_stages(project(tmp_path, wrong))
    found = {problem.path: problem.line for problem in refused.value.problems}
    assert found == {"stages[1].stack": 3, "stages[2].stack": 4, "gates[0]": 5}
    assert {problem.file for problem in refused.value.problems} == {"stacks/pipeline.yaml"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("stages: []\n", "stages"),
        ("stages: [{stack: dev, reviewers: 2}]\n", "stages[0].reviewers"),
        (f"stages: {json.dumps([{'stack': 'dev'}] * 5)}\n", "stages"),
    ],
)
def test_a_promotion_stages_file_of_invalid_structure_is_refused_with_the_path(tmp_path: Path, text: str, path: str):
    with pytest.raises(InvalidStack) as refused:
        read_stages(project(tmp_path, text))
    assert path in {problem.path for problem in refused.value.problems}


def test_a_missing_promotion_stages_file_is_reported_by_its_path(tmp_path: Path):
    project(tmp_path)
    (tmp_path / "stacks" / "pipeline.yaml").unlink()
    with pytest.raises(KitError, match=r"There is no stacks/pipeline\.yaml"):
        read_stages(tmp_path)


def test_a_stage_whose_github_environment_has_no_required_reviewers_is_refused(tmp_path: Path):
    folder, answers = project(tmp_path), tmp_path / "environments"
    answers.mkdir()
    stages = read_stages(folder)
    assert unprotected_stages(stages, answers) == ["prod"]
    for rules, found in (("branch_policy", ["prod"]), ("required_reviewers", [])):
        (answers / "prod.json").write_text(json.dumps({"name": "prod", "protection_rules": [{"id": 1, "type": rules}]}))
        assert unprotected_stages(stages, answers) == found
    (answers / "prod.json").write_text('{"message": "Not Found"}')
    ended = CliRunner().invoke(app, ["pipeline", "stages", "--project", str(folder), "--environments", str(answers)])
    assert isinstance(ended.exception, KitError)
    assert "Nobody would be asked before deployments of prod" in ended.exception.message


def test_pipeline_promote_refuses_a_stack_that_is_no_promotion_stage(tmp_path: Path):
    folder = project(tmp_path, "stages: [{stack: dev}]\n")
    ended = CliRunner().invoke(app, ["pipeline", "promote", "--stack", "prod", "--project", str(folder)])
    assert isinstance(ended.exception, KitError)
    assert "prod is no stage of a merge" in ended.exception.message
