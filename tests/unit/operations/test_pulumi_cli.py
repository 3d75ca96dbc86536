"""How the Pulumi CLI is run."""

import json
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke.errors import KitError
from llmd_oke.operations import pulumi_cli
from llmd_oke.operations.pulumi_cli import Ended, PulumiCli


def test_programs_of_the_engine_find_the_kits_own_command_first():
    ended = pulumi_cli.run(["sh", "-c", "echo $PATH"], capture=True)
    assert ended.output.split(":")[0] == sysconfig.get_path("scripts")


class Counting:
    """Answers with a state that has one resource more each time that it is read."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, argv: Sequence[str], capture: bool) -> Ended:
        if "export" in argv:
            self.read += 1
            return Ended(0, json.dumps({"deployment": {"resources": [{}] * self.read}}))
        return Ended(0, '{"steps": []}')


def test_the_state_is_read_once_whoever_asks():
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", Counting())
    assert pulumi.export() == {"deployment": {"resources": [{}]}}
    pulumi.look()
    pulumi.preview()
    pulumi.outputs()
    assert len(replace(pulumi, refresh=True).resources()) == 1


CHANGES: dict[str, Callable[[PulumiCli], object]] = {
    "update": lambda pulumi: pulumi.up(yes=True),
    "destroy": lambda pulumi: pulumi.destroy(yes=True),
    "refresh": lambda pulumi: pulumi.read(["urn"]),
    "replace": lambda pulumi: pulumi.replace(["urn"]),
    "import": lambda pulumi: pulumi.import_state({}),
    "unprotect": lambda pulumi: pulumi.unprotect(["urn"]),
    "unlock": lambda pulumi: pulumi.unlock(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_state_is_read_again_after_a_change(change: Callable[[PulumiCli], object]):
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", Counting())
    pulumi.export()
    change(pulumi)
    assert len(pulumi.resources()) == 2


def test_a_state_that_can_not_be_read_is_no_empty_stack():
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", lambda *_: Ended(0, "{}"))
    with pytest.raises(KitError, match="state can't be read"):
        pulumi.resources()
