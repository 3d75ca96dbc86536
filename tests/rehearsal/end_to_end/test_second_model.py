"""The example of a second model, deployed and benchmarked in a rehearsal after the stack that it refers to."""

import shutil
from pathlib import Path

import pytest
from user_project import ROOT, TIME_SCALE, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]


def test_rehearse_with_option_after_deploys_the_first_stack_and_then_the_second(
    project: Project, tmp_path: Path
) -> None:
    first, second = (Project(tmp_path / name) for name in ("existing-cluster", "second-model"))
    for example in (first, second):
        shutil.copytree(ROOT / "examples" / example.folder.name, example.folder)
    rehearse = ("rehearse", "--stack", "rehearsal", "--json", "--time-scale", TIME_SCALE)
    try:
        ended = second.command(*rehearse, "--after", str(first.folder))
        assert ended.status == 0, ended.errors
        assert {smoke["model"]: smoke["passed"] for smoke in ended.document["smoke"]} == {
            "openai/gpt-oss-120b": True,
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": True,
        }
        assert ended.document["update"]["outputs"] == {"url": "http://llama.llm-d.svc.cluster.local"}
        again = second.command(*rehearse, "--after", str(first.folder), "--no-benchmark")
        assert again.errors.count("no changes") == 2, again.errors
    finally:
        assert second.command("rehearse", "down").status == 0
