"""Stacks that build on a file that several stacks share declare what the same stacks say alone."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke.config.yaml_files import text_of
from llmd_oke.testing import Rendered, render
from render_support import need_definitions
from stack_files import created_pool, created_stack


def declared(rendered: Rendered) -> list[tuple[Any, ...]]:
    return [(item.type, item.name, item.inputs, item.parent, item.protect) for item in rendered.resources]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    flat = created_stack(smoke={"where": "none"})
    need_definitions(flat["release"])
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "shared.yaml").write_text(text_of(flat))
    return tmp_path


def test_a_stack_with_a_base_file_declares_the_same_resources_as_one_in_full(project: Path):
    changes = {"namespace": "dev", "gpuPools": {"mi300x": {"size": 10}}, "smoke": {"requests": 8}}
    flat = created_stack(created_pool(size=10), namespace="dev", smoke={"where": "none", "requests": 8})
    based = render({"base": "shared.yaml", **changes}, project=project)
    assert declared(based) == declared(render(flat))


def test_the_pulumi_program_reports_problems_of_a_base_file_with_the_files_path(project: Path):
    (project / "stacks" / "small.yaml").write_text(text_of(created_stack(created_pool(size=1))))
    with pytest.raises(InvalidStack) as caught:
        render({"base": "small.yaml"}, project=project)
    assert {problem.file for problem in caught.value.problems} == {"stacks/small.yaml"}
    with pytest.raises(InvalidStack) as caught:
        render({"base": "other.yaml"}, project=project)
    (problem,) = caught.value.problems
    assert (problem.path, problem.accepted) == ("base", "one of shared.yaml, small.yaml")
