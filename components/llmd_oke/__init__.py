"""Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X.

What other projects import: the components and their arguments. The stub beside this module (`__init__.pyi`) is the one
list of them. They are loaded when they are first used, because Pulumi's packages take a second and much of the kit
(planning, benchmarks, tuning) does without them.

    from llmd_oke import PrefillDecodeUnit, Router

For tests of your own programs there is `llmd_oke.testing`.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from llmd_oke.version import __version__ as __version__


def _modules() -> dict[str, str]:
    """Return the module of each public name, as the package's stub imports them."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    names = ((name.name, str(statement.module)) for statement in imports for name in statement.names)
    return {name: module for name, module in names if name != "__version__"}


_MODULES = _modules()

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll] - type checkers read the stub


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
