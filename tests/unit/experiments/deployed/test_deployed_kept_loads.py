"""What a load from inside the cluster leaves in the reports."""

import json
from pathlib import Path

import pytest
from llmd_oke.bench.load.stage import Stage, StageResult
from llmd_oke.bench.records.health import Health
from llmd_oke.bench.records.lines import read_lines
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.records.windows import Window
from llmd_oke.bench.reporting.rows import stage_row
from llmd_oke.bench.workload.shapes import ConstantRate
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.kept_loads import Keeping, Measured, folder_for_results, keep, new_folder
from llmd_oke.results.files import read_rows
from llmd_oke.results.reading import Hints

RECORD = RequestRecord(0, 0.0, 1.0, (0.5, 1.0), 100, 2, due_s=0.0)
STAGE = StageResult(Stage(ConstantRate(1), 1), (RECORD,), Health(), Window(0.0, 1.0))
ROW = stage_row(STAGE, model="m", gpu="MI300X", gpus_counted=1)
BROKEN = json.dumps({"load_summary": {"count": "many"}, "successes": {}})


def kept(folder: Path, **files: str):
    named = {name.replace("__", "/"): text for name, text in files.items()}
    return keep(Measured((), files=named), Keeping(folder, Hints()))


def test_rows_and_requests_of_each_stage_are_kept(tmp_path: Path):
    keep(Measured((ROW,), (STAGE, STAGE)), Keeping(tmp_path, Hints()))
    assert read_rows(tmp_path / "rows.jsonl") == [ROW]
    assert [number for number, _ in read_lines((tmp_path / "requests.jsonl").read_text().splitlines())] == [0, 1]


def test_files_of_a_tool_keep_their_places(tmp_path: Path):
    kept(tmp_path, a__log="one", b__log="two")
    assert [(tmp_path / "inference-perf" / name / "log").read_text() for name in "ab"] == ["one", "two"]


def test_a_file_of_a_tool_that_can_not_be_read_is_told(tmp_path: Path):
    (rejected,) = kept(tmp_path, **{"stage_0_lifecycle_metrics.json": BROKEN}).found.rejected
    assert rejected.file.endswith("stage_0_lifecycle_metrics.json")


@pytest.mark.parametrize("name", ["../rows.jsonl", "/etc/passwd", "a/../../x"])
def test_a_pod_writes_nothing_outside_of_the_folder(tmp_path: Path, name: str):
    with pytest.raises(KitError, match="the name"):
        keep(Measured((), files={name: ""}), Keeping(tmp_path / "in", Hints()))


def test_what_can_not_be_written_is_told(tmp_path: Path):
    (tmp_path / "inference-perf").write_text("")
    with pytest.raises(KitError, match="can't be written"):
        kept(tmp_path, a="")


def test_a_folder_stays_only_if_something_was_put_into_it(tmp_path: Path):
    with pytest.raises(KitError), folder_for_results(tmp_path / "empty"):
        raise KitError("nothing was measured")
    with folder_for_results(tmp_path / "full"):
        (tmp_path / "full/rows.jsonl").write_text("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_stack_with_organization_and_project_has_one_folder(tmp_path: Path):
    assert new_folder(tmp_path, "acme/llm/dev").relative_to(tmp_path).parts[:2] == ("acme_llm_dev", "bench")
