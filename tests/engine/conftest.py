"""Stacks whose objects a plug-in of this process takes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from engine_servers import RecordingPlugin, serving
from pulumi import automation
from pulumi.automation import PulumiFn
from pulumi_engine import KeptStack, new_stack, use_pulumi


@pytest.fixture
def stack_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KeptStack]]:
    """A function that returns a stack of a program in the folder `work`, and serves the plug-in of its objects."""
    work = tmp_path / "work"
    work.mkdir()
    with ExitStack() as ends:

        def make(
            plugin: RecordingPlugin,
            program: PulumiFn,
            name: str = "test",
            packages: Sequence[str] = ("kubernetes",),
            *,
            logs: bool = False,
        ) -> KeptStack:
            port = ends.enter_context(serving(plugin))
            plugins = ",".join(f"{package}:{port}" for package in packages)
            use_pulumi(monkeypatch, tmp_path, logs=logs, PULUMI_DEBUG_PROVIDERS=plugins)
            return new_stack(program, automation.LocalWorkspaceOptions(str(work)), name)

        yield make
