import os
from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke.errors import KitError
from llmd_oke.rehearsal.host_processes import identity_of, stat_fields
from llmd_oke.rehearsal.world import World
from llmd_oke.rehearsal.world_record import ProcessRecord, StateFolder, WorldRecord, end_of_log


@pytest.fixture
def record():
    """A ready world whose first process is this one."""
    supervisor = identity_of(os.getpid())
    assert supervisor is not None
    return WorldRecord(
        phase="ready",
        supervisor=supervisor,
        launcher_pid=1,
        user_namespace=False,
        namespaces={"net": "net:[1]"},
        spec_digest="abc",
        started_at="2026-11-21T06:00:00+00:00",
        processes={"etcd": ProcessRecord(9, 0.1)},
        facts={"port": "1"},
    )


def test_a_record_survives_being_written_and_read(tmp_path, record):
    StateFolder(tmp_path).write_record(record)
    assert World(tmp_path).status() == record


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "ready"}', '{"supervisor": {}, "processes": {}}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "world.json").write_text(text)
    assert World(tmp_path).status() is None


def test_a_world_whose_process_number_belongs_to_another_process_now_is_none(tmp_path, record):
    reused = replace(record.supervisor, start_ticks=record.supervisor.start_ticks + 1)
    StateFolder(tmp_path).write_record(replace(record, supervisor=reused))
    assert World(tmp_path).status() is None


def test_a_world_from_before_a_restart_of_the_machine_is_none(tmp_path, record):
    before = replace(record.supervisor, boot_id="another")
    StateFolder(tmp_path).write_record(replace(record, supervisor=before))
    assert World(tmp_path).status() is None
    World(tmp_path).stop()
    assert not (tmp_path / "world.json").exists()


def test_a_failed_world_can_still_be_asked_why(tmp_path, record):
    gone = replace(record.supervisor, start_ticks=0)
    StateFolder(tmp_path).write_record(replace(record, supervisor=gone, phase="failed", failure="etcd ended"))
    status = World(tmp_path).status()
    assert status is not None
    assert status.failure == "etcd ended"
    with pytest.raises(KitError, match="is not running: etcd ended"):
        World(tmp_path).enter_command(["true"])


def test_a_state_folder_that_a_world_would_hide_is_refused():
    with pytest.raises(KitError, match="lies in /run, which a world hides"):
        World(Path("/run/rehearsal"))._prepare_folder()


def test_a_process_with_blanks_and_brackets_in_its_name_is_read_right(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c)) S 3 7 7\n")
    assert stat_fields(7, tmp_path) == ["S", "3", "7", "7"]


def test_the_end_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert end_of_log(log, lines=2) == "  line 4998\n  line 4999"
    assert end_of_log(tmp_path / "missing") == "  (no log)"
