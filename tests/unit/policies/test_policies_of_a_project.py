"""Policies of a project, as `check` applies them to what a stack's program declares."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke.planning import Plan, plan_stack_file
from llmd_oke.policies.organisation import Organisation, read_organisation, with_policies
from stack_files import PROJECT, created_stack, model, stack, write

PUBLIC = {
    "exposure": "public",
    "host": "llm.example.com",
    "uncheckedPods": "accepted",
    "authentication": {"kind": "api-keys"},
    "tls": {"kind": "config"},
}

NETWORK = {"network": {"publicLoadBalancers": True}}


def judged(
    project: Path, policies: str | None, content: dict[str, Any], settings: dict[str, Any] | None = None
) -> Plan:
    """The plan of a stack in a project with these policies."""
    (project / "Pulumi.yaml").write_text("name: mine\n")
    write(project, "s", content, settings)
    if policies is not None:
        (project / "policies").mkdir()
        (project / "policies" / "policies.yaml").write_text(policies)
    return with_policies(project, "s", plan_stack_file(project, "s"))


def refused(project: Path, policies: str, content: dict[str, Any], settings: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(InvalidStack) as refusal:
        judged(project, policies, content, settings)
    return [f"{problem.line} {problem}" for problem in refusal.value.problems]


def test_a_project_without_policies_gets_the_plan_without_policy_checks(tmp_path: Path):
    small = stack(model("1p-tp1-1d-tp1"))
    plan = judged(tmp_path, None, small)
    assert plan == plan_stack_file(tmp_path, "s")


@pytest.mark.parametrize("name", ["reference", "guide", "existing", "small"])
def test_the_kits_own_stacks_violate_only_advisory_policies(name: str, tmp_path: Path):
    text = (PROJECT / "stacks" / f"Pulumi.{name}.yaml").read_text()
    (tmp_path / "stacks").mkdir()
    (tmp_path / "policies").mkdir()
    (tmp_path / "stacks" / f"Pulumi.{name}.yaml").write_text(text)
    plan = plan_stack_file(tmp_path, name)
    told = with_policies(tmp_path, name, plan).advice[len(plan.advice) :]
    assert {advice.path for advice in told} <= {"policy image-digests"}


def test_the_policy_file_in_examples_makes_protection_mandatory():
    organisation = read_organisation(PROJECT / "examples")
    assert organisation is not None
    assert organisation.level("protection") == "mandatory"


def test_a_stack_that_violates_mandatory_policies_is_refused_with_lines_and_values(tmp_path: Path):
    levels = "levels: {protection: mandatory, monthly-cost: mandatory, regions: mandatory}"
    policies = f"{levels}\nmonthlyUsd: 1000\nregions: [us-phoenix-1]\n"
    problems = refused(tmp_path, policies, created_stack(cluster={"protect": False}))
    assert any("cluster.protect" in text and "policy protection: Cluster" in text for text in problems)
    assert any("gpuPools" in text and "a month at list price" in text for text in problems)
    region = "cluster.region = 'us-ashburn-1': policy regions: provider oci: it creates"
    assert sum(region in text for text in problems) == 1
    assert not [text for text in problems if text.startswith("None")]


def test_a_plain_text_secret_in_pulumi_settings_violates_a_mandatory_policy(tmp_path: Path):
    hidden = {"llmd-oke:frontDoorKeys": {"secure": "v1:x"}, "llmd-oke:huggingFaceToken": "hf_planted"}
    problems = refused(tmp_path, "levels: {plain-secrets: mandatory}", stack(model("1p-tp1-1d-tp1")), hidden)
    assert len(problems) == 1
    assert "llmd-oke:huggingFaceToken" in problems[0]
    assert "planted" not in problems[0]


def test_the_policy_check_of_a_public_front_door_needs_no_key_or_certificate(tmp_path: Path):
    policies = "levels: {client-authentication: mandatory, public-endpoints: mandatory, image-digests: 'off'}"
    plan = judged(tmp_path, policies, created_stack(cluster=NETWORK, frontDoor=PUBLIC))
    assert not [advice for advice in plan.advice if advice.text.startswith("policy ")]


def test_an_invalid_policy_file_is_reported_with_all_its_lines(tmp_path: Path):
    with pytest.raises(InvalidStack) as refusal:
        judged(tmp_path, "levels: {protection: must}\nregion: [us-ashburn-1]\n", stack(model("1p-tp1-1d-tp1")))
    assert [(item.file, item.path, item.line) for item in refusal.value.problems] == [
        ("policies/policies.yaml", "levels.protection", 1),
        ("policies/policies.yaml", "region", 2),
    ]


def test_a_policies_folder_without_files_gives_the_default_policies(tmp_path: Path):
    (tmp_path / "policies").mkdir()
    assert read_organisation(tmp_path) == Organisation()
