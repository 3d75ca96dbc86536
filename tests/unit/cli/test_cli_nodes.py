"""`llmd-oke nodes replace`: what is asked before nodes end undrained."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.cli import nodes
from llmd_oke.operations.draining import Drain

PLAN: Any = SimpleNamespace(kubeconfig_context=None)


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig whose API server doesn't answer."""

    def refuse(_: Drain) -> None:
        raise KitError("The API server can't be reached: connection refused")

    monkeypatch.setattr(nodes, "cluster_client", lambda _: None)
    monkeypatch.setattr(Drain, "require_cluster", refuse)


def test_nodes_are_not_replaced_undrained_if_the_api_server_is_unreachable(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KitError, match="Nodes can't be drained") as refused:
        nodes._drain(PLAN, 60, force=False, asks=False)
    assert "--no-drain" in (refused.value.remedy or "")
    assert "The API server can't be reached" in capsys.readouterr().err


@pytest.mark.parametrize("agreed", [True, False])
def test_on_a_terminal_users_are_asked_before_undrained_replacements(monkeypatch: pytest.MonkeyPatch, agreed: bool):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(nodes.typer, "confirm", lambda _: agreed)
    if agreed:
        assert nodes._drain(PLAN, 60, force=False, asks=True) is None
        return
    with pytest.raises(KitError, match="Nodes can't be drained"):
        nodes._drain(PLAN, 60, force=False, asks=True)
