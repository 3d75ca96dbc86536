"""Commands of README, docs and examples run: each block from its first line to its last, in a project of the user's."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

import pytest
from documented_project import DocumentedProject
from llmd_oke import catalogue
from llmd_oke.cli.main import app
from llmd_oke.values import cache_folder, module_folder
from pulumi_engine import home_without_logs
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "dev"))

from documented_commands import CommandPlace, DocumentedCommand, counted, documented_commands, rules

ROOT = Path(__file__).parents[2]
COMMANDS = documented_commands()
SHELL = re.compile(r"[|&;<>$()\n*]")
LIMIT_S = 120
"""For the commands of a block that a shell runs."""

WORDS = {"NAME": "qwen3-32b", "COMMIT": "0" * 40, "OCID": "ocid1.group.oc1..aaaa"}
"""What somebody writes in the place of words in capitals, where these are no names of files."""

ASKS_FOR_VALUE = re.compile(r"pulumi config set (--secret )?(--path )?[\w-]+:\S+( --secret)?( --stack \w+)?")
ASKS_FOR_YES = re.compile(r"pulumi stack rm .*")


def blocks(place: CommandPlace) -> list[list[DocumentedCommand]]:
    """The commands that are run in a place, those of one block together."""
    found = [command for command in COMMANDS if command.place is place]
    return [
        list(block) for _, block in groupby(found, key=lambda command: (command.page, command.block or command.text))
    ]


def label(block: list[DocumentedCommand]) -> str:
    return block[0].where


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> DocumentedProject:
    release = catalogue.release("llm-d-0.9.0")
    if release and not module_folder(release.crds.module, release.crds.version).is_dir():
        pytest.skip("the definitions of llm-d-0.9.0 are not on this machine: scripts/test gets them")
    folder = tmp_path_factory.mktemp("documented") / "project"
    folder.mkdir()
    return DocumentedProject.prepare(folder)


@pytest.fixture
def project(prepared: DocumentedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DocumentedProject:
    """A copy of the project, with the home of somebody who isn't signed in to anything."""
    own = prepared.copy(tmp_path / "project")
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    monkeypatch.chdir(own.folder)
    monkeypatch.setenv("LLMD_OKE_CACHE", str(cache_folder()))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{own.folder}/.venv/bin:{os.environ['PATH']}")
    return own


LONG = [pytest.param(block, marks=pytest.mark.nightly) for block in blocks(CommandPlace.NIGHT)]


@pytest.mark.parametrize("block", [*blocks(CommandPlace.HERE), *LONG], ids=label)
def test_commands_of_a_documented_code_block_succeed(
    block: list[DocumentedCommand], project: DocumentedProject, monkeypatch: pytest.MonkeyPatch
):
    texts = [re.sub(r"\b[A-Z]+\b", lambda word: WORDS.get(word[0], word[0]), command.text) for command in block]
    if block[0].page.parent.parent == ROOT / "examples":
        monkeypatch.chdir(example_of(project, block[0].page.parent.name))
    project.write_stacks_for("\n".join(texts))
    if all(text.startswith("llmd-oke ") and not SHELL.search(text) for text in texts):
        for text in texts:
            ended = CliRunner().invoke(app, shlex.split(text)[1:])
            assert ended.exit_code == 0, f"{text}\n{ended.output}\n{ended.exception!r}"
    else:
        run_in_shell(texts)


@pytest.mark.engine
@pytest.mark.parametrize("block", blocks(CommandPlace.PULUMI), ids=label)
def test_documented_commands_that_need_pulumi_succeed_on_a_deployed_stack(
    block: list[DocumentedCommand], project: DocumentedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A backend in a folder with a passphrase, and the stack that the commands name, deployed with two outputs."""
    programs = Path(os.environ["LLMD_OKE_PROGRAMS"])
    if not (programs / "pulumi").exists():
        pytest.skip("no Pulumi CLI: scripts/test builds it")
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/state")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "of these tests")
    monkeypatch.setenv("PULUMI_HOME", home_without_logs(tmp_path / "pulumi"))
    texts = [answered(command.text) for command in block]
    before: list[str] = []
    for name in stacks_before("\n".join(texts)):
        (tmp_path / f"{name}.json").write_text(json.dumps(state_of(name)))
        before += [f"pulumi stack init {name}", f"pulumi stack import --stack {name} --file {tmp_path}/{name}.json"]
    run_in_shell([*before, *texts])


def state_of(stack: str) -> dict[str, object]:
    """The state of a stack that is deployed, with the outputs that the pages read."""
    outputs = {"kubeconfig": "apiVersion: v1", "front_door": "https://llm.example.com"}
    urn = f"urn:pulumi:{stack}::llmd-oke::pulumi:pulumi:Stack::llmd-oke-{stack}"
    manifest = {"time": "2026-01-01T00:00:00Z", "magic": "", "version": ""}
    resource = {"urn": urn, "type": "pulumi:pulumi:Stack", "outputs": outputs}
    return {"version": 3, "deployment": {"manifest": manifest, "resources": [resource]}}


def answered(text: str) -> str:
    """Return a command with the answer to what it asks on a terminal."""
    if ASKS_FOR_VALUE.fullmatch(text):
        return f"echo of-these-tests | {text}"
    return f"{text} --yes" if ASKS_FOR_YES.fullmatch(text) else text


def stacks_before(commands: str) -> list[str]:
    """The stacks that are there before the commands: those that they name and don't make."""
    made = set(re.findall(r"stack init (\w+)", commands))
    named = re.findall(r"(?:--stack|--force) (?:organization/llmd-oke/)?(\w+)", commands) or ["S"]
    return [name for name in dict.fromkeys(named) if name not in made]


def run_in_shell(texts: list[str]) -> None:
    """Run commands in one shell, which ends with the first that fails."""
    script = "\n".join(["set -euxo pipefail", *texts])
    with subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as shell:
        try:
            said, _ = shell.communicate(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, said


def example_of(project: DocumentedProject, name: str) -> Path:
    """Copy an example as a project of its own; return its folder."""
    folder = project.folder.parent / name
    shutil.copytree(ROOT / "examples" / name, folder)
    return folder


def test_every_pattern_that_decides_how_commands_are_tested_matches_a_documented_one():
    patterns = [(rule, pattern) for rule in rules() for pattern in rule.commands]
    used = {(id(command.rule), pattern) for command in COMMANDS for pattern in decided_by(command)}
    assert [pattern for rule, pattern in patterns if (id(rule), pattern) not in used] == []


def decided_by(command: DocumentedCommand) -> list[str]:
    return [pattern for pattern in command.rule.commands if fnmatchcase(command.text, pattern)] if command.rule else []


@pytest.mark.parametrize("by", sorted({rule.by for rule in rules() if rule.by}))
def test_each_file_or_test_that_is_said_to_run_a_documented_command_exists(by: str):
    file, _, test = by.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).is_file()


def test_documented_commands_that_no_test_runs_need_oci_a_gpu_or_a_hosted_service():
    services = ("OCI", "GPU", "registry", "Hugging Face", "GitHub", "PyPI", "identity provider", "DNS", "Pulumi Cloud")
    reasons = {rule.because for rule in rules() if rule.place is CommandPlace.EXEMPT}
    assert [reason for reason in reasons if not any(service in reason for service in services)] == []


def test_docs_tests_print_how_many_documented_commands_they_found(capsys: pytest.CaptureFixture[str]):
    with capsys.disabled():
        sys.stdout.write(f"\n{counted().splitlines()[0]}\n")
