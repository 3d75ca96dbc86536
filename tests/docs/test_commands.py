"""Commands of README, docs and examples run: each block from its first line to its last, in a project of the user's."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

import pytest
from documented_commands import CommandPlace, DocumentedCommand, documented_commands, rules
from documented_project import DocumentedProject
from llmd_oke import catalogue
from llmd_oke.cli.main import app
from llmd_oke.values import cache_folder, module_folder
from pulumi_engine import home_without_logs
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
COMMANDS = documented_commands()
IN_THIS_PROCESS = re.compile(r"(llmd-oke (?:'[^']*'|[^'|&;<>$()\n*])*?)(?: > (\S+))?")
"""A command of the kit's that needs no shell, with the file that its output goes to."""

LIMIT_S = 120
"""For the commands of a block that a shell runs."""

WORDS = {"NAME": "qwen3-32b", "COMMIT": "0" * 40, "OCID": "ocid1.group.oc1..aaaa"}
"""What somebody writes in the place of words in capitals, where these are no names of files."""

ASKS_FOR_VALUE = re.compile(r"pulumi config set (--secret )?(--path )?[\w-]+:\S+( --secret)?( --stack \w+)?")
ASKS_FOR_YES = re.compile(r"pulumi stack rm .*")
DEPLOYED = ("S", "prod", "cluster")
"""Stacks of which the commands for Pulumi's CLI tell; `S` is selected."""


def blocks(place: CommandPlace) -> list[list[DocumentedCommand]]:
    """The commands that are run in a place, those of one block together; equal blocks of docs once, by the first."""
    found = [command for command in COMMANDS if command.place is place]
    grouped = groupby(found, key=lambda command: (command.page, command.block or command.text))
    different = dict[tuple[object, ...], list[DocumentedCommand]]()
    for block in (list(commands) for _, commands in grouped):
        different.setdefault((example_of(block), *(command.text for command in block)), block)
    return list(different.values())


def example_of(block: list[DocumentedCommand]) -> Path | None:
    """Return the folder of the example that a block belongs to."""
    folder = block[0].page.parent
    return folder if folder.parent == ROOT / "examples" else None


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


@pytest.fixture(scope="module")
def deployed(prepared: DocumentedProject, tmp_path_factory: pytest.TempPathFactory) -> DocumentedProject:
    """The project with its stacks deployed, with two outputs, in a backend in a folder."""
    programs = Path(os.environ["LLMD_OKE_PROGRAMS"])
    if not (programs / "pulumi").exists():
        pytest.skip("no Pulumi CLI: scripts/test builds it")
    folder = tmp_path_factory.mktemp("deployed")
    own = prepared.copy(folder / "project")
    (own.folder / "state").mkdir()
    texts: list[str] = []
    for name in DEPLOYED:
        (folder / f"{name}.json").write_text(json.dumps(state_of(name)))
        texts += [f"pulumi stack init {name}", f"pulumi stack import --stack {name} --file {folder}/{name}.json"]
    with pytest.MonkeyPatch.context() as patch:
        enter(own, folder, patch)
        use_backend(own, folder, patch)
        run_in_shell(texts)
    return own


def enter(project: DocumentedProject, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a project, with the home of somebody who isn't signed in to anything."""
    home = folder / "home"
    (home / ".kube").mkdir(parents=True)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("LLMD_OKE_CACHE", str(cache_folder()))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{project.folder}/.venv/bin:{os.environ['PATH']}")


def use_backend(project: DocumentedProject, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Pulumi's CLI keep states in the project's folder, with a passphrase."""
    monkeypatch.setenv("PATH", f"{os.environ['LLMD_OKE_PROGRAMS']}:{os.environ['PATH']}")
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{project.folder}/state")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "of these tests")
    monkeypatch.setenv("PULUMI_HOME", home_without_logs(folder / "pulumi"))


LONG = [pytest.param(block, marks=pytest.mark.nightly) for block in blocks(CommandPlace.NIGHT)]


@pytest.mark.parametrize("block", [*blocks(CommandPlace.HERE), *LONG], ids=label)
def test_commands_of_a_documented_code_block_succeed(
    block: list[DocumentedCommand], prepared: DocumentedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = prepared.copy(tmp_path / "project")
    enter(project, tmp_path, monkeypatch)
    texts = [re.sub(r"\b[A-Z]+\b", lambda word: WORDS.get(word[0], word[0]), command.text) for command in block]
    if example := example_of(block):
        monkeypatch.chdir(shutil.copytree(example, tmp_path / example.name))
    project.write_stacks_for("\n".join(texts))
    simple = [IN_THIS_PROCESS.fullmatch(text) for text in texts]
    if not all(simple):
        run_in_shell(texts)
        return
    for command in filter(None, simple):
        ended = CliRunner().invoke(app, shlex.split(command[1])[1:])
        assert ended.exit_code == 0, f"{command[1]}\n{ended.output}\n{ended.exception!r}"
        if command[2]:
            Path(command[2]).write_text(ended.stdout)


@pytest.mark.engine
@pytest.mark.parametrize("block", blocks(CommandPlace.PULUMI), ids=label)
def test_documented_commands_that_need_pulumi_succeed_on_a_deployed_stack(
    block: list[DocumentedCommand],
    prepared: DocumentedProject,
    deployed: DocumentedProject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    project = deployed.copy(tmp_path / "project")
    enter(project, tmp_path, monkeypatch)
    use_backend(project, tmp_path, monkeypatch)
    monkeypatch.setenv("PULUMI_STACK", DEPLOYED[0])
    texts = [answered(command.text) for command in block]
    for name in re.findall(r"stack init (\w+)", "\n".join(texts)):  # these aren't there yet
        (project.folder / "state" / ".pulumi" / "stacks" / "llmd-oke" / f"{name}.json").unlink()
        shutil.copy(prepared.folder / "stacks" / f"Pulumi.{name}.yaml", project.folder / "stacks")
    run_in_shell(texts)


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


def test_every_pattern_that_decides_how_commands_are_tested_matches_a_documented_one():
    patterns = [(rule, pattern) for rule in rules() for pattern in rule.commands]
    used = {
        (id(command.rule), pattern)
        for command in COMMANDS
        if command.rule
        for pattern in command.rule.commands
        if fnmatchcase(command.text, pattern)
    }
    assert [pattern for rule, pattern in patterns if (id(rule), pattern) not in used] == []


@pytest.mark.parametrize("by", sorted({rule.by for rule in rules() if rule.by}))
def test_each_file_or_test_that_is_said_to_run_a_documented_command_exists(by: str):
    file, _, test = by.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).is_file()


def test_documented_commands_that_no_test_runs_need_oci_a_gpu_or_a_hosted_service():
    services = ("OCI", "GPU", "registry", "Hugging Face", "GitHub", "PyPI", "identity provider", "DNS", "Pulumi Cloud")
    reasons = {rule.because for rule in rules() if rule.place is CommandPlace.EXEMPT}
    assert [reason for reason in reasons if not any(service in reason for service in services)] == []
