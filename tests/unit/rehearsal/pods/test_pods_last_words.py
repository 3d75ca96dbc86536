"""Termination messages."""

from pathlib import Path

import pytest
from lightkube.models.core_v1 import Container
from llmd_oke.rehearsal.pods.last_words import empty_file, last_words, mount

FALLBACK = Container(name="c", terminationMessagePolicy="FallbackToLogsOnError")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "c.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    return log


def test_what_was_written_is_said_whatever_the_exit_code(tmp_path: Path, log: Path) -> None:
    file = empty_file(tmp_path / "words" / "c")
    file.write_text("node-3 never joined")
    assert last_words(FALLBACK, 0, file, log) == "node-3 never joined"
    assert last_words(FALLBACK, 1, file, log) == "node-3 never joined"


def test_a_failure_without_words_is_told_by_the_end_of_the_log_where_that_is_asked_for(
    tmp_path: Path, log: Path
) -> None:
    file = empty_file(tmp_path / "c")
    said = last_words(FALLBACK, 1, file, log)
    assert said is not None
    assert said.splitlines()[0] == "line 20"
    assert last_words(FALLBACK, 0, file, log) is None
    assert last_words(Container(name="c"), 1, file, log) is None


def test_a_new_run_starts_with_nothing_said(tmp_path: Path, log: Path) -> None:
    empty_file(tmp_path / "c").write_text("of the run before")
    assert last_words(Container(name="c"), 1, empty_file(tmp_path / "c"), log) is None


def test_the_file_is_shown_where_the_container_expects_it(tmp_path: Path) -> None:
    assert mount(Container(name="c"), tmp_path).target == "/dev/termination-log"
    assert mount(Container(name="c", terminationMessagePath="/tmp/words"), tmp_path).target == "/tmp/words"
