"""Rehearsals of a project: their folders, commands inside, and servers that go first."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.operations.locks import file_lock
from llmd_rehearsal import rehearsal, running_rehearsals
from llmd_rehearsal.engine_operations import pre_scale_down, removed_servers
from llmd_rehearsal.engine_project import checkpoint_file
from llmd_rehearsal.local_cluster import LocalCluster, command_line
from llmd_rehearsal.rehearsal import Prepared
from stack_files import model, plan


@pytest.fixture(autouse=True)
def interrupted_inside(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C is pressed while the command runs, here in no namespace."""

    @contextlib.contextmanager
    def process_inside(*_: Any, **__: Any) -> Iterator[subprocess.Popen[str]]:
        command = subprocess.Popen(["sleep", "1000"], text=True, start_new_session=True)
        with command as process, monkeypatch.context() as pressed:
            pressed.setattr(process, "wait", _press)
            try:
                yield process
            finally:
                process.kill()

    monkeypatch.setattr(LocalCluster, "process_inside", process_inside)


def _press() -> int:
    raise KeyboardInterrupt


def test_ctrl_c_ends_an_interruptible_command_with_130_and_goes_through_another(tmp_path: Path):
    assert running_rehearsals.run_command(tmp_path, "s", ["sleep", "1000"], interruptible=True) == 130
    with pytest.raises(KeyboardInterrupt):
        running_rehearsals.run_command(tmp_path, "s", ["sleep", "1000"])


def test_network_policies_that_the_machine_cannot_enforce_count_as_simulated(tmp_path: Path):
    assert rehearsal.unenforced_policies(tmp_path) == ()
    (tmp_path / "network-policies").write_text("")
    assert rehearsal.unenforced_policies(tmp_path) == ()
    (tmp_path / "network-policies").write_text("nf_tables: Protocol not supported")
    (output,) = rehearsal.unenforced_policies(tmp_path)
    assert output.startswith("NetworkPolicies (declared; not enforced")
    assert "nf_tables: Protocol not supported" in output


@pytest.mark.parametrize("name", ["..", ".", "", "../..", "a/b", "/etc", "~", "a b", "a\n"])
def test_an_invalid_stack_name_is_refused_as_a_folder_of_a_rehearsal(tmp_path, name):
    with pytest.raises(KitError, match="is no name of a stack"):
        running_rehearsals.rehearsal_folder(tmp_path, name)


@pytest.mark.parametrize("name", ["..", "../..", "../stacks"])
def test_rehearse_down_removes_nothing_outside_its_folder(tmp_path, name):
    rest = tmp_path / "stacks" / "Pulumi.mine.yaml"
    rest.parent.mkdir()
    rest.write_text("config: {}")
    with pytest.raises(KitError):
        running_rehearsals.down(tmp_path, name)
    assert rest.exists()


@pytest.mark.parametrize("name", ["rehearsal", "guide-baseline", "a.b_c", "..a"])
def test_a_rehearsals_folder_in_the_project_has_the_name_of_its_stack(tmp_path, name):
    assert running_rehearsals.rehearsal_folder(tmp_path, name) == tmp_path / ".rehearsal" / name


def test_rehearse_down_says_whether_there_was_a_rehearsal(tmp_path):
    assert not running_rehearsals.down(tmp_path, "never-up")
    folder = tmp_path / ".rehearsal" / "once-up"
    (folder / "logs").mkdir(parents=True)
    (folder / "kubeconfig.yaml").touch()
    assert running_rehearsals.down(tmp_path, "once-up")
    assert not running_rehearsals.down(tmp_path, "once-up")
    assert (folder / "logs").is_dir()


class Listener(SilentProgress):
    def __init__(self) -> None:
        self.waits = threading.Event()

    def step(self, text: str) -> None:
        self.waits.set()


def test_a_second_rehearsal_of_the_same_stack_waits_for_the_firsts_lock(tmp_path: Path):
    order: list[str] = []
    listener = Listener()

    def second() -> None:
        with file_lock(tmp_path / "lock", "finish", listener, timeout_s=10):
            order.append("second")

    with file_lock(tmp_path / "lock", "finish", SilentProgress(), timeout_s=10):
        thread = threading.Thread(target=second)
        thread.start()
        assert listener.waits.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_waiting_for_the_lock_of_another_rehearsal_has_a_time_limit(tmp_path: Path):
    with (
        file_lock(tmp_path / "lock", "finish", SilentProgress(), timeout_s=1),
        pytest.raises(KitError, match="Another program has held"),
        file_lock(tmp_path / "lock", "finish", SilentProgress(), timeout_s=0.05),
    ):
        pass


PLAN = plan(model("4p-tp1-2d-tp2"), nodes=1)


def deployment(name: str, gpus: int) -> dict[str, Any]:
    container = {"resources": {"limits": {"amd.com/gpu": str(gpus)} if gpus else {}}}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {"type": "kubernetes:apps/v1:Deployment", "inputs": {"metadata": {"name": name}, "spec": spec}}


def state(folder: Path, *resources: dict[str, Any]) -> Path:
    file = folder / "stack.json"
    file.write_text(json.dumps({"version": 3, "checkpoint": {"latest": {"resources": resources}}}))
    return file


def test_deployed_model_servers_that_the_plan_lacks_count_as_removed(tmp_path: Path):
    servers = [deployment("gpt-oss-120b-aggregated", 1), deployment("gpt-oss-120b-prefill", 1)]
    file = state(tmp_path, *servers, deployment("old-router-epp", 0))
    assert removed_servers(file, PLAN) == ["gpt-oss-120b-aggregated"]


def test_deployments_count_as_removed_once_their_roles_are_a_disaggregatedset(tmp_path: Path):
    container = {"resources": {"limits": {"amd.com/gpu": "1"}}}
    template = {"workerTemplate": {"spec": {"containers": [container]}}}
    roles = [{"name": "prefill", "spec": {"replicas": 4, "leaderWorkerTemplate": template}}]
    kind = "kubernetes:disaggregatedset.x-k8s.io/v1:DisaggregatedSet"
    own = {"type": kind, "inputs": {"metadata": {"name": "gpt-oss-120b"}, "spec": {"roles": roles}}}
    file = state(tmp_path, own, deployment("gpt-oss-120b-prefill", 1))
    together = plan(model("4p-tp1-2d-tp2", disaggregatedSet=True), nodes=1, release="llm-d-0.10.0")
    assert removed_servers(file, together) == ["gpt-oss-120b-prefill"]
    assert removed_servers(file, PLAN) == ["gpt-oss-120b"]


def test_a_stack_without_a_pulumi_state_has_no_removed_servers(tmp_path: Path):
    assert removed_servers(tmp_path / "absent.json", PLAN) == []
    (tmp_path / "empty.json").write_text('{"version": 3, "checkpoint": {"stack": "s"}}')
    assert removed_servers(tmp_path / "empty.json", PLAN) == []


def test_an_update_of_a_truncated_pulumi_state_goes_on_from_its_backup(tmp_path: Path):
    prepared = SimpleNamespace(state=tmp_path / ".rehearsal" / "s", stack="s", plan=PLAN)
    copy = prepared.state / "project"
    copy.mkdir(parents=True)
    (copy / "Pulumi.yaml").write_text("name: mine")
    checkpoint = checkpoint_file(prepared.state, "s")
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text('{"version": 3, "checkp')
    checkpoint.with_name("s.json.bak").write_text('{"version": 3, "checkpoint": {"stack": "s"}}')
    assert pre_scale_down(cast("Prepared", prepared), SilentProgress()) is None
    assert json.loads(checkpoint.read_text())["version"] == 3


def test_commands_to_type_name_a_project_that_the_shell_would_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMD_OKE_PROJECT", raising=False)
    assert command_line(tmp_path, "down") == "llmd-oke rehearse down"
    assert command_line(tmp_path / "other", "down") == f"llmd-oke rehearse down --project {tmp_path}/other"
    monkeypatch.setenv("LLMD_OKE_PROJECT", str(tmp_path / "other"))
    assert command_line(tmp_path / "other", "down") == "llmd-oke rehearse down"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "rehearse").touch()
    assert command_line(tmp_path / "other", "down") == "scripts/rehearse down"
