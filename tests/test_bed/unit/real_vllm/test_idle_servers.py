"""Processor time of servers without requests, in rehearsals with vLLM itself."""

import os
from pathlib import Path

from llmd_rehearsal.real_vllm.checked_model import processor_seconds


def test_processor_time_of_a_server_is_that_of_all_its_processes(tmp_path: Path) -> None:
    commands = ("VLLM::EngineCore", "python\0/bin/vllm\0serve\0acme/m", "pd-sidecar", "python\0/bin/vllm\0serve\0other")
    for number, command in enumerate(commands):
        process = tmp_path / f"{number}"
        (process / "ns").mkdir(parents=True)
        (process / "cmdline").write_text(command)
        (process / "stat").write_text(f"{number} (name (of) it) S " + " ".join(["0"] * 10 + ["150", "50"]))
        if number in {1, 2}:
            (process / "ns/net").hardlink_to(tmp_path / "0/ns/net")
        else:
            (process / "ns/net").touch()
    pod = (tmp_path / "0/ns/net").stat().st_ino
    assert processor_seconds(tmp_path) == {pod: 400 / os.sysconf("SC_CLK_TCK")}
