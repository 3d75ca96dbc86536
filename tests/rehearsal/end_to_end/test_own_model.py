"""The example project with a model that the kit doesn't know, deployed and benchmarked in a rehearsal."""

import shutil
from pathlib import Path

import pytest
from user_project import ROOT, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]


def test_a_model_of_the_projects_own_is_deployed_and_serves(project: Project, tmp_path: Path) -> None:
    example = Project(tmp_path / "support")
    shutil.copytree(ROOT / "examples" / "own-model", example.folder)
    try:
        ended = example.rehearse("rehearsal")
        assert ended.status == 0, ended.errors
        (smoke,) = ended.document["smoke"]
        assert smoke["passed"]
        assert ended.document["update"]["outputs"]["topologies"] == {"support-8b": "2p-tp1-1d-tp1"}
    finally:
        assert example.command("rehearse", "down").status == 0
