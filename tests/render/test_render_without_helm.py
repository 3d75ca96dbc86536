"""A machine without Helm, which renders the routers' chart."""

from typing import Any

import pytest
from created_cluster import cluster_layer, created
from llmd_oke.errors import KitError
from llmd_oke.serving import chart
from llmd_oke.stack import cluster


@pytest.fixture(autouse=True)
def no_helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart.shutil, "which", lambda _: None)


def test_a_missing_helm_is_told_before_anything_of_oci_is_declared(rendered: Any, monkeypatch: pytest.MonkeyPatch):
    begun: list[Any] = []
    monkeypatch.setattr(cluster, "create_cluster", lambda *args: begun.append(args))
    with pytest.raises(KitError, match="`helm` is not on PATH"):
        rendered(created())
    assert not begun


def test_the_cluster_layer_needs_no_helm(rendered: Any):
    assert rendered(cluster_layer()).outputs["cluster_id"]
