"""Limits of whole rehearsals: time, also where others use the machine, and room, as clusters end with their module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from llmd_rehearsal import running_rehearsals
from user_project import Project, project

__all__ = ["project"]

HERE = Path(__file__).parent
LIMIT_S = 1800
"""For a test and all that its fixtures rehearse; a minute or two on a quiet machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of this folder their limit."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="module", autouse=True)
def _clusters_end_with_their_module(project: Project) -> Iterator[None]:
    yield
    for cluster in (project.folder / running_rehearsals.FOLDER).glob("*/cluster.json"):
        running_rehearsals.down(project.folder, cluster.parent.name)
