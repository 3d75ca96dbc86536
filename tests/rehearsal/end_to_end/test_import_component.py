"""The example project that imports one component, deployed and benchmarked in a rehearsal."""

import shutil
from pathlib import Path

import pytest
from user_project import ROOT, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]


def test_the_import_component_example_is_deployed_in_a_rehearsal_and_serves(project: Project, tmp_path: Path) -> None:
    example = Project(tmp_path / "chat")
    shutil.copytree(ROOT / "examples" / "import-component", example.folder)
    try:
        ended = example.rehearse("rehearsal")
        assert ended.status == 0, ended.errors
        (smoke,) = ended.document["smoke"]
        assert smoke["passed"]
        assert ended.document["update"]["outputs"]["url"] == "http://gpt-oss-120b.chat.svc.cluster.local"
    finally:
        assert example.command("rehearse", "down").status == 0
