"""How the Pulumi CLI is run."""

import sysconfig

from llmd_oke.operations import pulumi_cli


def test_programs_of_the_engine_find_the_kits_own_command_first():
    ended = pulumi_cli.run(["sh", "-c", "echo $PATH"], capture=True)
    assert ended.output.split(":")[0] == sysconfig.get_path("scripts")
