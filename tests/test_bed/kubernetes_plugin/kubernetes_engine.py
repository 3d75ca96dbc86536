"""The real engine, attached to the stand-in for Pulumi's plug-in for Kubernetes, and the charts that it may install."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulumi
import pytest
from kubernetes_control_plane import ControlPlane, program
from llmd_rehearsal.engine import EngineStack
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.kubernetes_plugin.readiness import WaitLimits
from llmd_rehearsal.kubernetes_plugin.server import start
from pulumi import automation
from pulumi_engine import count_changes, new_stack, use_pulumi

Program = Callable[[pulumi.ResourceOptions], None]


@contextmanager
def attached_engine(folder: Path) -> Generator[None]:
    """Have engines that are started meanwhile keep their state in a folder and attach to a stand-in."""
    server = start(limits=WaitLimits(settle_s=1))
    try:
        with pytest.MonkeyPatch.context() as environment:
            use_pulumi(environment, folder, PULUMI_DEBUG_PROVIDERS=f"kubernetes:{server.port}")
            yield
    finally:
        server.stop()


def engine_stack(folder: Path, plane: ControlPlane, program_: Program, *, force: bool = False) -> EngineStack:
    """Make a stack whose program gets options with a provider for the control plane, which forces or not."""

    def inline() -> None:
        import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

        provider = k8s.Provider("k", kubeconfig=plane.kubeconfig_text(), enable_patch_force=force or None)
        program_(pulumi.ResourceOptions(provider=provider))

    return new_stack(inline, automation.LocalWorkspaceOptions(str(folder)), "dev")


class Run:
    """Operations of one stack with programs that may change, by the real engine."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self._program: Program | None = None
        self._stack = engine_stack(folder, plane, self._declare)

    def _declare(self, options: pulumi.ResourceOptions) -> None:
        assert self._program
        self._program(options)

    def __call__(self, operation: str, program_: Program) -> tuple[Any, dict[str, int]]:
        """Run `preview`, `up` or `destroy`; return its result, and to how many resources it did what."""
        self._program = program_
        return count_changes(getattr(self._stack, operation))


def need_charts() -> Path:
    """Return the path of Helm; skip where it or a chart is missing."""
    if not program("helm").is_file():
        pytest.skip("no helm (looked in LLMD_OKE_PROGRAMS)")
    for module in (module for source in charts.sources() for module in source.modules()):
        if not module.path().is_dir():
            pytest.skip(f"{module.path()} is missing")
    return program("helm")
