"""A control plane without nodes of its own, and somebody who plays the pods."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kubernetes_control_plane import ControlPlane, missing_programs
from kubernetes_engine import Run, attached_engine
from kubernetes_pods import PodPlayer


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, shared_by_folder: ExitStack) -> ControlPlane:
    missing = missing_programs()
    if missing:
        pytest.skip(f"no {', '.join(missing)} (looked in LLMD_OKE_PROGRAMS)")
    plane = shared_by_folder.enter_context(ControlPlane.running(tmp_path_factory.mktemp("control-plane")))
    shared_by_folder.enter_context(PodPlayer.playing(plane))
    return plane


@pytest.fixture(scope="session")
def recordings() -> Path:
    folder = Path(__file__).resolve().parents[4] / "shared" / "data" / "kubernetes-provider"
    if not folder.is_dir():
        pytest.skip(f"no recordings of the real plug-in at {folder}")
    return folder


@pytest.fixture
def run(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Run]:
    with attached_engine(tmp_path):
        yield Run(tmp_path, control_plane)
