"""A stack's state backed up, lost, restored and moved, by the real Pulumi CLI and backends of files."""

import json
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.cli.main import app
from llmd_oke.operations import state_archives, states
from llmd_oke.operations.backend import PASSPHRASE
from llmd_oke.operations.pulumi_cli import NoStackError, PulumiCli, pulumi_cli
from llmd_oke.operations.states import MoveOptions
from llmd_rehearsal.engine import Workspace
from pulumi_engine import KeptStack, count_changes, pulumi_command, state_file, use_pulumi
from typer.testing import CliRunner

pytestmark = pytest.mark.engine

PROJECT = "name: llmd-oke\nruntime: python\nstackConfigDir: stacks\n"
SECRET = "hf_the-planted-secret"
LIMIT_S = 60.0


@dataclass
class Kept:
    """A project whose stack `prod` has secrets in its state and its stack file."""

    project: Path
    pulumi: PulumiCli
    labels: list[str]

    @property
    def stack_file(self) -> Path:
        return self.project / "stacks" / "Pulumi.prod.yaml"

    @property
    def backend(self) -> Path:
        return self.project / "backend"

    def url(self, name: str) -> str:
        folder = self.project / name
        folder.mkdir(exist_ok=True)
        return f"file://{folder}"

    def cli(self) -> PulumiCli:
        """The CLI without what it knew of the state."""
        return pulumi_cli(self.project, "prod")

    def update(self, hold: Callable[[], None] = lambda: None) -> dict[str, int]:
        def program() -> None:
            hold()
            for label in self.labels:
                pulumi.ComponentResource("llmd-oke:index:Label", label)
            secret = pulumi.Config("llmd-oke").require_secret("huggingFaceToken")
            pulumi.export("token", secret.apply(lambda text: f"{text}!"))

        workspace = Workspace(str(self.project), program=program, pulumi_command=pulumi_command())
        file = state_file(os.environ["PULUMI_BACKEND_URL"], "llmd-oke", "prod")
        return count_changes(KeptStack("prod", workspace, file).up)[1]

    @contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """Have an engine hold the stack's lock during the block."""
        begun, end = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert end.wait(LIMIT_S)

        updating = threading.Thread(target=self.update, args=[hold])
        updating.start()
        assert begun.wait(LIMIT_S)
        try:
            yield
        finally:
            end.set()
            updating.join(LIMIT_S)

    def resources(self) -> list[dict[str, Any]]:
        """The resources of the backend's state with their secrets, by their names."""
        known = state_archives.resources(self.cli().export_with_secrets())
        return sorted(known, key=lambda item: str(item["urn"]))

    def backup(self) -> Path:
        file = self.project / "backup.tar.gz"
        state_archives.pack(self.cli()).write(file)
        return file

    def restore(self, file: Path, **how: Any) -> None:
        cli = self.cli()
        states.restore(cli, states.judge_restoration(cli, state_archives.read(file), **how))

    def everything(self) -> bytes:
        """All that lies in the project's folder: backends, archives with their content, stack files."""
        content = b""
        for file in filter(Path.is_file, self.project.rglob("*")):
            content += file.read_bytes()
            if file.name.endswith(".tar.gz"):
                with tarfile.open(file) as archive:
                    content += b"".join(part.read() for entry in archive if (part := archive.extractfile(entry)))
        return content


def use_project(monkeypatch: pytest.MonkeyPatch, project: Path) -> PulumiCli:
    own = {"PULUMI_BACKEND_URL": f"file://{project / 'backend'}", PASSPHRASE: "the first passphrase", "COLUMNS": "400"}
    use_pulumi(monkeypatch, project.parent, **own)
    return pulumi_cli(project, "prod")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose stack is deployed, for tests that go on with a copy."""
    project = tmp_path_factory.mktemp("deployed") / "project"
    for folder in ("stacks", "backend"):
        (project / folder).mkdir(parents=True)
    (project / "Pulumi.yaml").write_text(PROJECT)
    (project / "stacks" / "Pulumi.prod.yaml").write_text("config:\n  llmd-oke:a: b # why\n")
    with pytest.MonkeyPatch.context() as monkeypatch:
        cli = use_project(monkeypatch, project)
        cli.create_stack_unasked()
        words = [cli.program, "config", "set", "--secret", "llmd-oke:huggingFaceToken", "--stack", "prod"]
        subprocess.run(words, input=SECRET, text=True, cwd=project, check=True, capture_output=True)
        Kept(project, cli, ["a", "b"]).update()
    return project


@pytest.fixture
def kept(deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    project = tmp_path / "project"
    shutil.copytree(deployed, project)
    return Kept(project, use_project(monkeypatch, project), ["a", "b"])


def test_restoring_an_archive_brings_back_a_lost_state_and_stack_file(kept: Kept):
    before, file = kept.resources(), kept.backup()
    text = kept.stack_file.read_text()
    shutil.rmtree(kept.backend)
    kept.backend.mkdir()
    kept.stack_file.unlink()
    with pytest.raises(NoStackError):
        kept.cli().export()
    kept.restore(file)
    assert kept.resources() == before
    assert kept.stack_file.read_text() == text
    assert kept.update() == {"same": 3}
    assert SECRET.encode() not in kept.everything()


def test_a_state_archive_names_its_pulumi_version_and_only_its_owner_may_read_it(kept: Kept):
    file = kept.backup()
    archive = state_archives.read(file)
    engine = subprocess.run([kept.pulumi.program, "version"], check=True, capture_output=True, text=True).stdout.strip()
    assert archive.manifest.versions["pulumi"] == engine
    assert (archive.manifest.project, archive.manifest.stack, archive.manifest.resources) == ("llmd-oke", "prod", 3)
    assert archive.manifest.secrets == "passphrase"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.nightly
def test_a_state_newer_than_the_archive_is_overwritten_only_on_request(kept: Kept):
    file, old = kept.backup(), kept.resources()
    kept.labels.append("c")
    kept.update()
    newer = kept.cli().export()
    with pytest.raises(KitError, match=r"newer than the archive's, of .*\n  only in the backend: Label c"):
        kept.restore(file)
    assert kept.cli().export() == newer
    kept.restore(file, overwrite=True)
    assert kept.resources() == old


def test_restoring_the_state_that_the_backend_already_has_is_judged_unneeded(kept: Kept):
    assert not states.judge_restoration(kept.cli(), state_archives.read(kept.backup())).needed


def test_a_restoration_is_refused_at_once_while_a_pulumi_operation_holds_the_lock(kept: Kept):
    file = kept.backup()
    kept.labels.append("c")
    kept.update()
    before = kept.resources()
    with kept.engine_at_work(), pytest.raises(KitError, match="locked by 1 lock"):
        kept.restore(file, overwrite=True)
    assert kept.resources() == before


def test_restoring_an_archive_with_a_wrong_passphrase_creates_no_stack(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    file = kept.backup()
    monkeypatch.setenv("PULUMI_BACKEND_URL", kept.url("other"))
    monkeypatch.setenv(PASSPHRASE, "another")
    with pytest.raises(KitError, match="incorrect passphrase"):
        kept.restore(file)
    with pytest.raises(NoStackError):
        kept.cli().export()


def test_pending_operations_of_a_killed_pulumi_are_reported_before_they_are_dropped(kept: Kept):
    (checkpoint,) = (kept.backend / ".pulumi" / "stacks").rglob("prod.json")
    document = json.loads(checkpoint.read_text())
    latest = document["checkpoint"]["latest"]
    urn = "urn:pulumi:prod::llmd-oke::oci:Core/vcn:Vcn::network"
    begun = {"urn": urn, "custom": True, "type": "oci:Core/vcn:Vcn", "inputs": {}}
    latest["pending_operations"] = [{"resource": begun, "type": "creating"}]
    checkpoint.write_text(json.dumps(document))
    with pytest.raises(KitError, match="creating Vcn network") as refusal:
        states.refuse_move(kept.cli(), MoveOptions(kept.url("other")))
    assert "llmd-oke recover" in (refusal.value.remedy or "")
    file = kept.backup()
    shutil.rmtree(kept.backend)
    kept.backend.mkdir()
    assert states.judge_restoration(kept.cli(), state_archives.read(file)).lost == ("creating Vcn network",)
    kept.restore(file)
    assert kept.cli().export()["deployment"].get("pending_operations", []) == []


def test_moving_a_state_reencrypts_it_and_deletes_it_from_the_old_backend(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    before, url = kept.resources(), kept.url("other")
    salt = _salt(kept)
    new = kept.project / "new-passphrase"
    new.write_text("the second passphrase\n")
    states.move(kept.cli(), MoveOptions(url, "passphrase", new), Listener())
    with pytest.raises(NoStackError):
        kept.cli().export()
    monkeypatch.setenv("PULUMI_BACKEND_URL", url)
    with pytest.raises(KitError, match="passphrase"):
        kept.cli().export_with_secrets()
    monkeypatch.setenv(PASSPHRASE, "the second passphrase")
    assert kept.resources() == before
    assert kept.cli().secret("llmd-oke:huggingFaceToken") == SECRET
    assert _salt(kept) != salt
    assert "llmd-oke:a: b # why" in kept.stack_file.read_text()
    assert kept.update() == {"same": 3}
    assert SECRET.encode() not in kept.everything()


@pytest.mark.nightly
def test_moving_a_state_during_a_pulumi_operation_is_undone_completely(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    text, url = kept.stack_file.read_text(), kept.url("other")
    with kept.engine_at_work(), pytest.raises(KitError, match="can't be removed from its backend"):
        states.move(kept.cli(), MoveOptions(url), Listener())
    assert kept.stack_file.read_text() == text
    assert kept.update() == {"same": 3}
    monkeypatch.setenv("PULUMI_BACKEND_URL", url)
    with pytest.raises(NoStackError):
        kept.cli().export()


@pytest.mark.nightly
def test_moving_a_state_to_a_backend_with_a_different_stack_of_its_name_is_refused(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    url = kept.url("other")
    states.move(kept.cli(), MoveOptions(url, keep=True), Listener())
    kept.labels.append("c")
    kept.update()
    with pytest.raises(KitError, match="has a stack prod with 3 resources already"):
        states.move(kept.cli(), MoveOptions(url), Listener())
    assert kept.update() == {"same": 4}
    monkeypatch.setenv("PULUMI_BACKEND_URL", url)
    assert len(state_archives.resources(kept.cli().export())) == 3


def test_state_commands_back_up_compare_restore_and_move_a_stack(kept: Kept):
    def state(*words: str, status: int = 0) -> Any:
        ended = CliRunner().invoke(app, ["state", *words, "--project", str(kept.project), "--json"])
        assert ended.exit_code == status, (ended.output, ended.exception)
        return json.loads(ended.stdout) if ended.stdout else str(ended.exception)

    file = str(kept.project / "prod.tar.gz")
    packed = state("backup", "--stack", "prod", "--output", file)
    assert packed["resources"] == 3
    assert state("check", file, "--stack", "prod")["changed"] == []
    kept.labels.append("c")
    kept.update()
    assert state("check", file, "--stack", "prod", status=3)["only_in_backend"] == ["Label c"]
    assert "newer" in state("restore", file, "--stack", "prod", "--yes", status=1)
    saved = Path(state("restore", file, "--stack", "prod", "--yes", "--overwrite")["saved"])
    assert state_archives.read(saved).manifest.resources == 4
    archive = str(kept.project / "before.tar.gz")
    moved = state("move", "--stack", "prod", "--to", kept.url("other"), "--archive", archive, "--yes")
    assert Path(archive).is_file()
    assert moved["backend"] == kept.url("other")


def _salt(kept: Kept) -> str:
    return next(line for line in kept.stack_file.read_text().splitlines() if line.startswith("encryptionsalt"))
