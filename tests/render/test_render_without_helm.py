"""A machine without Helm, which renders the routers' chart."""

from typing import Any

import pytest
from created_cluster import cluster_layer, created
from llmd_oke.errors import KitError
from llmd_oke.serving import chart
from llmd_oke.stack import cluster
from llmd_oke.testing import render


@pytest.fixture(autouse=True)
def no_helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart.shutil, "which", lambda _: None)


def test_a_missing_helm_is_told_before_anything_of_oci_is_declared(monkeypatch: pytest.MonkeyPatch):
    begun: list[Any] = []
    monkeypatch.setattr(cluster, "create_cluster", lambda *args: begun.append(args))
    with pytest.raises(KitError, match="`helm` is not on PATH"):
        render(created())
    assert not begun


def test_the_cluster_layer_needs_no_helm():
    assert render(cluster_layer()).outputs["cluster_id"]
