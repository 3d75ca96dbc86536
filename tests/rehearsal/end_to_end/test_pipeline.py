"""What continuous integration calls, against the rehearsal."""

import re

import pytest
from user_project import Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

PREFILL = re.compile(r"Deployment gpt-oss-120b-[0-9a-f]{8}-prefill")
"""The unit's version is part of its objects' names."""


def test_a_stack_is_previewed_deployed_and_previewed_again(project: Project) -> None:
    project.write("ci")

    def previewed() -> str:
        summary = project.folder / "summary.md"
        ended = project.command("pipeline", "preview", "--stack", "ci", "--rehearse", "--summary", str(summary))
        assert ended.status == 0, ended.errors
        return summary.read_text()

    assert PREFILL.search(previewed())
    deployed = project.command("pipeline", "deploy", "--stack", "ci", "--rehearse")
    assert deployed.status == 0, deployed.errors
    assert "Remote prefill" in deployed.output
    assert not PREFILL.search(previewed())
    assert list((project.folder / "reports" / "ci").glob("*/summary.json"))


def test_an_update_that_would_be_refused_ends_with_1_and_says_why(project: Project) -> None:
    project.write("bad-ci", release="llm-d-99")
    ended = project.command("pipeline", "deploy", "--stack", "bad-ci", "--rehearse")
    assert ended.status == 1
    assert "release" in ended.errors
