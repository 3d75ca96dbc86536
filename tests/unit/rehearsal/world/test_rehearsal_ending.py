"""Ending a command with all that it has begun."""

import signal
import subprocess

import pytest
from llmd_oke.rehearsal.ending import end_group

WAITS = "trap 'echo heard; exit 7' {}; echo ready; while :; do sleep 0.01; done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_hears_of_its_end_first_and_has_time(number: signal.Signals) -> None:
    command = ["sh", "-c", WAITS.format(number.name.removeprefix("SIG"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        end_group(process, 10, number)
        assert (process.stdout.read(), process.wait()) == ("heard\n", 7)
