"""Folders of rendered files."""

import json
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.gitops.manifests import RECORD, write_folder


def test_rendering_unchanged_manifests_writes_no_file(tmp_path: Path):
    write_folder(tmp_path, {"a.yaml": "a: 1\n"})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    changes = write_folder(tmp_path, {"a.yaml": "a: 1\n"})
    assert (changes.written, changes.unchanged, changes.removed) == ((), ("a.yaml",), ())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_rendering_removes_files_that_it_wrote_earlier_and_keeps_other_files(tmp_path: Path):
    (tmp_path / "own.yaml").write_text("own: 1\n")
    write_folder(tmp_path, {"a.yaml": "a: 1\n", "b.yaml": "b: 1\n"})
    changes = write_folder(tmp_path, {"b.yaml": "b: 2\n"})
    assert (changes.written, changes.removed) == (("b.yaml",), ("a.yaml",))
    assert {path.name for path in tmp_path.iterdir()} == {"b.yaml", "own.yaml", RECORD}


def test_a_file_that_rendering_did_not_write_is_not_overwritten(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("own: 1\n")
    with pytest.raises(KitError, match=r"did not write: a\.yaml"):
        write_folder(tmp_path, {"a.yaml": "a: 1\n", "b.yaml": "b: 1\n"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_rendering_after_an_interruption_removes_files_of_the_interrupted_one(tmp_path: Path):
    (tmp_path / RECORD).write_text(json.dumps({"files": ["a.yaml", "b.yaml"]}))
    (tmp_path / "a.yaml").write_text("a: 1\n")
    write_folder(tmp_path, {"b.yaml": "b: 1\n"})
    assert {path.name for path in tmp_path.iterdir()} == {"b.yaml", RECORD}


@pytest.mark.parametrize("text", ["[]", "{", '{"files": ["../outside.yaml"]}', '{"files": [1]}'])
def test_a_record_of_rendered_files_that_names_files_outside_is_refused(tmp_path: Path, text: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside.yaml").write_text("own: 1\n")
    (folder / RECORD).write_text(text)
    with pytest.raises(KitError, match="doesn't name the files"):
        write_folder(folder, {})
    assert (tmp_path / "outside.yaml").is_file()


def test_rendering_replaces_a_symbolic_link_and_does_not_follow_it(tmp_path: Path):
    outside = tmp_path / "outside.yaml"
    outside.write_text("own: 1\n")
    folder = tmp_path / "folder"
    write_folder(folder, {"a.yaml": "a: 1\n"})
    (folder / "a.yaml").unlink()
    (folder / "a.yaml").symlink_to(outside)
    write_folder(folder, {"a.yaml": "a: 2\n"})
    assert (outside.read_text(), (folder / "a.yaml").read_text()) == ("own: 1\n", "a: 2\n")
