"""The workflows run what has been read, and with no more rights than they need."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke.config import stacks

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$")

RIGHTS = {
    ("check", "check"): {"contents": "read"},
    ("deploy", "choose"): {},
    ("deploy", "deploy"): {"contents": "read"},
    ("preview", "preview"): {"contents": "read"},
    ("preview", "comment"): {"actions": "read", "pull-requests": "write"},
}
"""What each job may do; another right, or another job, has to be written here too."""

SECRETS = {
    ("deploy", "deploy"): {"DEPLOY_PULUMI_ACCESS_TOKEN"},
    ("preview", "preview"): {"PREVIEW_PULUMI_ACCESS_TOKEN"},
}

FROM_OUTSIDE = re.compile(r"\$\{\{")


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def jobs() -> dict[tuple[str, str], dict[str, Any]]:
    return {(file.stem, name): job for file in WORKFLOWS for name, job in workflow(file.stem)["jobs"].items()}


def of_trigger(name: str) -> dict[str, Any]:
    return workflow(name)[True]  # YAML 1.1 reads `on` so


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_action_is_pinned_by_its_commit_and_tells_its_version(file: Path):
    used = [line.strip(" -") for line in file.read_text().splitlines() if "uses:" in line]
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_every_job_has_the_rights_that_it_needs_and_no_others():
    assert set(jobs()) == set(RIGHTS)
    for place, job in jobs().items():
        assert job.get("permissions", workflow(place[0])["permissions"]) == RIGHTS[place], place


def test_secrets_are_those_of_an_environment_and_go_to_one_job_each():
    for place, job in jobs().items():
        used = set(re.findall(r"secrets\.(\w+)", yaml.safe_dump(job)))
        assert used == SECRETS.get(place, set()), place
        assert bool(used) <= ("environment" in job)


def test_no_expression_stands_in_a_script():
    scripts = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    assert scripts
    assert [script for script in scripts if FROM_OUTSIDE.search(script)] == []


def test_no_workflow_runs_foreign_code_with_the_repositorys_rights():
    for file in WORKFLOWS:
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(of_trigger(file.stem))
    for place, job in jobs().items():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False, place
                assert "write" not in RIGHTS[place].values()


def test_stacks_to_deploy_are_on_a_list_of_those_that_have_a_file():
    asked = of_trigger("deploy")["workflow_dispatch"]["inputs"]["stack"]
    assert asked["type"] == "choice"
    assert set(asked["options"]) <= set(stacks(ROOT))
    (step,) = workflow("deploy")["jobs"]["choose"]["steps"]
    assert f"\n  {'|'.join(asked['options'])})" in step["run"]


def test_no_other_name_becomes_an_environment_a_lock_or_a_stack():
    deploy = workflow("deploy")["jobs"]["deploy"]
    chosen = "${{ needs.choose.outputs.stack }}"
    assert deploy["needs"] == "choose"
    assert deploy["environment"] == chosen
    assert deploy["concurrency"] == {"group": f"deploy-{chosen}", "cancel-in-progress": False}
    assert "inputs.stack" not in yaml.safe_dump(deploy)
    assert "concurrency" not in workflow("deploy")


def test_only_main_is_deployed():
    for name in ("choose", "deploy"):
        assert workflow("deploy")["jobs"][name]["if"] == "github.ref == 'refs/heads/main'"


def test_a_preview_has_nothing_of_the_identity_that_deploys():
    text = (ROOT / ".github/workflows/preview.yml").read_text()
    assert "LLMD_OKE_RUNNER" not in text
    assert "DEPLOY_" not in text
    assert "id-token" not in text
    preview = workflow("preview")["jobs"]["preview"]
    assert preview["environment"] == "preview"
    assert set(preview["strategy"]["matrix"]["stack"]) <= set(stacks(ROOT))


def test_a_preview_edits_its_comment_in_a_job_without_the_pull_requests_code():
    comment = workflow("preview")["jobs"]["comment"]
    assert [step for step in comment["steps"] if "uses" in step] == []
    (step,) = comment["steps"]
    assert "--method PATCH" in step["run"]
    assert "github-actions[bot]" in step["run"]


def test_pulumi_is_the_version_that_is_locked():
    (locked,) = re.findall(r"^pulumi==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    used = [
        step.get("with", {}).get("pulumi-version")
        for job in jobs().values()
        for step in job["steps"]
        if step.get("uses", "").startswith("pulumi/actions")
    ]
    assert used == [locked, locked]
