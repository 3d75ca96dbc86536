import json
import subprocess
from datetime import date
from pathlib import Path

import pulumi
import pytest
import yaml
from engine_servers import language_server
from llmd_oke import config
from llmd_oke.config import effective_object, yaml_files
from llmd_oke.operations.pulumi_cli import PulumiCli
from pulumi import automation
from pulumi_engine import SECRETS, new_stack, state_file, use_pulumi

pytestmark = pytest.mark.engine

NUMBERS = (
    "1e6 1E6 -2e-3 1.0e+6 .5e1 1. 1.5 2.0 0 -0 +12 017 08 0o17 0o8 0x1F 0b11 1_000 1_0.5 1__0 1e22 +.5 5e 0xZ 1e400x"
)
WORDS = "yes no on off y n true True FALSE tRUE ~ null Null 12:30:45 190:20 1.2.3 v1.2 = e5 2026-11-02 '1e6'"
SCALARS = [*NUMBERS.split(), *WORDS.split()]
"""What YAML 1.1 and 1.2 disagree about, and what they do not."""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PulumiCli:
    """The real CLI in a project of its own."""
    program = use_pulumi(monkeypatch, tmp_path)
    (tmp_path / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\n")
    state_file(f"file://{tmp_path}", "llmd-oke", "test")
    return PulumiCli(tmp_path, "test", program)


def test_the_kit_parses_yaml_scalars_of_a_stack_file_to_the_values_that_pulumi_does(cli: PulumiCli) -> None:
    file = cli.project / "Pulumi.test.yaml"
    file.write_text("".join(["config:\n  llmd-oke:stack:\n    values:\n", *(f"      - {text}\n" for text in SCALARS)]))
    asked = [cli.program, "config", "--json", "--stack", "test"]
    told = subprocess.run(asked, cwd=cli.project, check=True, capture_output=True).stdout
    known = json.loads(json.loads(told)["llmd-oke:stack"]["value"])["values"]
    read = yaml_files.read(file).value["config"]["llmd-oke:stack"]["values"]
    differing = {
        text: (ours, theirs)
        for text, ours, theirs in zip(SCALARS, read, known, strict=True)
        if (ours, type(ours)) != (theirs, type(theirs)) and not isinstance(ours, date)
    }
    assert differing == {}


def test_pulumi_alone_updates_a_stack_whose_file_builds_on_a_base_file(cli: PulumiCli) -> None:
    """The engine hands the program what the stack file says itself; the program reads the base."""
    (cli.project / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\nstackConfigDir: stacks\n")
    (cli.project / "stacks").mkdir()
    (cli.project / "stacks" / "shared.yaml").write_text("smoke: {requests: 8}\nnamespace: shared\n")
    (cli.project / "stacks" / "Pulumi.test.yaml").write_text(
        yaml.safe_dump({**SECRETS, "config": {"llmd-oke:stack": {"base": "shared.yaml", "namespace": "dev"}}})
    )

    def program() -> None:
        written = pulumi.Config("llmd-oke").require_object("stack")
        pulumi.export("stack", effective_object(written, cli.project).value)

    def pulumi_cli(*words: str) -> None:
        subprocess.run([cli.program, *words, "--stack", "test"], cwd=cli.project, check=True, capture_output=True)

    with language_server(program) as address:
        pulumi_cli("up", "--yes", "--skip-preview", "--client", address, "--exec-kind", "auto.inline")
    pulumi_cli("config", "set", "--path", "llmd-oke:stack.smoke.requests", "9")
    assert cli.outputs()["stack"] == {"smoke": {"requests": 8}, "namespace": "dev"}
    assert config.read(cli.project, "test") == {"smoke": {"requests": 9}, "namespace": "dev"}


def test_after_an_update_pulumis_last_history_record_and_stack_outputs_are_read(cli: PulumiCli) -> None:
    def program() -> None:
        pulumi.export("address", "http://router")
        pulumi.export("token", pulumi.Output.secret("hidden"))

    stack = new_stack(program, automation.LocalWorkspaceOptions(str(cli.project)))
    assert cli.last_record() is None
    stack.up()
    record = cli.last_record()
    assert record is not None
    assert record.changes == {"create": 1}
    assert cli.outputs() == {"address": "http://router", "token": "[secret]"}
