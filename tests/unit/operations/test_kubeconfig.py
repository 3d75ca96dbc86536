import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke import planning
from llmd_oke.operations.kubeconfig import cluster_kubeconfig
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from stack_files import PROJECT


def of_cluster(stack: str, ended: CommandResult, asked: list[Sequence[str]]) -> AbstractContextManager[None]:
    """The kubeconfig of a stack's cluster, which Pulumi answers with."""

    def run(argv: Sequence[str], _: bool) -> CommandResult:
        asked.append(argv)
        return ended

    return cluster_kubeconfig(PulumiCli(PROJECT, stack, "pulumi", run), planning.plan_stack_file(PROJECT, stack))


def test_kubeconfig_points_to_a_created_cluster_only_while_the_cluster_is_queried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", "/home/me/.kube/another-cluster")
    asked: list[Sequence[str]] = []
    with of_cluster("reference", CommandResult(0, "kind: Config"), asked):
        path = Path(os.environ["KUBECONFIG"])
        assert path.read_text() == "kind: Config"
        assert path.parent.stat().st_mode & 0o077 == 0
    assert asked[0][1:5] == ["stack", "output", "kubeconfig", "--show-secrets"]
    assert not path.exists()
    assert os.environ["KUBECONFIG"] == "/home/me/.kube/another-cluster"


def test_for_an_existing_cluster_kubeconfig_in_the_environment_stays_unchanged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    asked: list[Sequence[str]] = []
    with of_cluster("guide", CommandResult(0), asked):
        assert "KUBECONFIG" not in os.environ
    assert not asked


def test_a_created_cluster_whose_stack_has_no_kubeconfig_output_is_an_error():
    failed = CommandResult(1, errors="error: current stack does not have output property 'kubeconfig'")
    with pytest.raises(KitError, match="does not have output property"), of_cluster("reference", failed, []):
        pytest.fail("queried")
