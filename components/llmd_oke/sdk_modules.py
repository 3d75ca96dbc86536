"""Pulumi's generated packages, loaded module by module.

`pulumi_oci.core` is one package of 250 modules. Pulumi loads a package when its first name is used, and then all of it:
more than half a second of processor time for the packages that a cluster needs thirty classes of. Each class lies in a
module that is named after it, so that it can be loaded alone: 1.05 s of processor time less for a stack with a
cluster (decision 0113).
"""

import re
import sys
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

TYPES_OF_OUTPUTS = "outputs"
"""Name of the only module of a generated package whose names the package doesn't export."""


@cache
def plugin_version(package: str) -> str:
    """Return the version of the provider plug-in that belongs to an installed Pulumi package: both have the same."""
    return metadata.version(package)


def load_by_module(package: str) -> None:
    """Make the subpackages of a generated Pulumi package (such as `pulumi_oci`) load only the modules of the classes
    that are used.

    Subpackages that are loaded already stay as they are. A name that has no module of its own is looked up as usual, by
    loading its whole subpackage.
    """
    import_module(package)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        module = sys.modules[name]
        if type(module).__name__ == "_LazyModule":  # the SDK's or importlib's; plain once it is loaded
            module.__class__ = _by_module(type(module))


def _by_module(lazy: type[ModuleType]) -> type[ModuleType]:
    class ByModule(ModuleType):
        """A package that has loaded nothing but the modules that were asked for."""

        def __getattr__(self, name: str) -> Any:
            for module in (name, name.removesuffix("_output"), re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()):
                if find_spec(f"{self.__name__}.{module}"):
                    self.__dict__.setdefault(module, import_module(f"{self.__name__}.{module}"))  # where it asks itself
                    break
            if name not in self.__dict__:
                ModuleType.__setattr__(self, "__class__", lazy)  # which loads all of it at the next question
            return getattr(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            """Python tells a package of each module that it has loaded; its names are the package's too."""
            super().__setattr__(name, value)
            if name != TYPES_OF_OUTPUTS:
                self.__dict__.update({public: getattr(value, public) for public in getattr(value, "__all__", ())})

    return ByModule
