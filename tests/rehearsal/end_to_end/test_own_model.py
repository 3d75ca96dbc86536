"""The example project with a model that the kit doesn't know, deployed and benchmarked in a rehearsal."""

import shutil
from pathlib import Path

import pytest
from project_entries import write_entry
from user_project import ROOT, TIME_SCALE, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]


def test_a_model_of_the_projects_own_is_deployed_and_serves(project: Project, tmp_path: Path) -> None:
    example = Project(tmp_path / "support")
    shutil.copytree(ROOT / "examples" / "own-model", example.folder)
    try:
        ended = example.command(
            "rehearse", "--stack", "rehearsal", "--json", "--time-scale", TIME_SCALE, "--no-benchmark"
        )
        assert ended.status == 0, ended.errors
        assert ended.document["update"]["outputs"]["topologies"] == {"support-8b": "2p-tp1-1d-tp1"}
        # Servers of a rehearsal that is up know what an update brings.
        entry = (example.folder / "values/models/support-8b.yaml").read_text()
        write_entry(example.folder, "models/support-9b", entry.replace("support-8b", "support-9b"))
        cluster = {"mode": "existing", "identifier": "support"}
        example.write("rehearsal", cluster=cluster, models=[model(model="support-9b")])
        ended = example.rehearse("rehearsal")
        assert ended.status == 0, ended.errors
        assert ended.document["smoke"][0]["passed"]
    finally:
        assert example.command("rehearse", "down").status == 0
