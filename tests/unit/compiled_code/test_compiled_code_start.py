import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from llmd_pods.compiled_code import start

PROGRAM = Path(start.__file__)
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words): pass
link = sys.argv[1]
open(os.path.join(link, "library"), "a").write("compiled")
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
LIMIT_S = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "key"
    made.mkdir()
    return made


@pytest.fixture
def first(folder: Path, tmp_path: Path) -> start.Place:
    """The place of a server that has compiled and started."""
    place = start.claim(folder)
    assert place.state == "none yet"
    compiled(place, tmp_path)
    place.confirm()
    return place


def compiled(place: start.Place, links: Path, text: str = "code") -> None:
    """Start a server that compiles."""
    place.start([links / "vllm"])
    (links / "vllm" / "library").write_text(text)


def ended(place: start.Place) -> None:
    """End the server of a place."""
    os.close(place.descriptor)


def restarted(folder: Path, links: Path) -> start.Place:
    start.clear([links / "vllm"])
    return start.claim(folder)


def test_the_next_server_gets_the_compiled_code_that_is_removed_if_it_does_not_start(
    folder: Path, tmp_path: Path, first: start.Place
):
    ended(first)
    second = restarted(folder, tmp_path)
    second.start([tmp_path / "vllm"])
    assert (second.folder, second.state) == (first.folder, "as the last server left it")
    assert (tmp_path / "vllm" / "library").read_text() == "code"
    ended(second)
    third = restarted(folder, tmp_path)
    assert third.state == "removed, because the last server with it did not start"
    third.start([tmp_path / "vllm"])
    assert not list((tmp_path / "vllm").iterdir())


def test_copied_code_of_a_server_that_did_not_start_is_not_copied_again(
    folder: Path, tmp_path: Path, first: start.Place
):
    bad = restarted(folder, tmp_path)
    bad.start([tmp_path / "vllm"])
    assert bad.state.startswith("a copy")
    ended(bad)
    assert not list(restarted(folder, tmp_path).folder.glob("code/vllm/*"))


def test_concurrent_servers_never_write_to_one_folder_of_compiled_code(folder: Path, tmp_path: Path):
    first = start.claim(folder)
    compiled(first, tmp_path)
    second = restarted(folder, tmp_path)
    assert second.folder != first.folder
    assert second.state == "none yet"  # the first one has not started


def test_a_concurrent_server_gets_its_own_copy_of_another_servers_compiled_code(
    folder: Path, tmp_path: Path, first: start.Place
):
    second = restarted(folder, tmp_path)
    compiled(second, tmp_path, "other")
    assert (first.code / "vllm" / "library").read_text() == "code"
    assert (second.code / "vllm" / "library").read_text() == "other"


def test_compiled_code_in_use_by_a_restarted_server_is_copied_for_another(
    folder: Path, tmp_path: Path, first: start.Place
):
    ended(first)
    restarted(folder, tmp_path).start([tmp_path / "vllm"])
    assert restarted(folder, tmp_path).state == "a copy of that in place 0"


def test_an_ordinary_folder_at_the_path_of_compiled_code_is_replaced_by_a_link(folder: Path, tmp_path: Path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "old").write_text("")
    restarted(folder, tmp_path).start([tmp_path / "vllm"])
    assert not list((tmp_path / "vllm").iterdir())


def test_more_servers_than_slots_for_compiled_code_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "MOST_PLACES", 1)
    start.claim(folder)
    with pytest.raises(OSError, match="all 1 places are taken"):
        start.claim(folder)


def run(folder: Path, link: Path, health: str, *command: str) -> subprocess.Popen[str]:
    own = [f"--folder={folder}", f"--link={link}", f"--health={health}", "--limit-s=60", "--", *command]
    return subprocess.Popen([sys.executable, "-IB", PROGRAM, *own], stdout=subprocess.PIPE, text=True)


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_wrapper_runs_the_servers_command_and_returns_its_exit_code(folder: Path, tmp_path: Path):
    shown = "import json, os, sys; print(json.dumps([os.getpid(), sys.argv[1:]])); sys.exit(7)"
    process = run(folder, tmp_path / "vllm", "http://127.0.0.1:1/", sys.executable, "-c", shown, "--port=1")
    output, _ = process.communicate(timeout=LIMIT_S)
    said, printed = output.splitlines()
    assert said == f"compiled code in {folder}/0: none yet"
    assert json.loads(printed) == [process.pid, ["--port=1"]]
    assert process.returncode == 7


def test_a_healthy_server_confirms_its_compiled_code_and_frees_its_slot_at_exit(folder: Path, tmp_path: Path):
    other = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )  # whose address is known before
    assert other.stdout
    health = f"http://127.0.0.1:{int(other.stdout.readline())}/health"
    link = tmp_path / "vllm"
    process = run(folder, link, health, sys.executable, "-c", SERVER, str(link))
    try:
        until((folder / "0" / start.STARTED).exists)
        held = start.claim(folder)
        assert held.folder.name == "1"
        ended(held)
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        other.terminate()
        other.wait(LIMIT_S)
    assert start.claim(folder).folder.name == "0"


@pytest.mark.parametrize("damage", ["a file in its place", "no folder"])
def test_a_server_starts_without_a_usable_folder_for_compiled_code(folder: Path, tmp_path: Path, damage: str):
    folder.rmdir()
    if damage == "a file in its place":
        folder.write_text("")
    process = run(folder, tmp_path / "vllm", "http://127.0.0.1:1/", sys.executable, "-c", "print('served')")
    output, _ = process.communicate(timeout=LIMIT_S)
    said, served = output.splitlines()
    assert said.startswith("compiled code is not kept: ")
    assert (served, process.returncode) == ("served", 0)


def test_vllms_command_is_separated_from_the_arguments_of_the_wrapper_around_it():
    own = ["vllm", "serve", "m", "--x", "--", "y"]
    options = ["--folder=/c", "--link=/l", "--health=http://127.0.0.1/", "--limit-s=1"]
    assert start.server_command(["python3", "-IB", "/opt/start.py", *options, "--", *own]) == own
    assert start.server_command(own) == own
    assert start.server_command(["python3", "-m", "vllm.entrypoints.openai.api_server"])[0] == "python3"
