"""A state backend of files after its engine was killed."""

from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.backend import unlock
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli


class Cli:
    """Signed in to one backend; every command but `whoami` does nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.commands: list[str] = []

    def __call__(self, command: list[str], capture: bool) -> CommandResult:
        assert capture or "cancel" in command
        self.commands.append(command[1])
        return CommandResult(0, f'{{"url": "{self.url}"}}')


def test_unlocking_a_file_backend_removes_incompletely_written_files(tmp_path: Path):
    stacks, locks = tmp_path / ".pulumi/stacks/kit", tmp_path / ".pulumi/locks/organization/kit/prod"
    whole = [stacks / "prod.json", stacks / "prod.json.bak", stacks / "prod.json.bak.attrs", locks / "3.json"]
    unfinished = [stacks / "prod.json.attrs", locks / "1.json.18ea5aede4e025a6.tmp", locks / "2.json"]
    for file in (*whole, *unfinished):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}" if file in whole else "")
    cli = Cli(f"file://{tmp_path}?no_tmp_dir=true")
    assert unlock(PulumiCli(Path("/p"), "prod", "pulumi", cli)) == 0
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == set(whole)
    assert cli.commands == ["whoami", "cancel"]


def test_unlocking_a_remote_state_backend_only_runs_pulumi_cancel():
    cli = Cli("s3://bucket")
    assert unlock(PulumiCli(Path("/p"), "prod", "pulumi", cli)) == 0
    assert cli.commands == ["whoami", "cancel"]


@pytest.mark.parametrize("words", ["error: failed to load checkpoint: EOF", "unexpected end of JSON input"])
def test_an_error_about_incompletely_written_state_files_names_the_remedy(words: str):
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", lambda *_: CommandResult(1, "", words))
    with pytest.raises(KitError) as refusal:
        pulumi.export()
    assert str(refusal.value.remedy).endswith("llmd-oke recover --stack prod --yes --unlock")
