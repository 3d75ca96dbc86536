import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from llmd_base.errors import KitError
from llmd_oke.operations.backend import PASSPHRASE, Terminal, require_stack
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli
from pulumi_engine import SECRETS, state_file, vault

pytestmark = pytest.mark.engine

PROJECT = "name: llmd-oke\nruntime: python\nstackConfigDir: stacks\n"


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PulumiCli:
    """The CLI of somebody who has never used it."""
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text(PROJECT)
    (tmp_path / "stacks" / "Pulumi.dev.yaml").write_text("config:\n  llmd-oke:a: b # kept\n")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PULUMI_SKIP_UPDATE_CHECK", "true")
    monkeypatch.setenv("PATH", f"{os.environ['LLMD_OKE_PROGRAMS']}:{os.environ['PATH']}")
    for name in (PASSPHRASE, f"{PASSPHRASE}_FILE", "PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the test sets
        monkeypatch.delenv(name)
    return pulumi_cli(tmp_path, "dev")


@pytest.fixture
def signed_in(pulumi: PulumiCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PulumiCli:
    """Signed in to a folder that has no stack yet."""
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/state")
    return pulumi


def answering(*, create: bool) -> tuple[Terminal, list[str]]:
    """Somebody who answers so, and what was asked."""
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return create

    def ask_passphrase(new: bool) -> str:
        questions.append("a new passphrase" if new else "the passphrase")
        return "typed"

    return Terminal(confirm, ask_passphrase), questions


def pulumi_of(cli: PulumiCli) -> Callable[..., str]:
    """A function that runs the CLI on the stack, with what it reads; it returns what the CLI prints."""

    def pulumi(*words: str, given: str = "") -> str:
        argv = [cli.program, *words, "--stack", cli.stack, "--cwd", str(cli.project)]
        return subprocess.run(argv, input=given, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    return pulumi


def test_after_a_passphrase_change_the_old_passphrase_decrypts_no_secret(
    signed_in: PulumiCli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(PASSPHRASE, "the old one")
    state_file(os.environ["PULUMI_BACKEND_URL"], "llmd-oke", "dev")
    pulumi = pulumi_of(signed_in)
    pulumi("config", "set", "--secret", "llmd-oke:huggingFaceToken", given="hf_planted")
    pulumi("stack", "change-secrets-provider", "passphrase", given="the new one\n")
    with pytest.raises(subprocess.CalledProcessError):
        pulumi("config", "get", "llmd-oke:huggingFaceToken")
    monkeypatch.setenv(PASSPHRASE, "the new one")
    assert pulumi("config", "get", "llmd-oke:huggingFaceToken") == "hf_planted"


def test_documented_pulumi_config_commands_turn_a_clients_next_key_into_its_key(
    signed_in: PulumiCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in vault().items():
        monkeypatch.setenv(name, value)
    state_file(os.environ["PULUMI_BACKEND_URL"], "llmd-oke", "dev")
    (tmp_path / "stacks" / "Pulumi.dev.yaml").write_text(yaml.safe_dump(SECRETS))
    pulumi = partial(pulumi_of(signed_in), "config")
    of_next, of_key = (f"llmd-oke:{name}.alice" for name in ("frontDoorNextKeys", "frontDoorKeys"))
    pulumi("set-all", "--path", "--secret", f"{of_key}=first", "--secret", f"{of_next}=next")
    pulumi("set", "--secret", "--path", of_key, given=pulumi("get", "--path", of_next))
    pulumi("rm", "--path", of_next)
    kept = json.loads(pulumi("--json", "--show-secrets"))
    assert json.loads(kept["llmd-oke:frontDoorKeys"]["value"]) == {"alice": "next"}
    assert json.loads(kept["llmd-oke:frontDoorNextKeys"]["value"]) == {}


def test_without_a_login_to_a_state_backend_the_error_names_the_command_to_log_in(pulumi: PulumiCli):
    with pytest.raises(KitError, match="not signed in to a state backend") as refusal:
        require_stack(pulumi)
    assert "pulumi login" in (refusal.value.remedy or "")


def test_a_missing_pulumi_stack_is_reported_with_the_command_that_creates_it(signed_in: PulumiCli):
    with pytest.raises(KitError, match="has no stack dev") as refusal:
        require_stack(signed_in)
    assert refusal.value.remedy == "Create it: pulumi stack init dev"


def test_a_missing_pulumi_stack_is_not_created_when_the_user_declines(signed_in: PulumiCli):
    terminal, questions = answering(create=False)
    with pytest.raises(KitError, match="has no stack dev"):
        require_stack(signed_in, terminal)
    assert len(questions) == 1


def test_a_missing_pulumi_stack_is_created_on_confirmation_and_its_file_is_kept(signed_in: PulumiCli, tmp_path: Path):
    terminal, questions = answering(create=True)
    require_stack(signed_in, terminal)
    require_stack(signed_in)
    assert [question[:20] for question in questions] == ["The state backend ha", "a new passphrase"]
    text = (tmp_path / "stacks" / "Pulumi.dev.yaml").read_text()
    assert "llmd-oke:a: b # kept" in text
    assert "encryptionsalt" in text


def test_a_missing_state_passphrase_is_asked_for_on_a_terminal_and_else_an_error(
    signed_in: PulumiCli, monkeypatch: pytest.MonkeyPatch
):
    require_stack(signed_in, answering(create=True)[0])
    monkeypatch.delenv(PASSPHRASE)
    with pytest.raises(KitError, match="encrypted with a passphrase, and none is given") as refusal:
        require_stack(signed_in)
    assert f"{PASSPHRASE}_FILE" in (refusal.value.remedy or "")
    terminal, questions = answering(create=True)
    require_stack(signed_in, terminal)
    assert questions == ["the passphrase"]
    assert os.environ[PASSPHRASE] == "typed"
