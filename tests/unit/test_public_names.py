import ast
from importlib import import_module
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(root).parent.parts)
    for root in (PROJECT / "components", PROJECT / "packages")
    for path in sorted(root.rglob("__init__.py"))
    if any(isinstance(node, ast.Assign) and "__all__" in ast.unparse(node) for node in ast.parse(path.read_text()).body)
]


@pytest.mark.parametrize("name", MODULES)
def test_every_name_in_a_modules_all_exists_in_the_module(name: str):
    module = import_module(name)
    assert [item for item in module.__all__ if not hasattr(module, item)] == []
