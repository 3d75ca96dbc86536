"""A generated package that loads module by module is the same package to those who use it.

Each test has a package of its own, made lazy by Pulumi's SDK as a generated SDK does it.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from llmd_oke.sdk_modules import load_by_module

_FILES = {
    "__init__.py": "from pulumi._utils import lazy_import\ncore = lazy_import('{name}.core')\n",
    "core/__init__.py": "from .route_table import *\nfrom .get_services import *\nfrom .vcn import *\n"
    "from . import outputs\nLOADED = True\n",
    "core/outputs.py": "from . import outputs\n__all__ = ['Vcn']\nclass Vcn: kind = 'output'\n",
    "core/vcn.py": "from . import outputs\n__all__ = ['Vcn']\nclass Vcn: kind = 'resource'\n",
    "core/route_table.py": "from . import outputs\n__all__ = ['RouteTable', 'RouteTableArgs']\n"
    "class RouteTable: pass\nclass RouteTableArgs: pass\n",
    "core/get_services.py": "__all__ = ['get_services', 'get_services_output']\n"
    "def get_services(): return 1\ndef get_services_output(): return 2\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    name = f"generated_{abs(hash(request.node.name))}"
    for path, text in _FILES.items():
        file = tmp_path / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{name}", name))
    monkeypatch.syspath_prepend(tmp_path)
    load_by_module(name)
    return import_module(name)


def _modules(package: ModuleType) -> set[str]:
    start = f"{package.__name__}.core."
    return {name.removeprefix(start) for name in sys.modules if name.startswith(start)}


def _core(package: ModuleType) -> Any:
    return package.__dict__["core"]


def test_a_lazily_loaded_class_or_function_imports_its_own_module_alone(package: ModuleType):
    assert _core(package).get_services_output() == 2
    assert _modules(package) == {"get_services"}
    assert _core(package).RouteTable.__name__ == "RouteTable"
    assert _modules(package) == {"get_services", "route_table", "outputs"}


def test_lazily_loaded_names_are_not_hidden_by_modules_or_output_types(package: ModuleType):
    import_module(f"{package.__name__}.core.get_services")
    assert _core(package).get_services() == 1
    assert _core(package).outputs.Vcn.kind == "output"
    assert _core(package).Vcn.kind == "resource"


def test_a_lazy_name_without_its_own_module_loads_the_whole_package(package: ModuleType):
    vcn = _core(package).Vcn
    assert _core(package).LOADED
    assert _modules(package) == {"vcn", "outputs", "route_table", "get_services"}
    assert _core(package).Vcn is vcn


def test_an_unknown_name_in_a_lazily_loaded_package_is_an_attribute_error(package: ModuleType):
    with pytest.raises(AttributeError, match="Nothing"):
        _ = _core(package).Nothing


def test_a_star_import_of_a_lazily_loaded_package_imports_everything(package: ModuleType):
    matches: dict[str, Any] = {}
    exec(f"from {package.__name__}.core import *", matches)  # noqa: S102 - the statement is what is tested
    assert {"Vcn", "RouteTableArgs", "get_services"} <= matches.keys()


def test_lazy_loading_leaves_an_already_loaded_package_unchanged(package: ModuleType):
    assert _core(package).LOADED
    load_by_module(package.__name__)
    assert type(_core(package)) is ModuleType
