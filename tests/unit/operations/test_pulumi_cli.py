"""How the Pulumi CLI is run."""

import sysconfig
from typing import Any, cast

import pytest
from llmd_oke.operations import pulumi_cli
from llmd_oke.operations.child import to_its_end


class Interrupted:
    """A process that Ctrl-C interrupts the wait for, and that ends after that."""

    def __init__(self) -> None:
        self.waits = 0

    def communicate(self) -> tuple[str, str]:
        self.waits += 1
        if self.waits == 1:
            raise KeyboardInterrupt
        return "", ""


def test_programs_of_the_engine_find_the_kits_own_command_first():
    ended = pulumi_cli.run(["sh", "-c", "echo $PATH"], capture=True)
    assert ended.output.split(":")[0] == sysconfig.get_path("scripts")


def test_an_interrupt_ends_nothing_before_the_cli_has_saved_its_state():
    process = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        to_its_end(cast("Any", process))
    assert process.waits == 2
