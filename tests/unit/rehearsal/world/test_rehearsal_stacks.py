import threading
from pathlib import Path

import pytest
from llmd_oke.errors import KitError
from llmd_oke.progress import SilentProgress
from llmd_oke.rehearsal import rehearsal
from llmd_oke.rehearsal.exclusive import exclusive


@pytest.mark.parametrize("name", ["..", ".", "", "../..", "a/b", "/etc", "~", "a b", "a\n"])
def test_what_is_no_name_of_a_stack_never_becomes_a_folder(tmp_path, name):
    with pytest.raises(KitError, match="is no name of a stack"):
        rehearsal.rehearsal_folder(tmp_path, name)


@pytest.mark.parametrize("name", ["..", "../..", "../stacks"])
def test_down_removes_nothing_outside_its_folder(tmp_path, name):
    kept = tmp_path / "stacks" / "Pulumi.mine.yaml"
    kept.parent.mkdir()
    kept.write_text("config: {}")
    with pytest.raises(KitError):
        rehearsal.down(tmp_path, name)
    assert kept.exists()


@pytest.mark.parametrize("name", ["rehearsal", "guide-baseline", "a.b_c", "..a"])
def test_names_of_stacks_are_folders_of_the_project(tmp_path, name):
    assert rehearsal.rehearsal_folder(tmp_path, name) == tmp_path / ".rehearsal" / name


def test_down_says_whether_anything_was_there(tmp_path):
    assert not rehearsal.down(tmp_path, "never-up")
    folder = tmp_path / ".rehearsal" / "once-up"
    (folder / "logs").mkdir(parents=True)
    (folder / "kubeconfig.yaml").touch()
    assert rehearsal.down(tmp_path, "once-up")
    assert not rehearsal.down(tmp_path, "once-up")
    assert (folder / "logs").is_dir()


class Listener(SilentProgress):
    def __init__(self) -> None:
        self.waits = threading.Event()

    def step(self, text: str) -> None:
        self.waits.set()


def test_a_second_program_waits_for_the_first(tmp_path: Path):
    order: list[str] = []
    listener = Listener()

    def second() -> None:
        with exclusive(tmp_path / "lock", "finish", listener, timeout_s=10):
            order.append("second")

    with exclusive(tmp_path / "lock", "finish", SilentProgress(), timeout_s=10):
        thread = threading.Thread(target=second)
        thread.start()
        assert listener.waits.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_waiting_for_another_program_has_a_limit(tmp_path: Path):
    with (
        exclusive(tmp_path / "lock", "finish", SilentProgress(), timeout_s=1),
        pytest.raises(KitError, match="Another program has held"),
        exclusive(tmp_path / "lock", "finish", SilentProgress(), timeout_s=0.05),
    ):
        pass
